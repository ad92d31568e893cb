"""Which jobs may start ahead of a job that does not fit: each backfill is one class in a file of its own."""

from typing import NamedTuple, Protocol

GPU_GRAIN = 1e-6  # rounding error of adding and subtracting parts of GPUs


class Ending(NamedTuple):
    """A running job ends at `at_s` and frees `gpus` GPUs. A job with an unknown end has no `Ending`."""

    at_s: float
    gpus: float
    job_id: str = ""


class Backfill(Protocol):
    """Made anew for every walk over the queue; called for every job in order. Times are in seconds.

    GPUs are counted, not named: the placement checks what else a gang needs (nodes, CPUs, memory).
    """

    def may_start(self, gpus: float, lasts_s: float | None) -> bool:
        """Whether a job that fits now delays none of those ahead of it. `lasts_s` None: unknown."""

    def started(self, gpus: float, lasts_s: float | None) -> None: ...

    def blocked(self, gpus: float, lasts_s: float | None) -> bool:
        """The job does not fit, or may not start. Returns whether any job behind it may: else the walk is over."""
