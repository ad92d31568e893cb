"""The workload of a simulated cluster: jobs that arrive at their times."""

from msgspec import Struct

MOST_SENSITIVE = "A"  # the class of a job without a known class: it risks nothing


class TraceJob(Struct, frozen=True, kw_only=True):
    """One job of a trace. All times in seconds, `arrival_s` since the trace's own beginning.

    `work_s`: how long it runs on GPUs of score 1.0 that are all in one node. `estimate_s`: its user's estimate of that.
    `share`: the part of one GPU that it asked for, if less than a whole one (it gets a whole one).
    """

    id: str
    arrival_s: float
    gpus: int
    work_s: float
    job_class: str = MOST_SENSITIVE
    tenant: str = "default"
    priority: int = 0
    model: str = ""
    estimate_s: float | None = None
    share: float | None = None


class Workload(Struct, frozen=True, kw_only=True):
    """Jobs by arrival, then in the order of their file. `notes`: remarks for the reader on how they were read."""

    name: str
    jobs: tuple[TraceJob, ...]
    notes: tuple[str, ...] = ()


class InputError(Exception):
    """An input cannot be read: `file`, `line` (1 is the first; 0: the file as a whole) and the mistake."""

    def __init__(self, file: str, line: int, reason: str) -> None:
        super().__init__(f"{file}:{line}: {reason}" if line else f"{file}: {reason}")
        self.file = file
        self.line = line
        self.reason = reason
