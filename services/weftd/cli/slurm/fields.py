"""A job in Slurm's words: its state, and every value that a table may have."""

import time
from collections.abc import Callable

from weft.domain.job import CauseCode, JobState
from weft.messages.http import JobView
from weftd.cli.slurm.numbers import number_of

_STATES = {
    JobState.QUEUED: "PENDING",
    JobState.PLACED: "CONFIGURING",
    JobState.STARTING: "CONFIGURING",
    JobState.RUNNING: "RUNNING",
    JobState.STOPPING: "COMPLETING",
    JobState.SUCCEEDED: "COMPLETED",
    JobState.FAILED: "FAILED",
    JobState.CANCELLED: "CANCELLED",
}
_FAILURES = {CauseCode.TIME_LIMIT: "TIMEOUT", CauseCode.NODE_LOST: "NODE_FAIL"}
LONG = {
    "PENDING": ("PD", (JobState.QUEUED,)),
    "CONFIGURING": ("CF", (JobState.PLACED, JobState.STARTING)),
    "RUNNING": ("R", (JobState.RUNNING,)),
    "COMPLETING": ("CG", (JobState.STOPPING,)),
    "COMPLETED": ("CD", (JobState.SUCCEEDED,)),
    "FAILED": ("F", (JobState.FAILED,)),
    "TIMEOUT": ("TO", (JobState.FAILED,)),
    "NODE_FAIL": ("NF", (JobState.FAILED,)),
    "CANCELLED": ("CA", (JobState.CANCELLED,)),
    # States of Slurm that no job of Weft has: a filter may name them.
    "BOOT_FAIL": ("BF", ()),
    "DEADLINE": ("DL", ()),
    "OUT_OF_MEMORY": ("OOM", ()),
    "PREEMPTED": ("PR", ()),
    "REQUEUED": ("RQ", ()),
    "RESIZING": ("RS", ()),
    "SUSPENDED": ("S", ()),
}
SHORT = {short: long for long, (short, _) in LONG.items()}
_REASONS = {
    CauseCode.NO_ROOM: "Resources",
    CauseCode.MAKING_ROOM: "Resources",
    CauseCode.NO_NODES: "PartitionDown",
    CauseCode.HELD_BACK: "Priority",
    CauseCode.DEPENDENCY: "Dependency",
    CauseCode.SINGLETON: "Dependency",
    CauseCode.ARRAY_FULL: "JobArrayTaskLimit",
    CauseCode.BACKOFF: "BeginTime",
}


def state(job: JobView) -> str:
    if job.state is JobState.FAILED and job.ended_for is not None:
        return _FAILURES.get(job.ended_for.code, "FAILED")
    return _STATES[job.state]


def reason(job: JobView) -> str:
    cause = job.waiting_for if job.state is JobState.QUEUED else job.ended_for
    return "None" if cause is None else _REASONS.get(cause.code, cause.code.value)


def seconds(job: JobView) -> int:
    """Run time so far, or total run time."""
    if job.started_at is None:
        return 0
    return max(0, int((time.time() if job.ended_at is None else job.ended_at) - job.started_at))


def clock(count: int, *, short: bool = False) -> str:
    """`1-02:03:04`; `short`: without hours that are 0."""
    days, rest = divmod(count, 86400)
    hours, minutes = divmod(rest // 60, 60)
    if short and not days:
        return f"{hours}:{minutes:02}:{rest % 60:02}" if hours else f"{minutes}:{rest % 60:02}"
    return f"{f'{days}-' if days else ''}{hours:02}:{minutes:02}:{rest % 60:02}"


def moment(at: float | None) -> str:
    return "Unknown" if at is None else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at))


def exit_code(job: JobView) -> str:
    """`3:0` for a status, `0:9` for a signal."""
    status = job.exit_code or 0
    return f"0:{status - 128}" if status > 128 else f"{status}:0"


def job_name(job: JobView) -> str:
    """The name as it was submitted: that of an element is the name of its array."""
    index = _part(job, 2)
    return job.name.removesuffix(f"-{index}") if index else job.name


def _part(job: JobView, at: int) -> str:
    return number_of(job.id).partition("_")[at]


def nodelist(job: JobView) -> str:
    return ",".join(job.nodes)


FIELDS: dict[str, Callable[[JobView], str]] = {
    "JobID": lambda job: number_of(job.id),
    "JobIDRaw": lambda job: number_of(job.id),  # Weft knows an element by one name
    "ArrayJobID": lambda job: _part(job, 0),
    "ArrayTaskID": lambda job: _part(job, 2) or "N/A",
    "JobName": job_name,
    "User": lambda job: job.submitter or job.tenant,
    "Account": lambda job: job.tenant,
    "Cluster": lambda job: "weft",
    "Partition": lambda job: job.pool,
    "State": state,
    "StateCompact": lambda job: LONG[state(job)][0],
    "ExitCode": exit_code,
    "Reason": reason,
    "NodeList": lambda job: nodelist(job) or "None assigned",
    "Nodes": nodelist,
    "NodesOrReason": lambda job: nodelist(job) if job.state.holding else f"({reason(job)})",
    "NNodes": lambda job: str(job.replicas),
    "NTasks": lambda job: str(job.replicas),
    "Priority": lambda job: str(job.priority),
    "Gres": lambda job: f"gres/gpu:{job.gpus:g}" if job.gpus else "N/A",
    "Restarts": lambda job: str(job.epoch),
    "Submit": lambda job: moment(job.submitted_at),
    "Start": lambda job: moment(job.started_at),
    "End": lambda job: moment(job.ended_at),
    "Elapsed": lambda job: clock(seconds(job)),
    "ElapsedRaw": lambda job: str(seconds(job)),
    "Time": lambda job: clock(seconds(job), short=True),
}
