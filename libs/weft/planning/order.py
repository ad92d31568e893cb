"""Orders decide which job is served first. Each order has a `key` and, if it preempts, a `tier`."""

from collections.abc import Callable

from msgspec import Struct

Key = tuple[float, ...]
"""Sorts jobs as they are served, smallest first; the job's number and id are appended."""
UNKNOWN_TIER = 64
GRAIN_S = 1e-3  # added so that the tier has changed by then
LAS_FIRST_GPU_SECONDS = 1800.0  # where the first level ends
LAS_GROWTH = 4.0  # the end of each level, as a multiple of the previous one
LAS_LEVELS = 5  # the last has no end
LAS_PATIENCE = 2.0  # a job is promoted when it waited this many times as long as it ran,
LAS_PATIENCE_SECONDS = 24 * 3600.0  # and at least this long
SHORT_PATIENCE = 16.0  # a job that ran little is promoted when it waited this many times as long as it ran,
SHORT_PATIENCE_SECONDS = 3600.0  # and at least this long
SIZE_PATIENCE_SECONDS = 4 * 3600.0  # smaller jobs come before a new one no longer than this
_STEP = LAS_LEVELS + 1  # tiers of one priority: the levels, and that of jobs that preempt none of their own


class Standing(Struct, frozen=True, kw_only=True):
    """A job, waiting or running, at one moment. Times in seconds.

    `seq`: its number in the order of submission. `gpus`: how many it holds, or needs to start. `attained_s`: how long
    it has held GPUs since it was submitted or promoted, in all its runs; `attained_gpu_s`: the same in GPU-seconds.
    `waited_s`: how long it has waited since it was submitted or lost its GPUs; `promoted`: so long that its past runs
    and its size are forgotten. `left_s`: how long it will still run, if known. `share`: its tenant's dominant share of
    the pool (0 to 1). `checkpoints`: true if it writes checkpoints, so that it loses little when it is stopped.
    """

    id: str
    seq: int
    gpus: float
    priority: int = 0
    tenant: str = ""
    attained_s: float = 0.0
    attained_gpu_s: float = 0.0
    waited_s: float = 0.0
    promoted: bool = False
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
        """True if the waiting job (first argument) may preempt the running one. None: never."""
        tier = self.tier
        return None if tier is None else lambda waiting, running: tier(waiting) < self.tier_of_running(running)

    def tier_of_running(self, job: Standing) -> int:
        """The tier of a running job. Only for an order with preemption."""
        tier = self.held_tier or self.tier
        assert tier is not None, "nobody is preempted"
        return tier(job)


def _by_number(job: Standing) -> Key:
    return (float(job.seq),)


FIFO = Order("fifo", _by_number)
"""First in, first out."""


def _by_left(job: Standing) -> Key:
    return (float("inf") if job.left_s is None else job.left_s, float(job.seq))


def _doublings(job: Standing) -> int:
    """How often the remaining seconds can be halved before less than one is left."""
    return UNKNOWN_TIER if job.left_s is None else int(job.left_s).bit_length()


def _doubling_changes_after_s(job: Standing) -> float | None:
    if job.left_s is None or job.left_s < 1:
        return None
    return job.left_s - float(1 << (_doublings(job) - 1)) + GRAIN_S


SRTF = Order("srtf", _by_left, _doublings, _doubling_changes_after_s, by_left=True)
"""Shortest remaining time first. Jobs without a known duration come last, the oldest first.

Tiers double: a job preempts those that still need about twice as long. If any difference counted, two jobs that are
nearly equal would take turns at evicting each other.
"""


def las_level(job: Standing) -> int:
    had, end, found = job.attained_gpu_s, LAS_FIRST_GPU_SECONDS, 0
    while had >= end and found < LAS_LEVELS - 1:
        end *= LAS_GROWTH
        found += 1
    return found


def _by_level(job: Standing) -> Key:
    return (float(las_level(job)), float(job.seq))


def _level_changes_after_s(job: Standing) -> float | None:
    """How long the job may run before it falls to the next level."""
    now = las_level(job)
    if not job.gpus or now == LAS_LEVELS - 1:
        return None
    return (LAS_FIRST_GPU_SECONDS * LAS_GROWTH**now - job.attained_gpu_s) / job.gpus


def _level_promotes_after_s(job: Standing) -> float | None:
    """How long until a waiting job returns to the first level; None if it is there."""
    if job.promoted or las_level(job) == 0:
        return None
    return max(LAS_PATIENCE_SECONDS, LAS_PATIENCE * job.attained_s) - job.waited_s


LAS = Order("las", _by_level, las_level, _level_changes_after_s, _level_promotes_after_s)
"""Least attained service, in two dimensions (Tiresias, NSDI'19): GPUs × time, in levels; within a level, the oldest.

No duration need be known: a job that has run little is likely to need little more. Levels grow by a factor, so that a
job is preempted a bounded number of times, however long it runs. A job that has waited long compared with its running
time comes back to the first level: no job starves behind newer ones.
"""


def _by_share(job: Standing) -> Key:
    return (job.share, -float(job.priority), float(job.seq))


DRF = Order("drf", _by_share, by_share=True)
"""Dominant resource fairness (Ghodsi et al., NSDI'11): next is a job of the tenant with the smallest dominant share.

A tenant's dominant share is the largest part that it holds of any one resource of the pool: GPUs, CPUs or memory.
"""

FAIR = Order("fair", _by_share, by_share=True, by_use=True)
"""Fair share over time (Fair Tree): next is a job of the tenant that has had least of what is due to it, of late.

Past use decays: it counts half after each half-life. Within a tenant the highest priority comes first, then the
oldest job. Nothing is pre-empted.
"""


def _by_priority(job: Standing) -> Key:
    level = las_level(job) if job.checkpoints else 0
    return (-float(job.priority), float(level), float(_size(job)), float(job.seq))


def _size(job: Standing) -> int:
    """How often its GPUs can be halved before less than one is left; 0 for a job that waited long."""
    return 0 if job.promoted else int(job.gpus).bit_length()


def _priority_tier(job: Standing) -> int:
    return -job.priority * _STEP + (las_level(job) if job.checkpoints else LAS_LEVELS)


def _priority_held_tier(job: Standing) -> int:
    return -job.priority * _STEP + (las_level(job) if job.checkpoints else 0)


def _priority_changes_after_s(job: Standing) -> float | None:
    return _level_changes_after_s(job) if job.checkpoints else None


def _priority_promotes_after_s(job: Standing) -> float | None:
    if job.promoted:
        return None
    if las_level(job) == 0 or not job.checkpoints:
        return SIZE_PATIENCE_SECONDS - job.waited_s
    patience = max(SHORT_PATIENCE_SECONDS, SHORT_PATIENCE * job.attained_s)
    return min(max(LAS_PATIENCE_SECONDS, LAS_PATIENCE * job.attained_s), patience) - job.waited_s


PRIORITY = Order(
    "priority",
    _by_priority,
    _priority_tier,
    _priority_changes_after_s,
    _priority_promotes_after_s,
    _priority_held_tier,
)
"""The highest priority first; within one priority, least attained service (`LAS`); within a level the job that needs
fewer GPUs, by doublings, then the oldest.

Large jobs run longer, in recorded traces, and each of them makes many small ones wait. A job that uses up a level
within minutes, because it is large, does not wait behind all newer jobs for a day: it is promoted after an hour, or
after 16 times as long as it ran.

A job preempts jobs of lower priority. Within one priority, a job that writes checkpoints preempts those that write them
too and have had more: they share the GPUs over time, at little loss. A job without checkpoints would lose all its work,
so it is preempted by higher priorities only; in return it preempts nobody of its own. If it is preempted, it begins
again and counts as a new job: GPU time whose work is lost is not held against it.
"""
