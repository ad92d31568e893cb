"""Loans: a running service that wants more replicas than the free room holds takes what training can spare.

`weft.planning.borrowing` decides which ranks and jobs give way. Until they are gone their GPUs are kept for the
service, but no longer than they may take: then it looks again. docs/serving.md describes how a loan works.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from math import inf

from msgspec import Struct, structs

from weft.domain.cluster import Request
from weft.domain.job import Allocation, Cause, CauseCode, Job, JobEvent, JobState, Loan, Step
from weft.domain.sizes import how_resized
from weft.domain.spec import ResizeHow
from weft.domain.text import listed
from weft.planning.borrowing import Borrowed, borrow, gpu_text, loans_text, spare_ranks, why_never_lends, why_not_lend
from weft.planning.finding import fits_there
from weft.planning.jobs import asked_by, standing_of
from weft.planning.preemption import LEAVES_FIRST, Holder
from weft.planning.preemption.loss import loss
from weft.planning.resource_request import resource_request_of
from weft.planning.scores import GpuKey
from weftd.scheduler.thinking.decide import lifecycle
from weftd.scheduler.thinking.decide.placing import following
from weftd.scheduler.thinking.state.cluster_state import ClusterState
from weftd.scheduler.thinking.state.holders import about_to_be_free

_S, _E, _C = JobState, JobEvent, CauseCode

LOOK_SECONDS = 0.5  # between two looks at the services that have too little
LOOKED_AT_MAX = 32  # of them at once
WAIT_SECONDS, WAIT_SECONDS_MAX = 1.0, 30.0  # until a service to which nobody lends is looked at again
WHOLE_FIRST = 256  # jobs that are looked at, before all others that may give way as a whole
LENT_AT_ONCE_MAX = 64  # replicas for which others give way in one look
KEPT_SECONDS = 30.0  # beyond the grace of those that leave, and the time in which nodes must stop them


_Rank = tuple[float, ...]
"""Services of the same rank may take from the same jobs."""


class _Awaited(Struct, frozen=True, kw_only=True):
    """A place for one replica of a service in `epoch`, kept until `until`. `leaving`: by job and its epoch, the ranks
    that must be gone before; empty: all of them."""

    epoch: int
    place: Allocation
    leaving: dict[tuple[str, int], tuple[int, ...]]
    lenders: dict[str, tuple[float, int]]
    until: float


class _Look:
    """What one look at the services that have too little has found so far, for services of one rank at a time.

    `nothing`: needs for which there is no place, whatever is lent; `promised`: GPUs that come free, with what leaves
    there; `leaving`: what is about to be free; `lenders`: jobs that resize live, those that lose least first, and jobs
    that restart; `whole`: whole jobs.
    """

    def __init__(self) -> None:
        self.nothing: set[tuple[Request, _Rank]] = set()
        self.promised: dict[GpuKey, Holder] = {}
        self.leaving: list[Holder] | None = None
        self.lenders: dict[_Rank, tuple[list[Job], list[Job]]] = {}
        self.whole: dict[tuple[_Rank, int | None], list[Holder]] = {}
        self._gone: set[tuple[str, int]] = set()

    def leaves(self, victim: Holder) -> None:
        self._gone.update((victim.job_id, one.rank) for one in victim.allocations)
        self.promised.update({(one.node_id, gpu): victim for one in victim.allocations for gpu in one.gpus})

    def is_gone(self, holder: Holder) -> bool:
        return any((holder.job_id, one.rank) in self._gone for one in holder.allocations)


class Loans:
    """`stop_seconds`: how long nodes may take to stop a rank, besides its grace."""

    def __init__(self, cluster_state: ClusterState, *, stop_seconds: float) -> None:
        self._cluster_state = cluster_state
        self._stop_seconds = stop_seconds
        self._awaited: dict[str, list[_Awaited]] = {}  # by service
        self._kept: dict[GpuKey, int] = {}  # how many replicas wait for a part of each
        self._again: dict[str, tuple[int, float, float]] = {}  # by service: its version, when it is looked at, the wait
        self._looked_at = -inf
        self._news: set[str] = set()  # the services that had too little, at the last look
        self._short: Mapping[str, int] = {}
        self._last_seq = 0  # of the service that was looked at last

    # what was asked for is free

    def arrive(self, now: float) -> list[Step]:
        """Replicas join where those that had to leave are gone."""
        steps: list[Step] = []
        for job_id in sorted(self._awaited):
            steps += self._arrive(job_id, now)
        return steps

    def _arrive(self, job_id: str, now: float) -> list[Step]:
        job = self._cluster_state.jobs.get(job_id)
        missing = 0 if job is None else _missing(job)
        awaited = self._awaited.pop(job_id)
        due = [one for one in awaited if job is not None and job.epoch == one.epoch and self._is_there(one)]
        joins = [one for one in due if not self._leaves(one)][:missing]
        stay = [one for one in due if self._leaves(one) and now < one.until][: missing - len(joins)]
        stays, joining = {id(one) for one in stay}, {id(one) for one in joins}  # two may be alike
        for one in awaited:
            if id(one) not in stays:
                self._let_go(one)
            if id(one) not in stays | joining:
                self._cluster_state.freed_holds.keep([one.place], now)
        if stay:
            self._awaited[job_id] = stay
        return self._join(job, joins, now) if job is not None and joins else []

    def _is_there(self, one: _Awaited) -> bool:
        node = self._cluster_state.pool.nodes.get(one.place.node_id)
        return node is not None and node.ready

    def _leaves(self, one: _Awaited) -> bool:
        """Is anything still there that must be gone first?"""
        for (job_id, epoch), ranks in one.leaving.items():
            job = self._cluster_state.jobs.get(job_id)
            if job is None or job.epoch != epoch or job.placement is None:
                continue
            if not ranks or any(each.rank in ranks for each in job.placement.allocations):
                return True
        return False

    def _join(self, job: Job, awaited: Iterable[_Awaited], now: float) -> list[Step]:
        """The replicas join, as far as their places are really free."""
        assert job.placement is not None
        free_capacity = self._cluster_state.pool.free_capacity
        fit: list[_Awaited] = []
        with free_capacity.supposing():
            for one in awaited:
                if fits_there(free_capacity, [one.place]):
                    free_capacity.take(one.place)
                    fit.append(one)
        if not fit:
            return []
        placement = lifecycle.joined(self._cluster_state, job, [one.place for one in fit])
        lent = tuple(
            Loan(lender=lender, rank=new.rank, gpus=gpus, ranks=count, since=round(now, 6))
            for one, new in zip(fit, placement.allocations[-len(fit) :], strict=True)
            for lender, (gpus, count) in one.lenders.items()
        )
        after = structs.replace(job, placement=placement).granted
        changes = ", ".join(f"{role} {job.granted[role]} → {count}" for role, count in after.items())
        borrows = f", and borrows {loans_text(lent)}" if lent else ""
        numbers = {role: float(count) for role, count in after.items()} | {"gpus_borrowed": sum(x.gpus for x in lent)}
        cause = Cause(code=_C.GREW, sentence=f"{changes}{borrows}", numbers=numbers)
        return self._cluster_state.go(
            job,
            _E.RESIZED,
            cause,
            now,
            placement=placement,
            loans=(*self._cluster_state.owed(job, placement), *lent),
        )

    # what others can spare

    def decide(self, now: float, *, short: Mapping[str, int], closed: Sequence[str], ahead: str) -> list[Step]:
        """The steps of those that give way to services. `short`: by service, how many of the replicas that it should
        have found no place. `closed` nodes are kept, or cleared, for a waiting job;
        `ahead`: a job that waits for room, before which services of a lower priority take nothing."""
        self._short = short
        if not short or (short.keys() == self._news and now < self._looked_at + LOOK_SECONDS):
            return []
        self._news, self._looked_at = set(short), now
        services = self._next(now, ahead)
        if not services:
            return []
        found = self._plan(services, closed, now)
        for job in services:
            waits = self._again.get(job.id)
            wait = WAIT_SECONDS if waits is None or waits[0] != job.version else min(2 * waits[2], WAIT_SECONDS_MAX)
            if not any(service.id == job.id for service, _ in found):
                self._again[job.id] = (job.version, now + wait, wait)
        steps = self._ask(found, now)
        for job_id in dict.fromkeys(job.id for job, _ in found):
            steps += self._arrive(job_id, now)  # those for which nothing has to leave
        return steps

    def _next(self, now: float, ahead: str) -> list[Job]:
        """The services that have too little, in the order of submission, those behind the last one first."""
        jobs = self._cluster_state.jobs
        first = jobs.get(ahead)
        self._again = {job_id: again for job_id, again in self._again.items() if job_id in self._short}
        short = (
            job
            for job in (jobs[job_id] for job_id in self._short if job_id in jobs)
            if self._lacks(job) > len(self._awaited.get(job.id, ()))
            and now >= job.not_before  # those that failed are not replaced yet
            and (first is None or first.priority <= job.priority)
            and not self._waits(job, now)
        )
        found = nsmallest(LOOKED_AT_MAX, short, key=lambda job: (job.seq <= self._last_seq, job.seq))
        if found:
            self._last_seq = found[-1].seq
        return found

    def _lacks(self, job: Job) -> int:
        """How many replicas the service may borrow for: none that only an update would add for a while."""
        return min(_missing(job), self._short.get(job.id, 0))

    def _waits(self, job: Job, now: float) -> bool:
        again = self._again.get(job.id)
        return again is not None and again[0] == job.version and now < again[1]

    def _plan(self, services: Sequence[Job], closed: Sequence[str], now: float) -> list[tuple[Job, Borrowed]]:
        """Places for replicas, the services in turn; nothing changes yet."""
        free_capacity = self._cluster_state.pool.free_capacity
        found: list[tuple[Job, Borrowed]] = []
        look = _Look()
        with free_capacity.supposing(closed=closed):
            for job in services:
                rank = self._rank(job, now)
                want = resource_request_of(job.spec, job.tenant)[0]
                held = list(job.placement.allocations) if job.placement else []
                held += [one.place for one in self._awaited.get(job.id, ())]
                asked = asked_by(job, self._cluster_state.score_cache.learnt)
                missing = self._lacks(job) - len(self._awaited.get(job.id, ()))
                for _ in range(missing):
                    if (want.request, rank) in look.nothing or len(found) >= LENT_AT_ONCE_MAX:
                        break
                    willing = (each for each in self._willing(job, look, now) if not look.is_gone(each))
                    borrowed = borrow(free_capacity, want, held, asked, willing=willing, promised=look.promised)
                    if borrowed is None:
                        look.nothing.add((want.request, rank))
                        break
                    found.append((job, borrowed))
                    held.append(borrowed.place)
                    for victim in borrowed.victims:
                        look.leaves(victim)
        return found

    def _rank(self, job: Job, now: float) -> _Rank:
        order = self._cluster_state.waitlist.queue.order
        tier = 0 if order.tier is None else order.tier(standing_of(job, now, order))
        return (float(job.priority), float(tier))

    def _willing(self, service: Job, look: _Look, now: float) -> Iterator[Holder]:
        """Jobs that give way to the service, without those that other tenants' guarantees protect."""
        quotas = self._cluster_state.quotas
        for holder in self._all_willing(service, look, now):
            if holder.worth == LEAVES_FIRST or not quotas.protects(service.tenant, holder):
                yield holder

    def _all_willing(self, service: Job, look: _Look, now: float) -> Iterator[Holder]:
        """What is about to be free, then what may be lent to the service, one after the other: first what loses
        least. Only what is asked for is looked for."""
        cluster_state, rank = self._cluster_state, self._rank(service, now)
        holders, jobs = cluster_state.holdings.holders, cluster_state.jobs
        if look.leaving is None:
            leaving = [each for job_id in sorted(holders.leaving) for each in about_to_be_free(jobs[job_id])]
            look.leaving = [each for each in leaving if not self._is_kept(each)]
        yield from look.leaving
        if rank not in look.lenders:
            lending = [job for job in map(jobs.__getitem__, holders.lending) if not why_not_lend(job, service)]
            live = [job for job in lending if how_resized(job.spec) is ResizeHow.LIVE]
            live.sort(key=lambda job: (loss(job, now, {}, extra=True), job.id))
            look.lenders[rank] = (
                live,
                [
                    job
                    for job in lending
                    if how_resized(job.spec) is ResizeHow.RESTART and not cluster_state.minimum_run.protects(job, now)
                ],
            )
        live, restarting = look.lenders[rank]
        for job in live:
            yield from spare_ranks(job, service, now, {})
        ranks = [each for job in restarting for each in spare_ranks(job, service, now, self._progress_of(job))]
        yield from sorted(ranks, key=lambda holder: (holder.worth, holder.job_id))
        for most in (WHOLE_FIRST, None):
            if (rank, most) not in look.whole:
                standing = standing_of(service, now, cluster_state.waitlist.queue.order)
                found = holders.who_may_leave(standing, jobs, now, self._progress_of, most=most)
                whole = [each for each in found if not each.extra and each.worth != LEAVES_FIRST and each.allocations]
                whole = [each for each in whole if not why_never_lends(jobs[each.job_id])]
                look.whole[rank, most] = sorted(whole, key=lambda holder: (holder.worth, holder.job_id))
            yield from look.whole[rank, most]

    def _is_kept(self, holder: Holder) -> bool:
        """Is all that comes free there kept for replicas already?"""
        gpus = [(one.node_id, gpu) for one in holder.allocations for gpu in one.gpus]
        return bool(gpus) and all(gpu in self._kept for gpu in gpus)

    def _progress_of(self, job: Job) -> Mapping[str, float]:
        return self._cluster_state.pool.runs.of(job).progress or {}

    def _lends(self, victim: Holder, service: Job) -> bool:
        """Does the victim lose something by that, or did it leave by itself?"""
        job = self._cluster_state.jobs[victim.job_id]
        if job.spec.is_service:
            return False
        if job.state is _S.STOPPING:
            why = job.stopping_for
            return why is not None and (why.code, why.by) == (_C.LENT, service.id)
        return victim.worth != LEAVES_FIRST or any(job.wanted[role] > count for role, count in job.granted.items())

    # those that give way are told

    def _ask(self, found: Sequence[tuple[Job, Borrowed]], now: float) -> list[Step]:
        for job, borrowed in found:
            self._await(job, borrowed, now)
        asked: dict[str, list[tuple[Job, Holder]]] = {}
        for job, borrowed in found:
            for victim in borrowed.victims:
                if victim.worth != LEAVES_FIRST:
                    asked.setdefault(victim.job_id, []).append((job, victim))
        steps: list[Step] = []
        for lender_id, victims in asked.items():
            steps += self._give_way(self._cluster_state.jobs[lender_id], victims, now)
        return steps

    def _await(self, job: Job, borrowed: Borrowed, now: float) -> None:
        jobs = self._cluster_state.jobs
        leaving: dict[tuple[str, int], tuple[int, ...]] = {}
        victims = (*borrowed.victims, *borrowed.others)
        for victim in victims:
            key = (victim.job_id, jobs[victim.job_id].epoch)
            ranks = tuple(one.rank for one in victim.allocations) if victim.extra else ()
            known = leaving.get(key)
            leaving[key] = ranks if known is None else (*known, *ranks) if known and ranks else ()
        grace = max((jobs[job_id].spec.grace_seconds for job_id, _ in leaving), default=0.0)
        one = _Awaited(
            epoch=job.epoch,
            place=borrowed.place,
            leaving=leaving,
            lenders={
                lender: what
                for lender, what in borrowed.lenders.items()
                if all(self._lends(each, job) for each in victims if each.job_id == lender)
            },
            until=now + grace + self._stop_seconds + KEPT_SECONDS,
        )
        self._awaited.setdefault(job.id, []).append(one)
        for gpu in borrowed.place.gpus:
            key_of_gpu = (borrowed.place.node_id, gpu)
            self._kept[key_of_gpu] = self._kept.get(key_of_gpu, 0) + 1
            if self._kept[key_of_gpu] == 1:
                part = structs.replace(borrowed.place, gpus=(gpu,))
                self._cluster_state.pool.keep_place(_keeper(key_of_gpu), (part,))

    def _let_go(self, one: _Awaited) -> None:
        for gpu in one.place.gpus:
            key = (one.place.node_id, gpu)
            self._kept[key] -= 1
            if not self._kept[key]:
                del self._kept[key]
                self._cluster_state.pool.let_place_go(_keeper(key))

    def _give_way(self, lender: Job, victims: Sequence[tuple[Job, Holder]], now: float) -> list[Step]:
        services = {job.id: job.name for job, _ in victims}
        ranks = [one for _, victim in victims for one in victim.allocations]
        whole = not all(victim.extra for _, victim in victims)
        gpus = lender.gpus_held if whole else float(sum(len(one.gpus) for one in ranks))
        names = listed([f"{name} ({job_id})" for job_id, name in services.items()])
        sentence = f"lends {gpu_text(gpus)} to {names}, which needs more GPUs than are free"
        cause = Cause(code=_C.LENT, sentence=sentence, by=next(iter(services)), numbers={"gpus": gpus})
        if whole:
            return lifecycle.stop(self._cluster_state, lender, cause, now)
        if how_resized(lender.spec) is ResizeHow.LIVE:
            return lifecycle.give_up_ranks(self._cluster_state, lender, ranks, cause, now)
        return self._shrink_by_restart(lender, ranks, cause, now)

    def _shrink_by_restart(self, lender: Job, ranks: Sequence[Allocation], cause: Cause, now: float) -> list[Step]:
        """It stops, starts without the ranks, and grows back to the size that it has now."""
        steps: list[Step] = []
        if not lender.size:
            grows_back = structs.replace(cause, sentence=f"{cause.sentence}, and grows back")
            steps = self._cluster_state.go(lender, _E.SCALED, grows_back, now, size=lender.wanted)
            lender = self._cluster_state.jobs[lender.id]
        assert lender.placement is not None
        gone = {one.rank for one in ranks}
        stay = [one for one in lender.placement.allocations if one.rank not in gone]
        return steps + lifecycle.stop(
            self._cluster_state, lender, cause, now, next_placement=following(self._cluster_state, lender, stay)
        )


def pays_back(job: Job, gone: Iterable[Allocation], cause: Cause) -> Cause:
    """The cause with which replicas leave, if they give back what others lent."""
    ranks = {one.rank for one in gone}
    paid = [loan for loan in job.loans if loan.rank in ranks]
    if not paid:
        return cause
    sentence = f"{cause.sentence}, and gives back {loans_text(paid)}"
    return structs.replace(cause, code=_C.PAID_BACK, sentence=sentence, by=paid[0].lender)


def _missing(job: Job) -> int:
    """How many replicas a running service has too few."""
    if job.state is not _S.RUNNING or job.placement is None:
        return 0
    return max(0, sum(job.wanted.values()) - sum(job.granted.values()))


def _keeper(gpu: GpuKey) -> str:
    """Under which name the pool keeps the GPU."""
    return f"a loan of GPU {gpu[1]} of {gpu[0]}"
