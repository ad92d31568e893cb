"""Running jobs that do nothing: those that hang, and those that hold GPUs and use none."""

from weft.domain.idling import idle_seconds_max, warned_seconds
from weft.domain.job import Allocation, Cause, CauseCode, Job, JobEvent, JobState, Step
from weft.domain.quantity import duration_text
from weft.domain.spec import HangAct, Kind
from weft.domain.text import plural
from weft.messages.nodes import RunSeen
from weftd.scheduler.thinking.decide import lifecycle
from weftd.scheduler.thinking.state.cluster_state import ClusterState

BUSY = 0.5  # a rank whose GPUs are used more than this waits for another one
STACKS_SECONDS = 15.0  # in which the nodes of a job that hangs write its stacks into its log
_WENT_ON = Cause(
    code=CauseCode.WENT_ON, sentence="it no longer counts as hung: a rank shows a sign of work, or cannot be read"
)


def watch_hung(cluster_state: ClusterState, job: Job, now: float) -> list[Step]:
    """Note when a running job begins to hang, and when it works again. If its job file asks for that, restart it from
    its checkpoint after its nodes had time to write its stacks."""
    waits_for_people = job.spec.kind in (Kind.INFERENCE, Kind.NOTEBOOK)
    if job.state is not JobState.RUNNING or waits_for_people or job.spec.hang.do is HangAct.NOTHING:
        return []
    seen = _seen(cluster_state, job)
    if seen is None:
        return []
    cause = _hangs(job, seen)
    if cause is None:
        return [] if job.hung_since is None else cluster_state.go(job, JobEvent.NOTED, _WENT_ON, now)
    if job.hung_since is None:
        return cluster_state.go(job, JobEvent.NOTED, cause, now)
    if job.spec.hang.do is HangAct.REQUEUE and now - job.hung_since >= STACKS_SECONDS:
        return lifecycle.stop(cluster_state, job, cause, now)
    return []


def _seen(cluster_state: ClusterState, job: Job) -> list[tuple[Allocation, RunSeen]] | None:
    """The ranks with GPUs, as their nodes report them; None if a node has not reported one."""
    assert job.placement is not None
    ranks = [each for each in job.placement.staying if each.gpus]
    seen = [(each, run) for each in ranks if (run := cluster_state.pool.runs.run(job, each)) is not None]
    return seen if len(seen) == len(ranks) else None


def _hangs(job: Job, seen: list[tuple[Allocation, RunSeen]]) -> Cause | None:
    still = min((run.still_seconds for _, run in seen), default=0)
    return _cause(seen, still) if still and still >= job.spec.hang.after_seconds else None


def _cause(seen: list[tuple[Allocation, RunSeen]], still: int) -> Cause:
    """The idle rank is to blame if it is the only one: the others wait for it."""
    idle = [each for each, run in seen if run.still_use <= BUSY]
    numbers = {"still_seconds": float(still), "ranks": float(len(seen)), "ranks_idle": float(len(idle))}
    sentence = f"it hangs: no output, no step and no change in the use of its GPUs for {duration_text(still)}"
    if len(seen) == 1:
        return Cause(
            code=CauseCode.HUNG, sentence=f"{sentence}, which {'idle' if idle else 'are fully busy'}", numbers=numbers
        )
    if len(idle) == 1:
        one = idle[0]
        numbers["rank"] = float(one.rank)
        sentence += f"; rank {one.rank} on node {one.node_id} idles, and the others wait"
        return Cause(code=CauseCode.HUNG, sentence=sentence, by=one.node_id, numbers=numbers)
    return Cause(
        code=CauseCode.HUNG, sentence=f"{sentence}; {len(idle)} of its {len(seen)} ranks idle", numbers=numbers
    )


def watch_idle(cluster_state: ClusterState, job: Job, now: float) -> list[Step]:
    """Warn a running job whose GPUs are all unused, and stop it later; it is never stopped without a warning."""
    limit = idle_seconds_max(job.spec)
    if limit is None or job.state is not JobState.RUNNING:
        return []
    idle, key = _idle_seconds(cluster_state, job), (job.id, job.epoch)
    ahead = warned_seconds(limit)
    if idle < limit - ahead:
        cluster_state.idle_warned.pop(key, None)
        return []
    numbers = {"idle_seconds": float(idle), "idle_seconds_max": limit, "gpus": float(job.gpus_held)}
    held = f"it has used none of its {plural(job.gpus_held, 'GPU')}" if job.gpus_held > 1 else "it has not used its GPU"
    if key not in cluster_state.idle_warned:
        cluster_state.idle_warned[key] = now
        sentence = f"{held} for {duration_text(idle)}, and is stopped soon unless it uses one (`idle_stop`)"
        cause = Cause(code=CauseCode.HELD_IDLE, sentence=sentence, numbers=numbers)
        return cluster_state.go(job, JobEvent.NOTED, cause, now)
    if idle < limit or now - cluster_state.idle_warned[key] < ahead:
        return []
    sentence = f"{held} for {duration_text(idle)}: its `idle_stop` is {duration_text(limit)}"
    cause = Cause(code=CauseCode.IDLE_STOPPED, sentence=sentence, numbers=numbers)
    return lifecycle.stop(cluster_state, job, cause, now)


def forget_idle(cluster_state: ClusterState) -> None:
    """Forget the warnings of jobs that are over, or in another epoch."""
    jobs = cluster_state.jobs
    for key in [key for key in cluster_state.idle_warned if key[0] not in jobs or jobs[key[0]].epoch != key[1]]:
        del cluster_state.idle_warned[key]


def _idle_seconds(cluster_state: ClusterState, job: Job) -> int:
    """The seconds for which no rank has used a GPU; 0 if a rank does, or is not reported."""
    assert job.placement is not None
    ranks = [each for each in job.placement.staying if each.gpus]
    runs = [cluster_state.pool.runs.run(job, each) for each in ranks]
    return min((0 if run is None else run.idle_seconds for run in runs), default=0)
