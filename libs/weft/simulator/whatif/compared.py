"""The same jobs with and without a supposition: which of them gain, which lose, and by how much. Pure."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from msgspec import Struct

from weft.planning.policy import Policy
from weft.simulator.whatif.look_ahead import WhatIfOutcome
from weft.simulator.whatif.present import JobNow

SAME_S = 1.0  # a smaller difference is none
SAME_PART = 0.002  # the same, as a part of how far ahead it is
MANY = 2000  # of more jobs, decisions that are far ahead are taken together
GRAIN_OF_TIERS, GRAIN_OF_RESERVATIONS = 0.001, 0.005


class JobCompared(Struct, frozen=True, kw_only=True):
    """`gains_s`: by how much sooner it ends, or starts where an end is not in sight; below 0: later. None: it is there
    in one of the two only, or in neither within the time that was looked at."""

    id: str
    base: WhatIfOutcome
    other: WhatIfOutcome
    gains_s: float | None


class FatesCompared(Struct, frozen=True, kw_only=True):
    """Two fates of each job, compared. `waited_base_s`, `waited_other_s`: the mean further wait in seconds of the jobs
    that wait now and start in both. `only_other`, `only_base`: the number of jobs that start in one of the two."""

    jobs: tuple[JobCompared, ...]
    gained: int
    lost: int
    waiting: int
    waited_base_s: float
    waited_other_s: float
    only_base: int = 0
    only_other: int = 0


def grain_for(policies: Sequence[Policy], jobs: int) -> float:
    """The interval between decisions that keeps the simulation of many jobs at seconds; the same for both sides."""
    if jobs <= MANY:
        return 0.0
    if any(policy.backfill == "conservative" for policy in policies):
        return GRAIN_OF_RESERVATIONS
    return GRAIN_OF_TIERS if any(policy.order in ("las", "srtf", "priority") for policy in policies) else 0.0


def compared(
    jobs: Sequence[JobNow], base: Mapping[str, WhatIfOutcome], other: Mapping[str, WhatIfOutcome], *, until_s: float
) -> FatesCompared:
    """`jobs`: all that are there in either. Those whose fate differs come first, the largest difference first."""
    found = [_compared(job, base.get(job.id), other.get(job.id), until_s) for job in jobs]
    found.sort(key=lambda job: (-abs(job.gains_s or 0.0), job.gains_s is not None, job.id))
    waiting = [job.id for job in jobs if not job.held and job.id in base and job.id in other]
    starts = [(base[one].starts_s, other[one].starts_s) for one in waiting]
    both = [(before, after) for before, after in starts if before is not None and after is not None]
    return FatesCompared(
        jobs=tuple(found),
        gained=sum((job.gains_s or 0.0) > 0 for job in found),
        lost=sum((job.gains_s or 0.0) < 0 for job in found),
        waiting=len(waiting),
        waited_base_s=fmean(before for before, _ in both) if both else 0.0,
        waited_other_s=fmean(after for _, after in both) if both else 0.0,
        only_base=sum(before is not None and after is None for before, after in starts),
        only_other=sum(before is None and after is not None for before, after in starts),
    )


def _compared(job: JobNow, base: WhatIfOutcome | None, other: WhatIfOutcome | None, until_s: float) -> JobCompared:
    gains = None if base is None or other is None else _gains(base, other, until_s, holds=bool(job.held))
    return JobCompared(id=job.id, base=base or WhatIfOutcome(), other=other or WhatIfOutcome(), gains_s=gains)


def _gains(base: WhatIfOutcome, other: WhatIfOutcome, until_s: float, *, holds: bool) -> float | None:
    before, after = base.ends_s, other.ends_s
    if before is None and after is None:
        before, after = (None, None) if holds else (base.starts_s, other.starts_s)
    if before is None and after is None:
        return None
    then, now = until_s if before is None else before, until_s if after is None else after
    gains = then - now
    return gains if abs(gains) > max(SAME_S, SAME_PART * min(then, now)) else 0.0
