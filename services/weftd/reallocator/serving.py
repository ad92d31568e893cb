"""I/O of the autoscaler: receives reports of routers and nodes, reads services, and stores the resulting commands."""

import asyncio
from collections.abc import Callable
from math import inf

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from weft.bus import Bus
from weft.domain.job import Job
from weft.domain.spec import TuningMode
from weft.messages.asks import AskStored
from weft.messages.serving import EndpointsSeen, ServicesServed
from weft.messages.signals import Finding
from weft.store import ReviewStore
from weftd.reallocator.quarantine import Quarantine
from weftd.reallocator.thinking.serving import ServiceScaler, SizedServices

SCORES_SECONDS = 30.0
TOLD_SECONDS = 5.0  # between two updates of the metrics
TOLD_MAX = 100  # services with their own metrics
SLICE = 50  # services decided before other work runs


class ServiceReview:
    def __init__(
        self,
        scaler: ServiceScaler,
        *,
        pool: str,
        mode: TuningMode,
        bus: Bus,
        store: ReviewStore,
        clock: Callable[[], float],
        registry: CollectorRegistry,
        quarantine: Quarantine,
    ) -> None:
        self._scaler, self._pool, self._mode = scaler, pool, mode
        self._bus, self._store, self._clock = bus, store, clock
        self._quarantine = quarantine
        self._jobs: dict[str, Job] = {}
        self._scored_at = self._told_at = -inf
        self.wake = asyncio.Event()
        self._asked = Counter(
            "weft_reallocator_services_asked", "Sizes and shares requested for services.", ["what"], registry=registry
        )
        self._seconds = Histogram(
            "weft_reallocator_services_seconds", "How long the decision on all services took.", registry=registry
        )
        labels = ["job", "name"]
        self._wanted = Gauge("weft_service_replicas_wanted", "Replicas it should have.", labels, registry=registry)
        self._ready = Gauge("weft_service_replicas_ready", "Replicas that take requests.", labels, registry=registry)
        self._rate = Gauge("weft_service_rate", "Requests per second to be ready for.", labels, registry=registry)
        self._latency = Gauge(
            "weft_service_latency_predicted_seconds",
            "Predicted latency of its percentile of requests, in seconds.",
            labels,
            registry=registry,
        )

    async def hear_served(self, told: ServicesServed) -> None:
        if self._scaler.hear_served(told, now=self._clock()):
            self.wake.set()

    async def hear_endpoints(self, seen: EndpointsSeen) -> None:
        self._scaler.hear_endpoints(seen, now=self._clock())

    async def beat(self) -> None:
        """Read the services, decide, and store the commands: all sizes in one statement, all shares in another."""
        await self._quarantine.done(self._review)

    async def _review(self) -> None:
        now = self._clock()
        found = await self._store.services(pool=self._pool, known=self._jobs)
        self._jobs = {job.id: job for job in found}
        scores = None
        if found and now - self._scored_at >= SCORES_SECONDS:
            scores, self._scored_at = await self._store.scores(pool=self._pool), now
        self._scaler.learn(self._quarantine.without(found), now=now, scores=scores)
        with self._seconds.time():
            decided = await self._decided(now)
        if self._mode is TuningMode.ON:
            await self._ask(decided, now)
        if now - self._told_at >= TOLD_SECONDS:
            self._told_at = now
            self._tell()

    def findings(self) -> tuple[Finding, ...]:
        return self._scaler.findings(self._clock())

    async def _decided(self, now: float) -> SizedServices:
        decided = SizedServices()
        for part in self._scaler.slices(now, length=SLICE):
            decided = SizedServices(sizes={**decided.sizes, **part.sizes}, shares={**decided.shares, **part.shares})
            await asyncio.sleep(0)
        return decided

    async def _ask(self, decided: SizedServices, now: float) -> None:
        sized: list[str] = []
        shared: list[str] = []
        if decided.sizes:
            sized = await self._store.ask_sizes(decided.sizes, pool=self._pool, at=now)
            self._scaler.asked(decided.sizes, sized, now=now)
            self._asked.labels("size").inc(len(sized))
        if decided.shares:
            shared = await self._store.ask_shares(decided.shares, pool=self._pool, at=now)
            self._asked.labels("share").inc(len(shared))
        if sized or shared:
            await self._bus.publish(AskStored(pool=self._pool))

    def _tell(self) -> None:
        for gauge in (self._wanted, self._ready, self._rate, self._latency):
            gauge.clear()
        for one in self._scaler.status(most=TOLD_MAX):
            of = (one.job_id, one.name)
            self._wanted.labels(*of).set(one.wanted)
            self._ready.labels(*of).set(one.ready)
            self._rate.labels(*of).set(one.rate)
            if one.predicted_seconds is not None:
                self._latency.labels(*of).set(one.predicted_seconds)
