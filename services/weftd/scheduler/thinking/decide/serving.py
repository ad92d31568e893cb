"""The life of a service: its replicas begin, become ready, fail and leave one by one, and the service goes on.

`weft.planning.replicas` decides which replicas join and leave, and where; `sizing.py` and `updating.py` carry it out.
"""

from collections.abc import Collection, Sequence

from msgspec import structs

from weft.domain.job import Allocation, Cause, CauseCode, Job, JobEvent, JobState, Placement, Step
from weft.domain.quantity import duration_seconds, duration_text
from weft.domain.text import plural
from weft.messages.nodes import RunState
from weftd.scheduler.thinking.decide import lifecycle, updating
from weftd.scheduler.thinking.state.cluster_state import ClusterState
from weftd.scheduler.thinking.state.replicas import Replica, named

_S, _E, _C = JobState, JobEvent, CauseCode

STEADY_SECONDS = 60.0  # after a replica was ready for so long, those that fail are counted anew
DETAIL_CHARS_MAX = 2000  # of what a replica said last, in the reason of a service that fails

_NOT_COUNTED = frozenset({_C.NODE_LOST, _C.NODE_STOPPED, _C.RUN_LOST})


def follow(cluster_state: ClusterState, job: Job, now: float) -> list[Step]:
    """Advance a service as far as the reports of its nodes allow."""
    assert job.placement is not None, f"{job.id} is {job.state} without a placement"
    runs = cluster_state.pool.runs
    replicas = cluster_state.replicas.look(job, runs, now)
    seen = runs.of(job).others
    steps: list[Step] = []
    if job.state is _S.PLACED and any(seen):
        steps += cluster_state.go(job, _E.STARTING, _reported("its nodes prepare its first replicas"), now)
        job = cluster_state.jobs[job.id]
    if job.state is _S.STARTING and any(run is not None and run.state is RunState.RUNNING for run in seen):
        steps += cluster_state.go(job, _E.STARTED, _reported("its first replica runs"), now)
        job = cluster_state.jobs[job.id]
    steps += lifecycle.note(cluster_state, job, now)
    job = cluster_state.jobs[job.id]
    if job.state is _S.STOPPING:
        return steps + (lifecycle.stopped(cluster_state, job, now) if cluster_state.pool.all_gone(job) else [])
    if job.state is _S.RUNNING:
        steps += release(cluster_state, job, now)
        job = cluster_state.jobs.get(job.id, job)
        return steps + (_became_ready(cluster_state, job, replicas, now) if job.state is _S.RUNNING else [])
    assert job.placement is not None
    ends = [_why_ended(cluster_state, job, allocation) for allocation in job.placement.allocations]
    if ends and all(ends) and cluster_state.pool.all_gone(job):
        last = next(cause for cause in ends if cause is not None)
        if lifecycle.never_ready(job, job.attempts + 1):
            words = _last_words(cluster_state, job, job.placement.allocations)
            last = structs.replace(last, sentence=f"{last.sentence}{words}")
        steps += lifecycle.service_over(cluster_state, job, last, now)
    return steps


def lose_node(cluster_state: ClusterState, job: Job, cause: Cause, now: float) -> list[Step]:
    """The node that `cause` names is lost: its replicas leave alone. If the service did not run yet, it runs from now
    on, unless none of its replicas is left."""
    steps: list[Step] = []
    if job.state in (_S.PLACED, _S.STARTING):
        if cluster_state.pool.all_gone(job):
            return lifecycle.stop(cluster_state, job, cause, now)
        goes_on = structs.replace(cause, sentence=f"{cause.sentence}: it goes on with its other replicas")
        if job.state is _S.PLACED:
            steps += cluster_state.go(job, _E.STARTING, goes_on, now)
        steps += cluster_state.go(cluster_state.jobs[job.id], _E.STARTED, goes_on, now)
    return steps + release(cluster_state, cluster_state.jobs[job.id], now)


def release(cluster_state: ClusterState, job: Job, now: float) -> list[Step]:
    """Replicas that left, ended or were lost give back what they hold, and the service runs on. Of those that were not
    told to leave others take the place, after a back-off."""
    assert job.placement is not None
    gone: list[Allocation] = []
    ends: list[tuple[Allocation, Cause]] = []
    for allocation in job.placement.allocations:
        if not cluster_state.pool.gone(job, allocation):
            continue
        why = None if allocation.leaving else _why_ended(cluster_state, job, allocation)
        if allocation.leaving or why is not None:
            gone.append(allocation)
        if why is not None:
            ends.append((allocation, why))
    if not gone:
        return []
    replicas = cluster_state.replicas.look(job, cluster_state.pool.runs, now)
    placement = without(job.placement, gone)
    if not ends:
        stay = len(placement.staying)
        has = plural(stay, "replica") if stay else "no replica"
        cause = Cause(code=_C.RANKS_LEFT, sentence=f"{named(gone)} left: it has {has}")
        return cluster_state.go(job, _E.RESIZED, cause, now, placement=placement)
    why = ends[0][1]
    broke_out = next((cause for _, cause in ends if cause.code in lifecycle.FOR_GOOD), None)
    if broke_out is not None:
        return lifecycle.stop(cluster_state, job, broke_out, now)
    counted = [each for each, cause in ends if cause.code not in _NOT_COUNTED and each.revision == job.revision]
    attempts = _attempts(job, replicas, now) + len(counted)
    wait = lifecycle.wait_seconds(job, attempts) if counted else 0.0
    if attempts == 1 and all(replicas[each.rank].ready_for(now) >= STEADY_SECONDS for each in counted):
        wait = 0.0  # it served for long: what takes its place is not to blame
    if any(cause.code is _C.RUN_LOST for _, cause in ends):
        wait = max(wait, min(lifecycle.wait_seconds(job, 1), lifecycle.LOST_SECONDS_MAX))
    others = f", and {len(ends) - 1} more" if len(ends) > 1 else ""
    again = "another one is started" if len(ends) == 1 else f"{len(ends)} others are started"
    again += f" in {duration_text(wait)}" if wait else ""
    code = _C.NODE_LOST if why.code is _C.NODE_LOST else _C.REPLICA_ENDED
    words = _last_words(cluster_state, job, [allocation for allocation, _ in ends])
    cause = structs.replace(why, code=code, sentence=f"{why.sentence}{others}; {again}{words}")
    return _failed(cluster_state, job, counted, cause, now, attempts=attempts, wait=wait, placement=placement)


def _failed(
    cluster_state: ClusterState,
    job: Job,
    counted: Sequence[Allocation],
    cause: Cause,
    now: float,
    *,
    attempts: int,
    wait: float,
    placement: Placement,
) -> list[Step]:
    """Replicas ended, or are told to leave since they did not become ready; `counted`: those to blame."""
    detail = _last_words(cluster_state, job, counted)
    steps = cluster_state.go(
        job,
        _E.RESIZED,
        cause,
        now,
        placement=placement,
        attempts=attempts if counted else None,
        not_before=max(job.not_before, now + wait) if wait else None,
    )
    job = cluster_state.jobs[job.id]
    if not counted:
        return steps
    if updating.may_go_back(job) and attempts >= lifecycle.TRIES_LEAST:
        return steps + updating.go_back(cluster_state, job, cause, now)
    if lifecycle.never_ready(job, attempts):
        last = structs.replace(cause, sentence=f"{cause.sentence}{detail}")
        return steps + lifecycle.stop(cluster_state, job, lifecycle.why_never_ready(attempts, last), now)
    return steps


def _attempts(job: Job, replicas: dict[int, Replica], now: float) -> int:
    """Number of replicas that failed in a row; 0 if one of this revision is, or was until now, ready for long."""
    assert job.placement is not None
    current = (each.rank for each in job.placement.allocations if each.revision == job.revision)
    steady = any(replicas[rank].ready_for(now) >= STEADY_SECONDS for rank in current)
    return 0 if steady else job.attempts


def _why_ended(cluster_state: ClusterState, job: Job, allocation: Allocation) -> Cause | None:
    """Why this replica is over; None if it is not, as far as is known."""
    node = cluster_state.pool.nodes.get(allocation.node_id)
    if node is None or not node.ready:
        sentence = f"node {allocation.node_id} with its replica {allocation.rank} is lost"
        return Cause(code=_C.NODE_LOST, sentence=sentence, by=allocation.node_id)
    runs = cluster_state.pool.runs
    run = runs.run(job, allocation)
    if run is not None and run.state is RunState.EXITED and (bad := runs.ended_badly(job, allocation)) is None:
        numbers = {"rank": float(run.rank), "exit_code": 0.0}
        return Cause(code=_C.REPLICA_ENDED, sentence=f"replica {run.rank} ended with status 0", numbers=numbers)
    why = bad if run is not None and run.state is RunState.EXITED else runs.lost(job, allocation)
    rank, replica = f"rank {allocation.rank}", f"replica {allocation.rank}"
    return None if why is None else structs.replace(why, sentence=why.sentence.replace(rank, replica, 1))


def _last_words(cluster_state: ClusterState, job: Job, ranks: Sequence[Allocation]) -> str:
    """The last log lines of the last of these replicas, as its node reports."""
    runs = (cluster_state.pool.runs.run(job, allocation) for allocation in ranks)
    details = [run.detail.strip() for run in runs if run is not None and run.detail.strip()]
    return f". Its last words:\n{details[-1][-DETAIL_CHARS_MAX:]}" if details else ""


def _became_ready(cluster_state: ClusterState, job: Job, replicas: dict[int, Replica], now: float) -> list[Step]:
    """Note that a service takes requests for the first time, or that an update does, which is then final."""
    assert job.placement is not None
    if job.worked and not updating.may_go_back(job):
        return []
    ready = [
        each for each in job.placement.staying if each.rank in replicas and replicas[each.rank].ready_at is not None
    ]
    newest = [each for each in ready if each.revision == job.revision]
    if newest and updating.may_go_back(job):
        revisions = (*job.revisions[:-1], structs.replace(job.revisions[-1], back_to=None))
        sentence = f"{named(newest)} of revision {job.revision} {_be(newest)} ready"
        return cluster_state.go(
            job, _E.RESIZED, _reported(sentence), now, worked=job.granted, revisions=revisions, attempts=0
        )
    if ready and not job.worked:
        return cluster_state.go(
            job, _E.RESIZED, _reported(f"{named(ready)} {_be(ready)} ready"), now, worked=job.granted
        )
    return []


def overdue(
    cluster_state: ClusterState, job: Job, now: float, *, since: float, start_seconds: float, stop_seconds: float
) -> list[Step]:
    """Replicas that did not begin, or are not ready, in time leave, and others take their place; those that were to
    leave and are reported to run in spite of that are given up: they keep their GPUs as orphans. `since`: from when on
    the time counts."""
    assert job.placement is not None
    assert job.spec.service is not None
    replicas = cluster_state.replicas.look(job, cluster_state.pool.runs, now)
    leave_seconds = job.spec.drain_seconds + job.spec.grace_seconds + stop_seconds
    stuck: list[Allocation] = []
    late: list[Allocation] = []
    for allocation in job.placement.allocations:
        one = replicas[allocation.rank]
        if one.leaving_since is not None:
            if now - max(since, one.leaving_since) > leave_seconds and cluster_state.pool.runs.alive(job, allocation):
                stuck.append(allocation)
        elif one.began_at is None:
            if now - max(since, one.since) > start_seconds:
                late.append(allocation)
        elif one.unready_since is not None and now - one.unready_since > duration_seconds(job.spec.service.start):
            late.append(allocation)
    if stuck:
        cause = Cause(code=_C.STOP_TIMEOUT, sentence=f"{named(stuck)} did not leave in time, and {_be(stuck)} given up")
        return cluster_state.go(job, _E.RESIZED, cause, now, placement=without(job.placement, stuck))
    if not late:
        return []
    leave = "leaves" if len(late) == 1 else "leave"
    sentence = f"{named(late)} did not become ready within {job.spec.service.start}, and {leave}"
    if all(replicas[each.rank].began_at is None for each in late):
        sentence = f"{named(late)} did not begin in time, and {leave}"
    cause = Cause(code=_C.START_TIMEOUT, sentence=sentence, by=late[0].node_id)
    counted = [each for each in late if each.revision == job.revision]
    attempts = _attempts(job, replicas, now) + len(counted)
    wait = lifecycle.wait_seconds(job, attempts) if counted else 0.0
    placement = lifecycle.leaving(job.placement, late)
    if counted and updating.may_go_back(job):
        attempts = max(attempts, lifecycle.TRIES_LEAST)  # an update is not waited for twice
    return _failed(cluster_state, job, counted, cause, now, attempts=attempts, wait=wait, placement=placement)


def without(placement: Placement, gone: Collection[Allocation]) -> Placement:
    """The placement without these replicas, whose numbers are not given again."""
    left = tuple(allocation for allocation in placement.allocations if allocation not in gone)
    return structs.replace(placement, allocations=left, ranks_used=placement.fresh_rank, changes=placement.changes + 1)


def _be(replicas: Sequence[Allocation]) -> str:
    return "is" if len(replicas) == 1 else "are"


def _reported(sentence: str) -> Cause:
    return Cause(code=_C.NODE_REPORTED, sentence=sentence)
