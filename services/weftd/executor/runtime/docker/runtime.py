"""Runs jobs in containers of this host's Docker engine, each named by its job, epoch and rank, and labelled.

A container with the name exists if the run was started before: it is adopted. The engine's containers are listed every
POLL_SECONDS (a wait for its events cannot be cancelled); in between, `runs` answers from the last list. A container
that was created and never started is left from an executor that died: it is replaced.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from weft.domain.cluster import NO_STOPPING
from weft.domain.spec import ResizeSignal
from weft.messages.nodes import RunState, StartRun
from weft.sharing.native import NotBuilt
from weftd.executor import stacks
from weftd.executor.channel import Channel, SessionRefusedError, SessionWanted
from weftd.executor.files import members
from weftd.executor.files.home import Home
from weftd.executor.machine.node import NodeFacts, Refusal
from weftd.executor.runs import Limits, LogChunk, Run, RunKey, RuntimeUnavailableError, always
from weftd.executor.runtime import signalling
from weftd.executor.runtime.bookkeeping import Bookkeeping
from weftd.executor.runtime.docker import init
from weftd.executor.runtime.docker.container import (
    HOST_NETWORK,
    LOG_BY_ASKING,
    LOG_BY_FILE,
    Host,
    injection_for,
    members_inside,
)
from weftd.executor.runtime.docker.doors import PublishedPort, ask, door_of
from weftd.executor.runtime.docker.egress import find_egress
from weftd.executor.runtime.docker.engine import CONFLICT, DockerEngine, EngineRefusedError, MissingError
from weftd.executor.runtime.docker.enginelog import FileCopy, copy_of, engine_folder
from weftd.executor.runtime.docker.entering import end_marked, enter
from weftd.executor.runtime.docker.images import Images
from weftd.executor.runtime.docker.inspected import Container, explained, lost, outcome_of, read_list
from weftd.executor.runtime.docker.kept import guarded
from weftd.executor.runtime.docker.labels import of_node
from weftd.executor.runtime.docker.logcopy import LogCopy, position_path
from weftd.executor.runtime.docker.networks import Networks
from weftd.executor.runtime.docker.rates import EgressRates
from weftd.executor.runtime.docker.resizing import Held, Resizing, held_of, safe_update
from weftd.executor.runtime.docker.settings import ContainerSettings
from weftd.executor.runtime.docker.starter import Starter, keep
from weftd.executor.runtime.noted import Watched, noted_of_ended, process_killed, watch
from weftd.executor.shares.backend import ShareBackend
from weftd.executor.thinking.rounding import fault

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
SWEEP_SECONDS = 3600.0  # between two sweeps of images that no job uses any more
FOLLOWERS_STOP_SECONDS_MAX = 2.0
COPY_SECONDS_MAX = 30.0  # after the run's end, for its log to be copied


class DockerRuntime:
    name = "docker"

    def __init__(
        self,
        engine: DockerEngine,
        home: Home,
        node: NodeFacts,
        settings: ContainerSettings,
        info: Mapping[str, Any],
        shares: ShareBackend | None,
        init: Path | NotBuilt,
    ) -> None:
        """`info`: the engine's description of itself. `init`: our first process of each container."""
        self._engine = engine
        self._home = home
        self._node = node
        self._settings = settings
        self._found: dict[RunKey, Container] = {}
        self._inspected: dict[RunKey, Run] = {}  # of running and of drained containers
        self._held: dict[RunKey, Held] = {}  # of running containers
        self._book = Bookkeeping(home, node, shares, contained=True)
        self._doors: dict[RunKey, PublishedPort] = {}  # of containers that serve requests
        self._limits: dict[RunKey, Limits] = {}  # at the last look
        self._watched: dict[RunKey, Watched] = {}  # of containers that ran at the last look
        self._copies: dict[RunKey, LogCopy | FileCopy] = {}
        # The folder of the engine's containers, if we may write to it.
        self._engine_folder = engine_folder(str(info.get("DockerRootDir", ""))) if settings.engine_files else ""
        self._ended_at: dict[RunKey, float] = {}  # on the loop's clock: since when only the copy of its log is missing
        self._starting: dict[RunKey, Run] = {}
        self._attached: set[RunKey] = set()  # to a share, by a start that is not known to have made a container
        self._problem = ""
        self._owner = f"{settings.cluster}.{node.node_id}."  # the head of the marks of all sessions here
        self._injection = injection_for(info) if settings.gpu_injection == "auto" else settings.gpu_injection
        self._looking = asyncio.Lock()
        self._networks = Networks(engine, node, settings)
        self._images = Images(engine, str(home.images), kept_seconds=settings.images_kept_days * 86400.0)
        self._starter = Starter(
            engine,
            home,
            Host(
                node=node,
                settings=settings,
                injection=self._injection,
                log=LOG_BY_FILE if self.reaches_engine_files else LOG_BY_ASKING,
                init="" if isinstance(init, NotBuilt) else str(init),
            ),
            self._networks,
            self._images,
            self._book,
        )
        self._rates = EgressRates(home)
        self._resizing = Resizing(engine, self._rates, egress=None, limits_by=settings.limits_by, safe=True)
        self._poll: asyncio.Task[None] | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self.not_enforced: tuple[str, ...] = tuple(
            limit for limit, field in (("memory", "MemoryLimit"), ("cpus", "CpuCfsQuota")) if not info.get(field, True)
        )
        self.not_enforced += self._book.shares.not_enforced
        if isinstance(init, NotBuilt):
            self.not_enforced += (NO_STOPPING,)

    @classmethod
    async def open(
        cls,
        home: Home,
        node: NodeFacts,
        settings: ContainerSettings | None = None,
        *,
        shares: ShareBackend | None = None,
    ) -> "DockerRuntime":
        """Open the runtime and adopt the runs that it has. Raises RuntimeUnavailableError if there is no engine."""
        engine = await asyncio.to_thread(DockerEngine)
        info: dict[str, Any] = await engine.call(lambda: dict(engine.client.info()))
        first = await asyncio.to_thread(init.place, home.root)
        if isinstance(first, NotBuilt):
            logger.warning(
                "a stopped container ends with its main process, even if it runs other processes: %s", first.reason
            )
        runtime = cls(engine, home, node, settings or ContainerSettings(), info, shares, first)
        if not runtime.reaches_engine_files:
            logger.info(
                "the engine's own files are out of reach: files that containers write stay in them until they end"
            )
        await runtime._prepare_resizing()
        await runtime._remove_half_made()
        await runtime._look()
        await runtime._book.keep(runtime._found.keys())
        for name in os.listdir(home.runs):
            if RunKey.parse(name) not in runtime._found:
                runtime._book.discards.take(f"{home.runs}/{name}")
        runtime._book.discards.sweep()
        guarded(home).keep(runtime._found)
        runtime._rates.forget_others(runtime._found)
        for key in runtime._found.keys() - guarded(home).all().keys():
            with suppress(RuntimeUnavailableError):
                keep(home, key, runtime._found[key], runtime._found[key].grace)
        runtime._poll = asyncio.create_task(runtime._look_for_ever())
        runtime._sweeping = asyncio.create_task(runtime._sweep_for_ever())
        return runtime

    @property
    def reaches_engine_files(self) -> bool:
        """True if the containers' output is copied from the engine's own files, which are then kept small."""
        return bool(self._engine_folder)

    async def has_image(self, name: str) -> bool:
        try:
            await self._engine.call(self._engine.client.inspect_image, name)
        except MissingError:
            return False
        except EngineRefusedError:  # Of a name that it does not take: the start says so.
            return True
        return True

    async def may_use_image(self, name: str, *, tenant: str) -> bool:
        try:
            return await self._images.may_use(name, tenant=tenant)
        except MissingError:
            return False
        except EngineRefusedError:
            return True

    async def pull_image(self, name: str, *, user: str, password: str, tenant: str = "") -> str:
        if tenant and not self._settings.pull:
            return "it is not on this node, which fetches none"
        auth = {"username": user, "password": password} if user else None
        if await self.has_image(name) and (why := await self._engine.refusal(name, auth=auth)):
            return why
        why = await self._engine.pull(name, seconds_max=self._settings.pull_seconds_max, auth=auth)
        if not why:
            await self._images.fetched(name, tenant=tenant)
        return why

    async def start(self, order: StartRun, *, permitted: Callable[[], bool] = always, why_not: str = "") -> None:
        key = RunKey.of(order)
        if key in self._starting or key in self._book.over or not permitted():
            return
        self._starting[key] = Run(key=key, state=RunState.STARTING, grace=order.grace)
        if order.share is not None:
            self._attached.add(key)
        self._book.note_change()
        try:
            if why_not:
                raise Refusal(why_not)
            await self._starter.start(order, key, permitted)
            await self._look()
            if order.egress is not None:
                await self._begin_with_egress(key, order.egress)
        except Refusal as refusal:
            self._book.refuse(key, refusal)
        finally:
            del self._starting[key]
            self._book.note_change()

    async def runs(self) -> list[Run]:
        if self._problem:
            raise RuntimeUnavailableError(self._problem)
        found = {key: self._run(key, container) for key, container in self._found.items()}
        made = {key: run for key, run in found.items() if run is not None}
        return list({**self._book.over, **self._starting, **made}.values())

    async def signal(self, key: RunKey, *, kill: bool) -> None:
        container = self._found.get(key)
        if container is None:
            return
        await self._signal(container, "SIGKILL" if kill else container.stop_signal)
        if kill:
            await self._look()

    async def hurry(self, key: RunKey) -> None:
        container = self._found.get(key)
        if container is not None and container.ours:
            await self._signal(container, str(init.HURRY_SIGNAL))

    async def _signal(self, container: Container, name: str) -> None:
        try:
            await self._engine.call(self._engine.client.kill, container.id, name)
        except MissingError:
            pass
        except EngineRefusedError as error:
            if error.status != CONFLICT:  # not running any more
                raise

    async def remove(self, key: RunKey) -> None:
        if self._book.over.pop(key, None) is None:
            container = self._found.get(key)
            if container is None or not self._ended(key, container):
                return
            if not self._copied(key):
                raise RuntimeUnavailableError(f"the output of {key} is not all copied yet: is the disk full?")
            async with self._looking:  # Otherwise a look in progress would take the run for lost.
                await self._engine.remove(container.id)
                self._found.pop(key, None)
                self._inspected.pop(key, None)
                self._copies.pop(key, None)
                self._ended_at.pop(key, None)
        self._book.forget(key)
        with suppress(FileNotFoundError):
            os.unlink(position_path(self._home.log(key)))
        guarded(self._home).remove(key)
        self._doors.pop(key, None)
        self._rates.forget(key)
        await self._networks.remove(key)

    async def resize(self, key: RunKey, limits: Limits) -> str:
        container, held = self._found.get(key), self._held.get(key)
        if container is None or container.state != "running" or held is None:
            return "it does not run"
        reasons = [await self._resizing.resize(key, held, limits)]
        if limits.share is not None and not fault(limits):
            reasons.append(await self._book.shares.resize(key, limits.share))
        await self._read_limits(key, held)
        self._book.note_change()
        return "; ".join(why for why in reasons if why)

    async def show_members(self, order: StartRun, *, signal_due: bool) -> str:
        key = RunKey.of(order)
        container, held = self._found.get(key), self._held.get(key)
        if container is None or container.state != "running" or held is None or order.members is None:
            return "it does not run"
        inside = members_inside(order, self._node, self._settings, named=container.named)
        try:
            due = members.show(self._home, key, inside) or signal_due
            told = members.signal_of(inside)
        except OSError as error:
            return members.why_not(error)
        except ValueError as error:
            return f"members: {error}"
        if told is None or not due:
            return ""
        return await self._signalled(held, told)

    async def dump_stacks(self, key: RunKey, told: ResizeSignal | None) -> None:
        held, copy = self._held.get(key), self._copies.get(key)
        if held is None or copy is None:
            return
        why = ""
        if told is not None:
            why = await self._signalled(held, told)
            if not why:
                return
        text = await stacks.stacks_of(held.pid)
        with suppress(OSError):
            copy.pipes.write_stacks(f"{why}\n{text}".strip())

    async def _signalled(self, held: Held, told: ResizeSignal) -> str:
        """Signal the main process of a container if it handles the signal. Empty, or why not."""
        if (pid := signalling.only_child(held.pid, held.id)) and not signalling.handles(pid, told):
            return signalling.not_handled(told)
        try:
            await self._engine.call(self._engine.client.kill, held.id, str(told))
        except EngineRefusedError as error:
            return f"{told}: {error}"
        return ""

    async def enter(self, key: RunKey, wanted: SessionWanted) -> Channel:
        held = self._held.get(key)
        if held is None:
            raise SessionRefusedError("its container does not run")
        return await enter(self._engine, held, wanted, owner=self._owner)

    async def end_sessions(self) -> None:
        await end_marked(self._engine, list(self._held.values()), self._owner)

    async def probe(self, run: Run) -> str:
        why = await ask(self._doors.get(run.key), run.serve)
        held, serve = self._held.get(run.key), run.serve
        if held is None or serve is None or not held.own_network:
            return why
        return await self._book.ears.reason(run.key, why, serve.port, held.listening, contained=True)

    async def read_log(self, key: RunKey, *, offset: int, limit: int) -> LogChunk:
        container = self._found.get(key)
        over = self._ended(key, container) if container is not None else key not in self._starting
        over = over and self._copied(key)
        known = container is not None or key in self._starting or key in self._book.over
        return self._home.read_log(key, offset=offset, limit=limit, known=known, over=over)

    async def changed(self) -> None:
        await self._book.changed()

    async def close(self) -> None:
        for task in (self._poll, self._sweeping):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        for copy in self._copies.values():
            copy.stop()
        deadline = time.monotonic() + FOLLOWERS_STOP_SECONDS_MAX
        for copy in self._copies.values():
            await asyncio.to_thread(copy.join, max(0.0, deadline - time.monotonic()))
        self._book.discards.close()
        self._engine.close()

    # ── limits ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _prepare_resizing(self) -> None:
        """Find out once which limits this node can change while containers run."""
        settings = self._settings
        egress, why = await find_egress(self._engine, settings)
        if egress is None or settings.job_network == HOST_NETWORK:
            self.not_enforced += ("egress",)
            logger.warning("egress of jobs is not limited here: %s", why or "jobs use the network of their host")
        else:
            logger.info("egress of jobs is limited by the method %s", egress.way)
        safe = safe_update(gpus=self._node.gpus or (), injection=self._injection)
        if not safe and settings.limits_by != "engine":
            logger.info("an update by the engine could remove GPUs here: limits are changed by files instead")
        self._resizing = Resizing(self._engine, self._rates, egress=egress, limits_by=settings.limits_by, safe=safe)

    async def _begin_with_egress(self, key: RunKey, rate: int) -> None:
        """Limit egress after the start: there is no network namespace before, so the first bytes may be unlimited."""
        if (held := self._held.get(key)) is not None:
            if why := await self._resizing.resize(key, held, Limits(egress=rate)):
                logger.warning("not applied to %s: %s", key, why)
            await self._read_limits(key, held)

    async def _read_limits(self, key: RunKey, held: Held) -> None:
        """Read the limits after a change, from the engine again if the files cannot be read."""
        if not held.groups:
            container = held.id
            with suppress(EngineRefusedError):
                held = await self._engine.call(lambda: held_of(self._engine.client.inspect_container(container)))
        if key in self._held:  # Otherwise it ended meanwhile.
            self._held[key] = held
            self._limits[key] = self._resizing.limits(key, held)

    # ── looking ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _look_for_ever(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self._look()
            except (RuntimeUnavailableError, OSError) as error:  # OSError: of our own disk.
                self._problem = str(error)
                self._book.note_change()

    async def _sweep_for_ever(self) -> None:
        while True:
            try:
                await self._images.sweep(now=time.time())
            except (RuntimeUnavailableError, OSError) as error:
                logger.warning("unused images are not removed now: %s", error)
            await asyncio.sleep(SWEEP_SECONDS)

    async def _look(self) -> None:
        """List our containers in the engine, and inspect those that ended."""
        async with self._looking:
            before = await self.runs() if not self._problem else []
            attached = self._attached - self._starting.keys()
            recorded = self._book.served.keys - self._starting.keys()
            found = await self._listed()
            self._detach_failed(attached, found)
            for key in recorded - found.keys() - self._starting.keys() - self._book.over.keys():
                self._book.served.forget(key)
                self._doors.pop(key, None)
            for key, container in self._found.items():
                if key not in found and self._found.get(key) is container and container.state != "created":
                    self._lose(key)
            self._found = found
            for key, container in found.items():
                self._follow(key, container)
                await self._inspect(key, container)
            running = {key for key, container in found.items() if container.state in ("running", "paused")}
            self._held = {key: held for key, held in self._held.items() if key in running}
            self._limits = {key: self._resizing.limits(key, held) for key, held in self._held.items()}
            self._watched = {key: watch(held.pid, held.groups) for key, held in self._held.items()}
            self._problem = ""
            if await self.runs() != before:
                self._book.note_change()

    def _detach_failed(self, attached: AbstractSet[RunKey], found: Mapping[RunKey, Container]) -> None:
        """Take the share from a run whose start failed for certain: before it begins, its container is in the list."""
        for key in attached - self._starting.keys():
            container = found.get(key)
            if container is None and key not in self._book.over:
                self._book.shares.detach(key)
            if container is None or container.state != "created":
                self._attached.discard(key)

    async def _listed(self) -> dict[RunKey, Container]:
        filters = of_node(node_id=self._node.node_id, cluster=self._settings.cluster)
        return await self._engine.call(lambda: read_list(self._engine.client.containers(all=True, filters=filters)))

    def _lose(self, key: RunKey) -> None:
        """The run's container was removed by others."""
        run = self._inspected.pop(key, None) or Run(key=key, state=RunState.RUNNING)
        if (copy := self._copies.pop(key, None)) is not None:
            copy.lost()
        self._book.over[key] = lost(run, at=time.time()) if run.live else run

    def _follow(self, key: RunKey, container: Container) -> None:
        if container.state != "created" and key not in self._copies:
            loop = asyncio.get_running_loop()

            def told() -> None:
                with suppress(RuntimeError):  # The loop may be closed by now.
                    loop.call_soon_threadsafe(self._book.note_change)

            log, client = self._home.log(key), self._engine.follower
            copy = self._copies[key] = copy_of(container.id, log, self._engine_folder, client, told=told)
            copy.begin()

    async def _inspect(self, key: RunKey, container: Container) -> None:
        """Inspect a container: once when it runs, once when it ended."""
        run = self._inspected.get(key)
        ended = container.state in ("exited", "dead")
        if container.state == "created" or (run is not None and run.live is not ended):
            return
        try:
            outcome, held = await self._engine.call(self._read_inspected, key, container)
        except EngineRefusedError:
            return  # It is being removed; the next look sees that.
        self._inspected[key] = outcome
        if not outcome.live:
            seen = self._watched.get(key, Watched())
            self._inspected[key] = replace(outcome, noted=noted_of_ended(outcome, seen, held.said.memory, held.shm))
        if outcome.live:
            self._held[key] = held
            if key in self._copies:
                self._copies[key].pipes.hold(held.pid, held.id)
        else:
            self._ended_at[key] = asyncio.get_running_loop().time()
            if key in self._copies:
                self._copies[key].over()

    def _read_inspected(self, key: RunKey, container: Container) -> tuple[Run, Held]:
        inspected = self._engine.client.inspect_container(container.id)
        serve = self._book.served.serve(key)
        door = door_of(inspected, serve, self._book.served.port(key))
        if door is not None:
            self._doors[key] = door
        run = outcome_of(key, container.grace, inspected["State"])
        return replace(run, serve=serve, port=None if door is None else door.port), held_of(inspected)

    def _run(self, key: RunKey, container: Container) -> Run | None:
        """The run of a container; it counts as ended only once its output is in its log, too."""
        if container.state == "created":
            return None
        run = self._inspected.get(key) or Run(key=key, state=RunState.STARTING, grace=container.grace)
        if not run.live and self._ended(key, container):
            run = self._inspected[key] = explained(run, self._home)
            return run
        if run.live:
            kills, memory = self._watched.get(key, Watched()).kills, self._limits.get(key, Limits()).memory
            run = replace(run, noted=(process_killed(kills, memory),) if kills else ())
            return replace(run, limits=replace(self._limits.get(key, Limits()), share=self._book.shares.held(key)))
        return Run(key=key, state=RunState.RUNNING, grace=run.grace, started_at=run.started_at)

    def _ended(self, key: RunKey, container: Container) -> bool:
        """True if the run ended and its output is in its log; on a full disk the wait for that is bounded."""
        run = self._inspected.get(key)
        if run is None or run.live:
            return False
        waited = asyncio.get_running_loop().time() - self._ended_at.get(key, 0.0)
        return self._copied(key) or waited > COPY_SECONDS_MAX

    def _copied(self, key: RunKey) -> bool:
        copy = self._copies.get(key)
        return copy is None or copy.done

    async def _remove_half_made(self) -> None:
        for container in (await self._listed()).values():
            if container.state == "created":
                await self._engine.remove(container.id)
