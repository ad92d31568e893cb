"""The laws of a job's size, held against what is recorded of it: its core, its range, its rank numbers, its GPUs.

What a job may have is read from what its user sent; what it has, from its events alone.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field, structs

from weft.domain.job import Allocation, CauseCode, JobChange, JobEvent, Placement
from weft.domain.shares import WHOLE
from weft.messages.events import JobEventData
from weft.messages.http import EventData

ROUNDED_SECONDS = 0.01
OF_A_RUN = (CauseCode.RANK_ENDED, CauseCode.EXITED, CauseCode.OUT_OF_MEMORY, CauseCode.START_FAILED)

Parts = dict[tuple[str, int], tuple[int, int]]
"""By GPU, as its node and index: thousandths of its time, and bytes of its memory (0 where all of it is held)."""

Said = JobEventData | EventData


class Sized(Struct):
    """What the events of one job have said of its size."""

    name: str
    epoch: int = 0
    state: str = ""
    placement: Placement | None = None
    next_placement: Placement | None = None
    core: frozenset[int] = frozenset()
    used: set[int] = field(default_factory=set[int])  # rank numbers of this epoch

    @property
    def placements(self) -> list[tuple[Allocation, ...]]:
        """What its ranks hold, and what is held for its next epoch."""
        return [held.allocations for held in (self.placement, self.next_placement) if held is not None]

    @property
    def allocations(self) -> tuple[Allocation, ...]:
        return tuple(one for held in self.placements for one in held)

    @property
    def parts(self) -> Parts:
        return parts_of(self.placement, self.next_placement)

    def staying(self, role: str) -> int:
        held = () if self.placement is None else self.placement.allocations
        return sum(one.role == role and not one.leaving for one in held)


class Counted(Struct):
    """GPU-seconds of one job, counted here."""

    since: float | None = None
    gpus: float = 0.0
    total: float = 0.0


class Recorded(Struct, frozen=True):
    jobs: dict[str, Sized]
    counted: dict[str, Counted]


class Sizes:
    """`specs`: the specifications as they were sent, by name; a job that is not in it is not looked at.

    `fail` is called with what is wrong. `gpu_memory`: bytes that every GPU has.
    """

    def __init__(self, fail: Callable[[str], None], *, gpu_memory: int = 1 << 62) -> None:
        self.gpu_memory = gpu_memory
        self.specs: Mapping[str, dict[str, Any]] = {}
        self.jobs: dict[str, Sized] = {}
        self._fail = fail
        self._counted: dict[str, Counted] = {}

    @property
    def recorded(self) -> Recorded:
        return Recorded(self.jobs, self._counted)

    @recorded.setter
    def recorded(self, recorded: Recorded) -> None:
        self.jobs, self._counted = recorded.jobs, recorded.counted

    def told(self, said: Said, event: str) -> Sized:
        """Take in an event of a job. Returns how the job was before."""
        before = self.jobs.get(said.job_id, Sized(name=said.name))
        job = self.jobs[said.job_id] = structs.replace(before)
        if said.epoch != job.epoch:
            job.used = set()
        job.epoch, job.state = said.epoch, said.state
        if said.placement is not None:
            job.placement = said.placement
        if event in (JobEvent.PLACED, JobEvent.RESTARTED):
            assert job.placement is not None, f"{said.job_id} {event} nowhere"
            job.core, job.used = _core(job.placement, self.specs.get(job.name)), set()
        if event == JobEvent.STOPPING:
            job.next_placement = said.next_placement
        if said.state != "stopping":
            job.next_placement = None
        if said.state not in ("placed", "starting", "running", "stopping"):
            job.placement = None
        self._check(said, event, before, job)
        return before

    def _check(self, said: Said, event: str, before: Sized, job: Sized) -> None:
        spec = self.specs.get(job.name)
        if spec is None:
            return
        if said.placement is not None:
            self._check_ranks(said, event, before, job, spec)
            self._check_gpus(said, job)
        if job.state in ("placed", "starting", "running"):
            self._check_range(said, job, spec)
        if event == JobEvent.SCALED:
            self._check_size(said, before, spec)
        if event in (JobEvent.STOPPING, JobEvent.REQUEUED, JobEvent.FAILED) and before.state == "running":
            self._check_blame(said, before)

    def _check_ranks(self, said: Said, event: str, before: Sized, job: Sized, spec: Mapping[str, Any]) -> None:
        """A rank number stands for one rank at one place in one epoch, and the core stays as it began."""
        assert said.placement is not None
        what = f"{said.job_id} {event} in epoch {said.epoch}"
        has = {one.rank: one for one in said.placement.allocations}
        if len(has) < len(said.placement.allocations):
            self._fail(f"rank doubled: {what} has two of one number")
        had = {one.rank: one for one in (before.placement.allocations if before.placement else ())}
        for rank, one in has.items():
            known = had.get(rank) if event in (JobEvent.RESIZED, JobEvent.TUNED) else None
            if known is not None and (known.node_id, known.gpus, known.role) != (one.node_id, one.gpus, one.role):
                self._fail(f"rank moved: {what} has rank {rank} elsewhere than before")
            if known is None and event in (JobEvent.RESIZED, JobEvent.TUNED) and rank in job.used:
                self._fail(f"rank reused: {what} gives number {rank} again")
            if known is not None and known.leaving and not one.leaving:
                self._fail(f"rank came back: {what} keeps rank {rank}, which was told to leave")
        job.used = job.used | has.keys()
        lost = sorted(rank for rank in job.core if rank not in has or has[rank].leaving)
        if lost:
            self._fail(f"half a gang: {what} leaves out rank {lost[0]} of its core")
        wrong = sorted(rank for rank, one in has.items() if one.extra == (rank in job.core))
        if wrong and _is_live(spec):
            self._fail(f"core unknown: {what} has rank {wrong[0]} wrongly in its core or beyond it")

    def _check_gpus(self, said: Said, job: Sized) -> None:
        """No GPU is held beyond its time or its memory, by one job or by several."""
        everybody = [other.parts for other in self.jobs.values()]
        for gpu in job.parts:
            held = [parts[gpu] for parts in everybody if gpu in parts]
            if sum(time for time, _ in held) > WHOLE:
                self._fail(f"two owners: with {said.job_id} GPU {gpu} is held {len(held)} times, beyond its time")
            if sum(memory for _, memory in held) > self.gpu_memory:
                self._fail(f"two owners: with {said.job_id} GPU {gpu} is held {len(held)} times, beyond its memory")

    def _check_range(self, said: Said, job: Sized, spec: Mapping[str, Any]) -> None:
        for name, (least, most) in ranges(spec).items():
            has = job.staying(name)
            if _is_service(spec):  # its replicas fail alone, and during an update there are more of them
                least, most = 0, most + int(spec["service"].get("max_surge", 1))
            if not least <= has <= most:
                self._fail(f"out of range: {said.job_id} is {said.state} with {has} {name}, of {least} to {most}")

    def _check_size(self, said: Said, before: Sized, spec: Mapping[str, Any]) -> None:
        of = ranges(spec)
        for name, count in (said.size or {}).items():
            least, most = of.get(name, (0, -1))
            if not least <= count <= most:
                self._fail(f"nonsense obeyed: {said.job_id} should have {count} {name}")
        if before.placement is not None and not _may_resize(spec):
            self._fail(f"nonsense obeyed: {said.job_id} cannot take another size, and was given one")

    def _check_blame(self, said: Said, before: Sized) -> None:
        """A job is not stopped because of a rank beyond its core."""
        cause = said.cause
        if cause is None:
            return
        rank = int(cause.numbers["rank"]) if cause.code in OF_A_RUN and "rank" in cause.numbers else None
        if rank is not None and rank not in before.core:
            self._fail(f"a rank too many: {said.job_id} is {said.state} as rank {rank} beyond its core ended")
        if cause.code is CauseCode.NODE_LOST and before.placement is not None:
            here = {one.rank for one in before.placement.allocations if one.node_id == cause.by}
            if here and before.core.isdisjoint(here):
                self._fail(f"a rank too many: {said.job_id} is {said.state} as {cause.by} without its core is lost")

    def counted(self, change: JobChange) -> None:
        """Hold the GPU-seconds that are stored against those counted here."""
        before, step, after = change.before, change.step, change.after
        counted = self._counted.setdefault(after.id, Counted())
        gpus = parts_of(after.placement, after.next_placement)
        held = parts_of(before.placement, before.next_placement)
        anew = step.event in (JobEvent.RESIZED, JobEvent.RESTARTED) or gpus != held or not after.state.holding
        at = round(step.at, 6)
        if anew and counted.since is not None:
            counted.total += max(0.0, at - counted.since) * counted.gpus
        if step.attained_gpu_seconds is not None:
            counted.total = step.attained_gpu_seconds
        elif after.attained_gpu_seconds < before.attained_gpu_seconds:
            self._fail(f"GPU-seconds lost: {after.id} had {before.attained_gpu_seconds:g} before {step.event}")
        if anew or counted.since is None:
            counted.since = at if after.state.holding else None
            counted.gpus = sum(time for time, _ in gpus.values()) / WHOLE
        if anew and abs(counted.total - after.attained_gpu_seconds) > ROUNDED_SECONDS * (1 + counted.gpus):
            self._fail(
                f"GPU-seconds wrong: {after.id} has {after.attained_gpu_seconds:g} after {step.event},"
                f" and had {counted.total:g}"
            )
            counted.total = after.attained_gpu_seconds


def ranges(spec: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """The least and the most replicas of each role, as the user sent them."""
    found: dict[str, tuple[int, int]] = {}
    for name, role in spec["roles"].items():
        replicas = role.get("replicas", {})
        want = replicas.get("want", 1)
        found[name] = (replicas.get("min", want), replicas.get("max", want))
    return found


def _is_service(spec: Mapping[str, Any]) -> bool:
    return spec.get("kind") == "inference" and spec.get("service") is not None


def _is_live(spec: Mapping[str, Any]) -> bool:
    return _is_service(spec) or spec.get("resize", {}).get("how") == "live"


def _may_resize(spec: Mapping[str, Any]) -> bool:
    return _is_live(spec) or _is_service(spec) or "checkpoints" in spec or bool(spec.get("labels"))


def _core(placement: Placement, spec: Mapping[str, Any] | None) -> frozenset[int]:
    """The ranks with which the job began that are its gang: of each role the first, as many as it needs, if it resizes
    live; else all."""
    if spec is None or not _is_live(spec):
        return frozenset(one.rank for one in placement.allocations)
    if _is_service(spec):
        return frozenset()
    found: set[int] = set()
    for name, (least, _) in ranges(spec).items():
        found.update(sorted(one.rank for one in placement.allocations if one.role == name)[:least])
    return frozenset(found)


def parts_of(*placements: Placement | None) -> Parts:
    """Of a job that restarts the greater of what it has and what it will have: it stops first."""
    found: Parts = {}
    for placement in placements:
        has: Parts = {}
        for one in placement.allocations if placement is not None else ():
            part = (WHOLE, 0) if one.share is None else (one.share.request, one.share.memory)
            for gpu in one.gpus:
                time, memory = has.get((one.node_id, gpu), (0, 0))
                has[one.node_id, gpu] = (time + part[0], memory + part[1])
        for gpu, (time, memory) in has.items():
            known = found.get(gpu, (0, 0))
            found[gpu] = (max(time, known[0]), max(memory, known[1]))
    return found
