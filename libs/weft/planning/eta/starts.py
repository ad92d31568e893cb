"""Estimates starts of waiting jobs from the stored state of a pool."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from math import inf
from operator import itemgetter
from typing import Any, overload

from msgspec import Struct, structs

from weft.domain.cluster import Node
from weft.domain.job import Cause, CauseCode, Job
from weft.domain.quantity import duration_text
from weft.domain.quotas import Quota
from weft.domain.text import plural
from weft.health.spares import SpareUse, spare_use
from weft.messages.eta import Basis, Estimate, EtaOf, TrackRecord
from weft.planning.capacity import FreeCapacity, empty_capacity, free_capacity_of
from weft.planning.eta.ends import HORIZON_S, Steps, holds_of, lasting_of, resizes_of, runs, stopping_of
from weft.planning.eta.forward import LOOKS_COUNTED, LOOKS_EXACT, Forward, SeenStart, Stops
from weft.planning.eta.learnt import Lasted
from weft.planning.eta.projected import CountedGpus, RealRoom
from weft.planning.eta.record import HIGH, LOW, MIDDLE, Range, TrackRecords
from weft.planning.eta.runs import RIGID, Holds, WaitingJob
from weft.planning.eta.spread import TimeSpread
from weft.planning.finding import find
from weft.planning.in_order import KnownPlaces
from weft.planning.jobs import asked_by, promoted, standing_of, wants_of
from weft.planning.policy import BACKFILLS, ORDERS, PLACEMENTS, Policy
from weft.planning.preemption.minimum_run import MinimumRun
from weft.planning.queue import place_of
from weft.planning.quota.inforce import QuotasInForce
from weft.planning.resource_request import ResourceRequest, gpus_least, is_pinned, resource_request_of_job

EXACT_MAX = 300  # jobs ahead, beyond which GPUs are only counted
QUEUE_MAX = 2_000  # jobs ahead, beyond which only their work is added up,
WEIGHED_MAX = 500  # jobs of which the work ahead is estimated
SHAPES_MAX = 64  # resource requests tried in the empty pool
TICK_S = 1.0  # a job that fits is placed within about this time
WIDE = 10.0  # ratio of latest to earliest time above which only the range is shown
SOON_S = 1.0  # minimum of the earliest time in that ratio
_HIDDEN = frozenset({CauseCode.STILL_RUNS, CauseCode.HELD_BACK, CauseCode.STORE_RESTORED, CauseCode.ORDERS_FULL})

_place = itemgetter(0)


class Foreseen(Struct, frozen=True):
    """An estimate. `raw`: its range before the correction by earlier errors; None: it is not checked later. `stops`:
    the jobs that stop for it."""

    estimate: Estimate
    raw: Range | None = None
    told: Range | None = None
    stops: Stops | None = None


class LookAhead:
    """The state of a pool as the begin of a look ahead: `room` with the `held` resources, and the `queue` in order.

    `gpus`: number of its GPUs; `records`: the track record of estimates; `again(job_id)`: a job that holds resources,
    as it would wait if it were stopped; `minimum_run`: time before a job may be pre-empted; `spares`: number of nodes
    of each kind that are reserved for gangs whose hardware failed, and `empty`: all nodes without jobs.
    """

    def __init__(
        self,
        free_capacity: FreeCapacity,
        held: Sequence[Holds],
        queue: Sequence[WaitingJob],
        *,
        now: float,
        policy: Policy,
        gpus: float,
        records: TrackRecords[Any] | None = None,
        quotas: QuotasInForce | None = None,
        minimum_run: MinimumRun | None = None,
        again: Callable[[str], WaitingJob] | None = None,
        spares: int = 0,
        empty: FreeCapacity | None = None,
    ) -> None:
        self.free_capacity = free_capacity
        self._spares, self._empty = spares, empty
        self.minimum_run = minimum_run or MinimumRun()
        self._again = again
        self.quotas = QuotasInForce((), {}) if quotas is None else quotas
        self.held = held
        self.queue = queue
        self.places = [one.place for one in queue]  # as if the queue were only its first jobs
        self.now = now
        self.policy = policy
        self.gpus = gpus
        self.records: TrackRecords[Any] = TrackRecords() if records is None else records

    def tried(self, one: WaitingJob, *, looks: int = LOOKS_EXACT) -> Estimate:
        """Estimate the start of this variant of the job in the current capacity, with at most this number of looks."""
        return self.seen(one, looks).estimate

    def seen(self, one: WaitingJob, looks: int = LOOKS_EXACT) -> Foreseen:
        ahead = bisect_left(self.places, one.place)
        if ahead > QUEUE_MAX:
            return self._behind(ahead)
        found, counted, too_many = self._look(one, looks, ahead)
        return self._estimate(found, ahead, counted=counted, too_many=too_many)

    def starts(self) -> dict[str, Foreseen]:
        """The estimate of every waiting job, by one simulation for all of them."""
        exact = len(self.queue) <= EXACT_MAX
        forward = self._forward(self.queue, exact=exact, looks=LOOKS_EXACT if exact else LOOKS_COUNTED)
        found, scenarios = forward.look(), max(1, forward.scenarios)
        return {
            one.job_id: self._estimate(
                _raw(found.get(one.job_id, []), scenarios), ahead, counted=not exact, too_many=not forward.scenarios
            )
            for ahead, one in enumerate(self.queue)
        }

    def _behind(self, ahead: int) -> Foreseen:
        """The estimate behind too many jobs to simulate."""
        return nobody_can_tell(_unknown(ahead, self.held, too_many=True))

    def _look(self, one: WaitingJob, looks: int, ahead: int) -> tuple["_Found", bool, bool]:
        """The range; True if GPUs were only counted; True if even that was too much work."""
        if ahead <= EXACT_MAX:  # jobs far behind are not simulated
            first = [other for other in self.queue[: EXACT_MAX + 1] if other.job_id != one.job_id]
            forward = self._forward([*first[:EXACT_MAX], one], exact=True, looks=looks)
            found = forward.look(one.job_id)
            if forward.scenarios:
                return _raw(found.get(one.job_id, []), forward.scenarios), False, False
        others = [other for other in self.queue if other.job_id != one.job_id]
        forward = self._forward([*others, one], exact=False, looks=looks * LOOKS_COUNTED // LOOKS_EXACT)
        found = forward.look(one.job_id)
        return _raw(found.get(one.job_id, []), forward.scenarios), True, not forward.scenarios

    def _forward(self, waiting: Sequence[WaitingJob], *, exact: bool, looks: int) -> Forward:
        space = RealRoom(self.free_capacity) if exact else CountedGpus(self.free_capacity.gpus_left)
        return Forward(
            space,
            waiting,
            self.held,
            policy=self.policy,
            gpus=self.gpus,
            looks=looks,
            quotas=self.quotas,
            minimum_run=self.minimum_run,
            again=self._again,
            spares=self._spares,
            empty=self._empty,
        )

    def _estimate(self, found: "_Found", ahead: int, *, counted: bool, too_many: bool) -> Foreseen:
        raw, basis = found.raw, found.basis
        if basis is Basis.UNKNOWN:
            return nobody_can_tell(_unknown(ahead, self.held, too_many=too_many))
        if basis is Basis.ROOM and raw.high <= TICK_S and found.behind and not found.stops:
            sentence = "it fits now, but the free capacity may be reserved for a job ahead of it that does not fit"
            return Foreseen(Estimate(of=EtaOf.START, basis=basis, sentence=sentence, earliest=self.now))
        if basis is Basis.ROOM and raw.high <= TICK_S and not found.stops:
            return Foreseen(
                Estimate(
                    of=EtaOf.START,
                    basis=basis,
                    sentence="it fits, and starts in the next cycle",
                    earliest=self.now,
                    likely=self.now,
                    latest=self.now + TICK_S,
                )
            )
        if basis is Basis.ROOM and found.stops:
            return self._when_stopped(found.stops)
        track = self.records.of(EtaOf.START, basis)
        told = raw if basis is Basis.LIMITS else track.corrected(raw, now=self.now)
        eta = estimate_of(
            told,
            basis,
            of=EtaOf.START,
            now=self.now,
            ahead=ahead,
            counted=counted,
            weak=found.weak,
            record=track.record,
        )
        return Foreseen(eta, None if basis is Basis.LIMITS else raw, told, found.stops)

    def _when_stopped(self, stops: Stops) -> Foreseen:
        """The start of a job that waits only for others to stop."""
        found = Range(stops.at_s, stops.at_s + stops.within_s / 2, stops.at_s + stops.within_s)
        one = len(stops.jobs) == 1
        gave_way = f"{plural(len(stops.jobs), 'job')} {'has' if one else 'have'} given way to it"
        eta = Estimate(
            of=EtaOf.START,
            basis=Basis.LIMITS,
            sentence=f"starts {_between(found.low, inf, found.high)}, when {gave_way}",
            earliest=self.now + found.low,
            latest=self.now + found.high,
        )
        return Foreseen(eta, None, found, stops)


class _Waiting(Sequence[WaitingJob]):
    """Jobs of a queue, each created on first use, as few questions need all."""

    def __init__(self, jobs: Sequence[Job], make: Callable[[Job], WaitingJob]) -> None:
        self._jobs = jobs
        self._make = make
        self._made: dict[int, WaitingJob] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    @overload
    def __getitem__(self, index: int) -> WaitingJob: ...
    @overload
    def __getitem__(self, index: slice) -> list[WaitingJob]: ...
    def __getitem__(self, index: int | slice) -> WaitingJob | list[WaitingJob]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self._jobs)))]
        job = self._jobs[index]  # also for a negative index, with the errors of a list
        at = index % len(self._jobs)
        made = self._made.get(at)
        if made is None:
            made = self._made[at] = self._make(job)
        return made


class PoolToCome(LookAhead):
    """A `LookAhead` from the stored state of a pool. `durations`: durations of ended jobs; `steps`: recent steps of
    running jobs; `places`: places from an earlier pass over the queue; `minimum_run`: time before a job may be
    pre-empted."""

    def __init__(
        self,
        nodes: Sequence[Node],
        holding: Sequence[Job],
        queued: Sequence[Job],
        *,
        now: float,
        policy: str = "",
        durations: Lasted | None = None,
        steps: Mapping[str, Steps] | None = None,
        records: TrackRecords[Any] | None = None,
        quotas: Sequence[Quota] = (),
        places: KnownPlaces | None = None,
        minimum_run: MinimumRun | None = None,
        spares: int = 0,
    ) -> None:
        self.nodes = nodes
        self.holding = holding
        self.queued = queued
        self._quotas = quotas
        self._ended = Lasted() if durations is None else durations
        self.durations = self._ended.beside(
            runs(job, now=now, heard=steps) for job in holding if not job.spec.is_service
        )
        self.steps = steps
        self._without_jobs = empty_capacity(nodes)
        self._never: dict[ResourceRequest, bool] = {}
        self._resource_request: ResourceRequest = ()  # last used; most are used many times in a row
        self._shape_never_fits = True
        order = policy_of(policy).ordering
        held = [holds_of(job, self.durations, order, now=now, heard=steps) for job in holding]
        gpus = float(sum(len(node.capacity.gpus) for node in nodes))
        by_id = {node.id: node for node in nodes}
        ahead = QuotasInForce(quotas, by_id)
        for job in holding:
            ahead.hold(job.id, job.tenant, job.held, since=job.held_since - now, preemptible=job.spec.preemptible)
        super().__init__(
            free_capacity_of(nodes, holding),
            held,
            (),
            now=now,
            policy=policy_of(policy),
            gpus=gpus,
            records=records,
            quotas=ahead,
            minimum_run=minimum_run,
            again=lambda job_id: self.waiting(by_job[job_id]),
            spares=spares,
            empty=self._without_jobs,
        )
        by_job = {job.id: job for job in holding}
        self._without_anything = QuotasInForce(quotas, by_id)
        places = KnownPlaces(order) if places is None or places.order is not order else places
        fitting = [
            (place, job)
            for place, job, resource_request in places.with_shapes(queued, now)
            if not job.is_held and not self._never_fits(resource_request)
        ]
        self.sees_all = not any(_is_hidden_room(job) for job in queued)
        fitting.sort(key=_place)
        self.places = [place for place, _ in fitting]
        self._fitting = [job for _, job in fitting]
        self.queue = _Waiting(self._fitting[: QUEUE_MAX + 1], self.waiting)

    def waiting(
        self, job: Job, *, resource_request: ResourceRequest | None = None, priority: int | None = None
    ) -> WaitingJob:
        """The job as it waits, or as it would wait with another resource request or priority."""
        standing = standing_of(job, self.now, self.policy.ordering)
        if priority is not None:
            standing = structs.replace(standing, priority=priority)
        use = spare_use(job) if self._spares else SpareUse.NEVER
        if use is SpareUse.RESTARTS:
            standing = promoted(standing)
        resizes = resizes_of(job, self.now) if resource_request is None else RIGID
        resource_request = resource_request_of_job(job) if resource_request is None else resource_request
        asked = asked_by(job)
        return WaitingJob(
            job_id=job.id,
            place=place_of(self.policy.ordering, standing),
            group=(
                resource_request,
                asked.job_class,
                asked.is_service,
                job.spec.preemptible,
                standing.checkpoints,
                use,
            ),
            resource_request=resource_request,
            asked=asked,
            gpus=gpus_least(resource_request),
            lasts=lasting_of(job, self.durations),
            limit_s=job.spec.time_limit_seconds,
            tenant=job.tenant,
            pinned=is_pinned(resource_request),
            after_s=max(0.0, job.not_before - self.now),
            standing=standing,
            preemptible=job.spec.preemptible,
            stopping=stopping_of(job),
            model=job.spec.only_model,
            resizes=resizes,
            spare_use=use,
        )

    def _behind(self, ahead: int) -> Foreseen:
        """The estimate from the work ahead alone: no order and no placement is faster than all GPUs busy from now
        on."""
        step = -(-ahead // WEIGHED_MAX)
        weighed = self._fitting[:ahead:step]
        queued = sum(
            gpus_least(resource_request_of_job(job)) * _mean_s(lasting_of(job, self.durations)) for job in weighed
        )
        work = queued * ahead / len(weighed) + sum(one.gpus * _mean_s(one.left) for one in self.held)
        after = work / self.gpus if self.gpus else 0.0
        if not SOON_S <= after <= HORIZON_S:
            return super()._behind(ahead)
        words = f"{plural(ahead, 'job')} ahead of it need {work / 3600:,.0f} GPU-hours of {self.gpus:g} GPUs"
        sentence = f"starts not before about {duration_text(after)}: {words}{_BY[Basis.LEARNT]}; nobody can tell more"
        return Foreseen(Estimate(of=EtaOf.START, basis=Basis.LEARNT, sentence=sentence, earliest=self.now + after))

    def with_resumed(self, node_id: str) -> "PoolToCome":
        """The pool with this drained node resumed; jobs ahead may fit only with it."""
        return PoolToCome(
            [structs.replace(node, drain=None) if node.id == node_id else node for node in self.nodes],
            self.holding,
            self.queued,
            now=self.now,
            policy=str(self.policy),
            durations=self._ended,
            steps=self.steps,
            records=self.records,
            quotas=self._quotas,
            minimum_run=self.minimum_run,
            spares=self._spares,
        )

    def _never_fits(self, resource_request: ResourceRequest) -> bool:
        if resource_request is self._resource_request:
            return self._shape_never_fits
        if resource_request not in self._never:
            if len(self._never) >= SHAPES_MAX:
                return False
            self._never[resource_request] = find(self._without_jobs, resource_request) is None
        self._resource_request, self._shape_never_fits = resource_request, self._never[resource_request]
        return self._shape_never_fits

    def start_of(self, job: Job) -> Foreseen:
        """The start of a waiting job, without new jobs or changes of the pool."""
        if job.is_held:
            return nobody_can_tell("it waits for another job")
        if self._never_fits(resource_request_of_job(job)):
            return nobody_can_tell("its pool is too small for it, even with all nodes empty and open")
        demand = wants_of(job, resource_request_of_job(job), None)
        if self.quotas.on and not self._without_anything.may_start(job.id, demand):
            return nobody_can_tell("its tenant's quota does not allow so many GPUs, even if the tenant held none")
        found = self.seen(self.waiting(job), LOOKS_EXACT)
        if self.quotas.on and not self.quotas.may_start(job.id, demand):
            eta = found.estimate
            sentence = f"{eta.sentence}; a quota holds it back until its tenant, or its group, holds less"
            found = structs.replace(found, estimate=structs.replace(eta, sentence=sentence))
        cause = job.waiting_for
        if found.estimate.basis is Basis.ROOM and cause is not None and _is_hidden(cause):
            return nobody_can_tell(cause.sentence or "its scheduler sees runs there that should have ended")
        return found


def estimate_of(
    told: Range,
    basis: Basis,
    *,
    of: EtaOf,
    now: float,
    ahead: int = 0,
    counted: bool = False,
    weak: bool = False,
    record: TrackRecord | None = None,
) -> Estimate:
    """The range as times, in words. By limits alone only the latest time is known. `weak`: too few samples support
    it."""
    low, likely, high = (one if one <= HORIZON_S else inf for one in (told.low, told.likely, told.high))
    if weak or high > WIDE * max(low, SOON_S):
        likely = inf
    verb = "starts" if of is EtaOf.START else "ends"
    if basis is Basis.LIMITS:
        sentence = f"{verb} in {duration_text(high)} at the latest, by time limits" if high < inf else ""
        low = likely = inf
    elif high < inf:
        sentence = f"{verb} {_between(low, likely, high)}"
    elif SOON_S <= low < inf:
        sentence = f"{verb} not before {duration_text(low)}; nobody can tell more"
    else:
        sentence = ""
    if not sentence:
        return Estimate(of=of, basis=Basis.UNKNOWN, sentence=f"nobody can tell when it {verb}", record=record)
    sentence += _BY[basis]
    if counted:
        sentence += f"; {plural(ahead, 'job')} are ahead of it: the estimate counts GPUs and ignores their nodes"
    elif ahead and of is EtaOf.START:
        sentence += f", with {plural(ahead, 'job')} ahead of it"
    return Estimate(
        of=of,
        basis=basis,
        sentence=sentence,
        earliest=now + low if low < inf else None,
        likely=now + likely if likely < inf else None,
        latest=now + high if high < inf else None,
        record=record,
    )


def without_moment(eta: Estimate, *, now: float) -> Estimate:
    """The same estimate reduced to its range, for a job that is later than an earlier estimate."""
    if eta.latest is None or eta.earliest is None:
        return eta
    verb = "starts" if eta.of is EtaOf.START else "ends"
    between = _between(max(0.0, eta.earliest - now), inf, max(0.0, eta.latest - now))
    sentence = f"{verb} later than estimated before, now {between}{_BY[eta.basis]}"
    return structs.replace(eta, likely=None, sentence=sentence)


def _mean_s(spread: TimeSpread) -> float:
    """The mean of learned or reported times. A limit is no duration, and unknown times count as 0."""
    if spread.basis is Basis.LIMITS or not spread.known:
        return 0.0
    known = [one for one in spread.seconds if one <= HORIZON_S]
    return sum(known) / len(spread.seconds)


def _between(low: float, likely: float, high: float) -> str:
    if likely == inf and low < SOON_S:
        return f"within {duration_text(high)}"
    about = "" if likely == inf else f"about {duration_text(likely)}: in "
    return f"in {about}{duration_text(low)} to {duration_text(high)}"


_BY = {
    Basis.LIMITS: "",
    Basis.LEARNT: ", judging by how long similar jobs took",
    Basis.PROGRESS: ", judging by the progress that jobs report",
    Basis.ROOM: ", when enough resources are free",
    Basis.UNKNOWN: "",
}


class _Found(Struct, frozen=True):
    """The range over all scenarios, its basis in most of them, and `weak` if too few samples support it."""

    raw: Range = Range(inf, inf, inf)
    basis: Basis = Basis.UNKNOWN
    weak: bool = False
    behind: bool = False
    stops: Stops | None = None


def _raw(starts: Sequence[SeenStart], scenarios: int) -> _Found:
    if not starts or not scenarios:
        return _Found()
    seconds = sorted(one.after_s for one in starts)
    seconds += [inf] * (scenarios - len(seconds))
    bases = [one.basis for one in starts]
    basis = max(Basis, key=bases.count)
    spread = TimeSpread(tuple(seconds), basis)
    weak = 2 * sum(one.weak for one in starts) > len(starts)
    behind = any(one.behind for one in starts)
    stops = [one.stops for one in starts if one.stops]
    found = Range(spread.at(LOW), spread.at(MIDDLE), spread.at(HIGH))
    return _Found(found, basis, weak, behind, stops[0] if 2 * len(stops) > len(starts) else None)


def _unknown(ahead: int, held: Sequence[Holds], *, too_many: bool) -> str:
    if too_many:
        return f"{plural(ahead, 'job')} are ahead of it, too many to look through"
    endless = [one for one in held if not one.left.known]
    if not held:
        why = "no running job would free enough for it"
    elif endless:
        steps = "too few steps so far" if any(one.reports for one in endless) else "no steps"
        why = (
            f"the jobs that hold what it needs have no time limit, report {steps}, and nothing like them has ended yet"
        )
    else:
        why = "nobody can tell how long the jobs ahead of it last"
    return why + (f"; {plural(ahead, 'job')} ahead of it" if ahead else "")


def nobody_can_tell(why: str) -> Foreseen:
    """An unknown start, with the reason."""
    return Foreseen(Estimate(of=EtaOf.START, basis=Basis.UNKNOWN, sentence=f"nobody can tell when it starts: {why}"))


def waits_unseen(job: Job) -> bool:
    """True if a job waits for something that only its scheduler sees, even if capacity seems free."""
    cause = job.waiting_for
    return cause is not None and _is_hidden(cause)


def _is_hidden_room(job: Job) -> bool:
    """True if a job's reason shows that less is free than nodes and jobs tell."""
    cause = job.waiting_for
    return cause is not None and cause.code is not CauseCode.HELD_BACK and _is_hidden(cause)


def _is_hidden(cause: Cause) -> bool:
    return cause.code in _HIDDEN or "gpus_occupied" in cause.numbers


def policy_of(text: str) -> Policy:
    """The policy by its text; unknown names of later versions become defaults such as `priority`."""
    order, _, rest = text.partition("+")
    placement, _, backfill = rest.partition("+")
    return Policy(
        order=order if order in ORDERS else "priority",
        placement=placement if placement in PLACEMENTS else "packed",
        backfill=backfill if backfill in BACKFILLS else "none",
    )
