"""Who may start ahead of a job that does not fit: each backfill is one class in a file of its own."""

from typing import NamedTuple, Protocol


class Ending(NamedTuple):
    """GPUs that a running job gives back at `at_s`. Jobs of which nobody knows when they end have none."""

    at_s: float
    gpus: int
    job_id: str = ""


class Backfill(Protocol):
    """Made anew for every walk over the queue; told of every job in order. Times are in seconds.

    GPUs are counted, not named: what a gang needs besides their number (nodes, CPUs, memory) its placement looks after.
    """

    def may_start(self, gpus: int, lasts_s: float | None) -> bool:
        """Whether a job that fits now delays none of those ahead of it. `lasts_s` None: nobody knows."""

    def started(self, gpus: int, lasts_s: float | None) -> None: ...

    def blocked(self, gpus: int, lasts_s: float | None) -> bool:
        """It does not fit, or may not start. Returns whether anybody behind it may: else the walk is over."""
