"""What an order may know of a job."""

from collections.abc import Callable

from msgspec import Struct

Key = tuple[float, ...]
"""Sorts jobs as they are served, smallest first; the job's number and id are appended."""


class Standing(Struct, frozen=True, kw_only=True):
    """A job, waiting or running, at one moment. Times in seconds.

    `seq`: its number in the order of submission. `gpus`: how many it holds, or needs to start. `attained_s`: how long
    it has held GPUs since it was submitted or promoted, in all its runs; `attained_gpu_s`: the same in GPU-seconds.
    `waited_s`: how long it has waited since it was submitted, lost its GPUs, or was promoted. `left_s`: how long it
    will still run, if known. `share`: its tenant's dominant share of the pool (0 to 1). `checkpoints`: true
    if it writes checkpoints, so that it loses little when it is stopped.
    """

    id: str
    seq: int
    gpus: float
    priority: int = 0
    tenant: str = ""
    attained_s: float = 0.0
    attained_gpu_s: float = 0.0
    waited_s: float = 0.0
    left_s: float | None = None
    share: float = 0.0
    checkpoints: bool = False


def _never(job: Standing) -> float | None:
    del job
    return None


class Order(Struct, frozen=True):
    """A waiting job preempts running ones of a higher tier (`tier` None: an order without preemption). `held_tier`: the
    tier of a running job, where that is another than it would have if it waited.

    `changes_after_s(running)`: after how long the tier changes if the job runs on (None: never by running).
    `promotes_after_s(waiting)`: after how long a waiting job's past runs are forgotten, so that it counts as new.
    `by_share`: the key changes with what the tenant holds; with `by_use`, with what it used of late. `by_left`: the key
    is the work left, which shrinks only by working, not by holding GPUs alone.
    """

    name: str
    key: Callable[[Standing], Key]
    tier: Callable[[Standing], int] | None = None
    changes_after_s: Callable[[Standing], float | None] = _never
    promotes_after_s: Callable[[Standing], float | None] = _never
    held_tier: Callable[[Standing], int] | None = None
    by_share: bool = False
    by_use: bool = False
    by_left: bool = False

    @property
    def promotes(self) -> bool:
        """True if a waiting job's place changes by waiting alone."""
        return self.promotes_after_s is not _never

    @property
    def preempts(self) -> Callable[[Standing, Standing], bool] | None:
        """Whether the waiting job (first argument) may preempt the running one. None: never."""
        tier = self.tier
        return None if tier is None else lambda waiting, running: tier(waiting) < self.tier_of_running(running)

    def tier_of_running(self, job: Standing) -> int:
        """The tier of a running job. Only for an order with preemption."""
        tier = self.held_tier or self.tier
        assert tier is not None, "nobody is preempted"
        return tier(job)
