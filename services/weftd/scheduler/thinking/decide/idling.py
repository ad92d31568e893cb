"""Jobs that hold GPUs and use none: each is warned, and stopped if that goes on for longer than it may."""

from weft.domain.idling import idle_seconds_max, warned_seconds
from weft.domain.job import Cause, CauseCode, Job, JobEvent, JobState, Step
from weft.domain.quantity import duration_text
from weft.domain.text import plural
from weftd.scheduler.thinking.decide import lifecycle
from weftd.scheduler.thinking.state.cluster_state import ClusterState


def watch(cluster_state: ClusterState, job: Job, now: float) -> list[Step]:
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
        sentence = f"{held} for {duration_text(idle)}, and is stopped soon unless it does (`idle_stop`)"
        cause = Cause(code=CauseCode.HELD_IDLE, sentence=sentence, numbers=numbers)
        return cluster_state.go(job, JobEvent.NOTED, cause, now)
    if idle < limit or now - cluster_state.idle_warned[key] < ahead:
        return []
    sentence = f"{held} for {duration_text(idle)}: its `idle_stop` is {duration_text(limit)}"
    cause = Cause(code=CauseCode.IDLE_STOPPED, sentence=sentence, numbers=numbers)
    return lifecycle.stop(cluster_state, job, cause, now)


def forget(cluster_state: ClusterState) -> None:
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
