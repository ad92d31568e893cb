"""A whole cluster, made of production services, on a world that is made up."""

import asyncio
import contextvars
import hashlib
import random
from collections.abc import Awaitable, Callable, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

from msgspec import Struct

from tests.simulation.database import Database, SimStore
from tests.simulation.history import History, dice
from tests.simulation.machine import WALL, Clock, Machine, NodeGuard, SimRuntime
from tests.simulation.network import Network
from tests.simulation.place import Place
from tests.simulation.witness import Witness
from tests.simulation.workload import TOKEN
from tests.support.doubles.runtime import FakeProgress
from tests.support.doubles.store import MemoryStore
from tests.support.virtual_time import Process, this_process
from weft.bus import BusError
from weft.domain.classes import JOB_CLASSES
from weft.domain.cluster import Capacity, Gpu
from weft.domain.job import JobChange
from weft.domain.lease import Lease
from weft.domain.spec import TuningMode
from weft.gpus import GpuWatch
from weft.messages.nodes import NodeReported, ProgressSeen, RunState
from weft.messages.signals import HostSample, NodeSampled, PoolReviewed, RunSample
from weft.planning.moves import MoveRules
from weft.planning.policy import Policy
from weft.service import AnswerRaw, Listen, serve
from weft.store import StoreError
from weftd.executor import service as executor
from weftd.executor.guard.thinking import FenceTimings
from weftd.executor.runs import RuntimeUnavailableError
from weftd.executor.settings import ExecutorSettings
from weftd.gateway.gateway import Gateway
from weftd.gateway.service import SUBMIT_SUBJECT, answer_submit
from weftd.gateway.settings import GatewaySettings
from weftd.reallocator import service as reallocator
from weftd.reallocator.settings import ReallocatorSettings
from weftd.scheduler import service as scheduler
from weftd.scheduler.settings import SchedulerSettings
from weftd.scheduler.thinking.core import Scheduler
from weftd.scorer import service as scorer
from weftd.scorer.settings import ScorerSettings
from weftd.scorer.thinking.scores import MeasuredGpus
from weftd.telemetry import service as telemetry
from weftd.telemetry.settings import TelemetrySettings

GIB = 1 << 30
GPU_MEMORY = 16 * GIB
POOL = "default"
GUARD_TICK_SECONDS = 0.5
ENVIRONMENT = (BusError, StoreError, RuntimeUnavailableError, OSError)  # of which a service may die and be begun again


class Shape(Struct, frozen=True, kw_only=True):
    """What the cluster is made of. Times in seconds."""

    nodes: int = 4
    gpus: int = 3
    schedulers: int = 2
    gateways: int = 2
    fence_seconds: float = 12.0
    fence_grace_max: float = 4.0
    drift_seconds: float = 4.0  # half of it the guard waits
    lease_seconds: float = 24.0
    sync_seconds: float = 2.0
    leader_seconds: float = 6.0
    holds_seconds: float = 40.0
    nats_servers: int = 1
    start_seconds: float = 60.0
    settle_seconds: float = 5.0
    patience_seconds: float = 30.0
    preemption_after_seconds: float = 20.0
    drift: float = 0.02  # clocks go wrong by at most this part
    fencing: bool = True
    policy: Policy = Policy()
    scores: tuple[float, ...] = (1.0,)  # that a GPU may have for a class of jobs
    moves: MoveRules = MoveRules()


class WatchedStore(MemoryStore):
    """The store in memory, under the eyes of the witness."""

    def __init__(self, witness: Witness) -> None:
        super().__init__()
        self._witness = witness

    def _tell(self, *arguments: Any, **named: Any) -> None:
        super()._tell(*arguments, **named)
        self._witness.told(self._events[-1])

    async def take(self, lease: Lease, changes: Sequence[JobChange], **named: Any) -> list[bool]:
        taken = await super().take(lease, changes, **named)
        for change in compress(changes, taken):
            self._witness.sizes.counted(change)
        return taken


class Service:
    """One process and who starts it again."""

    def __init__(self, cluster: "Cluster", name: str, run: Callable[["Life"], Awaitable[None]]) -> None:
        self.name = name
        self.lives = 0
        self.life: Life | None = None
        self.wanted = True
        self._cluster = cluster
        self._run = run

    @property
    def runs(self) -> bool:
        return self.life is not None

    def begin(self) -> None:
        if self.life is None and self.wanted:
            self.lives += 1
            self.life = Life(self._cluster, f"{self.name}.{self.lives}")
            self.life.place.process.begin(self._live(self.life), name=self.life.place.name)

    async def _live(self, life: "Life") -> None:
        history = self._cluster.history
        try:
            await self._run(life)
            history.note(life.place.name, "ended")
        except* ENVIRONMENT as errors:
            history.note(life.place.name, f"ended by {errors.exceptions[0]!r}")
        except* Exception as errors:
            history.fail(f"{life.place.name} died of {errors.exceptions[0]!r}")
        self._cluster.later(0.0, self._over, life)

    def _over(self, life: "Life") -> None:
        if self.life is life:
            life.place.process.kill()
            life.leave(0.001)
            self.life = None
            self._cluster.later(self._cluster.dice.uniform(0.3, 3.0), self.begin)

    def kill(self, *, down_seconds: float, unnoticed_seconds: float = 0.002) -> None:
        """As kill -9, and begun again after a while."""
        if self.life is not None:
            self._cluster.history.note(self.life.place.name, f"killed for {down_seconds:.3f} s")
            self._cluster.history.counts["kills"] += 1
            self.life.place.process.kill()
            self.life.leave(unnoticed_seconds)
            self.life = None
            self._cluster.later(down_seconds, self.begin)

    def terminate(self) -> None:
        """As SIGTERM: it ends in order, and is begun again."""
        if self.life is not None:
            self._cluster.history.note(self.life.place.name, "terminated")
            self._cluster.history.counts["terminations"] += 1
            self.life.place.call(self.life.stop.set)

    def hang(self, seconds: float) -> None:
        """As SIGSTOP, and SIGCONT after a while."""
        life = self.life
        if life is not None and not life.place.process.stopped:
            self._cluster.history.note(life.place.name, f"hangs for {seconds:.3f} s")
            self._cluster.history.counts["hangs"] += 1
            life.place.process.stop()

            def go_on() -> None:
                if not life.place.process.dead:
                    self._cluster.history.note(life.place.name, "goes on")
                    life.place.process.go_on()

            self._cluster.later(seconds, go_on)


class Life:
    """One life of a process: its connections, its randomness, and when it is to stop."""

    def __init__(self, cluster: "Cluster", name: str) -> None:
        self.place = Place(Process(name, cluster.loop), cluster.loop)
        cluster.processes.append(self.place.process)
        self.stop = asyncio.Event()
        self.bus = cluster.network.join(self.place)
        self.store: Any = SimStore(cluster.database, self.place)
        self.dice = dice(cluster.seed, name)
        self._network = cluster.network

    def leave(self, unnoticed_seconds: float) -> None:
        self._network.leave(self.bus, unnoticed_seconds=unnoticed_seconds)

    def characters(self, count: int) -> str:
        return "".join(self.dice.choice("abcdefghijklmnopqrstuvwxyz0123456789") for _ in range(count))


class Cluster:
    def __init__(
        self,
        seed: int,
        shape: Shape,
        *,
        loop: asyncio.AbstractEventLoop,
        history: History,
        store: Callable[[Witness], MemoryStore] = WatchedStore,
    ) -> None:
        self.seed = seed
        self.shape = shape
        self.loop = loop
        self.history = history
        self.context = contextvars.copy_context()
        self.dice = dice(seed, "supervisor")
        self.witness = Witness(history, gpu_memory=GPU_MEMORY, preemption_after_seconds=shape.preemption_after_seconds)
        self.network = Network(loop, dice(seed, "network"), history)
        self.network.servers = shape.nats_servers
        self.database = Database(store(self.witness), loop, dice(seed, "database"), history)
        self.processes: list[Process] = []
        self.services: list[Service] = []
        self.machines: list[Machine] = []
        self.executors: dict[str, Service] = {}
        self.on_machine: dict[str, list[Service]] = {}
        self._build()

    @property
    def hosts(self) -> list[Any]:
        return [machine.host for machine in self.machines]

    def later(self, seconds: float, do: Callable[..., None], *arguments: Any) -> None:
        self.loop.call_later(seconds, do, *arguments, context=self.context)

    def begin(self) -> None:
        for service in self.services:
            self.later(self.dice.uniform(0.0, 0.5), service.begin)
        for machine in self.machines:
            self.later(1.0, self._guard, machine)

    def service(self, name: str) -> Service:
        return next(service for service in self.services if service.name == name)

    # what it is made of

    def _build(self) -> None:
        shape = self.shape
        for number in range(1, shape.nodes + 1):
            self._add_machine(f"node-{number}")
        for _ in range(shape.schedulers):
            self._make_scheduler()
        for number in range(1, shape.gateways + 1):
            self._add(f"gateway-{number}", self._gateway(self._wall(f"gateway-{number}")))
        self._add("scorer", self._scorer(self._wall("scorer")))
        self._add("reallocator", self._reallocator(self._wall("reallocator")))

    def _make_scheduler(self) -> Service:
        number = 1 + sum(service.name.startswith("scheduler") for service in self.services)
        return self._add(f"scheduler-{number}", self._scheduler(self._wall(f"scheduler-{number}")))

    def add_scheduler(self) -> None:
        """One that nobody knows of yet."""
        self._make_scheduler().begin()

    def _add(self, name: str, run: Callable[[Life], Awaitable[None]]) -> Service:
        service = Service(self, name, run)
        self.services.append(service)
        return service

    def _wall(self, name: str) -> Clock:
        thrown = dice(self.seed, "clock", name)
        return Clock(self.loop, offset=WALL + thrown.uniform(-2.0, 2.0), rate=self._rate(thrown))

    def _rate(self, thrown: random.Random) -> float:
        return 1.0 + thrown.uniform(-self.shape.drift, self.shape.drift)

    def _add_machine(self, node_id: str) -> None:
        thrown = dice(self.seed, "machine", node_id)
        machine = Machine(
            node_id,
            capacity=Capacity(
                cpus=16.0,
                memory=64 * GIB,
                gpus=tuple(
                    Gpu(index=index, uuid=f"{node_id}-{index}", model="Emulated GPU", memory=GPU_MEMORY, emulated=True)
                    for index in range(self.shape.gpus)
                ),
            ),
            boot_clock=Clock(self.loop, offset=thrown.uniform(0.0, 1e6), rate=self._rate(thrown)),
            wall_clock=Clock(self.loop, offset=WALL + thrown.uniform(-3600.0, 3600.0), rate=self._rate(thrown)),
            loop=self.loop,
            dice=thrown,
            history=self.history,
            witness=self.witness,
        )
        self.machines.append(machine)
        self.witness.capacities[node_id] = machine.capacity
        self.executors[node_id] = self._add(f"executor-{node_id}", self._executor(machine))
        self.on_machine[node_id] = [
            self.executors[node_id],
            self._add(f"telemetry-{node_id}", self._telemetry(machine)),
        ]

    def _scheduler(self, clock: Clock) -> Callable[[Life], Awaitable[None]]:
        shape = self.shape
        settings = SchedulerSettings(
            pool=POOL,
            lease_seconds=shape.lease_seconds,
            start_seconds=shape.start_seconds,
            stop_seconds=2 * shape.lease_seconds,
            settle_seconds=shape.settle_seconds,
            patience_seconds=shape.patience_seconds,
            preemption_after_seconds=shape.preemption_after_seconds,
            order=shape.policy.order,
            placement=shape.policy.placement,
            backfill=shape.policy.backfill,
            moves=shape.moves.on,
            moves_max=shape.moves.at_once_max,
            moves_every_seconds=shape.moves.every_seconds,
            move_margin=shape.moves.margin,
            move_cost_seconds=shape.moves.cost_seconds,
            leader_seconds=shape.leader_seconds,
            holds_seconds=shape.holds_seconds,
            jobs_kept_days=0,
            nodes_kept_days=0,
        )

        async def run(life: Life) -> None:
            await scheduler.run(
                settings, bus=life.bus, store=life.store, stop=life.stop, holder=life.place.name, clock=clock
            )

        return run

    def _executor(self, machine: Machine) -> Callable[[Life], Awaitable[None]]:
        shape = self.shape
        settings = ExecutorSettings(
            node_id=machine.node_id,
            pool=POOL,
            address=machine.node_id,
            home=Path("unused"),
            sync_seconds=shape.sync_seconds,
            fence_seconds=shape.fence_seconds,
            fence_grace_max=shape.fence_grace_max,
            drift_seconds=shape.drift_seconds,
            lease_seconds=shape.lease_seconds,
            fencing=shape.fencing,
        )

        async def run(life: Life) -> None:
            await executor.run(
                settings,
                bus=life.bus,
                runtime=SimRuntime(machine.engine, life.place),
                progress=FakeProgress(),
                state_file=machine.state_file.restarted(),
                capacity=lambda: machine.capacity,
                stop=life.stop,
                clock=machine.clock,
                now=machine.wall_clock,
                jitter=life.dice.random,
            )

        return run

    def _guard(self, machine: Machine) -> None:
        """Twice a second, whatever becomes of the executor."""
        if self.shape.fencing and machine.on:
            if machine.guard is None:
                machine.guard = NodeGuard(machine, self._guard_timings)
            machine.guard.look()
        self.later(GUARD_TICK_SECONDS, self._guard, machine)

    @property
    def _guard_timings(self) -> FenceTimings:
        """As the executor gives it to its guard."""
        shape = self.shape
        return FenceTimings(
            fence_seconds=shape.fence_seconds,
            slack_seconds=shape.drift_seconds / 2,
            grace_max=shape.fence_grace_max,
        )

    def _gateway(self, clock: Clock) -> Callable[[Life], Awaitable[None]]:
        async def run(life: Life) -> None:
            gateway = Gateway(
                store=life.store,
                bus=life.bus,
                now=clock,
                clock=self.loop.time,
                characters=life.characters,
                settings=GatewaySettings(tenant_may_be_unpreemptible=True, tenant_priority_max=100, shares=True),
            )

            async def submit(asked: Any) -> Any:
                return await answer_submit(gateway, asked)

            await serve(
                "gateway",
                bus=life.bus,
                stop=life.stop,
                listens=[
                    Listen(ProgressSeen, gateway.cluster.hear_progress, group=""),
                    Listen(NodeSampled, gateway.cluster.hear_sample, group=""),
                    Listen(PoolReviewed, gateway.cluster.hear_review, group=""),
                ],
                answers=[AnswerRaw(SUBMIT_SUBJECT, submit)],
            )

        return run

    def _scorer(self, clock: Clock) -> Callable[[Life], Awaitable[None]]:
        async def run(life: Life) -> None:
            await scorer.run(
                ScorerSettings(learnt_kept_days=0),
                bus=life.bus,
                store=life.store,
                stop=life.stop,
                clock=clock,
                profile=self._measured(),
            )

        return run

    def _measured(self) -> MeasuredGpus:
        thrown, shape = dice(self.seed, "profile"), self.shape
        places = [(f"node-{number}", gpu) for number in range(1, shape.nodes + 1) for gpu in range(shape.gpus)]
        return MeasuredGpus(
            by_place={place: {name: thrown.choice(shape.scores) for name in JOB_CLASSES} for place in places}
        )

    def _reallocator(self, clock: Clock) -> Callable[[Life], Awaitable[None]]:
        async def run(life: Life) -> None:
            # A plan of sizes is computed in a thread, which takes real time: the same seed would be another history.
            settings = ReallocatorSettings(pool=POOL, partition=TuningMode.OFF)
            await reallocator.run(settings, bus=life.bus, store=life.store, stop=life.stop, clock=clock)

        return run

    def _telemetry(self, machine: Machine) -> Callable[[Life], Awaitable[None]]:
        async def run(life: Life) -> None:
            sampler: Any = Sampler(machine, self.loop)
            settings = TelemetrySettings(node_id=machine.node_id, home=Path("unused"), period_seconds=5.0)
            await telemetry.run(settings, sampler, bus=life.bus, stop=life.stop)

        return run

    async def let_clients_in(self) -> None:
        token_hash = hashlib.sha256(TOKEN.encode()).digest()
        await self.database.store.add_token(token_hash, tenant="alice", admin=False, label="s", at=WALL)


class Sampler:
    """What telemetry would read of a machine; only reading files of the real one is left out."""

    def __init__(self, machine: Machine, loop: asyncio.AbstractEventLoop) -> None:
        self._machine = machine
        self._loop = loop
        self.node_id, self.gpus = machine.node_id, GpuWatch(())

    async def look(self) -> None:
        pass

    async def sample(self, *, at: float) -> NodeSampled:
        runs = tuple(
            RunSample(job_id=run.key.job_id, epoch=run.key.epoch, rank=run.key.rank, source="fake")
            for run in self._machine.host.runs()
            if run.state is RunState.RUNNING
        )
        host = HostSample(cpus=16.0, memory_total=64 * GIB, memory_used=0)
        return NodeSampled(node_id=self._machine.node_id, pool=POOL, at=WALL + self._loop.time(), host=host, runs=runs)


class WatchedScheduler(Scheduler):
    """The scheduler's core, which checks its own picture at every decision and shows which reports it took."""

    def __init__(self, *, witness: Witness, **named: Any) -> None:
        self._witness = witness
        self._loads = 0
        super().__init__(**named)

    def load(self, **named: Any) -> None:
        self._loads += 1
        super().load(**named)

    def decide(self, now: float) -> Any:
        steps = super().decide(now)
        self.cluster_state.check()
        return steps

    def report(self, report: NodeReported, now: float) -> str:
        refused = super().report(report, now)
        process = this_process()
        if not refused and process is not None:
            who = f"{process.name} (load {self._loads})"
            self._witness.report_taken(who, report.node_id, (report.incarnation, report.seq))
        return refused
