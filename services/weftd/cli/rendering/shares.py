"""The shared GPUs of a job: GPU time received, slowdown, and the jobs beside it."""

from collections.abc import Sequence

from weft.domain.quantity import size_text
from weft.domain.text import plural
from weft.messages.http.explanation import BesideSeen, ShareSeen
from weftd.cli.formatting import clean, share_text

NOTABLE = 0.005  # of the GPU's time: less is shown as nothing
UNCOUNTED_NOTABLE = 64 << 20  # bytes: a driver rounds allocations up, and a context may be larger than is reckoned


def share_lines(shares: Sequence[ShareSeen]) -> list[str]:
    """Two lines for each rank: its share and use, and the jobs beside it."""
    return [line for share in shares for line in (_held(share), _beside(share)) if line]


def _held(share: ShareSeen) -> str:
    place = f"GPU {share.gpu} of {clean(share.node_id)}"
    has = f"rank {share.rank} has {share_text(share.share)} of {place}, {size_text(share.share.memory)}"
    return f"{has}: {', '.join(_got(share))}"


def _got(share: ShareSeen) -> list[str]:
    got = share.got
    if not share.enforced:
        return ["its node does not enforce shares, so its use is not measured"]
    if got is None or got.used is None:
        return ["its use is not known yet"]
    told = [f"it used {got.used:.0%} of the GPU's time lately"]
    if (got.borrowed or 0.0) > NOTABLE:
        told[0] += f" ({got.borrowed:.0%} beyond its request)"
    if (got.lent or 0.0) > NOTABLE:
        told.append(f"others used {got.lent:.0%} that it left")
    if got.wait_p99_seconds is not None:
        told.append(f"99 of 100 turns came within {got.wait_p99_seconds * 1000:.3g} ms")
    if got.memory_used is not None:
        told.append(f"{size_text(got.memory_used)} in use")
    if (got.uncounted or 0) > UNCOUNTED_NOTABLE:
        told.append(f"{size_text(got.uncounted or 0)} of its GPU memory are not counted")
    if got.refused:
        told.append(f"{plural(got.refused, 'allocation')} beyond its memory refused")
    if got.overruns:
        told.append(f"{plural(got.overruns, 'turn')} taken from it as it kept them too long")
    if got.outside:
        told.append(f"its processes on the GPU that the share does not limit: {got.outside}")
    if got.given_up:
        told.append(f"it went on without a turn {plural(got.given_up, 'time')}, as the arbiter did not answer")
    return told


def _beside(share: ShareSeen) -> str:
    if not share.beside:
        return "  no other job has a share of that GPU"
    return f"  beside it: {'; '.join(_neighbour(one) for one in share.beside)}"


def _neighbour(one: BesideSeen) -> str:
    who = f"{clean(one.name)} ({one.job_id})" if one.name else f"a job of another tenant ({one.job_id})"
    used = "" if one.used is None else f", used {one.used:.0%}"
    return f"{who} {share_text(one.share)}{used}"
