"""Jobs that should have another size than they have: ranks join and leave, or the job restarts with the other size.

`weft.planning.growth` decides which jobs grow, and where; `weft.planning.resizing` which ranks leave;
`weft.planning.replicas` both for services. docs/elastic.md describes how it works.
"""

from collections.abc import Mapping, Sequence

from msgspec import structs

from weft.domain.job import Allocation, Cause, CauseCode, Job, JobEvent, Step
from weft.domain.sizes import how_resized, wrong_size
from weft.domain.spec import ResizeHow
from weft.messages.asks import Ask
from weft.planning.finding import find
from weft.planning.growth import GivesBack, Growth, Joins
from weft.planning.jobs import asked_by
from weft.planning.preemption import by_job
from weft.planning.replicas import Replicas
from weft.planning.resizing import shrink
from weft.planning.resource_request import gpus_of, only_on, resource_request_of_job
from weftd.scheduler.thinking.decide import lifecycle
from weftd.scheduler.thinking.decide.loans import pays_back
from weftd.scheduler.thinking.decide.placing import following
from weftd.scheduler.thinking.state.cluster import PoolNow, staying_after_restart
from weftd.scheduler.thinking.state.cluster_state import ClusterState
from weftd.scheduler.thinking.state.replicas import named


def scale(cluster_state: ClusterState, ask: Ask, now: float) -> list[Step]:
    """The step that gives a job another size to reach; none if the ask is outdated, unlawful or changes nothing."""
    job, asked = cluster_state.jobs.get(ask.subject_id), ask.scale
    if job is None or asked is None or wrong_size(job.spec, asked.size) is not None:
        return []
    if asked.epoch is not None and asked.epoch != job.epoch:
        return []
    if any(job.wanted.get(role) != count for role, count in asked.instead_of.items()):
        return []
    if asked.gpu_model and not job.spec.may_have(asked.gpu_model):
        return []
    size, model = {**job.wanted, **asked.size}, asked.gpu_model or job.gpu_model
    if (size, model) == (job.wanted, job.gpu_model):
        return []
    if job.state.holding and how_resized(job.spec) is ResizeHow.NEVER:
        return []
    sentence = f"{_changes(job.wanted, size)}, asked by {ask.by}"
    cause = asked.cause or Cause(code=CauseCode.SCALE_ASKED, sentence=sentence, by=ask.by)
    return cluster_state.go(job, JobEvent.SCALED, cause, now, ask=ask.id, size=size, gpu_model=asked.gpu_model or None)


class Sizing:
    def __init__(self, cluster_state: ClusterState) -> None:
        self._cluster_state = cluster_state
        self._cluster = PoolNow(cluster_state, ())
        self._growth = Growth(self._cluster)
        self._replicas = Replicas(self._cluster)
        # By job that found no place on its new model: the growth count of the room, the closed nodes, its version.
        self._tried: dict[str, tuple[int, tuple[str, ...], int]] = {}

    def decide(self, now: float, *, closed: Sequence[str], ahead: str) -> list[Step]:
        """Steps of running jobs towards their size. `closed` nodes are kept for a waiting job; while `ahead`, a job
        that waits for room, is not empty, none grows."""
        steps: list[Step] = []
        resize_candidates, jobs = self._cluster_state.resize_candidates, self._cluster_state.jobs
        if self._tried:
            self._tried = {one: tried for one, tried in self._tried.items() if one in resize_candidates.changing}
        steps += self.serve(now, closed=closed)
        for job in sorted((jobs[job_id] for job_id in resize_candidates.changing), key=lambda job: job.seq):
            steps += self._change_model(job, now, closed, ahead=ahead)
        for job in sorted((jobs[job_id] for job_id in resize_candidates.shrinking), key=lambda job: job.seq):
            if how_resized(job.spec) is ResizeHow.LIVE:
                steps += self._leave(job, now)
            else:
                steps += self._restarted(job, (), now)
        self._cluster_state.freed_holds.forget_old(now)
        self._cluster.now = now
        for change in self._growth.decide(closed=closed, ahead=ahead, offers=not self.short):
            steps += self._take(change, now)
        return steps

    def _take(self, change: Joins | GivesBack, now: float) -> list[Step]:
        job = self._cluster_state.jobs[change.job_id]
        if isinstance(change, Joins):
            if how_resized(job.spec) is ResizeHow.LIVE:
                return self._joined(job, change.place, now)
            return self._restarted(job, change.place, now)
        steps: list[Step] = []
        for job_id, holders in by_job(change.selection).items():
            held = self._cluster_state.jobs[job_id]
            ranks = tuple(each for holder in holders for each in holder.allocations)
            sentence = (
                f"pre-empted by {job.id}: it has fewer ranks than it should have, and {held.id} has more than it wants"
            )
            cause = Cause(code=CauseCode.PREEMPTED, sentence=sentence, by=job.id)
            steps += lifecycle.give_up_ranks(self._cluster_state, held, ranks, cause, now)
        return steps

    @property
    def short(self) -> Mapping[str, int]:
        """By running service that should have more replicas, how many of them found no place at the last look."""
        return self._replicas.short

    def serve(self, now: float, *, closed: Sequence[str], ahead: str = "") -> list[Step]:
        """Steps of running services towards their size and their newest revision."""
        if not self._cluster_state.resize_candidates.serving:
            self._replicas.short.clear()
            return []
        self._cluster.now = now
        steps: list[Step] = []
        for change in self._replicas.decide(closed=closed, ahead=ahead):
            job = self._cluster_state.jobs[change.job_id]
            if isinstance(change, Joins):
                steps += self._joined(job, change.place, now)
            else:
                steps += self._told_to_leave(job, change.ranks, now, replaces=change.replaces)
        return steps

    def _told_to_leave(self, job: Job, ranks: Sequence[Allocation], now: float, *, replaces: bool) -> list[Step]:
        assert job.placement is not None
        placement = lifecycle.leaving(job.placement, ranks)
        after = structs.replace(job, placement=placement).granted
        one = len(ranks) == 1
        sentence = f"{_changes(job.granted, after)}: {named(ranks)} {'leaves' if one else 'leave'}"
        if replaces and all(each.revision != job.revision for each in ranks):
            sentence = f"{named(ranks)} {'gives' if one else 'give'} way to revision {job.revision}"
        code = CauseCode.REPLACED if replaces else CauseCode.SHRANK
        cause = pays_back(job, ranks, Cause(code=code, sentence=sentence, numbers=_numbers(after)))
        return self._cluster_state.go(job, JobEvent.RESIZED, cause, now, placement=placement)

    def _trial(self, job: Job, closed: Sequence[str]) -> tuple[int, tuple[str, ...], int]:
        """A key that changes whenever new capacity for the job may exist."""
        return (
            self._cluster_state.pool.free_capacity.grown + self._cluster_state.freed_holds.changes,
            tuple(closed),
            job.version,
        )

    def _leave(self, job: Job, now: float) -> list[Step]:
        """Ranks beyond the size are told to leave, the newest first."""
        assert job.placement is not None
        gone: list[Allocation] = []
        for role, count in job.wanted.items():
            fewer = job.granted[role] - count
            if fewer > 0:
                least = job.spec.roles[role].replicas.least
                gone += shrink(job.placement.staying, role, fewer, least=least)[1]
        if not gone:
            return []
        after = {role: min(count, job.wanted[role]) for role, count in job.granted.items()}
        cause = Cause(code=CauseCode.SHRANK, sentence=_changes(job.granted, after), numbers=_numbers(after))
        placement = lifecycle.leaving(job.placement, gone)
        return self._cluster_state.go(job, JobEvent.RESIZED, cause, now, placement=placement, worked=job.granted)

    def _joined(self, job: Job, joining: Sequence[Allocation], now: float) -> list[Step]:
        placement = lifecycle.joined(self._cluster_state, job, joining)
        after = structs.replace(job, placement=placement).granted
        sentence = _changes(job.granted, after)
        if not job.spec.is_service and any(count > job.wanted[role] for role, count in after.items()):
            sentence += ", onto GPUs that no other job needs now"
        cause = Cause(code=CauseCode.GREW, sentence=sentence, numbers=_numbers(after))
        worked = None if job.spec.is_service else job.granted
        return self._cluster_state.go(job, JobEvent.RESIZED, cause, now, placement=placement, worked=worked)

    def _restarted(self, job: Job, more: Sequence[Allocation], now: float) -> list[Step]:
        """Stop the job, and hold its next allocation until it has stopped."""
        code = CauseCode.GREW if more else CauseCode.SHRANK
        cause = Cause(
            code=code,
            sentence=f"{_changes(job.granted, job.wanted)}: it stops, and starts with that size",
            numbers=_numbers(job.wanted),
        )
        there = following(self._cluster_state, job, (*staying_after_restart(job), *more))
        return lifecycle.stop(self._cluster_state, job, cause, now, next_placement=there)

    def _change_model(self, job: Job, now: float, closed: Sequence[str], *, ahead: str) -> list[Step]:
        """The job stops, and starts again whole on GPUs of its new model, which are held for it until it has stopped.
        While `ahead`, a job that waits for room, is not empty, it gets no more GPUs than it has."""
        tried = self._trial(job, closed)
        shape = only_on(resource_request_of_job(job), job.gpu_model)
        shape = tuple(structs.replace(want, least=want.count) for want in shape)
        more = gpus_of(shape) > job.gpus_held
        if self._tried.get(job.id) == tried or (more and ahead):
            return []
        free_capacity = self._cluster_state.pool.free_capacity
        with free_capacity.supposing(closed=closed):
            free_capacity.take_all(self._cluster_state.freed_holds.in_room(free_capacity))
            place = find(free_capacity, shape, asked_by(job, self._cluster_state.score_cache.learnt))
        if place is None or self._cluster_state.quotas.most_replicas(job, shape, len(place)) < len(place):
            self._tried[job.id] = tried
            return []
        size = _changes(job.granted, job.wanted) or ", ".join(f"{role} {count}" for role, count in job.wanted.items())
        sentence = f"{size}, on GPUs of {job.gpu_model}: it stops, and starts on those"
        cause = Cause(code=CauseCode.PARTITIONED, sentence=sentence, numbers=_numbers(job.wanted))
        there = following(self._cluster_state, job, place, why=f"on GPUs of {job.gpu_model}, by the partition planner")
        return lifecycle.stop(self._cluster_state, job, cause, now, next_placement=there)


def _changes(before: dict[str, int], after: dict[str, int]) -> str:
    """`worker 2 → 4, ps 1 → 2`."""
    return ", ".join(f"{role} {before[role]} → {count}" for role, count in after.items() if count != before[role])


def _numbers(size: dict[str, int]) -> dict[str, float]:
    return {role: float(count) for role, count in size.items()}
