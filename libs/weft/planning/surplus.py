"""Extra ranks of running jobs, and the waiting jobs that take them. A job loses only speed by that."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Protocol

from msgspec import Struct, structs

from weft.domain.job import Allocation
from weft.planning.finding import Place
from weft.planning.order import Key
from weft.planning.preemption import LEAVES_FIRST, Holder
from weft.planning.tiers import has_lasted

STARVED_SECONDS = 30.0  # after which a waiting job takes ranks beyond the core of jobs that it may not pre-empt


class Surplus(Struct, frozen=True):
    """One rank. `idle`: it is beyond as many as the job's user wants, so the job has it only while nobody else needs
    it. `offered`: it is beyond the size that the job should have, too."""

    holder: Holder
    idle: bool
    offered: bool = False


class Lenders(Protocol):
    def waited_s(self, job_id: str) -> float: ...
    def takes_surplus_at(self, job_id: str) -> int | None:
        """The priority with which a job takes surplus ranks; None: it takes none."""
        ...

    def lenders(self) -> Sequence[tuple[str, int]]:
        """The running jobs that may have ranks to spare, by id, each with its priority."""
        ...

    def surplus(self, job_id: str) -> Iterable[Surplus]:
        """The ranks that a running job can do without."""
        ...


def surplus_for(lenders: Lenders, job_id: str, *, others_than: Iterable[Holder]) -> list[Holder]:
    """The ranks of jobs of no higher priority, other than those of these holders, that a waiting job takes: those that
    are idle at once, those beyond the core once it starves."""
    lending = lenders.lenders()
    priority = lenders.takes_surplus_at(job_id) if lending else None
    if priority is None:
        return []
    known = {one.job_id for one in others_than}
    starves = has_lasted(lenders.waited_s(job_id), STARVED_SECONDS)
    found: list[Holder] = []
    for lender, its_priority in sorted(lending):
        if lender in known or its_priority > priority:
            continue
        found += [one.holder for one in lenders.surplus(lender) if starves or one.idle]
    return found


def with_extras(allocations: Iterable[Allocation], least: Mapping[str, int]) -> Place:
    """The ranks of a job that resizes live, with those beyond the core marked: the first `least` of each role are the
    core."""
    left = dict(least)
    marked: list[Allocation] = []
    for allocation in allocations:
        left[allocation.role] -= 1
        marked.append(structs.replace(allocation, extra=left[allocation.role] < 0))
    return tuple(marked)


def parts_of(
    job_id: str,
    allocations: Iterable[Allocation],
    *,
    tier: Key,
    loss: Callable[[bool], Key],
    runs: bool = True,
    needed: Set[int] = frozenset(),
) -> list[Holder]:
    """The job's ranks that leave already, those that it can do without, the newest first, and the rest of it.

    `loss(extra)`: its loss by a rank beyond the core, or by all of it. `runs`: it has begun, so that it can go on with
    fewer ranks. `needed`: ranks that count as much as the core does, though the job goes on without them.
    """
    found: list[Holder] = []
    core: list[Allocation] = []
    for one in allocations:
        if one.leaving:
            found.append(Holder(job_id=job_id, worth=LEAVES_FIRST, allocations=(one,), extra=True))
        elif one.extra and runs:
            worth = (*tier, *loss(one.rank not in needed), -float(one.rank))
            found.append(Holder(job_id=job_id, worth=worth, allocations=(one,), extra=True))
        else:
            core.append(one)
    if core:
        found.append(Holder(job_id=job_id, worth=(*tier, *loss(False)), allocations=tuple(core)))
    return found


def only_extra(parts: Iterable[Holder]) -> list[Holder]:
    """Drop candidates whose loss stops the job."""
    return [each for each in parts if each.extra]


def surplus_in(parts: Sequence[Holder], wanted: Mapping[str, int], aims: Mapping[str, int]) -> list[Surplus]:
    """The parts of a job that it can do without. `wanted`: as many ranks of each role as its user wants; `aims`: as
    many as it should have."""
    staying = [one for part in parts for one in part.allocations if not one.leaving]
    idle, beyond = beyond_want(staying, wanted), beyond_want(staying, aims)
    return [
        Surplus(part, rank in idle, rank in idle & beyond)
        for part in only_extra(parts)
        for rank in (part.allocations[0].rank,)
    ]


def beyond_want(staying: Iterable[Allocation], wanted: Mapping[str, int]) -> frozenset[int]:
    """The newest ranks of each role, beyond as many as its user wants."""
    by_role: dict[str, list[int]] = {}
    for one in staying:
        by_role.setdefault(one.role, []).append(one.rank)
    return frozenset(rank for role, ranks in by_role.items() for rank in sorted(ranks)[wanted[role] :])
