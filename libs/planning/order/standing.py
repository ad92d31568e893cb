"""What an order may know of a job."""

from collections.abc import Callable

from msgspec import Struct

Key = tuple[float, ...]
"""Sorts jobs as they are served, smallest first; the job's number and id are put behind it."""


class Standing(Struct, frozen=True, kw_only=True):
    """A job, waiting or running, at one moment. Times in seconds.

    `seq`: the number under which it came in. `gpus`: how many it holds, or needs to start. `attained_s`: how long it
    has held its GPUs since it came or was promoted, in all its runs; `attained_gpu_s`: the same, each second counted
    once for every GPU held in it. `waited_s`: how long it has gone without since it came, lost them, or was promoted.
    `left_s`: how long it will still run, where somebody said so. `share`: its tenant's dominant share of the pool (0 to
    1).
    """

    id: str
    seq: int
    gpus: int
    priority: int = 0
    tenant: str = ""
    attained_s: float = 0.0
    attained_gpu_s: float = 0.0
    waited_s: float = 0.0
    left_s: float | None = None
    share: float = 0.0


def _never(job: Standing) -> float | None:
    del job
    return None


class Order(Struct, frozen=True):
    """A waiting job preempts running ones of a higher `tier` (None: an order that preempts nobody).

    `changes_after_s(running)`: when its tier will be another, if it runs on (None: never by running).
    `promotes_after_s(waiting)`: how long it may wait until what it has had is forgotten: it then is among the new ones.
    `by_share`: the key changes with what the tenant holds. `by_left`: it is how much is left to do, which gets less
    only by working, not by holding GPUs alone.
    """

    name: str
    key: Callable[[Standing], Key]
    tier: Callable[[Standing], int] | None = None
    changes_after_s: Callable[[Standing], float | None] = _never
    promotes_after_s: Callable[[Standing], float | None] = _never
    by_share: bool = False
    by_left: bool = False

    @property
    def preempts(self) -> Callable[[Standing, Standing], bool] | None:
        """May a waiting job, the first, take the place of a running one? None: never."""
        tier = self.tier
        return None if tier is None else lambda waiting, running: tier(waiting) < tier(running)
