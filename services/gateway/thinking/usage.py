"""GPU-seconds by tenant, from the moments at which numbers of GPUs changed. Exact: whole numbers throughout. Pure."""

from collections.abc import Iterable, Sequence
from math import ceil

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from libs.messages.series import GpuChanges

Amounts = NDArray[np.int64]
"""By step, in thousandths of a GPU times microseconds."""

NANO = 1e-9  # of a GPU-second: a thousandth of a GPU for a microsecond
STEPS_MAX = 300
STEP_SECONDS = (1, 5, 10, 30, 60, 300, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800)


class Stretch(Struct, frozen=True, kw_only=True):
    """A time, in microseconds since 1970, and its steps; the last step may be a shorter one."""

    begins: int
    ends: int
    step_seconds: int

    @property
    def edges(self) -> Amounts:
        """Where steps begin, and the end."""
        count = max(1, ceil((self.ends - self.begins) / (self.step_seconds * 1_000_000)))
        edges = self.begins + np.arange(count + 1, dtype=np.int64) * (self.step_seconds * 1_000_000)
        edges[-1] = self.ends
        return edges


class Had(Struct, frozen=True, kw_only=True):
    """What a tenant had by step. `due`: what it would have had, had all the same right to GPUs."""

    tenant: str
    held: Amounts
    due: Amounts

    @property
    def total(self) -> int:
        return sum_of(self.held)


def stretch_of(begins: float, ends: float) -> Stretch:
    """The window with the shortest steps of which there are not too many."""
    first, last = round(begins * 1e6), round(ends * 1e6)
    fits = (step for step in STEP_SECONDS if (last - first) <= step * STEPS_MAX * 1_000_000)
    return Stretch(begins=first, ends=max(first + 1, last), step_seconds=next(fits, STEP_SECONDS[-1]))


def summed(parts: Iterable[GpuChanges]) -> list[GpuChanges]:
    """One for each `what` and tenant, of several that were read apart."""
    found: dict[tuple[str, str], list[GpuChanges]] = {}
    for part in parts:
        found.setdefault((part.what, part.tenant), []).append(part)
    return [
        GpuChanges(
            what=what,
            tenant=tenant,
            at=tuple(at for part in of for at in part.at),
            by=tuple(by for part in of for by in part.by),
        )
        for (what, tenant), of in found.items()
    ]


def by_step(changes: GpuChanges | None, edges: Amounts) -> Amounts:
    """How much there was in each step."""
    if changes is None or not changes.at:
        return np.zeros(len(edges) - 1, dtype=np.int64)
    times = np.concatenate([np.array(changes.at, dtype=np.int64), edges])
    by = np.concatenate([np.array(changes.by, dtype=np.int64), np.zeros(len(edges), dtype=np.int64)])
    order = np.argsort(times, kind="stable")
    times, level = times[order], np.cumsum(by[order])
    area = level[:-1] * np.diff(times)
    step = np.searchsorted(edges, times[:-1], side="right") - 1
    found = np.zeros(len(edges) - 1, dtype=np.int64)
    inside = (step >= 0) & (step < len(found))
    np.add.at(found, step[inside], area[inside])
    return found


def fair(demands: Sequence[Amounts], there: Amounts) -> list[Amounts]:
    """What each gets of what is there, step by step, if all have the same right to it and nobody gets more than it
    wants: as dominant resource fairness gives it, of GPUs alone."""
    if not demands:
        return []
    wants = np.array(demands, dtype=np.float64)
    order = np.argsort(wants, axis=0, kind="stable")
    left = there.astype(np.float64)
    got = np.zeros_like(wants)
    steps = np.arange(wants.shape[1])
    for place, rows in enumerate(order):
        given = np.minimum(wants[rows, steps], left / (len(order) - place))
        got[rows, steps] = given
        left = left - given
    return [row.astype(np.int64) for row in got]


def usage_of(changes: Iterable[GpuChanges], window: Stretch) -> tuple[Amounts, list[Had]]:
    """All GPUs that there were, by step, and what every tenant had that held or waited for any: the most first."""
    edges = window.edges
    by = {(one.what, one.tenant): by_step(one, edges) for one in summed(changes)}
    nothing = by_step(None, edges)
    there = by.get(("there", ""), nothing)
    tenants = sorted({tenant for what, tenant in by if what in ("held", "wanted")})
    held = [by.get(("held", tenant), nothing) for tenant in tenants]
    wanted = [of + by.get(("wanted", tenant), nothing) for tenant, of in zip(tenants, held, strict=True)]
    due = fair(wanted, there)
    found = [Had(tenant=name, held=has, due=of) for name, has, of in zip(tenants, held, due, strict=True)]
    return there, sorted(found, key=lambda had: (-had.total, had.tenant))


def sum_of(amounts: Amounts) -> int:
    """The sum, however large."""
    return sum(amounts.tolist())
