"""What a simulated cluster is asked to do: jobs that arrive at their times."""

from msgspec import Struct

MOST_SENSITIVE = "A"  # what a job of no known class counts as: nothing is risked with it


class TraceJob(Struct, frozen=True, kw_only=True):
    """One job of a trace. All times in seconds, `arrival_s` since the trace's own beginning.

    `work_s`: how long it runs on GPUs of score 1.0 that are all in one node. `estimate_s`: what its user says of that;
    None: nothing. `share`: the part of one GPU that it asked for, where that was less than a whole one (it is given a
    whole one).
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
    """Jobs by arrival, then in the order of their file. `notes`: what a reader should know of how they were read."""

    name: str
    jobs: tuple[TraceJob, ...]
    notes: tuple[str, ...] = ()


class InputError(Exception):
    """An input cannot be read: `file`, `line` (1 is the first; 0: the file as a whole) and what is wrong with it."""

    def __init__(self, file: str, line: int, reason: str) -> None:
        super().__init__(f"{file}:{line}: {reason}" if line else f"{file}: {reason}")
        self.file = file
        self.line = line
        self.reason = reason
