"""Checks limits, rounds them as all runtimes do, and finds the wanted limits that a run does not have yet."""

import math

from msgspec.structs import replace

from weft.domain.shares import WHOLE
from weft.domain.spec import EGRESS_BYTES_MIN, MEMORY_BYTES_MAX
from weftd.executor.runs import NO_LIMIT, Limits

CPUS_MAX = 4096.0
CPU_STEPS = 100_000  # in a core: the kernel's period, in microseconds
CPU_STEPS_MIN = 1_000  # the kernel refuses less
MEMORY_BYTES_MIN = 6 << 20  # the engine refuses less
MEMORY_STEP = 64 << 10  # the largest page; the kernel rounds down to whole ones
EGRESS_BYTES_MAX = 32 << 30  # faster than any link


def fault(limits: Limits) -> str:
    """Why these limits are invalid; empty if they are valid."""
    if limits.cpus is not None and not 0 < limits.cpus <= CPUS_MAX:  # NaN too
        return f"cpus {limits.cpus} is not between 0 and {CPUS_MAX:g}"
    if limits.memory is not None and not 0 < limits.memory <= MEMORY_BYTES_MAX:
        return f"memory {limits.memory} is not between 1 and {MEMORY_BYTES_MAX}"
    if limits.egress is not None and limits.egress != NO_LIMIT and limits.egress < EGRESS_BYTES_MIN:
        return f"egress {limits.egress} is less than {EGRESS_BYTES_MIN} bytes per second"
    if (share := limits.share) is not None:
        if not 0 < share.request <= share.limit <= WHOLE:
            return f"share: not 0 < request {share.request} <= limit {share.limit} <= {WHOLE} thousandths"
        if not 0 < share.memory <= MEMORY_BYTES_MAX:
            return f"share: memory {share.memory} is not between 1 and {MEMORY_BYTES_MAX}"
    return ""


def quota(cpus: float) -> int:
    """Microseconds of CPU in each period of CPU_STEPS."""
    return max(CPU_STEPS_MIN, round(cpus * CPU_STEPS))


def settled(limits: Limits) -> Limits:
    """The limits as every runtime rounds them, to compare two. For limits without a fault, or as found."""
    cpus, memory, egress = limits.cpus, limits.memory, limits.egress
    return Limits(
        cpus=cpus if cpus is None or math.isinf(cpus) else quota(cpus) / CPU_STEPS,
        memory=None if memory is None else max(MEMORY_BYTES_MIN, memory // MEMORY_STEP * MEMORY_STEP),
        egress=None if egress is None else min(egress, EGRESS_BYTES_MAX),
        # Of which kind and class a job is holds it to nothing.
        share=None if limits.share is None else replace(limits.share, kind="", job_class=""),
    )


def lacking(found: Limits, wanted: Limits) -> Limits | None:
    """The `wanted` limits that a run lacks, without those that cannot be enforced there. None if it lacks none."""
    has, wants = settled(found), settled(wanted)
    missing = Limits(
        cpus=wanted.cpus if has.cpus is not None and wants.cpus != has.cpus else None,
        memory=wanted.memory if has.memory is not None and wants.memory != has.memory else None,
        egress=wanted.egress if has.egress is not None and wants.egress != has.egress else None,
        share=wanted.share if has.share is not None and wants.share != has.share else None,
    )
    return None if missing == Limits() else missing


def shown(limits: Limits) -> str:
    """The limits in words: `2.5 CPUs, 1073741824 bytes of memory, no limit of egress`."""
    words = []
    if limits.cpus is not None:
        words.append(f"{limits.cpus:g} CPUs")
    if limits.memory is not None:
        words.append(f"{limits.memory} bytes of memory")
    if limits.egress is not None:
        words.append("no limit of egress" if limits.egress == NO_LIMIT else f"{limits.egress} bytes/s of egress")
    if (share := limits.share) is not None:
        words.append(
            f"{share.request / WHOLE:g} to {share.limit / WHOLE:g} of a GPU with {share.memory} bytes of its memory"
        )
    return ", ".join(words)
