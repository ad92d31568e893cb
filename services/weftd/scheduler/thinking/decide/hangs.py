"""Jobs that hang: no rank shows a sign of work for longer than the job allows."""

from weft.domain.job import Allocation, Cause, CauseCode, Job, JobEvent, JobState, Step
from weft.domain.quantity import duration_text
from weft.domain.spec import HangAct, Kind
from weft.messages.nodes import RunSeen
from weftd.scheduler.thinking.decide import lifecycle
from weftd.scheduler.thinking.state.cluster_state import ClusterState

BUSY = 0.5  # a rank whose GPUs are used more than this waits for another one


def watch(cluster_state: ClusterState, job: Job, now: float) -> list[Step]:
    """Note once that a running job hangs, and start it again from its checkpoint if it asks for that."""
    cause = _hangs(cluster_state, job)
    key = (job.id, job.epoch)
    if cause is None:
        cluster_state.hung.discard(key)
        return []
    if key in cluster_state.hung:
        return []
    cluster_state.hung.add(key)
    steps = cluster_state.go(job, JobEvent.NOTED, cause, now)
    if job.spec.hang.do is HangAct.REQUEUE:
        steps += lifecycle.stop(cluster_state, cluster_state.jobs[job.id], cause, now)
    return steps


def forget(cluster_state: ClusterState) -> None:
    """Forget the jobs that are over, or in another epoch."""
    jobs = cluster_state.jobs
    cluster_state.hung = {key for key in cluster_state.hung if key[0] in jobs and jobs[key[0]].epoch == key[1]}


def _hangs(cluster_state: ClusterState, job: Job) -> Cause | None:
    waits_for_people = job.spec.kind in (Kind.INFERENCE, Kind.NOTEBOOK)
    if job.state is not JobState.RUNNING or waits_for_people or job.spec.hang.do is HangAct.NOTHING:
        return None
    assert job.placement is not None
    ranks = [each for each in job.placement.staying if each.gpus]
    seen = [(each, run) for each in ranks if (run := cluster_state.pool.runs.run(job, each)) is not None]
    still = min((run.still_seconds for _, run in seen), default=0)
    if len(seen) < len(ranks) or not still or still < job.spec.hang.after_seconds:
        return None
    return _cause(seen, still)


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
