"""GPU-seconds by tenant and by step of a window, from an account."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import ceil

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from weft.domain.shares import WHOLE
from weftd.gateway.thinking.accounting.capacity import NodesPast
from weftd.gateway.thinking.accounting.stretches import EpochStretch, Wait

Amounts = NDArray[np.int64]
"""By step, in thousandths of a GPU times microseconds."""
Changes = list[tuple[int, int]]
"""When thousandths of GPUs changed, in microseconds since 1970, and by how many."""

STEPS_MAX = 300
STEP_SECONDS = (1, 5, 10, 30, 60, 300, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800)


class StepWindow(Struct, frozen=True, kw_only=True):
    """A time, in microseconds since 1970, and its steps; the last step may be a shorter one."""

    begins: int
    ends: int
    step_seconds: int

    @property
    def edges(self) -> Amounts:
        """The beginnings of all steps, and the end."""
        count = max(1, ceil((self.ends - self.begins) / (self.step_seconds * 1_000_000)))
        edges = self.begins + np.arange(count + 1, dtype=np.int64) * (self.step_seconds * 1_000_000)
        edges[-1] = self.ends
        return edges


class TenantSteps(Struct, frozen=True, kw_only=True):
    """GPU-seconds of one tenant by step. `due`: the tenant's part if all tenants had the same right to GPUs."""

    tenant: str
    held: Amounts
    due: Amounts

    @property
    def total(self) -> int:
        return sum_of(self.held)


def window_of(begins: int, ends: int) -> StepWindow:
    """The window with the shortest steps of which there are not too many."""
    fits = (step for step in STEP_SECONDS if (ends - begins) <= step * STEPS_MAX * 1_000_000)
    return StepWindow(begins=begins, ends=max(begins + 1, ends), step_seconds=next(fits, STEP_SECONDS[-1]))


def by_tenant(
    stretches: Iterable[EpochStretch], waits: Iterable[Wait], nodes: NodesPast, window: StepWindow
) -> tuple[Amounts, list[TenantSteps]]:
    """The GPUs of the cluster by step, and each tenant that held or waited for any, the largest holder first."""
    edges = window.edges
    there = by_step(_capacity(nodes), edges)
    held, wanted = _held(stretches, waits)
    tenants = sorted(wanted)
    has = [by_step(held.get(tenant, ()), edges) for tenant in tenants]
    due = fair([by_step(wanted[tenant], edges) for tenant in tenants], there)
    found = [TenantSteps(tenant=name, held=of, due=fit) for name, of, fit in zip(tenants, has, due, strict=True)]
    return there, sorted(found, key=lambda one: (-one.total, one.tenant))


def _capacity(nodes: NodesPast) -> Changes:
    found: Changes = []
    for states in nodes.states.values():
        had = 0
        for state in states:
            has = len(state.models) * WHOLE
            found.append((state.at, has - had))
            had = has
    return found


def _held(
    stretches: Iterable[EpochStretch], waits: Iterable[Wait]
) -> tuple[Mapping[str, Changes], Mapping[str, Changes]]:
    """By tenant, the changes of its held GPUs, and of its held and wanted GPUs together."""
    held: dict[str, Changes] = defaultdict(list)
    wanted: dict[str, Changes] = defaultdict(list)
    for stretch in stretches:
        for part in stretch.parts:
            by = sum(each for _, _, each in part.held)
            held[stretch.job.tenant] += ((part.begins, by), (part.ends, -by))
    for tenant, changes in held.items():
        wanted[tenant] += changes
    for wait in waits:
        wanted[wait.tenant] += ((wait.begins, wait.wanted), (wait.ends, -wait.wanted))
    return held, wanted


def by_step(changes: Sequence[tuple[int, int]], edges: Amounts) -> Amounts:
    """The amount in each step."""
    found = np.zeros(len(edges) - 1, dtype=np.int64)
    if not changes:
        return found
    given = np.array(changes, dtype=np.int64)
    times = np.concatenate([given[:, 0], edges])
    by = np.concatenate([given[:, 1], np.zeros(len(edges), dtype=np.int64)])
    order = np.argsort(times, kind="stable")
    times, level = times[order], np.cumsum(by[order])
    area = level[:-1] * np.diff(times)
    step = np.searchsorted(edges, times[:-1], side="right") - 1
    inside = (step >= 0) & (step < len(found))
    np.add.at(found, step[inside], area[inside])
    return found


def fair(demands: Sequence[Amounts], there: Amounts) -> list[Amounts]:
    """Max-min fair shares of the available GPUs, step by step; no tenant gets more than its demand. This is dominant
    resource fairness for GPUs alone."""
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


def sum_of(amounts: Amounts) -> int:
    """The sum of integers of any size."""
    return sum(amounts.tolist())
