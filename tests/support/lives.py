"""A random life of a small cluster at one scheduler loop: jobs, nodes, users, new leaders, a store that fails."""

import asyncio
import random
from collections.abc import Callable, Sequence

from msgspec import structs

from tests.support.builders import capacity, spec
from tests.support.doubles.bus import MemoryBus
from tests.support.doubles.store import MemoryStore
from tests.support.nodes import ScriptedNode
from weft.domain.classes import CLASS_LABEL, JOB_CLASSES, WORKLOAD_LABEL
from weft.domain.job import Cause, CauseCode, JobChange, JobState
from weft.domain.lease import Lease
from weft.domain.quotas import ALL, Quota
from weft.domain.topology import Topology
from weft.messages.asks import AskKind, RankTuning, Tune
from weft.messages.history import Record
from weft.messages.nodes import RunSeen, RunState
from weft.messages.signals import (
    ClassesLearnt,
    Curve,
    CurvePoint,
    GpuScore,
    GpusScored,
    PairSlowdown,
    WorkloadClass,
    WorkloadPenalty,
)
from weft.planning.moves import MoveRules
from weft.planning.policy import BACKFILLS, ORDERS, PLACEMENTS, Policy
from weft.store import StoreUnavailableError, UnlawfulError
from weft.store.tuning import Envelope
from weftd.scheduler.counters import Counters
from weftd.scheduler.leadership import Leadership
from weftd.scheduler.scheduler_loop import SchedulerLoop
from weftd.scheduler.thinking.core import Scheduler
from weftd.scheduler.thinking.core_settings import Settings
from weftd.scheduler.thinking.record.history import JournalPace

MIB, GIB = 1 << 20, 1 << 30
TUNED_FOR = (CauseCode.UPSCALED, CauseCode.RECLAIMED, CauseCode.REBALANCED, CauseCode.ROLLED_BACK)

SETTINGS = Settings(
    lease_seconds=30.0,
    start_seconds=60.0,
    patience_seconds=20.0,
    moves=MoveRules(margin=1.0, cost_seconds=0.5, every_seconds=1.0),
)


class _Store(MemoryStore):
    """Loses the next writes, or finds the next steps unlawful, as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.away = 0
        self.unlawful = 0

    async def take(self, lease: Lease, changes: Sequence[JobChange], *, record: Record | None = None) -> list[bool]:
        if self.away:
            self.away -= 1
            raise StoreUnavailableError("on purpose")
        if self.unlawful and changes:
            self.unlawful -= 1
            raise UnlawfulError("on purpose")
        return await super().take(lease, changes, record=record)


class Life:
    """`live` does so many things by chance; what is stored then is in `store`."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 3,
        gpus: int = 4,
        topology: Topology | None = None,
        pace: JournalPace | None = None,
    ) -> None:
        self.chance = random.Random(seed)
        self.tuner = random.Random(f"tuner/{seed}")
        self.quoting = random.Random(f"quotas/{seed}")
        self.settings = SETTINGS
        if seed % 2:
            policy = Policy(self.chance.choice(ORDERS), self.chance.choice(PLACEMENTS), self.chance.choice(BACKFILLS))
            self.settings = structs.replace(SETTINGS, policy=policy)
        self.now = 1_700_000_000.0
        self.store = _Store()
        self.pace = pace
        self.leaders = 0
        self.jobs: list[str] = []
        has = structs.replace(capacity(gpus=gpus, cpus=64.0), topology=topology)
        self.nodes = [ScriptedNode(f"node-{n}", has) for n in range(nodes)]
        self.leadership, self.scheduler_loop = self._lead()

    def _lead(self) -> tuple[Leadership, SchedulerLoop]:
        self.leaders += 1
        leadership = Leadership(
            name="default",
            holder=f"leader-{self.leaders}",
            store=self.store,
            clock=lambda: self.now,
            leader_seconds=1e9,
        )
        scheduler_loop = SchedulerLoop(
            core=Scheduler(pool="default", settings=self.settings),
            store=self.store,
            bus=MemoryBus(),
            leadership=leadership,
            clock=lambda: self.now,
            counters=Counters(),
            pace=self.pace,
        )
        return leadership, scheduler_loop

    async def live(self, things: int) -> None:
        happenings: list[tuple[int, Callable[[], object]]] = [
            (12, self._submit),
            (30, self._sync),
            (8, self._end),
            (8, self._progress),
            (4, self._ask),
            (2, self._drain),
            (2, self._rescore),
            (2, self._come_or_go),
            (2, self._wait_long),
            (1, self._fail),
            (1, self._break),
            (1, self._take_over),
        ]
        weights = [weight for weight, _ in happenings]
        for _ in range(things):
            self.now += round(self.chance.uniform(0.01, 2.0), 3)
            (_, happens) = self.chance.choices(happenings, weights)[0]
            done = happens()
            if asyncio.iscoroutine(done):
                await done
            if self.tuner.random() < 0.2:
                await self._tune()
            if self.tuner.random() < 0.05:
                await self._learn()
            if self.quoting.random() < 0.05:
                await self._limit()
            await self.cycle()

    async def cycle(self) -> None:
        await self.leadership.beat()
        self.scheduler_loop.asked()
        try:
            await self.scheduler_loop.cycle()
        except StoreUnavailableError:
            await self.cycle()

    async def settle(self) -> None:
        """Turns that do nothing new, until what was told is stored."""
        self.store.unlawful = 0
        for _ in range(3):
            self.now += 60.0
            await self.cycle()

    async def _submit(self) -> None:
        job_id = f"j-{len(self.jobs)}"
        self.jobs.append(job_id)
        labels = {"weft/checkpoints": "0s", WORKLOAD_LABEL: f"w-{self.tuner.randint(1, 3)}"}
        if self.tuner.random() < 0.6:
            labels[CLASS_LABEL] = self.tuner.choice([*JOB_CLASSES, "other"])
        wanted = spec(
            f"job-{len(self.jobs)}",
            gpus=self.chance.choice([0, 1, 1, 2, 4, 5]),
            replicas=self.chance.choice([1, 1, 1, 2, 3]),
            priority=self.chance.choice([0, 0, 0, 5, 10]),
            preemptible=self.chance.random() < 0.7,
            grace="3s",
            labels=labels,
            time_limit=self.chance.choice([None, None, "1m", "5m"]),
            retries={"max": self.chance.choice([0, 1, 3]), "backoff": "3s"},
        )
        await self.store.submit(wanted, job_id=job_id, tenant=self.chance.choice("ab"), key=None, at=self.now)

    async def _limit(self) -> None:
        """An administrator sets a quota, or takes one away."""
        name = self.quoting.choice(["a", "b", "lab"])
        least = self.quoting.choice([0, 2000, 4000])
        if self.quoting.random() < 0.3:
            await self.store.delete_quota(name, pool="default")
            return
        group = self.quoting.choice(["", "lab"]) if name != "lab" else ""
        limit = {ALL: least + 3000} if self.quoting.random() < 0.3 else {}
        quota = Quota(name=name, group=group, is_group=name == "lab", guaranteed={ALL: least}, limit=limit)
        await self.store.set_quota(quota)

    async def _sync(self) -> None:
        told = self.chance.sample(self.nodes, self.chance.randint(1, len(self.nodes)))
        answers = [asyncio.ensure_future(self.scheduler_loop.report(one.report())) for one in told]
        await asyncio.sleep(0)
        await self.cycle()
        for one, answered in zip(told, await asyncio.gather(*answers), strict=True):
            if answered is not None and not answered.refused and self.chance.random() < 0.9:  # else it is lost
                one.take(answered, now=self.now)

    def _end(self) -> None:
        one = self.chance.choice(self.nodes)
        if one.live:
            one.end(self.chance.choice(one.live), self.chance.choice([0, 0, 0, 1, 137]))

    def _progress(self) -> None:
        one = self.chance.choice(self.nodes)
        for key in one.live:
            one.runs[key] = RunSeen(
                job_id=key[0],
                epoch=key[1],
                rank=key[2],
                state=RunState.RUNNING,
                progress={"step": self.now - 1.7e9, "loss": self.chance.random()},
            )

    async def _ask(self) -> None:
        if self.jobs:
            kind = self.chance.choice([AskKind.CANCEL, AskKind.REQUEUE, AskKind.PRIORITISE])
            job_id = self.chance.choice(self.jobs)
            await self.store.ask(kind, subject_id=job_id, pool="default", tenant="a", at=self.now, priority=3)

    async def _drain(self) -> None:
        kind = self.chance.choice([AskKind.DRAIN, AskKind.RESUME, AskKind.RESUME])
        node_id = self.chance.choice(self.nodes).node_id
        await self.store.ask(kind, subject_id=node_id, pool="default", tenant="a", at=self.now)

    async def _rescore(self) -> None:
        scores = tuple(
            GpuScore(node_id=one.node_id, gpu_index=gpu, job_class=name, score=self.chance.choice([0.9, 1.0, 1.2, 3.0]))
            for one in self.nodes
            for gpu in range(self.chance.randint(1, len(one.capacity.gpus)))
            for name in self.chance.sample(JOB_CLASSES, 2)
        )
        await self.store.save_scores(scores, at=self.now)
        self.scheduler_loop.scored(GpusScored(pool="default", scores=scores))

    async def _tune(self) -> None:
        """Ask for other limits of a running job: most make sense, and some fit."""
        running = await self.store.jobs(tenant=None, states=[JobState.RUNNING])
        if not running:
            return
        job = self.tuner.choice(running)
        assert job.placement is not None
        ranks = tuple(
            RankTuning(
                rank=allocation.rank + (self.tuner.random() < 0.02),
                cpus=self.tuner.choice([None, 0.0, 0.5, 2.0, 30.0, 60.0, allocation.cpus]),
                memory=self.tuner.choice([None, None, 1, 64 * MIB, 2 * GIB, 200 * GIB]),
                egress=self.tuner.choice([None, None, 1, 2_500_000]),
            )
            for allocation in job.placement.allocations
            if self.tuner.random() < 0.7
        )
        cause = Cause(code=self.tuner.choice(TUNED_FOR), sentence="by chance")
        tune = Tune(epoch=job.epoch - (self.tuner.random() < 0.1), ranks=ranks, cause=cause)
        envelope = Envelope(job_id=job.id, pool="default", epoch=job.epoch, state=b"{}")
        await self.store.ask_tune(envelope, tune, at=self.now)

    async def _learn(self) -> None:
        classes = tuple(
            WorkloadClass(
                workload=f"w-{number}",
                job_class=self.tuner.choice([*JOB_CLASSES, "other"]),
                compute=0.5,
                memory=0.5,
                at=self.now,
            )
            for number in self.tuner.sample([1, 2, 3], 2)
        )
        await self.store.save_classes(classes, pool="default")
        slower = 1.0 + self.now % 50.0 / 100.0
        await self.store.save_slowdowns(
            [
                PairSlowdown(
                    job_class="compute", beside="compute", slowdown=slower, confidence=1.0, workloads=3, at=self.now
                )
            ]
        )
        penalty = WorkloadPenalty(workload="w-1", penalty=slower, confidence=1.0, at=self.now)
        await self.store.save_penalties([penalty], pool="default")
        speeds = {"A100": slower, "T4": 1.0}
        points = tuple(CurvePoint(replicas=1, cpus=1.0, speed=speed, model=model) for model, speed in speeds.items())
        await self.store.save_curves([Curve(subject="workload:w-1", pool="default", points=points, at=self.now)])
        if self.tuner.random() < 0.7:  # else nobody is told
            self.scheduler_loop.learnt(ClassesLearnt(pool="default", classes=classes))

    def _come_or_go(self) -> None:
        one = self.chance.choice(self.nodes)
        one.leaving = not one.leaving

    def _wait_long(self) -> None:
        self.now += self.chance.choice([5.0, 12.0, 40.0])

    def _fail(self) -> None:
        self.store.away = 1

    def _break(self) -> None:
        self.store.unlawful = 2  # all together, then the first by itself

    async def _take_over(self) -> None:
        await self.leadership.resign()
        self.leadership, self.scheduler_loop = self._lead()

    async def open_jobs(self) -> int:
        return len(await self.store.jobs(tenant=None, states=[state for state in JobState if not state.final]))
