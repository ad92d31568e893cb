"""I/O of the reallocator: reads samples, progress and the store's jobs; publishes findings and verdicts, and stores
commands.

Two reallocators in one pool do neither harm nor good. A command is stored together with the tuner's state, one command
of a kind at a time for each job. A reallocator continues from a state that another one stored.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge

from weft.bus import Bus
from weft.domain.cluster import Node
from weft.domain.job import Job, JobState
from weft.domain.spec import TuningMode
from weft.messages.asks import AskStored
from weft.messages.nodes import ProgressSeen
from weft.messages.serving import EndpointsSeen, ServicesServed
from weft.messages.signals import Finding, NodeSampled, PoolReviewed
from weft.planning.partition import Partitioner
from weft.planning.partition.weft import weft
from weft.service.run import Every, Listen, serve
from weft.store import ReviewStore, StoreUnavailableError
from weft.store.tuning import Envelope
from weftd.reallocator.quarantine import Quarantine
from weftd.reallocator.serving import ServiceReview
from weftd.reallocator.settings import ReallocatorSettings
from weftd.reallocator.sizes import Sizes
from weftd.reallocator.thinking.asha import Asha
from weftd.reallocator.thinking.core import FINDINGS_MAX, Known, Reallocator, TuningDecision
from weftd.reallocator.thinking.partitioning import SizePlanner
from weftd.reallocator.thinking.serving import ServiceScaler
from weftd.reallocator.thinking.sharing import ShareTuner

BEAT_SECONDS = 1.0
CLEAN_SECONDS = 600.0  # between two deletions of the tuners' state of ended jobs


async def run(
    settings: ReallocatorSettings,
    *,
    bus: Bus,
    store: ReviewStore,
    stop: asyncio.Event,
    clock: Callable[[], float],
    planner: Partitioner = weft,
) -> None:
    """Review a pool every `review_seconds`, and sooner while a command is open, until `stop`. `planner`: planner for
    the sizes of elastic jobs; benchmarks pass others."""
    partitioning = SizePlanner(settings.plans, planner)
    reallocator = Reallocator(
        pool=settings.pool,
        tuning=settings.tuning,
        growth=settings.growth,
        window_seconds=settings.window_seconds,
        plans_sizes=settings.partition is TuningMode.ON,
        restart_cost=partitioning.restart_cost,
        cool_down_seconds=settings.plans.cool_down_seconds,
    )
    registry = CollectorRegistry(auto_describe=True)
    quarantine = Quarantine(clock=clock, registry=registry)
    sizes = Sizes(
        partitioning,
        pool=settings.pool,
        mode=settings.partition,
        bus=bus,
        store=store,
        registry=registry,
        decided_about=quarantine.without,
    )
    tuner = ShareTuner(pool=settings.pool, tuning=settings.tuning)
    shares = ShareReview(tuner, pool=settings.pool, bus=bus, store=store, registry=registry)
    early = EarlyStops(pool=settings.pool, bus=bus, store=store, registry=registry)
    scaler = ServiceScaler(policy=settings.serving_policy)
    services = ServiceReview(
        scaler,
        pool=settings.pool,
        mode=settings.serving,
        bus=bus,
        store=store,
        clock=clock,
        registry=registry,
        quarantine=quarantine,
    )
    review = Review(
        reallocator,
        bus,
        store,
        clock,
        settings.review_seconds,
        registry=registry,
        quarantine=quarantine,
        sizes=sizes,
        shares=shares,
        services=services,
        early=early,
    )
    scales = settings.serving is not TuningMode.OFF
    of_services = Every(
        settings.serving_seconds,
        services.beat,
        wake=services.wake,
        retry_on=(StoreUnavailableError,),
        name="services",
        rest=1.0,
    )

    async def hear_sampled(sampled: NodeSampled) -> None:
        reallocator.observe(sampled, now=clock())
        shares.observe(sampled, now=clock())

    async def hear_progress(seen: ProgressSeen) -> None:
        reallocator.observe(seen, now=clock())
        sizes.hear(seen, now=clock())
        early.hear(seen)

    beat = min(BEAT_SECONDS, settings.review_seconds, settings.window_seconds)
    await serve(
        "reallocator",
        bus=bus,
        stop=stop,
        listens=[
            Listen(NodeSampled, hear_sampled, group=""),
            Listen(ProgressSeen, hear_progress, group=""),
            Listen(ServicesServed, services.hear_served, group=""),
            Listen(EndpointsSeen, services.hear_endpoints, group=""),
        ],
        loops=[
            Every(beat, review.beat, retry_on=(StoreUnavailableError,), name="review"),
            Every(CLEAN_SECONDS, review.clean, retry_on=(StoreUnavailableError,), name="clean"),
            *([of_services] if scales else []),
        ],
        registry=registry,
        admin_port=settings.admin_port,
        admin_host=settings.admin_host,
        reports=True,
    )


class EarlyStops:
    def __init__(self, *, pool: str, bus: Bus, store: ReviewStore, registry: CollectorRegistry) -> None:
        self._asha = Asha()
        self._pool, self._bus, self._store = pool, bus, store
        self._watched: dict[str, str] = {}  # running elements, with the compared metric
        self._newest: dict[str, tuple[int, Mapping[str, float]]] = {}  # by job: that of the lowest such rank
        self._stopped = Counter("weft_reallocator_stopped_early", "Elements of sweeps stopped.", registry=registry)

    def hear(self, seen: ProgressSeen) -> None:
        for run in seen.runs:
            metric = self._watched.get(run.job_id)
            if metric is None or metric not in run.progress:
                continue
            before = self._newest.get(run.job_id)
            if before is None or run.rank <= before[0]:
                self._newest[run.job_id] = (run.rank, run.progress)

    async def review(self, holding: Sequence[Job], now: float) -> None:
        """Compare the running elements at the rungs that they reached."""
        jobs = [job for job in holding if job.spec.early_stop is not None and job.state is JobState.RUNNING]
        self._watched = {job.id: job.spec.early_stop.metric for job in jobs if job.spec.early_stop is not None}
        self._newest = {job_id: newest for job_id, newest in self._newest.items() if job_id in self._watched}
        arrays = {job.spec.element.array for job in jobs if job.spec.element is not None}
        self._asha.forget_others(arrays)
        if new := sorted(array for array in arrays if not self._asha.knows(array)):
            self._asha.learn(new, await self._store.rungs(new))
        judged = self._asha.judge(jobs, {job_id: progress for job_id, (_, progress) in self._newest.items()})
        stopped = 0
        try:
            for one in judged:
                if not await self._store.reach_rung(one.reached, pool=self._pool, why=one.why, at=now):
                    self._asha.forget_others(())  # another reallocator stored it first
                    break
                stopped += one.why is not None
        except StoreUnavailableError:
            self._asha.forget_others(())  # elements that were not stored are judged again
            raise
        finally:
            self._stopped.inc(stopped)
        if stopped:
            await self._bus.publish(AskStored(pool=self._pool))


class ShareReview:
    def __init__(
        self, tuner: ShareTuner, *, pool: str, bus: Bus, store: ReviewStore, registry: CollectorRegistry
    ) -> None:
        self._tuner, self._pool, self._bus, self._store = tuner, pool, bus, store
        self.findings: tuple[Finding, ...] = ()
        self._asked = Counter(
            "weft_reallocator_shares_asked", "ShareReview requested because of use.", registry=registry
        )

    def observe(self, sampled: NodeSampled, *, now: float) -> None:
        self._tuner.observe(sampled, now=now)

    async def review(self, holding: Sequence[Job], nodes: Sequence[Node], now: float) -> None:
        """Request other shares for jobs whose use requires it."""
        sharing = any(one.share is not None for job in holding for one in job.held)
        if not sharing:
            self.findings = ()
            return
        first = await self._store.queued_jobs(pool=self._pool, limit=1)
        decided = self._tuner.decide(holding, nodes, waiting=bool(first), now=now)
        self.findings = decided.findings
        if decided.shares:
            asked = await self._store.ask_shares(decided.shares, pool=self._pool, at=now)
            self._tuner.asked({job_id: decided.shares[job_id] for job_id in asked}, now=now)
            self._asked.inc(len(asked))
            if asked:
                await self._bus.publish(AskStored(pool=self._pool))


class Review:
    """One review: read, decide, store state and commands, publish."""

    def __init__(
        self,
        core: Reallocator,
        bus: Bus,
        store: ReviewStore,
        clock: Callable[[], float],
        review_seconds: float,
        *,
        registry: CollectorRegistry,
        quarantine: Quarantine,
        sizes: Sizes | None = None,
        shares: ShareReview | None = None,
        services: ServiceReview | None = None,
        early: EarlyStops | None = None,
    ) -> None:
        self._core, self._bus, self._store, self._clock = core, bus, store, clock
        self._review_seconds = review_seconds
        self._quarantine = quarantine
        self._recalled = False
        self._looked_at = -review_seconds
        self._sizes, self._shares, self._services, self._early = sizes, shares, services, early
        self._found = Gauge(
            "weft_reallocator_findings", "Findings of the reallocator, by code.", ["code"], registry=registry
        )
        self._verdicts = Gauge("weft_reallocator_jobs", "Jobs by bottleneck.", ["verdict"], registry=registry)
        self._asked = Counter("weft_reallocator_asked", "Requested changes, by cause.", ["cause"], registry=registry)
        refused = Gauge(
            "weft_reallocator_samples_refused", "Samples that were late, doubled or impossible.", registry=registry
        )
        not_done = Gauge(
            "weft_reallocator_not_done", "Changes that the scheduler did not make in time.", registry=registry
        )
        not_done.set_function(lambda: core.not_done)
        refused.set_function(lambda: core.arrivals.refused + core.gathering.disbelieved)

    async def beat(self) -> None:
        if not await self._quarantine.done(self._review):
            self._looked_at = -self._review_seconds  # the next beat reads the jobs again, without the one left out

    async def _review(self) -> None:
        now = self._clock()
        due = now - self._looked_at >= self._review_seconds
        if due or self._core.awaits:
            await self._look(now)
        decided = self._core.decide(now)
        if due:
            await self._tell(decided, now)
        await self._remember(decided, now)

    async def clean(self) -> None:
        await self._store.drop_envelopes(pool=self._core.pool)
        if self._sizes is not None:
            await self._sizes.clean(self._clock())

    async def _look(self, now: float) -> None:
        if not self._recalled:
            for stored in await self._store.envelopes(pool=self._core.pool):
                self._core.recall(stored.job_id, epoch=stored.epoch, state=stored.state, now=now)
        pool = self._core.pool
        jobs = self._quarantine.without(await self._store.holding_jobs(pool=pool))
        nodes = await self._store.nodes(pool=pool)
        self._core.learn(jobs=jobs, nodes=nodes, now=now)
        self._recalled, self._looked_at = True, now
        if self._sizes is not None:
            await self._sizes.review(jobs, nodes, now, under_trial=self._core.under_trial)
        if self._shares is not None:
            await self._shares.review(jobs, nodes, now)
        if self._early is not None:
            await self._early.review(jobs, now)

    async def _remember(self, decided: TuningDecision, now: float) -> None:
        if not decided.known:
            return
        news = {
            there.job_id: there
            for there in await self._store.envelopes(pool=self._core.pool)
            if self._core.is_news(there.job_id, epoch=there.epoch, state=there.state)
        }
        asked = False
        for known in decided.known:
            there = news.get(known.job_id)
            if there is not None:
                self._core.recall(there.job_id, epoch=there.epoch, state=there.state, now=now)
            elif not await self._store_one(known, now):
                self._core.not_asked(known.job_id)
            else:
                self._core.remembered(known)
                if known.cause is not None:
                    asked = True
                    self._asked.labels(known.cause.code.value).inc()
        if asked:
            await self._bus.publish(AskStored(pool=self._core.pool))

    async def _store_one(self, known: Known, now: float) -> bool:
        """Store a state with its command. Return False if the store refused the command; then it has neither."""
        envelope = self._envelope(known)
        if known.tune is not None:
            return await self._store.ask_tune(envelope, known.tune, at=now)
        if known.scale is not None:
            return await self._store.ask_scale(envelope, known.scale, at=now)
        await self._store.save_envelope(envelope, at=now)
        return True

    def _envelope(self, known: Known) -> Envelope:
        return Envelope(job_id=known.job_id, pool=self._core.pool, epoch=known.epoch, state=known.state)

    async def _tell(self, decided: TuningDecision, now: float) -> None:
        self._found.clear()
        planned = self._sizes.findings if self._sizes is not None else ()
        shared = self._shares.findings if self._shares is not None else ()
        served = self._services.findings() if self._services is not None else ()
        findings = (*self._quarantine.findings(), *served, *decided.findings, *planned, *shared)[:FINDINGS_MAX]
        for finding in findings:
            self._found.labels(finding.code).inc()
        self._verdicts.clear()
        for verdict in decided.verdicts:
            if verdict.rank < 0:
                self._verdicts.labels(verdict.code).inc()
        told = PoolReviewed(pool=self._core.pool, at=now, findings=findings, verdicts=decided.verdicts)
        await self._bus.publish(told)
