"""Loans: a running service that wants more replicas than the free room holds takes what training can spare.

The scheduler and the simulator use it, behind the scheduling cycle. `weft.planning.borrowing` finds the ranks and jobs
that give way for one replica. Until these are gone, their GPUs are kept for the service. If they take longer than they
may, it looks again. Nothing here changes the state of a cluster: the caller applies each decision before it takes the
next. docs/serving.md describes how a loan works.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from math import inf
from typing import Protocol

from msgspec import Struct, structs

from weft.domain.cluster import Request
from weft.domain.job import Allocation, Loan
from weft.planning.borrowing import Borrowed, borrow
from weft.planning.capacity import FreeCapacity
from weft.planning.finding import Place, fits_there
from weft.planning.preemption import LEAVES_FIRST, Holder
from weft.planning.quota.inforce import QuotasInForce
from weft.planning.replicas import RunningService
from weft.planning.scores import GpuKey

LOOK_SECONDS = 0.5  # between two looks at the services that have too little
LOOKED_AT_MAX = 32  # of them at once
WAIT_SECONDS, WAIT_SECONDS_MAX = 1.0, 30.0  # until a service to which nobody lends is looked at again
WHOLE_FIRST = 256  # jobs that are looked at, before all others that may give way as a whole
LENT_AT_ONCE_MAX = 64  # replicas for which others give way in one look
KEPT_SECONDS = 30.0  # beyond the grace of those that leave, and the time in which nodes must stop them

Rank = tuple[float, ...]
"""Services of the same rank may take from the same jobs."""


class Borrower(Struct, frozen=True, kw_only=True):
    """A running service. `rank`: its priority, then its tier in the order."""

    service: RunningService
    epoch: int
    rank: Rank

    @property
    def missing(self) -> int:
        """The number of replicas that it has too few."""
        return max(0, self.service.wanted - len(self.service.staying))


class Lent(Struct, frozen=True):
    """Replicas of a service join in these places. `lenders`: by place, what each job lent for it: how many of its GPUs,
    and how many ranks it lost (0: all)."""

    job_id: str
    places: Place
    lenders: tuple[Mapping[str, tuple[float, int]], ...]


class GivesWay(Struct, frozen=True):
    """Ranks of a job, or all of it, leave for services. `victims`: each with the service that it leaves for."""

    job_id: str
    victims: tuple[tuple[str, Holder], ...]

    @property
    def whole(self) -> bool:
        return not all(victim.extra for _, victim in self.victims)


class KeepsGpu(Struct, frozen=True):
    """A GPU is kept for replicas, whichever job holds it now; `name`: under which it is kept."""

    name: str
    part: Allocation


class LetsGpuGo(Struct, frozen=True):
    """The GPU that is kept under this name is kept no longer."""

    name: str


class Back(Struct, frozen=True):
    """A place that a service no longer waits for: no training grows onto it for a while."""

    place: Allocation


def loans_of(lent: Lent, joined: Sequence[Allocation], now: float) -> tuple[Loan, ...]:
    """The loans by which these replicas joined, one for each place."""
    return tuple(
        Loan(lender=lender, rank=new.rank, gpus=gpus, ranks=count, since=round(now, 6))
        for lenders, new in zip(lent.lenders, joined, strict=True)
        for lender, (gpus, count) in lenders.items()
    )


Change = Lent | GivesWay | KeepsGpu | LetsGpuGo | Back


class Cluster(Protocol):
    """The state of a cluster, as loans read it."""

    @property
    def free_capacity(self) -> FreeCapacity: ...
    @property
    def quotas(self) -> QuotasInForce: ...
    def borrower(self, job_id: str) -> Borrower | None:
        """A running service; None if it does not run any more."""
        ...

    def is_there(self, node_id: str) -> bool:
        """True while the node reports."""
        ...

    def has_left(self, job_id: str, epoch: int, ranks: Sequence[int]) -> bool:
        """True once these ranks of the job in that epoch hold nothing any more; all of its ranks, if none is named."""
        ...

    def about_to_be_free(self) -> Sequence[Holder]:
        """The jobs that stop, and the ranks that leave, by job id."""
        ...

    def spares(self, service_id: str) -> Iterator[Holder]:
        """The ranks that running jobs may lend to the service, those first that lose least. Services of the same rank
        get the same."""
        ...

    def whole(self, service_id: str, *, most: int | None) -> Sequence[Holder]:
        """The jobs that may give way to the service as a whole, in any order. `most`: how many are looked at."""
        ...

    def loses(self, victim: Holder, service_id: str) -> bool:
        """True if the victim loses something for the service; False if it leaves by itself."""
        ...

    def epoch(self, job_id: str) -> int: ...
    def grace_s(self, job_id: str) -> float: ...
    def priority(self, job_id: str) -> int | None:
        """The priority of a job; None if it is over."""
        ...


class _Awaited(Struct, frozen=True, kw_only=True):
    """A place for one replica of a service in `epoch`, kept until `until`. `leaving`: by job and its epoch, the ranks
    that must be gone before; empty: all of them."""

    epoch: int
    place: Allocation
    leaving: dict[tuple[str, int], tuple[int, ...]]
    lenders: dict[str, tuple[float, int]]
    until: float


class _Look:
    """The findings of one look at the services that have too few replicas, for services of one rank at a time.

    `nothing`: needs for which there is no place, whatever is lent; `promised`: GPUs that come free, with what leaves
    there; `leaving`: what is about to be free; `spares`, `whole`: what may be lent, and whole jobs.
    """

    def __init__(self) -> None:
        self.nothing: set[tuple[Request, Rank]] = set()
        self.promised: dict[GpuKey, Holder] = {}
        self.leaving: list[Holder] | None = None
        self.spares: dict[Rank, tuple[list[Holder], Iterator[Holder]]] = {}
        self.whole: dict[tuple[Rank, int | None], list[Holder]] = {}
        self._gone: set[tuple[str, int]] = set()

    def leaves(self, victim: Holder) -> None:
        self._gone.update((victim.job_id, one.rank) for one in victim.allocations)
        self.promised.update({(one.node_id, gpu): victim for one in victim.allocations for gpu in one.gpus})

    def is_gone(self, holder: Holder) -> bool:
        return any((holder.job_id, one.rank) in self._gone for one in holder.allocations)


class Loans:
    """`stop_seconds`: how long nodes may take to stop a rank, besides its grace. `next_at`: from when on services that
    have too little are looked at again, whatever happens."""

    def __init__(self, cluster: Cluster, *, stop_seconds: float) -> None:
        self._cluster = cluster
        self._stop_seconds = stop_seconds
        self._awaited: dict[str, list[_Awaited]] = {}  # by service
        self._kept: dict[GpuKey, int] = {}  # how many replicas wait for a part of each
        # By service: what it has and lacks, when it is looked at again, the wait.
        self._again: dict[str, tuple[object, float, float]] = {}
        self._looked_at = -inf
        self._news: set[str] = set()  # the services that had too little, at the last look
        self._short: Mapping[str, int] = {}
        self.next_at = inf
        self._last_number = -1  # of the service that was looked at last

    # what was asked for is free

    def arrive(self, now: float) -> Iterator[Change]:
        """Let replicas join at places whose former holders are gone."""
        for job_id in sorted(self._awaited):
            yield from self._arrive(job_id, now)

    def _arrive(self, job_id: str, now: float) -> Iterator[Change]:
        borrower = self._cluster.borrower(job_id)
        missing = 0 if borrower is None else borrower.missing
        awaited = self._awaited.pop(job_id)
        due = [
            one
            for one in awaited
            if borrower is not None and borrower.epoch == one.epoch and self._cluster.is_there(one.place.node_id)
        ]
        joins = [one for one in due if not self._leaves(one)][:missing]
        stay = [one for one in due if self._leaves(one) and now < one.until][: missing - len(joins)]
        stays, joining = {id(one) for one in stay}, {id(one) for one in joins}  # two may be alike
        for one in awaited:
            if id(one) not in stays:
                yield from self._let_go(one)
            if id(one) not in stays | joining:
                yield Back(one.place)
        if stay:
            self._awaited[job_id] = stay
        if joins:
            yield from self._join(job_id, joins)

    def _leaves(self, one: _Awaited) -> bool:
        """Return True if something is left there that must be gone first."""
        return not all(self._cluster.has_left(job_id, epoch, ranks) for (job_id, epoch), ranks in one.leaving.items())

    def _join(self, job_id: str, awaited: Iterable[_Awaited]) -> Iterator[Change]:
        """Let the replicas join whose places are really free."""
        free_capacity = self._cluster.free_capacity
        fit: list[_Awaited] = []
        with free_capacity.supposing():
            for one in awaited:
                if fits_there(free_capacity, [one.place]):
                    free_capacity.take(one.place)
                    fit.append(one)
        if fit:
            yield Lent(job_id, tuple(one.place for one in fit), tuple(one.lenders for one in fit))

    # what others can spare

    def decide(self, now: float, *, short: Mapping[str, int], closed: Sequence[str], ahead: str) -> Iterator[Change]:
        """Let others give way to services. `short`: by service, how many of the replicas that it should have found no
        place. `closed` nodes are kept, or cleared, for a waiting job; `ahead`: a job that waits for room, before which
        services of a lower priority take nothing."""
        self._short, self.next_at = short, inf
        if not short:
            return
        if short.keys() == self._news and now < self._looked_at + LOOK_SECONDS:
            self.next_at = self._looked_at + LOOK_SECONDS
            return
        self._news, self._looked_at = set(short), now
        services = self._next(now, ahead)
        found = self._plan(services, closed) if services else []
        for one in services:
            service = one.service
            waits = self._again.get(service.job_id)
            same = waits is not None and waits[0] == _as_it_is(one)
            wait = min(2 * waits[2], WAIT_SECONDS_MAX) if waits is not None and same else WAIT_SECONDS
            if not any(other.service.job_id == service.job_id for other, _ in found):
                self._again[service.job_id] = (_as_it_is(one), now + wait, wait)
        self.next_at = min((at for _, at, _ in self._again.values() if at > now), default=inf)
        yield from self._ask(found, now)
        for job_id in dict.fromkeys(one.service.job_id for one, _ in found):
            yield from self._arrive(job_id, now)  # those for which nothing has to leave

    def _next(self, now: float, ahead: str) -> list[Borrower]:
        """The services that have too little, in the order of submission, those behind the last one first."""
        first = self._cluster.priority(ahead) if ahead else None
        self._again = {job_id: again for job_id, again in self._again.items() if job_id in self._short}
        short = (
            one
            for one in map(self._cluster.borrower, self._short)
            if one is not None
            and self._lacks(one) > len(self._awaited.get(one.service.job_id, ()))
            and now >= one.service.not_before  # those that failed are not replaced yet
            and (first is None or first <= one.rank[0])
            and not self._waits(one, now)
        )

        def turn(one: Borrower) -> tuple[bool, int]:
            return (one.service.number <= self._last_number, one.service.number)

        found = nsmallest(LOOKED_AT_MAX, short, key=turn)
        if found:
            self._last_number = found[-1].service.number
        return found

    def _lacks(self, one: Borrower) -> int:
        """The number of replicas for which the service may borrow, without those that only an update adds for a
        while."""
        return min(one.missing, self._short.get(one.service.job_id, 0))

    def _waits(self, one: Borrower, now: float) -> bool:
        again = self._again.get(one.service.job_id)
        return again is not None and again[0] == _as_it_is(one) and now < again[1]

    def _plan(self, services: Sequence[Borrower], closed: Sequence[str]) -> list[tuple[Borrower, Borrowed]]:
        """Plan places for replicas, the services in turn, without any change yet."""
        free_capacity = self._cluster.free_capacity
        found: list[tuple[Borrower, Borrowed]] = []
        look = _Look()
        with free_capacity.supposing(closed=closed):
            for one in services:
                service = one.service
                awaited = self._awaited.get(service.job_id, ())
                held = [*service.held, *(each.place for each in awaited)]
                for _ in range(self._lacks(one) - len(awaited)):
                    if (service.want.request, one.rank) in look.nothing or len(found) >= LENT_AT_ONCE_MAX:
                        break
                    willing = (each for each in self._willing(one, look) if not look.is_gone(each))
                    borrowed = borrow(
                        free_capacity, service.want, held, service.asked, willing=willing, promised=look.promised
                    )
                    if borrowed is None:
                        look.nothing.add((service.want.request, one.rank))
                        break
                    found.append((one, borrowed))
                    held.append(borrowed.place)
                    for victim in borrowed.victims:
                        look.leaves(victim)
        return found

    def _willing(self, one: Borrower, look: _Look) -> Iterator[Holder]:
        """Holders that give way to the service, without those that the guarantees of other tenants protect."""
        for holder in self._all_willing(one, look):
            if holder.worth == LEAVES_FIRST or not self._cluster.quotas.protects(one.service.tenant, holder):
                yield holder

    def _all_willing(self, one: Borrower, look: _Look) -> Iterator[Holder]:
        """Holders that leave already, then those that may lend to the service, the one that loses least first.
        Lazy: each is computed when it is asked for."""
        cluster, job_id = self._cluster, one.service.job_id
        if look.leaving is None:
            look.leaving = [each for each in cluster.about_to_be_free() if not self._is_kept(each)]
        yield from look.leaving
        if one.rank not in look.spares:
            look.spares[one.rank] = ([], cluster.spares(job_id))
        known, more = look.spares[one.rank]
        yield from known
        for holder in more:
            known.append(holder)
            yield holder
        for most in (WHOLE_FIRST, None):
            if (one.rank, most) not in look.whole:
                whole = cluster.whole(job_id, most=most)
                look.whole[one.rank, most] = sorted(whole, key=lambda holder: (holder.worth, holder.job_id))
            yield from look.whole[one.rank, most]

    def _is_kept(self, holder: Holder) -> bool:
        """Return True if all GPUs that come free there are already kept for replicas."""
        gpus = [(one.node_id, gpu) for one in holder.allocations for gpu in one.gpus]
        return bool(gpus) and all(gpu in self._kept for gpu in gpus)

    # steps of the lenders

    def _ask(self, found: Sequence[tuple[Borrower, Borrowed]], now: float) -> Iterator[Change]:
        for one, borrowed in found:
            yield from self._await(one, borrowed, now)
        asked: dict[str, list[tuple[str, Holder]]] = {}
        for one, borrowed in found:
            for victim in borrowed.victims:
                if victim.worth != LEAVES_FIRST:
                    asked.setdefault(victim.job_id, []).append((one.service.job_id, victim))
        for lender_id, victims in asked.items():
            yield GivesWay(lender_id, tuple(victims))

    def _await(self, one: Borrower, borrowed: Borrowed, now: float) -> Iterator[Change]:
        cluster, job_id = self._cluster, one.service.job_id
        leaving: dict[tuple[str, int], tuple[int, ...]] = {}
        victims = (*borrowed.victims, *borrowed.others)
        for victim in victims:
            key = (victim.job_id, cluster.epoch(victim.job_id))
            ranks = tuple(each.rank for each in victim.allocations) if victim.extra else ()
            known = leaving.get(key)
            leaving[key] = ranks if known is None else (*known, *ranks) if known and ranks else ()
        grace = max((cluster.grace_s(lender) for lender, _ in leaving), default=0.0)
        lenders = {
            lender: what
            for lender, what in borrowed.lenders.items()
            if all(cluster.loses(each, job_id) for each in victims if each.job_id == lender)
        }
        awaited = _Awaited(
            epoch=one.epoch,
            place=borrowed.place,
            leaving=leaving,
            lenders=lenders,
            until=now + grace + self._stop_seconds + KEPT_SECONDS,
        )
        self._awaited.setdefault(job_id, []).append(awaited)
        for gpu in borrowed.place.gpus:
            key_of_gpu = (borrowed.place.node_id, gpu)
            self._kept[key_of_gpu] = self._kept.get(key_of_gpu, 0) + 1
            if self._kept[key_of_gpu] == 1:
                yield KeepsGpu(_keeper(key_of_gpu), structs.replace(borrowed.place, gpus=(gpu,)))

    def _let_go(self, one: _Awaited) -> Iterator[Change]:
        for gpu in one.place.gpus:
            key = (one.place.node_id, gpu)
            self._kept[key] -= 1
            if not self._kept[key]:
                del self._kept[key]
                yield LetsGpuGo(_keeper(key))


def _keeper(gpu: GpuKey) -> str:
    return f"a loan of GPU {gpu[1]} of {gpu[0]}"


def _as_it_is(one: Borrower) -> object:
    """A service's epoch, missing GPUs and held ranks: while they stay, another look for lenders finds nothing new."""
    return (one.epoch, one.missing, frozenset(held.rank for held in one.service.held))
