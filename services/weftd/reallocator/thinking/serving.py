"""Decides the replica count and the GPU share of each service.

Data of routers, nodes and the store go to the service's autoscaler (`weft.serving`), and its answers become commands. A
service has at most one open size command. A command names the size that it replaces, so that a newer size of a user
stays. While a router is silent, no service shrinks.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, structs

from weft.domain.classes import class_of, workload_of
from weft.domain.job import Allocation, Cause, CauseCode, Job, JobState
from weft.domain.quantity import duration_seconds
from weft.messages.asks import Reshare, Scale
from weft.messages.serving import EndpointsSeen, ReplicaServed, ServicesServed
from weft.messages.signals import Finding, GpuScore
from weft.serving.autoscaler import PredictiveAutoscaler
from weft.serving.loads import Autoscaler, Goal, ReplicaLoad, ServiceLoad, Sized
from weft.serving.policies import autoscaler
from weftd.reallocator.thinking.routed import Routed, SeenEndpoints

PENDING_SECONDS = 5.0  # a command that the scheduler has not executed by then is ignored
FIRST_ASK_SECONDS = 1.0  # between two wake-ups of one service
WORKLOADS_MAX = 1000  # workloads with kept start times
SHED_SECONDS = 10.0
SAID_MAX = 200  # findings
HOUR_SECONDS = 3600.0
TURNS_MAX = 30  # per hour: reductions after a growth


class ServiceStatus(Struct, frozen=True, kw_only=True):
    """Status of a service for people and metrics."""

    job_id: str
    name: str
    wanted: int
    ready: int
    rate: float
    predicted_seconds: float | None
    unattainable: str = ""


class SizedServices(Struct, frozen=True, kw_only=True):
    """Replica counts and GPU shares to request, by job."""

    sizes: Mapping[str, Scale] = {}
    shares: Mapping[str, Reshare] = {}


class Steady:
    """An `Autoscaler` that follows `rule`, but after `TURNS_MAX` turns from up to down within an hour does not shrink
    the service until the oldest turn is an hour ago."""

    def __init__(self, rule: Autoscaler) -> None:
        self.rule = rule
        self._turns: deque[float] = deque(maxlen=TURNS_MAX)
        self._grew = False

    def decide(self, load: ServiceLoad) -> Sized:
        sized, now = self.rule.decide(load), load.wanted
        if sized.replicas > now:
            self._grew = True
        elif sized.replicas < now and self._grew:
            if len(self._turns) == TURNS_MAX and load.at - self._turns[0] < HOUR_SECONDS:
                sentence = f"stays {now}: its size turned back {TURNS_MAX} times within the last hour"
                cause = Cause(code=CauseCode.LOAD, sentence=sentence, numbers={"turns": float(TURNS_MAX)})
                return Sized(replicas=now, cause=cause, unattainable=sized.unattainable)
            self._turns.append(load.at)
            self._grew = False
        return sized


class _Service:
    def __init__(self, job: Job, rule: Steady) -> None:
        self.job, self.steady, self.rule = job, rule, rule.rule
        (self.role,) = job.spec.roles
        self.workload, self.job_class = workload_of(job.spec), class_of(job.spec)
        self.pending: tuple[float, int, int] | None = None  # time, replicas, version of the job
        self.first_seen: dict[tuple[int, int], float] = {}  # by epoch and rank: first time in the store
        self.sized: Sized | None = None
        self.ready = 0
        self.refused: list[tuple[float, int]] = []  # totals of the last seconds

    @property
    def wanted(self) -> int:
        """The number of replicas it should have, after its open command."""
        return self.job.wanted[self.role] if self.pending is None else self.pending[1]

    @property
    def share(self) -> int | None:
        held = self.job.placement.staying if self.job.placement is not None else ()
        return next((one.share.request for one in held if one.share is not None), None)

    @property
    def borrowed(self) -> frozenset[int]:
        return frozenset(loan.rank for loan in self.job.loans)

    def refused_lately(self, now: float) -> int:
        if not self.refused or now - self.refused[-1][0] > SHED_SECONDS:
            return 0
        return self.refused[-1][1] - self.refused[0][1]


class ServiceScaler:
    """`policy`: the name of the rule. Times are seconds on one clock."""

    def __init__(self, *, policy: str = "weft") -> None:
        self._policy = policy
        self._services: dict[str, _Service] = {}
        self._starts: dict[str, float] = {}  # by workload: start time of its replicas
        self._scores: dict[tuple[str, int, str], float] = {}
        self.routed = Routed()
        self.endpoints = SeenEndpoints()

    def hear_served(self, told: ServicesServed, *, now: float) -> bool:
        """Return True if a request waits for a service without replicas and without an open command: then decide at
        once."""
        wakes = False
        for job_id in self.routed.hear(told, now=now):
            service = self._services.get(job_id)
            if service is not None and not any(service.job.wanted.values()):
                wakes = wakes or service.pending is None or now - service.pending[0] >= FIRST_ASK_SECONDS
        return wakes

    def hear_endpoints(self, seen: EndpointsSeen, *, now: float) -> None:
        self.endpoints.hear(seen, now=now)

    def learn(self, jobs: Iterable[Job], *, now: float, scores: Sequence[GpuScore] | None = None) -> None:
        """Update the open services of the pool, including those without replicas."""
        if scores is not None:
            self._scores = {(one.node_id, one.gpu_index, one.job_class): one.believed for one in scores}
        known, self._services = self._services, {}
        for job in jobs:
            if not job.spec.is_service or not job.state.holding or job.state is JobState.STOPPING:
                continue
            service = known.get(job.id)
            if service is None or service.job.epoch != job.epoch:
                start = self._starts.get(workload_of(job.spec))
                service = _Service(job, Steady(autoscaler(self._policy, goal_of(job), at=now, start=start)))
            service.job = job
            held = job.placement.staying if job.placement is not None else ()
            service.first_seen = {
                key: service.first_seen.get(key, now) for key in ((job.epoch, one.rank) for one in held)
            }
            self._services[job.id] = service
        self.routed.keep_only(self._services, now=now)

    def decide(self, now: float) -> SizedServices:
        """Decide about every service once."""
        sizes: dict[str, Scale] = {}
        shares: dict[str, Reshare] = {}
        for part in self.slices(now, length=len(self._services) or 1):
            sizes |= part.sizes
            shares |= part.shares
        return SizedServices(sizes=sizes, shares=shares)

    def slices(self, now: float, *, length: int) -> Iterator[SizedServices]:
        """Decide like `decide`, for `length` services at a time."""
        silent = self.routed.silent(now=now)
        order = list(self._services.values())
        for begin in range(0, len(order), length):
            sizes: dict[str, Scale] = {}
            shares: dict[str, Reshare] = {}
            for service in order[begin : begin + length]:
                self._decide(service, now, silent, sizes, shares)
            yield SizedServices(sizes=sizes, shares=shares)

    def asked(self, sizes: Mapping[str, Scale], jobs: Iterable[str], *, now: float) -> None:
        """Note that these commands are stored."""
        for job_id in jobs:
            service, scale = self._services.get(job_id), sizes[job_id]
            if service is not None:
                service.pending = (now, sum(scale.size.values()), service.job.version)

    def findings(self, now: float) -> tuple[Finding, ...]:
        """Findings for people: objectives that cannot be met, and refused requests."""
        found: list[Finding] = []
        for service in self._services.values():
            name, job_id = service.job.name, service.job.id
            if service.sized is not None and service.sized.unattainable:
                sentence = f"{name} cannot keep its objective: {service.sized.unattainable}"
                found.append(Finding(code="unattainable", job_id=job_id, sentence=sentence))
            if refused := service.refused_lately(now):
                sentence = (
                    f"{name} refuses requests: {refused} in the last {SHED_SECONDS:.0f} s, since {_queue(service.job)} "
                    f"wait already or would wait longer than {_timeout(service.job)}"
                )
                found.append(
                    Finding(code="shedding", job_id=job_id, sentence=sentence, numbers={"refused": float(refused)})
                )
            if len(found) >= SAID_MAX:
                break
        return tuple(found[:SAID_MAX])

    def status(self, *, most: int) -> tuple[ServiceStatus, ...]:
        """The oldest services, at most this number."""
        found: list[ServiceStatus] = []
        for service in list(self._services.values())[:most]:
            rule, predicted, rate = service.rule, None, 0.0
            if isinstance(rule, PredictiveAutoscaler):
                rate, predicted = rule.demand.rate, rule.predicted(service.ready)
            found.append(
                ServiceStatus(
                    job_id=service.job.id,
                    name=service.job.name,
                    wanted=service.wanted,
                    ready=service.ready,
                    rate=rate,
                    predicted_seconds=predicted,
                )
            )
        return tuple(found)

    def _decide(
        self, service: _Service, now: float, silent: bool, sizes: dict[str, Scale], shares: dict[str, Reshare]
    ) -> None:
        job = service.job
        if service.pending is not None:
            asked_at, _, version = service.pending
            if job.version != version or now - asked_at >= PENDING_SECONDS:
                service.pending = None
        load = self._load(service, now, silent)
        service.ready = sum(one.ready and not one.draining for one in load.replicas)
        service.sized = sized = service.steady.decide(load)
        if isinstance(service.rule, PredictiveAutoscaler) and service.rule.starts.measured:
            self._starts.pop(service.workload, None)
            self._starts[service.workload] = service.rule.starts.seconds
            while len(self._starts) > WORKLOADS_MAX:
                del self._starts[next(iter(self._starts))]
        if service.pending is not None:
            return
        wanted = job.wanted[service.role]
        if sized.replicas != wanted:
            sizes[job.id] = Scale(
                size={service.role: sized.replicas}, instead_of={service.role: wanted}, cause=sized.cause
            )
        if sized.share is not None and job.state is JobState.RUNNING and (has := service.share) is not None:
            shares[job.id] = Reshare(
                request=sized.share, role=service.role, epoch=job.epoch, instead_of=has, cause=sized.cause
            )

    def _load(self, service: _Service, now: float, silent: bool) -> ServiceLoad:
        job = service.job
        counted = self.routed.of(job.id, now=now)
        at_router: dict[int, ReplicaServed] = {}
        for one in counted.replicas:
            if one.epoch == job.epoch:
                before = at_router.get(one.rank)
                at_router[one.rank] = one if before is None else _at_both(before, one)
        held = job.placement.allocations if job.placement is not None else ()
        replicas = tuple(self._replica(service, one, at_router.get(one.rank)) for one in held)
        service.refused.append((now, counted.refused))
        while len(service.refused) > 1 and service.refused[1][0] <= now - SHED_SECONDS:
            service.refused.pop(0)
        at = now if silent else self.routed.counted_at(now=now)
        fails = f"its last {job.attempts} replicas ended soon after they started" if job.attempts > 1 else ""
        return ServiceLoad(
            at=at,
            replicas=replicas,
            wanted=service.wanted,
            arrived=counted.arrived,
            answered=counted.answered,
            refused=counted.refused,
            failed=counted.failed,
            late=counted.late,
            queued=counted.queued,
            oldest_wait=counted.oldest_wait,
            in_flight=sum(one.in_flight for one in at_router.values()),
            waits=counted.waits,
            services=counted.services,
            totals=counted.totals,
            tokens_out=counted.tokens_out,
            token_times=counted.token_times,
            silent=silent,
            fails=fails,
        )

    def _replica(self, service: _Service, one: Allocation, at_router: ReplicaServed | None) -> ReplicaLoad:
        job = service.job
        seen = self.endpoints.of(one.node_id, job.id, job.epoch, one.rank)
        told = ReplicaServed(epoch=job.epoch, rank=one.rank) if at_router is None else at_router
        score = [self._scores.get((one.node_id, gpu, service.job_class), 1.0) for gpu in one.gpus]
        started = service.first_seen.get((job.epoch, one.rank))
        ready_at = None if seen is None else seen.ready_at
        if seen is not None and seen.started_at is not None:
            started = seen.started_at if started is None else min(started, seen.started_at)
        return ReplicaLoad(
            rank=one.rank,
            ready=seen is not None and seen.ready,
            draining=one.leaving or (seen is not None and seen.draining),
            in_flight=told.in_flight,
            answered=told.answered,
            busy_seconds=told.busy_seconds,
            share=None if one.share is None else one.share.request,
            score=sum(score) / len(score) if score else 1.0,
            borrowed=one.rank in service.borrowed,
            started_at=started,
            ready_at=ready_at,
            engine_waiting=told.engine_waiting,
            kv_used=told.kv_used,
        )


def _at_both(one: ReplicaServed, other: ReplicaServed) -> ReplicaServed:
    """A replica at two routers, which read the metrics of the same engine."""
    return structs.replace(
        other,
        in_flight=one.in_flight + other.in_flight,
        answered=one.answered + other.answered,
        busy_seconds=one.busy_seconds + other.busy_seconds,
        engine_waiting=one.engine_waiting if other.engine_waiting is None else other.engine_waiting,
        kv_used=one.kv_used if other.kv_used is None else other.kv_used,
    )


def goal_of(job: Job) -> Goal:
    """The objective of the service, and the bounds of its size."""
    assert job.spec.service is not None, f"{job.id} is a service"
    (role,) = job.spec.roles.values()
    objective, share = job.spec.objective, None if role.share is None else role.share.held
    return Goal(
        least=role.replicas.least,
        most=role.replicas.most,
        concurrency=job.spec.service.concurrency,
        latency=None if objective is None else duration_seconds(objective.begins),
        tpot=None if objective is None else objective.tpot_seconds,
        percentile=99.0 if objective is None else objective.percentile,
        rate=None if objective is None else objective.rate,
        share=None if share is None else share.request,
        share_most=None if share is None else share.limit,
    )


def _queue(job: Job) -> int:
    return job.spec.service.queue if job.spec.service is not None else 0


def _timeout(job: Job) -> str:
    return job.spec.service.timeout if job.spec.service is not None else ""
