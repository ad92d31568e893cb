"""The steps of a placed job: after reports of its nodes, at a stop, and at the end of its epoch."""

from collections.abc import Collection, Sequence

from msgspec import structs

from weft.domain.job import CANCELS, Allocation, Cause, CauseCode, Job, JobEvent, JobState, Placement, Step
from weft.domain.quantity import duration_text
from weft.domain.text import listed
from weft.messages.asks import Ask
from weftd.scheduler.thinking.decide.placing import port_for
from weftd.scheduler.thinking.state.cluster_state import ClusterState
from weftd.scheduler.thinking.state.orders import fresh_ranks
from weftd.scheduler.thinking.state.runs import ENDED_AT, Ranks

_S, _E, _C = JobState, JobEvent, CauseCode
COOL_DOWN_SECONDS = 120.0  # a job that ends so soon after it took another size goes back to the size before
WAIT_SECONDS_LEAST, WAIT_SECONDS_LEAST_MAX = 1.0, 30.0  # it doubles with each replica in a row that fails
TRIES_LEAST = 3  # replicas of a service that fail in a row before it is given up, or its update taken back
LOST_SECONDS_MAX = 30.0  # the longest wait before the next try of a run that vanished
_NOT_ITS_FAULT = frozenset(
    {
        _C.PREEMPTED,
        _C.QUOTA_RECLAIMED,
        _C.LENT,
        _C.MOVED,
        _C.PARTITIONED,
        _C.NODE_LOST,
        _C.NODE_DRAINED,
        _C.GPU_FAILED,
        _C.REQUEUE_ASKED,
        _C.NODE_STOPPED,
        _C.RUN_LOST,
        _C.PORT_TAKEN,
        _C.ORDERS_FULL,
        _C.GREW,
        _C.SHRANK,
        _C.SIZE_FAILED,
    }
)
FOR_GOOD = frozenset({_C.TIME_LIMIT, _C.TOO_BIG, _C.NOT_STORED, _C.DECISION_FAILED, _C.NEVER_READY, _C.UNCONTROLLED})
"""Another try would end the same way."""
OPEN_TO_PEOPLE = frozenset({JobState.STARTING, JobState.RUNNING, JobState.STOPPING})


def follow(cluster_state: ClusterState, job: Job, now: float) -> list[Step]:
    """Advance a job as far as the reports of its nodes allow."""
    assert job.placement is not None, f"{job.id} is {job.state} without a placement"
    ranks = cluster_state.pool.runs.of(job)
    steps: list[Step] = []
    if job.state is _S.PLACED and ranks.any_seen:
        steps += cluster_state.go(job, _E.STARTING, _reported(ranks.first_node), now)
    job = cluster_state.jobs[job.id]
    if job.state is _S.STARTING and ranks.all_began:
        sentence = "runs" if len(ranks.seen) == 1 else f"all {len(ranks.seen)} ranks run"
        steps += cluster_state.go(job, _E.STARTED, _reported(ranks.first_node, sentence), now)
    steps += note(cluster_state, cluster_state.jobs[job.id], now)
    job = cluster_state.jobs[job.id]
    if job.state is _S.STOPPING:
        return steps + (stopped(cluster_state, job, now) if cluster_state.pool.all_gone(job) else [])
    if job.state is _S.RUNNING and ranks.all_succeeded():
        if not cluster_state.pool.all_gone(job):
            cause = Cause(code=_C.CORE_DONE, sentence=f"{_ended_well(job, 'its core')}: the other ranks stop")
            return steps + stop(cluster_state, job, cause, now, exit_code=0, progress=ranks.progress)
        cause = Cause(code=_C.EXITED, sentence=f"{_ended_well(job)}{ranks.noted}")
        return steps + cluster_state.go(job, _E.SUCCEEDED, cause, now, exit_code=0, progress=ranks.progress)
    if job.state is _S.RUNNING:
        steps += release(cluster_state, job, now)
        job = cluster_state.jobs[job.id]
    ended = ranks.first_ended_badly or cluster_state.pool.runs.first_lost(job)
    if ended is not None:
        steps += _ended_badly(cluster_state, job, ended, now, exit_code=_status(ended, ranks), progress=ranks.progress)
    return steps


def note(cluster_state: ClusterState, job: Job, now: float) -> list[Step]:
    """Write the notes of nodes on the ranks of a running job into its story."""
    if job.state is not _S.RUNNING:
        return []
    steps: list[Step] = []
    for cause in cluster_state.pool.runs.take_notes(job):
        steps += cluster_state.go(cluster_state.jobs[job.id], _E.NOTED, cause, now)
    return steps


def _status(cause: Cause, ranks: Ranks) -> int | None:
    """The exit status of the rank that `cause` names, else the first that is not 0."""
    return int(cause.numbers["exit_code"]) if "exit_code" in cause.numbers else ranks.exit_code


def stop(
    cluster_state: ClusterState,
    job: Job,
    cause: Cause,
    now: float,
    *,
    ask: int = 0,
    exit_code: int | None = None,
    progress: dict[str, float] | None = None,
    next_placement: Placement | None = None,
) -> list[Step]:
    """Stop a job; with `next_placement` it restarts there once it has stopped. If it is stopping already, nothing
    changes, unless this is a cancel and the first cause was not."""
    if not job.state.holding:
        return []
    if job.state is _S.STOPPING:
        assert job.stopping_for is not None
        if cause.code not in CANCELS or job.stopping_for.code in CANCELS:
            return []
    steps = cluster_state.go(
        job,
        _E.STOPPING,
        cause,
        now,
        ask=ask,
        exit_code=exit_code,
        progress=progress,
        next_placement=next_placement,
        worked=job.granted if next_placement is not None else None,
    )
    job = cluster_state.jobs[job.id]
    return steps + (stopped(cluster_state, job, now) if cluster_state.pool.all_gone(job) else [])


def stopped(cluster_state: ClusterState, job: Job, now: float) -> list[Step]:
    """Every rank of a stopping job is gone: the cause of the stop decides its next state.

    A stopped rank that ended with status 0 was interrupted. It succeeded only if the progress of the job reports its
    work as done.
    """
    assert job.stopping_for is not None
    ranks = cluster_state.pool.runs.of(job)
    cause = structs.replace(job.stopping_for, sentence=f"{job.stopping_for.sentence}{ranks.noted}")
    if cause.code in CANCELS:
        return cluster_state.go(job, _E.CANCELLED, cause, now, exit_code=ranks.exit_code, progress=ranks.progress)
    if cause.code is _C.CORE_DONE:  # its nodes may know that end no more
        return cluster_state.go(job, _E.SUCCEEDED, cause, now, exit_code=0, progress=ranks.progress)
    if not job.spec.is_service and ranks.all_succeeded(cause.numbers.get(ENDED_AT)):
        sentence = f"its work was done when it was stopped: {_ended_well(job)}{ranks.noted}"
        done = Cause(code=_C.EXITED, sentence=sentence)
        return cluster_state.go(job, _E.SUCCEEDED, done, now, exit_code=0, progress=ranks.progress)
    if job.next_placement is not None and (again := _restarted(cluster_state, job, now, progress=ranks.progress)):
        return again
    return _over(cluster_state, job, cause, now, exit_code=_status(cause, ranks), progress=ranks.progress)


def _ended_well(job: Job, needed: str = "every rank") -> str:
    """Such as `every rank of role worker ended with status 0`. `needed`: the ranks, where `done_when` names no role."""
    if job.spec.done_when is not None:
        roles = job.spec.done_roles
        needed = f"every rank of {'role' if len(roles) == 1 else 'roles'} {listed(roles)}"
    return f"{needed} ended with status 0"


def _restarted(cluster_state: ClusterState, job: Job, now: float, *, progress: dict[str, float] | None) -> list[Step]:
    """Start the job again with another size, where that was held for it. No step if a node or a GPU there is out of use
    since."""
    assert job.stopping_for is not None
    following = job.next_placement
    assert following is not None
    nodes = cluster_state.pool.nodes
    for each in following.allocations:
        node = nodes.get(each.node_id)
        if node is None or not node.ready or not node.closed_gpus.isdisjoint(each.gpus):
            return []
    port = port_for(cluster_state, structs.replace(job, epoch=job.epoch + 1), following.allocations)
    placement = structs.replace(following, master_port=port)
    return cluster_state.go(job, _E.RESTARTED, job.stopping_for, now, placement=placement, progress=progress)


def release(cluster_state: ClusterState, job: Job, now: float) -> list[Step]:
    """Ranks beyond the core that left, ended badly or were lost give their GPUs back, and the job runs on.

    A role of which a rank failed by its own fault has no more ranks from now on than it has left and than were lent,
    until another size is asked for.
    """
    assert job.placement is not None
    gone: list[Allocation] = []
    why: Cause | None = None
    size: dict[str, int] | None = None
    for allocation in job.placement.allocations:
        if not allocation.extra or not cluster_state.pool.gone(job, allocation):
            continue
        lost = None if allocation.leaving else _why_lost(cluster_state, job, allocation)
        if allocation.leaving or lost is not None:
            gone.append(allocation)
        if lost is not None:
            why = why or structs.replace(lost, code=_C.RANK_LOST, sentence=f"{lost.sentence}: it runs on without it")
            if lost.code not in _NOT_ITS_FAULT:
                size = size or _with_what_it_lent(cluster_state, job)
                size[allocation.role] -= 1
    if not gone:
        return []
    names = ", ".join(str(allocation.rank) for allocation in gone)
    has = ", ".join(f"{role} {count}" for role, count in job.granted.items())
    cause = why or Cause(code=_C.RANKS_LEFT, sentence=f"rank{'s' * (len(gone) > 1)} {names} left: it has {has} now")
    # A size that worked for longer than the cool-down is not taken back for what happens after this change.
    worked: dict[str, int] | None = None if _is_new(job, now) else {}
    return cluster_state.go(
        job, _E.RESIZED, cause, now, placement=_without(job.placement, gone), size=size, worked=worked
    )


def _with_what_it_lent(cluster_state: ClusterState, job: Job) -> dict[str, int]:
    """Number of ranks of each role, including those that services will return."""
    if job.granted == job.wanted:
        return job.granted
    jobs = cluster_state.jobs
    loans = (loan for job_id in cluster_state.pool.runs.holding for loan in jobs[job_id].loans)
    lent = sum(loan.ranks for loan in loans if loan.lender == job.id)
    return {role: max(count, min(job.wanted[role], count + lent)) for role, count in job.granted.items()}


def _why_lost(cluster_state: ClusterState, job: Job, allocation: Allocation) -> Cause | None:
    node = cluster_state.pool.nodes.get(allocation.node_id)
    if node is None or not node.ready:
        sentence = f"node {allocation.node_id} with its rank {allocation.rank} is lost"
        return Cause(code=_C.NODE_LOST, sentence=sentence, by=allocation.node_id)
    runs = cluster_state.pool.runs
    return runs.ended_badly(job, allocation) or runs.lost(job, allocation)


def give_up_ranks(
    cluster_state: ClusterState, job: Job, ranks: Collection[Allocation], cause: Cause, now: float
) -> list[Step]:
    """These ranks beyond the core leave, and the job runs on without them."""
    asked = [allocation for allocation in ranks if not allocation.leaving]
    if job.placement is None or not asked:
        return []
    numbers = {"ranks": float(len(asked))}
    why = structs.replace(cause, sentence=f"{cause.sentence}; {len(asked)} of its ranks leave", numbers=numbers)
    return cluster_state.go(job, _E.RESIZED, why, now, placement=leaving(job.placement, asked))


def overdue(
    cluster_state: ClusterState, job: Job, now: float, *, since: float, start_seconds: float, stop_seconds: float
) -> list[Step]:
    """Ranks that were to join and did not begin in time leave; ranks that were to leave and are reported to run in
    spite of that are given up: such a rank keeps its GPUs as an orphan. `since`: from when on the time counts."""
    assert job.placement is not None
    waited = now - (since if job.sized_at is None else max(since, job.sized_at))
    stuck = [each for each in job.placement.allocations if each.leaving and cluster_state.pool.runs.alive(job, each)]
    if stuck and waited > job.spec.grace_seconds + stop_seconds:
        names = ", ".join(str(allocation.rank) for allocation in stuck)
        cause = Cause(code=_C.STOP_TIMEOUT, sentence=f"ranks {names} did not leave in time, and are given up")
        return cluster_state.go(job, _E.RESIZED, cause, now, placement=_without(job.placement, stuck))
    late = [
        each
        for each in job.placement.staying
        if each.extra and waited > start_seconds and not cluster_state.pool.runs.began(job, each)
    ]
    if not late:
        return []
    names = ", ".join(str(allocation.rank) for allocation in late)
    cause = Cause(code=_C.START_TIMEOUT, sentence=f"ranks {names} did not begin in time, and leave")
    size = _with_what_it_lent(cluster_state, job)
    for allocation in late:
        size[allocation.role] -= 1
    return cluster_state.go(job, _E.RESIZED, cause, now, placement=leaving(job.placement, late), size=size)


def joined(cluster_state: ClusterState, job: Job, places: Sequence[Allocation]) -> Placement:
    """The placement with these places as further ranks, the last ones, under numbers that none had before."""
    assert job.placement is not None
    # A rank of a time that the store has forgotten may still have its number.
    ranks = fresh_ranks(job, len(places), above=cluster_state.pool.orphans.highest_rank(job.id, job.epoch))
    new = tuple(
        structs.replace(place, rank=rank, extra=True, leaving=False, revision=job.revision)
        for place, rank in zip(places, ranks, strict=True)
    )
    return structs.replace(
        job.placement,
        allocations=(*job.placement.allocations, *new),
        ranks_used=ranks[-1] + 1,
        changes=job.placement.changes + 1,
    )


def leaving(placement: Placement, ranks: Collection[Allocation]) -> Placement:
    """The placement with these ranks told to leave."""
    told = tuple(
        structs.replace(allocation, leaving=True) if allocation in ranks else allocation
        for allocation in placement.allocations
    )
    return structs.replace(placement, allocations=told, ranks_used=placement.fresh_rank, changes=placement.changes + 1)


def _without(placement: Placement, gone: Collection[Allocation]) -> Placement:
    left = tuple(allocation for allocation in placement.allocations if allocation not in gone)
    told = any(not allocation.leaving for allocation in gone)  # of the others the job knows already
    return structs.replace(
        placement, allocations=left, ranks_used=placement.fresh_rank, changes=placement.changes + told
    )


def give_up(cluster_state: ClusterState, job: Job, now: float) -> list[Step]:
    """The time for a job to stop is over: the job ends, and each rank that still runs keeps its GPUs as an orphan.

    The job is not requeued by itself, because the old run and a new one must not run at once.
    """
    assert job.stopping_for is not None
    left = cluster_state.pool.not_stopped(job)
    if not left:
        return []  # a node has yet to report, or to be lost
    ranks = cluster_state.pool.runs.of(job)
    first = left[0]
    others = f" and {len(left) - 1} more" if len(left) > 1 else ""
    sentence = (
        f"rank {first.rank} on node {first.node_id}{others} still ran {duration_text(now - job.since)} after it was"
        " asked to stop, and keeps its GPUs until it ends"
    )
    if job.stopping_for.code in CANCELS:
        cause = structs.replace(job.stopping_for, sentence=f"{job.stopping_for.sentence}; {sentence}")
        return cluster_state.go(job, _E.CANCELLED, cause, now, exit_code=ranks.exit_code, progress=ranks.progress)
    if job.stopping_for.code is _C.CORE_DONE:
        cause = structs.replace(job.stopping_for, sentence=f"{job.stopping_for.sentence}; {sentence}")
        return cluster_state.go(job, _E.SUCCEEDED, cause, now, exit_code=0, progress=ranks.progress)
    cause = Cause(
        code=_C.STOP_TIMEOUT,
        sentence=f"{sentence}; it was stopped because: {job.stopping_for.sentence}",
        by=first.node_id,
        numbers={"ranks_left": float(len(left))},
    )
    return cluster_state.go(job, _E.FAILED, cause, now, exit_code=ranks.exit_code, progress=ranks.progress)


def _ended_badly(
    cluster_state: ClusterState,
    job: Job,
    cause: Cause,
    now: float,
    *,
    exit_code: int | None,
    progress: dict[str, float] | None,
) -> list[Step]:
    if not cluster_state.pool.all_gone(job):
        return stop(cluster_state, job, cause, now, exit_code=exit_code, progress=progress)
    return _over(cluster_state, job, cause, now, exit_code=exit_code, progress=progress)


def _over(
    cluster_state: ClusterState,
    job: Job,
    cause: Cause,
    now: float,
    *,
    exit_code: int | None,
    progress: dict[str, float] | None,
) -> list[Step]:
    """This epoch ended without success: requeue the job, or let it fail."""
    if job.spec.is_service:
        return service_over(cluster_state, job, cause, now, progress=progress)
    if _fails_at_its_size(job, cause, now):
        sizes = ", ".join(f"{role} {count}" for role, count in job.worked.items())
        sentence = f"{cause.sentence}, soon after it took another size: it goes back to {sizes}"
        back = structs.replace(cause, code=_C.SIZE_FAILED, sentence=sentence)
        return cluster_state.go(
            job, _E.REQUEUED, back, now, exit_code=exit_code, progress=progress, not_before=now, size=job.worked
        )
    retries = job.spec.retries
    if cause.code in _NOT_ITS_FAULT:
        # A job that vanishes again and again must not spin, nor wait long for a fault that is not its own.
        spins = cause.code in (_C.RUN_LOST, _C.ORDERS_FULL)
        wait = min(retries.wait_seconds(job.epoch + 1), LOST_SECONDS_MAX) if spins else 0.0
        return cluster_state.go(
            job, _E.REQUEUED, cause, now, exit_code=exit_code, progress=progress, not_before=now + wait
        )
    if cause.code is _C.CANNOT_START and not _was_elsewhere(job):
        return cluster_state.go(job, _E.FAILED, _no_other_try(cause), now, progress=progress, attempts=job.attempts + 1)
    if cause.code in FOR_GOOD or job.attempts >= retries.max:
        attempts = job.attempts + (cause.code not in FOR_GOOD)
        return cluster_state.go(job, _E.FAILED, cause, now, exit_code=exit_code, progress=progress, attempts=attempts)
    wait = retries.wait_seconds(job.attempts + 1)
    sentence = f"{cause.sentence}; retry {job.attempts + 1} of {retries.max} in {duration_text(wait)}"
    return cluster_state.go(
        job,
        _E.REQUEUED,
        structs.replace(cause, sentence=sentence),
        now,
        exit_code=exit_code,
        progress=progress,
        attempts=job.attempts + 1,
        not_before=now + wait,
    )


def service_over(
    cluster_state: ClusterState, job: Job, cause: Cause, now: float, *, progress: dict[str, float] | None = None
) -> list[Step]:
    """The last replica of the service has ended. It goes back to the queue, unless it was stopped for good, or has used
    up its tries without a replica that became ready."""
    if cause.code in FOR_GOOD:
        return cluster_state.go(job, _E.FAILED, cause, now, progress=progress)
    if cause.code is _C.CANNOT_START and not job.worked and not _was_elsewhere(job):
        return cluster_state.go(job, _E.FAILED, _no_other_try(cause), now, progress=progress, attempts=job.attempts + 1)
    attempts = job.attempts + (cause.code not in _NOT_ITS_FAULT)
    if never_ready(job, attempts):
        return cluster_state.go(
            job, _E.FAILED, why_never_ready(attempts, cause), now, progress=progress, attempts=attempts
        )
    wait = wait_seconds(job, attempts) if attempts > job.attempts else 0.0
    if cause.code in (_C.RUN_LOST, _C.ORDERS_FULL):
        wait = min(job.spec.retries.wait_seconds(job.epoch + 1), LOST_SECONDS_MAX)
    return cluster_state.go(
        job,
        _E.REQUEUED,
        cause,
        now,
        progress=progress,
        attempts=attempts,
        not_before=now + wait,
        worked=job.worked,
    )


def _no_other_try(cause: Cause) -> Cause:
    return structs.replace(cause, sentence=f"{cause.sentence}; another try would end the same way")


def _was_elsewhere(job: Job) -> bool:
    """Return True if the job was ever placed on another node, which may have what is missing here."""
    here = {allocation.node_id for allocation in job.held}
    return not here.issuperset(job.nodes)


def wait_seconds(job: Job, attempts: int) -> float:
    """Seconds for which a service waits before it starts another replica after failures in a row: as its user set, but
    long enough that replicas that fail at once cause little load."""
    least = min(WAIT_SECONDS_LEAST * 2.0 ** min(attempts - 1, 60), WAIT_SECONDS_LEAST_MAX)
    return max(least, job.spec.retries.wait_seconds(attempts))


def never_ready(job: Job, attempts: int) -> bool:
    """Return True if a service without any ready replica so far must be given up. `attempts`: replicas in a row that
    failed."""
    return not job.worked and attempts >= max(TRIES_LEAST, job.spec.retries.max + 1)


def why_never_ready(attempts: int, last: Cause) -> Cause:
    sentence = f"no replica of it ever became ready, in {attempts} tries; the last one: {last.sentence}"
    return structs.replace(last, code=_C.NEVER_READY, sentence=sentence)


def _fails_at_its_size(job: Job, cause: Cause, now: float) -> bool:
    """Return True if the job failed by its own fault within the cool-down after a resize."""
    own_fault = cause.code not in _NOT_ITS_FAULT | FOR_GOOD
    return bool(job.worked) and job.worked != job.granted and own_fault and _is_new(job, now)


def _is_new(job: Job, now: float) -> bool:
    """Return True if the job took its size within the cool-down."""
    return now - (job.held_since if job.sized_at is None else job.sized_at) < COOL_DOWN_SECONDS


def _reported(node_id: str, sentence: str = "") -> Cause:
    return Cause(code=_C.NODE_REPORTED, sentence=sentence or f"node {node_id} prepares it", by=node_id)


def enter(cluster_state: ClusterState, ask: Ask, job: Job, now: float) -> list[Step]:
    """The step that records the session; none once that epoch has ended, which ended the session too."""
    entry = ask.entry
    if entry is None or entry.epoch != job.epoch or job.state not in OPEN_TO_PEOPLE:
        return []
    return cluster_state.go(job, JobEvent.ENTERED, entry.cause, now, ask=ask.id)
