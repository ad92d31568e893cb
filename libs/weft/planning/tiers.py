"""The running jobs that may be pre-empted, by tier."""

from bisect import bisect_left, insort
from math import ceil

GRAIN_S = 1e-6  # how finely times are kept
FLOAT_ERROR = 0.01  # in grains


class Tiers:
    """A tier has its jobs by their number in the order of submission, the last to come first."""

    def __init__(self) -> None:
        self._by_tier: dict[int, list[tuple[int, str]]] = {}
        self._gpus: dict[int, float] = {}  # by tier
        self._of: dict[str, tuple[int, int, float]] = {}  # by job: its tier, its number, its GPUs

    def copy(self) -> "Tiers":
        other = Tiers()
        other._by_tier = {tier: list(jobs) for tier, jobs in self._by_tier.items()}
        other._gpus, other._of = dict(self._gpus), dict(self._of)
        return other

    def put(self, job_id: str, tier: int, *, number: int, gpus: float) -> None:
        """File a job, or file it again by another tier."""
        self.remove(job_id)
        insort(self._by_tier.setdefault(tier, []), (-number, job_id))
        self._gpus[tier] = self._gpus.get(tier, 0) + gpus
        self._of[job_id] = (tier, number, gpus)

    def remove(self, job_id: str) -> None:
        found = self._of.pop(job_id, None)
        if found is not None:
            tier, number, gpus = found
            of_tier = self._by_tier[tier]
            del of_tier[bisect_left(of_tier, (-number, job_id))]
            self._gpus[tier] -= gpus

    def of(self, job_id: str) -> int | None:
        found = self._of.get(job_id)
        return None if found is None else found[0]

    def above(self, tier: int, *, gpus: float) -> list[tuple[int, str]] | None:
        """The jobs of higher tiers with their tiers, the highest first; None if they hold fewer GPUs than that."""
        higher = sorted((one for one in self._by_tier if one > tier), reverse=True)
        if sum(self._gpus[one] for one in higher) < gpus:
            return None
        return [(one, job_id) for one in higher for _, job_id in self._by_tier[one]]


def changes_at(at: float, *, now: float) -> float:
    """The time after `now`, as times are kept, by which has changed what changes at `at`."""
    return max(as_kept(at), now + GRAIN_S)


def has_lasted(lasted_s: float, least_s: float) -> bool:
    """True if that difference of two times is at least `least_s`, but for its rounding error.

    128.518512 - 8.518512 is a little less than 120: who looks once, when it is due, would find it not due.
    """
    return lasted_s >= least_s - GRAIN_S / 2


def as_kept(at: float) -> float:
    """The first time not before `at` as times are kept, but for the error of a sum."""
    return round(ceil(at / GRAIN_S - FLOAT_ERROR) * GRAIN_S, 6)
