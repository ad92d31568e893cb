"""The scheduler alone at size: 1,000 emulated nodes of 8 GPUs, 5,000 queued jobs, steps stored in a real Postgres.

Its thinking alone, at 2,048 nodes of 8 GPUs with 10,000 waiting jobs: `python -m tests.bench thinking`.
"""

import asyncio
import time
from pathlib import Path

from msgspec import structs

from tests.bench.figures import Figures, milliseconds, quantile
from tests.support.builders import node, spec
from tests.support.doubles.bus import MemoryBus
from tests.support.nodes import ScriptedNode
from weft.credentials import provision
from weft.domain.classes import JOB_CLASSES
from weft.domain.job import Allocation, Job, JobState, Placement
from weft.domain.spec import JobSpec
from weft.messages.asks import Ask, AskKind
from weft.messages.nodes import Leader
from weft.messages.signals import GpuScore
from weft.planning.policy import Policy
from weft.planning.reasons.explain import explain
from weft.servers import temporary
from weft.store.migrate import ROLES, migrate
from weft.store.postgres import PostgresStore
from weftd.scheduler.counters import Counters
from weftd.scheduler.leadership import Leadership
from weftd.scheduler.scheduler_loop import SchedulerLoop
from weftd.scheduler.thinking.core import Scheduler
from weftd.scheduler.thinking.core_settings import Settings

NODES, GPUS, QUEUED = 1000, 8, 5000
US = Leader(pool="default", epoch=1, holder="bench", seq=0)


LARGE_NODES, LARGE_QUEUED = 2048, 10_000
POLICIES = (Policy("priority", "weft-best", "easy"), Policy("las", "pal", "easy"), Policy("fifo", "packed", "none"))


async def think(home: Path, figures: Figures) -> None:
    """No store: how long does one decision take, from nothing, and when one GPU is freed in a full pool."""
    del home
    for policy in POLICIES:
        where = f"{LARGE_NODES} nodes × {GPUS} GPUs, {policy}"
        core = _large(policy, [])
        core.admit([_job(f"j-{n:05d}", _one_of_30(n), seq=n + 1) for n in range(LARGE_QUEUED)])
        seconds = _until_quiet(core)
        placed = len(core.cluster_state.pool.runs.holding)
        what = f"one decision from nothing, {LARGE_QUEUED} jobs of 30 kinds, {where}: {placed} placed"
        figures.add(what, milliseconds(seconds), "< 1 s")

        core = _large(policy, [_running(n) for n in range(LARGE_NODES * GPUS)])
        core.admit([_job(f"j-{n:05d}", _one_of_30(n), seq=10**6 + n) for n in range(LARGE_QUEUED)])
        _until_quiet(core)
        at, seconds = time.time(), []
        for number in range(60):
            at += 0.5
            ask = Ask(id=number + 1, kind=AskKind.CANCEL, subject_id=f"r-{number * 97:05d}", tenant="bench", at=at)
            assert core.ask(ask, at)
            began = time.perf_counter()
            core.decide(at)
            seconds.append(time.perf_counter() - began)
        what = f"one decision when a GPU is freed, {LARGE_NODES * GPUS} jobs run and {LARGE_QUEUED} wait, {where}"
        figures.add(what, milliseconds(seconds), "p99 < 100 ms")


def _large(policy: Policy, running: list[Job]) -> Scheduler:
    scores = [
        GpuScore(node_id=_name(n), gpu_index=gpu, job_class=job_class, score=0.9 + (n * 7 + gpu * 3) % 40 / 100)
        for n in range(LARGE_NODES)
        for gpu in range(GPUS)
        for job_class in JOB_CLASSES
    ]
    core = Scheduler(pool="default", settings=Settings(policy=policy))
    nodes = [node(_name(n), gpus=GPUS) for n in range(LARGE_NODES)]
    core.load(jobs=running, nodes=nodes, scores=scores, now=time.time())
    _report_all(core)
    return core


def _until_quiet(core: Scheduler) -> list[float]:
    """Turns until nothing new comes of them; how long each took."""
    at, seconds = time.time(), []
    while True:
        began = time.perf_counter()
        steps = core.decide(at)
        seconds.append(time.perf_counter() - began)
        at += 0.1
        if not steps:
            return seconds


def _name(number: int) -> str:
    return f"node-{number:04d}"


def _running(number: int) -> Job:
    """One GPU, half of them with a time limit."""
    began = time.time() - 1000 - number
    wanted = spec(gpus=1, **({"time_limit": "90h"} if number % 2 else {}))
    held = Allocation(
        rank=0, role="worker", node_id=_name(number // GPUS), gpus=(number % GPUS,), cpus=1.0, memory=1 << 30
    )
    return Job(
        id=f"r-{number:05d}",
        tenant="bench",
        spec=wanted,
        seq=number + 1,
        submitted_at=began,
        state=JobState.RUNNING,
        since=began,
        started_at=began,
        placed_at=began,
        placement=Placement(allocations=(held,), master_port=20000),
    )


def _one_of_30(number: int) -> JobSpec:
    kind = number % 30
    gpus, replicas = ((1, 1), (1, 1), (2, 1), (4, 1), (8, 1), (1, 4), (8, 2), (2, 4), (8, 4), (1, 1))[kind % 10]
    labels = {"weft/class": JOB_CLASSES[kind // 10]}
    return spec(gpus=gpus, replicas=replicas, labels=labels, **({"time_limit": "4h"} if kind % 2 else {}))


async def measure(home: Path, figures: Figures) -> None:
    credentials = provision(home / "credentials", nodes=[])
    async with temporary(home / "servers", credentials=credentials) as servers:
        passwords = {role: credentials.postgres_password(role) for role in ROLES}
        owner = credentials.postgres_password("owner")
        await migrate(servers.pg_dsn, user="weft_owner", password=owner, role_passwords=passwords)
        async with (
            PostgresStore.connect(
                servers.pg_dsn, user="weft_scheduler", password=passwords["scheduler"]
            ) as scheduler_store,
            PostgresStore.connect(servers.pg_dsn, user="weft_gateway", password=passwords["gateway"]) as gateway_store,
        ):
            await _Size(scheduler_store, gateway_store, figures).measure()


class _Size:
    def __init__(self, store: PostgresStore, gateway: PostgresStore, figures: Figures) -> None:
        self.store, self.gateway, self.figures = store, gateway, figures
        self.core = Scheduler(pool="default", settings=Settings())
        self.leadership = Leadership(
            name="default", holder="bench", store=store, clock=time.time, leader_seconds=3600.0
        )
        self.bus = MemoryBus()
        self.scheduler_loop = SchedulerLoop(
            core=self.core,
            store=store,
            bus=self.bus,
            leadership=self.leadership,
            clock=time.time,
            counters=Counters(),
        )
        self.count = 0

    async def measure(self) -> None:
        await self.leadership.beat()
        lease = self.leadership.require()
        limit = asyncio.Semaphore(8)

        async def join(index: int) -> None:
            async with limit:
                await self.store.save_node(lease, node(f"node-{index:04d}", gpus=GPUS), event="joined", cause="bench")

        await asyncio.gather(*(join(index) for index in range(NODES)))
        await self.scheduler_loop.cycle()
        _report_all(self.core)
        await self._placements()
        await self._blocked()
        await self._gang()

    async def _placements(self) -> None:
        await self._submit([spec(gpus=1 + n % 2) for n in range(QUEUED)])
        began = time.perf_counter()
        while self._placed() < QUEUED:
            self.scheduler_loop.asked()
            await self.scheduler_loop.cycle()
        took = time.perf_counter() - began
        self.figures.add(
            f"durable placements, {NODES} emulated nodes × {GPUS} GPUs, {QUEUED} queued",
            f"{QUEUED / took:,.0f}/s (admission included)",
            "≥ 500/s",
        )

    async def _blocked(self) -> None:
        """Fill what is left, then queue 5,000 that do not fit: what does one decision cost, and one "no, because…"?"""
        while any(
            free_capacity.gpus.whole for free_capacity in self.core.cluster_state.pool.free_capacity.nodes.values()
        ):
            free = sum(
                len(free_capacity.gpus.whole)
                for free_capacity in self.core.cluster_state.pool.free_capacity.nodes.values()
            )
            await self._submit([spec(gpus=1) for _ in range(min(free, 1000))])
            await self._settle()
        began = time.perf_counter()
        await self._submit([spec(gpus=1 + n % 8, role={"cpus": 1 + n % 4}) for n in range(QUEUED)])
        submitted = time.perf_counter() - began
        began = time.perf_counter()
        await self._settle()
        self.figures.add(
            f"{QUEUED} jobs that do not fit: all told why, stored",
            f"{time.perf_counter() - began:.2f} s (submitting took {submitted:.2f} s)",
        )
        decisions = []
        for _ in range(50):
            began = time.perf_counter()
            self.core.cluster_state.pool.free_capacity.grown += (
                1  # as if something had been given back: every shape is tried anew
            )
            self.core.decide(time.time())
            decisions.append(time.perf_counter() - began)
        self.figures.add("one decision over 5,000 waiting jobs, nothing fits", milliseconds(decisions))
        single = []
        for _ in range(20):
            began = time.perf_counter()
            await self._submit([spec(gpus=3)])
            await self._settle()
            single.append(time.perf_counter() - began)
        self.figures.add('submit → "no, because…" stored, 5,000 queued', milliseconds(single), "p99 < 1 s")
        nodes = await self.gateway.nodes(pool="default")
        answers = []
        for _ in range(5):
            began = time.perf_counter()
            holding = await self.gateway.holding_jobs(pool="default")
            queued = await self.gateway.queued_jobs(pool="default")
            explain(queued[-1], nodes=nodes, holding=holding, queued=queued, now=time.time())
            answers.append(time.perf_counter() - began)
        self.figures.add("`explain` from a cold snapshot, 5,000 queued", milliseconds(answers), "p99 < 1 s")

    async def _gang(self) -> None:
        """One 512-GPU gang on an empty cluster of the same size, decided 20 times; best-packed and one-GPU ranks."""
        for replicas, gpus in ((64, 8), (512, 1)):
            seconds = []
            for _ in range(10):
                core = Scheduler(pool="default", settings=Settings())
                core.load(jobs=[], nodes=list(self.core.cluster_state.pool.nodes.values()), now=time.time())
                _report_all(core)
                core.admit(
                    [
                        _job(
                            f"j-gang-{replicas}",
                            spec(gpus=gpus, replicas=replicas, role={"replicas": {"want": replicas}}),
                        )
                    ]
                )
                began = time.perf_counter()
                steps = core.decide(time.time())
                seconds.append(time.perf_counter() - began)
                assert steps[0].to is JobState.PLACED
            self.figures.add(
                f"one 512-GPU gang ({replicas} ranks × {gpus} GPUs) decided",
                f"p50 {quantile(seconds, 0.5) * 1000:.0f} ms, worst {max(seconds) * 1000:.0f} ms",
                "< 1 s",
            )

    async def _submit(self, specs: list[JobSpec]) -> None:
        limit = asyncio.Semaphore(32)

        async def one(wanted: JobSpec, job_id: str) -> None:
            async with limit:
                await self.gateway.submit(wanted, job_id=job_id, tenant="bench", key=None, at=time.time())

        ids = range(self.count, self.count + len(specs))
        self.count += len(specs)
        await asyncio.gather(*(one(wanted, f"j-{n:06d}") for wanted, n in zip(specs, ids, strict=True)))

    async def _settle(self) -> None:
        """Turns until nothing new comes of them."""
        self.scheduler_loop.asked()
        await self.scheduler_loop.cycle()
        while self.core.cluster_state.waitlist.unexplained or self.scheduler_loop.wake.is_set():
            await self.scheduler_loop.cycle()

    def _placed(self) -> int:
        return len(self.core.cluster_state.pool.runs.holding)


def _report_all(core: Scheduler) -> None:
    """Every node has spoken, so that it is given work."""
    for known in list(core.cluster_state.pool.nodes.values()):
        report = ScriptedNode(known.id, known.capacity).report()
        report = structs.replace(report, runtime=known.runtime, leader=US)
        assert not core.report(report, time.time())


def _job(job_id: str, wanted: JobSpec, *, seq: int = 1) -> Job:
    return Job(id=job_id, tenant="bench", spec=wanted, seq=seq, submitted_at=time.time(), since=time.time())
