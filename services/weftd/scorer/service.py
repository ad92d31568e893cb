"""The scorer's shell: nodes, jobs, samples and steps go in; stored scores, classes and curves come out."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge

from weft.bus import Bus, Subscription
from weft.domain.classes import is_benchmark
from weft.domain.cluster import Node
from weft.domain.job import Job
from weft.messages.nodes import ProgressSeen
from weft.messages.signals import (
    ClassesLearnt,
    GpuScore,
    GpusScored,
    NodeSampled,
    PacesSeen,
    ScorerPresent,
    SpeedsMeasured,
)
from weft.service.run import Every, Listen, serve
from weft.store import ScorerStore, StoreUnavailableError
from weftd.scorer.measuring import Measuring
from weftd.scorer.metrics import ScoreGauges
from weftd.scorer.settings import ScorerSettings
from weftd.scorer.thinking.core import Due, Scorer, owner
from weftd.scorer.thinking.gangs import GangTimes, penalties
from weftd.scorer.thinking.scores import MeasuredGpus
from weftd.scorer.thinking.throughput import Growth, grown
from weftd.scorer.thinking.workloads import REMEMBERED_SECONDS, REVIEW_SECONDS

PERIOD_SECONDS = 5.0
PRESENT_SECONDS = 1.0
FORGET_SECONDS = 3600.0
SLOWDOWNS_SECONDS = 60.0
SPEEDS_SECONDS = 60.0
SCORES_AT_ONCE = 6000  # in one statement and one message
PACES_AT_ONCE = 2000
CURVES_AT_ONCE = 500
GROUP = "scorer"  # while a node changes its scorer, both subscribe, and each message goes to one of them
Name = tuple[str, str, str]


async def run(
    settings: ScorerSettings,
    *,
    bus: Bus,
    store: ScorerStore,
    stop: asyncio.Event,
    clock: Callable[[], float],
    name: str = "scorer",
    profile: MeasuredGpus | None = None,
    measuring: Measuring | None = None,
) -> None:
    """Serve until `stop`. `name`: unique among scorers. Without `measuring` there are no benchmarks."""
    scorer = Scorer(profile, me=name)
    shell = _Shell(scorer, bus, store, clock, measuring)
    registry = CollectorRegistry(auto_describe=True)
    scored = Gauge("weft_scorer_gpus_scored", "GPUs that this scorer has stored scores for.", registry=registry)
    scored.set_function(lambda: float(scorer.gpus_scored))
    owned = Gauge("weft_scorer_nodes_owned", "Nodes that this scorer looks after.", registry=registry)
    owned.set_function(lambda: float(len(scorer.owned)))
    registry.register(ScoreGauges(scorer))
    windows = Counter(
        "weft_scorer_windows", "Windows of running ranks, by what they said of the GPU.", ["outcome"], registry=registry
    )

    async def score() -> None:
        await shell.score()
        for outcome, count in scorer.outcomes.items():
            windows.labels(outcome).inc(count)
        scorer.outcomes.clear()

    async def hear_present(present: ScorerPresent) -> None:
        scorer.observe_present(present, clock())

    async def hear_paces(said: PacesSeen) -> None:
        scorer.observe_paces(said, clock())

    async def forget() -> None:
        if settings.learnt_kept_days:
            before = clock() - settings.learnt_kept_days * 86400.0
            await store.forget_curves(before=before)
            await store.forget_scores(before=before)
            await store.forget_slowdowns(before=before)
            await store.forget_penalties(before=before)

    patient = (StoreUnavailableError,)
    try:
        await serve(
            "scorer",
            bus=bus,
            stop=stop,
            listens=[Listen(ScorerPresent, hear_present, group=""), Listen(PacesSeen, hear_paces, group="")],
            loops=[
                Every(PERIOD_SECONDS, score, retry_on=patient, name="score"),
                Every(PRESENT_SECONDS, shell.be_present, retry_on=patient, name="present"),
                Every(REVIEW_SECONDS, shell.read_classes, retry_on=patient, name="classes"),
                Every(SPEEDS_SECONDS, shell.tell_speeds, name="speeds"),
                Every(SLOWDOWNS_SECONDS, shell.keep_slowdowns, retry_on=patient, name="slowdowns"),
                Every(FORGET_SECONDS, forget, retry_on=patient, name="forget"),
            ],
            registry=registry,
            admin_port=settings.admin_port,
            admin_host=settings.admin_host,
            reports=True,
        )
    finally:
        await shell.subscriptions.close()


class _Shell:
    def __init__(
        self,
        scorer: Scorer,
        bus: Bus,
        store: ScorerStore,
        clock: Callable[[], float],
        measuring: Measuring | None,
    ) -> None:
        self._scorer, self._bus, self._store, self._clock = scorer, bus, store, clock
        self._measuring = measuring
        self._measured: frozenset[str] = frozenset()  # nodes whose benchmarks were read
        self._pools: dict[str, str] = {}  # by node
        self.subscriptions = NodeSubscriptions(bus)

    async def be_present(self) -> None:
        """Publish that this scorer runs, and take over the nodes that are ours now."""
        await self._bus.publish(ScorerPresent(scorer=self._scorer.peers.me))
        mine = self._scorer.divide(self._clock())
        if mine != self._scorer.owned:
            self._scorer.own(mine, await self._stored(mine - self._scorer.owned), self._clock())
        await self._listen()

    async def score(self) -> None:
        nodes = await self._store.nodes()
        pools = {node.id: node.pool for node in nodes}
        jobs = [job for pool in sorted(set(pools.values())) for job in await self._store.holding_jobs(pool=pool)]
        self._pools = pools
        self._scorer.learn(nodes=nodes, jobs=[job for job in jobs if not is_benchmark(job.spec)], now=self._clock())
        if self._measuring is not None:
            await self._measure(self._measuring, [node for node in nodes if node.id in self._scorer.owned], jobs)
        due = self._scorer.decide(self._clock())
        await self._tell_paces(due)
        await self._keep_scores(due)
        await self._keep_classes(due)
        await self._keep_curves(due.growths)
        await self._keep_penalties(due.gangs)

    async def _measure(self, measuring: Measuring, mine: Sequence[Node], jobs: Sequence[Job]) -> None:
        found = await measuring.turn(mine, jobs, now=self._clock())
        there = frozenset(node.id for node in mine)
        if found or there != self._measured:
            self._measured = there
            self._scorer.observe_benchmarks(measuring.benchmarks.scores())

    async def read_classes(self) -> None:
        before = self._clock() - REMEMBERED_SECONDS
        for pool in sorted(set(self._pools.values())):
            await self._store.forget_classes(pool=pool, before=before)
            self._scorer.recall_classes(pool, await self._store.classes(pool=pool))

    async def _stored(self, node_ids: Iterable[str]) -> list[GpuScore]:
        by_pool: dict[str, list[str]] = {}
        for node_id in sorted(node_ids):
            by_pool.setdefault(self._pools[node_id], []).append(node_id)
        return [
            score
            for pool, ids in sorted(by_pool.items())
            for score in await self._store.scores(pool=pool, since=inf, nodes=ids)
        ]

    async def _listen(self) -> None:
        owned, also = self._scorer.owned, self._scorer.also_hears
        await self.subscriptions.listen(
            [
                *(Listen(NodeSampled, self._hear_sample, group=GROUP, tokens={"node_id": one}) for one in owned),
                *(Listen(ProgressSeen, self._hear_progress, group=GROUP, tokens={"node_id": one}) for one in owned),
                *(Listen(ProgressSeen, self._hear_progress, group="", tokens={"node_id": one}) for one in also),
            ]
        )

    async def _hear_sample(self, sampled: NodeSampled) -> None:
        self._scorer.observe(sampled, self._clock())
        if self._measuring is not None:
            self._measuring.hear(sampled)

    async def _hear_progress(self, seen: ProgressSeen) -> None:
        self._scorer.observe_progress(seen, self._clock())

    async def _tell_paces(self, due: Due) -> None:
        for pool, paces in due.paces.items():
            for begin in range(0, len(paces), PACES_AT_ONCE):
                some = tuple(paces[begin : begin + PACES_AT_ONCE])
                await self._bus.publish(PacesSeen(pool=pool, scorer=self._scorer.peers.me, paces=some))

    async def _keep_scores(self, due: Due) -> None:
        for pool, found in due.scores.items():
            for begin in range(0, len(found), SCORES_AT_ONCE):
                scores = found[begin : begin + SCORES_AT_ONCE]
                await self._store.save_scores(scores, at=self._clock())
                self._scorer.stored(scores)
                await self._bus.publish(GpusScored(pool=pool, scores=tuple(scores)))

    async def _keep_classes(self, due: Due) -> None:
        for pool, classes in due.classes.items():
            await self._store.save_classes(classes, pool=pool)
            self._scorer.learn_classes(pool, classes)
            await self._bus.publish(ClassesLearnt(pool=pool, classes=tuple(classes)))

    async def tell_speeds(self) -> None:
        """Publish how fast GPUs of each model are. All scorers read the same benchmarks, and one of them speaks."""
        present = self._scorer.peers.present(self._clock())
        if self._measuring is None or not present or owner(SpeedsMeasured.subject, present) != self._scorer.peers.me:
            return
        if models := self._measuring.benchmarks.model_speeds():
            await self._bus.publish(SpeedsMeasured(models=models))

    async def keep_slowdowns(self) -> None:
        """Store how jobs of two classes slow each other down, as far as our nodes have shown it."""
        if found := list(self._scorer.slowdowns_beside()):
            await self._store.save_slowdowns(found)

    async def _keep_curves(self, growths: Sequence[Growth]) -> None:
        for begin in range(0, len(growths), CURVES_AT_ONCE):
            some = growths[begin : begin + CURVES_AT_ONCE]
            known = [
                curve
                for pool in sorted({growth.pool for growth in some})
                for curve in await self._store.curves(
                    pool=pool, subjects=sorted({name for one in some if one.pool == pool for name in one.subjects})
                )
            ]
            await self._store.save_curves(grown(known, some, at=self._clock()))

    async def _keep_penalties(self, gangs: Sequence[GangTimes]) -> None:
        for pool in sorted({one.pool for one in gangs}):
            of_pool = [one for one in gangs if one.pool == pool]
            for begin in range(0, len(of_pool), CURVES_AT_ONCE):
                some = of_pool[begin : begin + CURVES_AT_ONCE]
                known = await self._store.penalties_of(pool=pool, workloads=[one.workload for one in some])
                await self._store.save_penalties(penalties(known, some, at=self._clock()), pool=pool)


class NodeSubscriptions:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._open: dict[Name, Subscription] = {}

    async def listen(self, wanted: Iterable[Listen[Any]]) -> None:
        """Subscribe to these, and end all other subscriptions."""
        entries = {_name(entry): entry for entry in wanted}
        for name in sorted(self._open.keys() - entries.keys()):
            await self._open.pop(name).drain()
        for name in sorted(entries.keys() - self._open.keys()):
            entry = entries[name]
            self._open[name] = await self._bus.subscribe(
                entry.kind,
                entry.handler,
                group=entry.group or "",
                at_once=entry.at_once,
                apart_seconds=entry.apart_seconds,
                **entry.tokens,
            )

    async def close(self) -> None:
        await self.listen(())


def _name(entry: Listen[Any]) -> Name:
    return entry.kind.__name__, entry.group or "", entry.tokens["node_id"]
