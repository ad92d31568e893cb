"""One life of a cluster: its users come, trouble comes, trouble goes, and then everything must come to its end."""

import asyncio
import contextlib
import io
import logging
import time
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

from msgspec import Struct, structs

from tests.simulation.cluster import Cluster, Life, Shape, WatchedScheduler, WatchedStore
from tests.simulation.history import Failure, History, Listener, dice
from tests.simulation.machine import WALL
from tests.simulation.quiet import Quiet
from tests.simulation.reasons import LOOK_SECONDS, Reasons
from tests.simulation.scaler import Scaler
from tests.simulation.serving import ServiceUsers
from tests.simulation.trouble import Trouble
from tests.simulation.tuner import Tuner
from tests.simulation.witness import Witness
from tests.simulation.workload import ELASTIC, SHARED, Client, job
from tests.support.doubles.store import MemoryStore
from tests.support.virtual_time import Process, VirtualTimeLoop
from weft.bus import BusError
from weft.messages.asks import AskKind
from weft.planning.moves import MoveRules
from weft.planning.policy import BACKFILLS, ORDERS, PLACEMENTS, Policy
from weft.service import run as service_run
from weft.store import StoreError
from weftd.executor.runs import RuntimeUnavailableError
from weftd.scheduler import service as scheduler_service
from weftd.scheduler.thinking.record.replay import Replay

CALM_SECONDS = 6.0
END_SECONDS_MAX = 900.0
SETTLE_SECONDS = 15.0
UNWIND_SECONDS_MAX = 100.0
LATE_SECONDS = 110.0  # after this the endless jobs are cancelled: all must have come to rest before (quiet.PATIENCE)
EXPECTED = (BusError, StoreError, RuntimeUnavailableError)


class Result(Struct):
    seed: int
    digest: str
    failures: list[Failure]
    counts: Counter[str]
    virtual_seconds: float
    wall_seconds: float


class Variation(Struct, kw_only=True):
    """What is otherwise than usual: to see that the witness sees it."""

    fencing: bool = True
    kinds: tuple[str, ...] = ()  # of trouble; empty: as the seed has it
    shape: dict[str, Any] = {}  # what is other than the seed has it
    shape_by_seed: Callable[[int], dict[str, Any]] = lambda _: {}
    live: Callable[["World"], Coroutine[Any, Any, None]] | None = None  # another life than users and troubles
    store: Callable[[Witness], MemoryStore] = WatchedStore
    replaced: tuple[tuple[Any, str, Any], ...] = ()  # module, name, and what it is instead


# The same on each machine and for each version: how large a message is decides when it arrives.
EVERYWHERE_ALIKE = ((service_run, "version", lambda: "simulated"), (service_run, "instance_name", lambda: "simulated"))


def shape_of(seed: int) -> Shape:
    thrown = dice(seed, "shape")
    shape = Shape(
        nodes=thrown.randint(2, 5),
        gpus=thrown.randint(1, 4),
        schedulers=thrown.choice([1, 2, 2, 2, 3]),
        gateways=thrown.choice([1, 2]),
        sync_seconds=thrown.choice([1.0, 2.0, 3.0]),
        leader_seconds=thrown.choice([3.0, 6.0]),
        drift=thrown.choice([0.0, 0.001, 0.02]),
        holds_seconds=thrown.choice([0.0, 40.0, 120.0, 3600.0]),
        nats_servers=thrown.choice([1, 1, 2]),
    )
    if thrown.random() < 0.15:  # as in production
        shape = structs.replace(
            shape,
            fence_seconds=90.0,
            fence_grace_max=30.0,
            drift_seconds=10.0,
            lease_seconds=150.0,
            settle_seconds=10.0,
        )
    return structs.replace(shape, **_planning(seed))


def _planning(seed: int) -> dict[str, Any]:
    """By what the scheduler plans: mostly the usual, and with GPUs that differ so much that many jobs move."""
    thrown = dice(seed, "planning")
    rules = MoveRules(margin=1.0, at_once_max=thrown.choice([1, 3]), cost_seconds=0.5, every_seconds=2.0)
    policy = Policy("priority", "weft-best", "easy")
    if thrown.random() < 0.5:
        policy = Policy(thrown.choice(ORDERS), thrown.choice(PLACEMENTS), thrown.choice(BACKFILLS))
    return {"policy": policy, "scores": thrown.choice([(1.0,), (0.9, 1.5, 3.0), (0.9, 1.0, 3.0)]), "moves": rules}


def simulate(seed: int, *, trace: bool = False, variation: Variation | None = None) -> Result:
    """Live through it. Never raises for what goes wrong in there: that is a failure in the result."""
    variation = variation or Variation()
    loop = VirtualTimeLoop()
    history = History(loop, trace=trace)
    began = time.perf_counter()
    with _listening(history, trace=trace), contextlib.ExitStack() as replaced:
        for module, name, value in (*EVERYWHERE_ALIKE, *variation.replaced):
            replaced.enter_context(_instead(module, name, value))
        world = World(seed, loop, history, variation)
        try:
            with _instead(scheduler_service, "Scheduler", partial(WatchedScheduler, witness=world.cluster.witness)):
                loop.run_until_complete(world.live() if variation.live is None else variation.live(world))
        except Exception as error:
            history.fail(f"the simulation itself: {error!r}\n{traceback.format_exc()}")
        digest, virtual = history.digest, loop.time()
        _unwind(loop, world.cluster.processes)
    return Result(
        seed=seed,
        digest=digest,
        failures=list(history.failures),
        counts=history.counts,
        virtual_seconds=virtual,
        wall_seconds=time.perf_counter() - began,
    )


class World:
    def __init__(self, seed: int, loop: VirtualTimeLoop, history: History, variation: Variation) -> None:
        self.seed = seed
        self.loop = loop
        self.history = history
        self.dice = dice(seed, "world")
        shape = structs.replace(
            shape_of(seed), fencing=variation.fencing, **variation.shape, **variation.shape_by_seed(seed)
        )
        self.cluster = Cluster(seed, shape, loop=loop, history=history, store=variation.store)
        self.trouble = Trouble(self.cluster, dice(seed, "trouble"), kinds=variation.kinds)
        self.tuner = Tuner(
            self.cluster.database.store, dice(seed, "tuner"), history=history, clock=lambda: WALL + loop.time()
        )
        self.specs: dict[str, dict[str, Any]] = {}
        self.cluster.witness.sizes.specs = self.specs
        self.scaler = Scaler(
            self.cluster.database.store,
            dice(seed, "scaler"),
            specs=self.specs,
            history=history,
            clock=lambda: WALL + loop.time(),
        )
        self.servers = ServiceUsers(
            self.cluster.database.store,
            dice(seed, "services"),
            specs=self.specs,
            history=history,
            clock=lambda: WALL + loop.time(),
            gpus_max=shape.gpus,
            gpus=shape.nodes * shape.gpus,
            lends=dice(seed, "lenders"),
        )
        self.reasons = Reasons(self.cluster.database.store, history, policy=str(shape.policy))
        self.quiet = Quiet(self.cluster.database.store, self.cluster.hosts, self.cluster.witness, history, self.reasons)
        self.clients: set[asyncio.Task[Any]] = set()

    async def live(self) -> None:
        shape = self.cluster.shape
        self.history.note("world", f"seed {self.seed} {shape}")
        await self.cluster.let_clients_in()
        self.cluster.begin()
        await asyncio.sleep(CALM_SECONDS)
        self.client = self.make_client()
        seconds = self.dice.uniform(60.0, 180.0)
        users = asyncio.ensure_future(self._users(seconds))
        explained = asyncio.ensure_future(self._explain())
        tuned = asyncio.ensure_future(self.tuner.tune(seconds))
        scaled = asyncio.ensure_future(self.scaler.scale(self.client, seconds))
        served = asyncio.ensure_future(self.servers.use(self.client, seconds))
        await self.trouble.make(seconds)
        self.trouble.heal()
        await users
        await scaled
        await served
        await tuned
        await self.end()
        explained.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await explained

    async def _explain(self) -> None:
        """Ask all the time why jobs wait."""
        while True:
            self.reasons.look(WALL + self.loop.time())
            await asyncio.sleep(LOOK_SECONDS)

    async def end(self) -> None:
        """All that was submitted comes to its end, and nothing is left or lost."""
        if self.history.counts["restores"]:
            for node_id in sorted(self.client.resumed):  # maybe in a time that was lost: its user sees it drained again
                self.begin(self.client.ask(AskKind.RESUME, node_id))
        if await self._all_ended():
            await asyncio.sleep(SETTLE_SECONDS)
            stream = self.cluster.network.stream
            self.cluster.witness.check_end({event.id for event in stream.stored})
            waiting = await self.cluster.database.store.unsent(limit=1)
            for _, ask in self.cluster.database.store._asks.values():
                self.history.fail(f"never done: {ask.kind} of {ask.subject_id}")
            if waiting:
                self.history.fail(f"still in the outbox: {waiting[0].event.message_id}")
        await self._replay()

    async def _replay(self) -> None:
        """What was recorded of the schedulers is derived again as it was."""
        store, replay = self.cluster.database.store, Replay()
        for record in await store.history(pool="default", limit=10**6, bytes_max=1 << 40):
            replay.specify(await store.specifications(replay.lacks(record), bytes_max=1 << 40))
            if found := replay.feed(record):
                self.history.fail(f"a replay differs: {found}")
                return
        for record in replay.unread:
            self.history.fail(f"a record cannot be read: {record}")
        self.history.counts["turns replayed"] += replay.cycles
        self.history.counts["decisions replayed"] += replay.steps

    def make_client(self) -> Client:
        life = Life(self.cluster, "client")
        return Client(
            bus=life.bus,
            store=life.store,
            dice=dice(self.seed, "client"),
            history=self.history,
            witness=self.cluster.witness,
            clock=lambda: WALL + self.loop.time(),
        )

    async def _users(self, seconds: float) -> None:
        """Jobs over the whole time, each by a client that insists; now and then somebody asks for something."""
        shape, client = self.cluster.shape, self.client
        pace = seconds / self.dice.randint(5, 25)
        elastic, shared = self.dice.choice(ELASTIC), self.dice.choice(SHARED)
        ranks_max = max(2, shape.nodes * shape.gpus - shape.gpus)
        until = self.loop.time() + seconds
        number = 0
        nodes = [machine.node_id for machine in self.cluster.machines]
        while self.loop.time() < until:
            number += 1
            spec = job(self.dice, number, ranks_max=ranks_max, gpus_max=shape.gpus, elastic=elastic, shared=shared)
            self.specs[spec["name"]] = spec
            self.begin(client.submit(spec, keyed=self.dice.random() < 0.85))
            if self.dice.random() < 0.2:  # sent twice at once
                self.begin(client.submit(spec, keyed=True))
            for _ in range(self.dice.choice([0, 0, 1, 3])):
                self.begin(client.meddle(nodes))
            await asyncio.sleep(self.dice.expovariate(1.0 / pace))

    def begin(self, program: Any) -> None:
        task = self.loop.create_task(program)
        self.clients.add(task)
        task.add_done_callback(self.clients.discard)

    async def _all_ended(self) -> bool:
        """Every job reaches its end in a bounded time, now that nothing is wrong any more."""
        deadline = self.loop.time() + END_SECONDS_MAX
        cancel_at = self.loop.time() + LATE_SECONDS
        cancelled: set[str] = set()
        while self.clients or self.cluster.witness.unfinished() or self._unacknowledged():
            await asyncio.sleep(1.0)
            self.quiet.look(self.loop.time())
            if self.loop.time() > cancel_at:
                for job_id in [job_id for job_id in self._endless() if job_id not in cancelled]:
                    cancelled.add(job_id)
                    self.begin(self.client.ask(AskKind.CANCEL, job_id))
            if self.loop.time() > deadline:
                self._tell_of_hang()
                return False
        return True

    def _unacknowledged(self) -> list[str]:
        """Submitted without a key, and nobody was told: they are there or not, but they end."""
        told = self.cluster.witness.told_of
        return [job_id for (topic, job_id) in told if topic == "jobs" and not self._over(job_id)]

    def _over(self, job_id: str) -> bool:
        return self.cluster.witness.state(job_id) in ("succeeded", "failed", "cancelled")

    def _endless(self) -> list[str]:
        submitted = self.cluster.database.store._submitted
        return [
            job_id
            for job_id in self._unacknowledged()
            if (found := submitted.get(job_id)) is not None
            and (found.spec.is_service or '"seconds":null' in str(found.spec.env))
        ]

    def _tell_of_hang(self) -> None:
        """A hang is an error with a stack."""
        store = self.cluster.database.store
        told = io.StringIO()
        for job_id in self._unacknowledged():
            told.write(f"\n  {job_id} is {self.cluster.witness.state(job_id)}; its story:")
            for event in store._stories.get(job_id, [])[-6:]:
                told.write(f"\n    {event.version} {event.event} {bytes(event.data).decode()[:400]}")
        for task in self.clients:
            told.write(f"\n  client: {_where(task)}")
        for process in self.cluster.processes:
            if not process.dead:
                for task in process.tasks():
                    told.write(f"\n  {process.name}: {_where(task)}")
        self.history.fail(f"hang: not over {END_SECONDS_MAX:g} s after all was healed{told.getvalue()}")


def _where(task: "asyncio.Task[Any]") -> str:
    """The await at which it is, from the outermost inwards."""
    places = []
    inner: Any = task.get_coro()
    while inner is not None:
        frame = getattr(inner, "cr_frame", None) or getattr(inner, "ag_frame", None)
        if frame is None:
            break
        places.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        inner = getattr(inner, "cr_await", None) or getattr(inner, "ag_await", None)
    return " → ".join(places)


@contextlib.contextmanager
def _instead(module: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


@contextlib.contextmanager
def _listening(history: History, *, trace: bool) -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    root.handlers, listener = [], Listener(history, forgiven=EXPECTED)
    root.addHandler(listener)
    root.setLevel(logging.INFO if trace else logging.ERROR)
    try:
        yield
    finally:
        root.handlers = handlers
        root.setLevel(level)


def _unwind(loop: VirtualTimeLoop, processes: list[Process]) -> None:
    """Let everything end, the dead too, so that nothing of it is left in this interpreter."""
    logging.disable(logging.CRITICAL)
    loop.set_exception_handler(lambda *_: None)
    try:
        tasks = list(asyncio.all_tasks(loop))
        for process in processes:
            process.unwind()
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=UNWIND_SECONDS_MAX))
    finally:
        loop.close()
        logging.disable(logging.NOTSET)
