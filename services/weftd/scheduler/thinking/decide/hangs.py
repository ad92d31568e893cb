"""Jobs that hang: no rank shows a sign of work for longer than the job allows."""

from weft.domain.job import Allocation, Cause, CauseCode, Job, JobEvent, JobState, Step
from weft.domain.quantity import duration_text
from weft.domain.spec import HangAct, Kind
from weft.messages.nodes import RunSeen
from weftd.scheduler.thinking.decide import lifecycle
from weftd.scheduler.thinking.state.cluster_state import ClusterState

BUSY = 0.5  # a rank whose GPUs are used more than this waits for another one
STACKS_SECONDS = 15.0  # in which the nodes of a job that hangs write its stacks into its log
_WENT_ON = Cause(
    code=CauseCode.WENT_ON, sentence="it counts as hung no longer: a rank shows a sign of work, or cannot be read"
)


def watch(cluster_state: ClusterState, job: Job, now: float) -> list[Step]:
    """Note that a running job hangs, and when it does no more. If it asks for that, start it again from its checkpoint,
    once its nodes had the time to write its stacks."""
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
            code=CauseCode.HUNG, sentence=f"{sentence}, which {'idle' if idle else 'are wholly busy'}", numbers=numbers
        )
    if len(idle) == 1:
        one = idle[0]
        numbers["rank"] = float(one.rank)
        sentence += f"; rank {one.rank} on node {one.node_id} idles, and the others wait"
        return Cause(code=CauseCode.HUNG, sentence=sentence, by=one.node_id, numbers=numbers)
    return Cause(
        code=CauseCode.HUNG, sentence=f"{sentence}; {len(idle)} of its {len(seen)} ranks idle", numbers=numbers
    )
