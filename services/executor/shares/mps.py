"""Shares by NVIDIA's MPS: a daemon for each GPU that has shares, of which the runs are clients.

A share's limit becomes the percentage of the GPU that each process of the run may use, and its memory what each of them
may allocate. Both hold from the start of a process to its end. The request is no promise: MPS knows ceilings alone.
Chosen by name only, and **tried on an emulated daemon alone** (`libs/sharing/emulated_mps.py`): docs/sharing.md.

MPS fails open: a process that finds no daemon has the whole GPU, and no error says so. So the processes that telemetry
sees on a GPU are compared with the clients that its daemon has, and a run that has another process there is ended.

On disk (`folder`): what each run holds, in `runs/`; a folder for each GPU that has a daemon, with the GPU's UUID and
the daemon's log. The pipe folders are elsewhere, where their paths are short.
"""

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct, structs

from libs.domain.cluster import LIMITS_STAY, SHARES_ARE_CEILINGS, Gpu
from libs.domain.shares import WHOLE, Share, context_bytes
from libs.messages.nodes import StartRun
from libs.messages.signals import GpuSample
from libs.sharing import emulated_mps
from libs.sharing.emulated import UUID_VARIABLE
from libs.sharing.places import gpu_name
from services.executor.runs import RunKey, RuntimeUnavailableError
from services.executor.shares.backend import MPS, Attached
from services.executor.shares.emulated import device_for, emulated_variables
from services.executor.shares.mps_daemon import PIPE_VARIABLE, Clients, DaemonGoneError, DaemonSilentError, MpsDaemon
from services.executor.shares.mps_processes import environment_of, run_of, users_of

logger = logging.getLogger(__name__)

CONTROL = "nvidia-cuda-mps-control"
PERCENTAGE_VARIABLE, MEMORY_VARIABLE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
LOOK_SECONDS = 1.0
RUNS, GPU = "runs", "gpu.json"
NO_CONTAINERS = (
    "this node holds shares by MPS, to whose clients in containers it would have to open its host's shared memory:"
    " none is given to a container"
)
LOST = "The MPS daemon of its GPU ended, and with it all that the daemon's clients had there."
S = TypeVar("S", bound=Struct)


class HeldShare(Struct, frozen=True, kw_only=True):
    """What a run holds of a GPU. `limit` and `memory` are those of its start."""

    job_id: str
    epoch: int
    rank: int
    gpu: str
    emulated: bool
    request: int
    limit: int
    memory: int

    @property
    def key(self) -> RunKey:
        return RunKey(self.job_id, self.epoch, self.rank)

    @property
    def bytes_max(self) -> int:
        """What one process may allocate, its context included."""
        return self.memory + context_bytes(emulated=self.emulated)

    @property
    def limits(self) -> Mapping[str, str]:
        """The variables that hold a process to the share. The limit of memory names the one GPU that it sees: an
        entry of another one would drop all limits. MPS takes whole MiB."""
        return {
            PERCENTAGE_VARIABLE: f"{self.limit / WHOLE * 100:g}",
            MEMORY_VARIABLE: f"{self.gpu}={self.bytes_max >> 20}M",
        }

    def is_over(self, memory: Iterable[int | None]) -> bool:
        """Whether processes with so much of the GPU's memory have more than the run may have. A context is reckoned
        twice as large as usual: this ends runs, and drivers differ."""
        context = 2 * context_bytes(emulated=self.emulated)
        return sum(max(0, (taken or 0) - context) for taken in memory) > self.memory

    def holds(self, environment: Mapping[str, str]) -> bool:
        """Whether a client that began with these variables has these limits or a lower percentage."""
        try:
            percentage = float(environment.get(PERCENTAGE_VARIABLE, ""))
        except ValueError:
            return False
        lower = 0 < percentage <= self.limit / WHOLE * 100
        return lower and environment.get(MEMORY_VARIABLE) == self.limits[MEMORY_VARIABLE]


class KnownGpu(Struct, frozen=True, kw_only=True):
    uuid: str
    emulated: bool


class _Card:
    """A GPU with shares: its daemon, and the clients that it had at the last look."""

    def __init__(self, gpu: KnownGpu, daemon: MpsDaemon) -> None:
        self.gpu, self.daemon = gpu, daemon
        self.lock = asyncio.Lock()  # held while the daemon is started, asked or ended
        self.has_daemon = False
        self.hangs = False
        self.clients: Clients = {}
        self.runs: dict[int, RunKey] = {}  # of the clients, by pid
        self.looked_at = 0.0

    @property
    def pids(self) -> frozenset[int]:
        """Those of all clients."""
        return frozenset[int]().union(*self.clients.values())


class MpsBackend:
    """`control`: NVIDIA's control program, for real GPUs. `driver`: the folder with the emulated driver, for emulated
    ones. `devices`: a folder for the state of each emulated GPU."""

    name: str = MPS
    not_enforced: tuple[str, ...] = (SHARES_ARE_CEILINGS, LIMITS_STAY)

    def __init__(self, folder: Path, *, pipes: Path, control: str, driver: Path, devices: Path) -> None:
        self._folder, self._pipes = folder, pipes
        self._control, self._driver, self._devices = control, driver, devices
        self._cards: dict[str, _Card] = {}
        self._held: dict[RunKey, HeldShare] = {}
        self._broken: dict[RunKey, frozenset[int]] = {}  # processes that were clients of a daemon that ended
        self._outside: dict[RunKey, frozenset[int]] = {}  # at the last look

    async def attach(self, order: StartRun, gpu: Gpu, *, contained: bool) -> Attached:
        key, share = RunKey.of(order), order.share
        assert share is not None, "only a run with a share is attached"
        if contained:
            raise RuntimeUnavailableError(f"no share for {key}: {NO_CONTAINERS}")
        held = HeldShare(
            job_id=key.job_id,
            epoch=key.epoch,
            rank=key.rank,
            gpu=gpu.uuid,
            emulated=gpu.emulated,
            request=share.request,
            limit=share.limit,
            memory=share.memory,
        )
        card = self._card(KnownGpu(uuid=gpu.uuid, emulated=gpu.emulated))
        try:
            device = device_for(self._devices, gpu)
            async with card.lock:
                await self._serve(card)
                self._write(held)
                self._held[key] = held
        except DaemonSilentError as error:
            raise RuntimeUnavailableError(f"no share for {key}: the MPS daemon of GPU {gpu.uuid} {error}") from error
        except OSError as error:
            raise RuntimeUnavailableError(f"no share for {key}: {error}") from error
        env = {PIPE_VARIABLE: str(card.daemon.pipe), **held.limits}
        if device is None:
            return Attached(env={**env, "CUDA_VISIBLE_DEVICES": gpu.uuid})
        env |= {**emulated_variables(gpu, str(device)), UUID_VARIABLE: gpu.uuid}
        return Attached(env=env, lists={"LD_LIBRARY_PATH": (str(self._driver),)})

    def held(self, key: RunKey) -> Share | None:
        held = self._held.get(key)
        return None if held is None else Share(request=held.request, limit=held.limit, memory=held.memory)

    async def resize(self, key: RunKey, share: Share) -> str:
        """The request is at once another: it is what a share counts as, and holds the run to nothing. The limit and
        the memory are those of the run's start for as long as it runs."""
        held = self._held.get(key)
        if held is None:
            return "share: it has none here"
        now = structs.replace(held, request=min(share.request, held.limit))
        try:
            await asyncio.to_thread(self._write, now)
        except OSError as error:
            return f"share: {error}"
        self._held[key] = now
        if (share.limit, share.memory) == (held.limit, held.memory):
            return ""
        return f"share: after a restart; it is held to {held.limit / WHOLE:g} of its GPU while it runs"

    async def escaped(self, gpus: Iterable[GpuSample]) -> frozenset[RunKey]:
        found: dict[RunKey, frozenset[int]] = {}
        for gpu in gpus:
            card, there = self._cards.get(gpu.uuid), self._on(gpu)
            if card is None or not there:
                continue
            async with card.lock:
                try:
                    await self._look(card)
                except DaemonSilentError:
                    continue  # what its processes are is known once it is started again
            for key, memory in there.items():
                held = self._held.get(key)  # it may have been removed meanwhile
                if held is None:
                    continue
                # Jobs may have environments of megabytes: read where nothing else waits.
                if outside := await asyncio.to_thread(self._not_held, held, memory, card.pids):
                    found[key] = outside
        # A process that begins or ends may be in a sample and not among the clients: it must be seen twice.
        lasting = {key: pids & self._outside.get(key, frozenset()) for key, pids in found.items()}
        self._outside = found
        for key, pids in lasting.items():
            if pids:
                logger.warning("%s has more of its GPU than its share, by its processes %s", key, sorted(pids))
        return frozenset(key for key, pids in lasting.items() if pids)

    def broke(self, key: RunKey) -> str:
        """Asked as the run ends, which may be before the next look at its daemon."""
        held = self._held.get(key)
        if held is not None and (card := self._cards.get(held.gpu)) is not None:
            self._lose(card, [server for server in card.clients if not environment_of(server)])
        return LOST if key in self._broken else ""

    def detach(self, key: RunKey) -> None:
        if self._held.pop(key, None) is not None:
            self._record(key).unlink(missing_ok=True)
            self._broken.pop(key, None)

    async def keep(self, keys: Iterable[RunKey]) -> None:
        left = {str(key) for key in keys}
        for path in self._files(RUNS):
            held = _read(path, HeldShare)
            if held is None or path.name not in left:
                path.unlink(missing_ok=True)
            else:
                self._held[held.key] = held
        for folder in self._files():
            gpu = _read(folder / GPU, KnownGpu)
            if gpu is not None:
                card = self._card(gpu)
                card.has_daemon = True  # it is ended soon if its GPU has no shares any more
                if self._keys(card):
                    async with card.lock:
                        await self._find(card)

    def close(self) -> None:
        pass

    async def watch(self) -> None:
        """Look at every daemon once a second, for ever: one that ended is started again, one that has no shares to
        hold any more is ended. A daemon that hangs delays the look at no other."""
        looks: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                for gpu, card in self._cards.items():
                    if gpu not in looks or looks[gpu].done():
                        looks[gpu] = asyncio.create_task(self._look_after(card), name=f"mps-{gpu}")
                        looks[gpu].add_done_callback(partial(_tell, gpu))
        finally:
            for look in looks.values():
                look.cancel()
            await asyncio.gather(*looks.values(), return_exceptions=True)

    async def _look_after(self, card: _Card) -> None:
        async with card.lock:
            if not self._keys(card):
                await self._end(card)
            elif time.monotonic() - card.looked_at >= LOOK_SECONDS:
                await self._tend(card)

    async def leave(self) -> None:
        """End the daemons that no run uses. The others go on, and the next executor finds them."""
        for card in self._cards.values():
            async with card.lock:
                if not await asyncio.to_thread(users_of, card.daemon.pipe):
                    await self._end(card)

    def _card(self, gpu: KnownGpu) -> _Card:
        if gpu.uuid not in self._cards:
            name = gpu_name(gpu.uuid)
            command = emulated_mps.COMMAND if gpu.emulated else (self._control,)
            daemon = MpsDaemon(command, gpu=gpu.uuid, pipe=self._pipes / name, log=self._folder / name / "log")
            self._cards[gpu.uuid] = _Card(gpu, daemon)
        return self._cards[gpu.uuid]

    async def _serve(self, card: _Card) -> None:
        """Return once the daemon answers. Raises DaemonSilentError, and OSError."""
        folder = self._folder / gpu_name(card.gpu.uuid)
        if not card.has_daemon:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(folder / GPU, card.gpu)
            card.has_daemon = True
        try:
            await self._look(card)
        except DaemonSilentError:
            await card.daemon.begin()
            await self._look(card)

    async def _find(self, card: _Card) -> None:
        """The daemon that an earlier executor left. If it is gone, all that used it have lost it."""
        try:
            await self._look(card)
        except DaemonGoneError:
            users = await asyncio.to_thread(users_of, card.daemon.pipe)
            card.runs = {pid: key for key, pids in users.items() for pid in pids}
            card.clients = {0: frozenset(card.runs)}
            await self._tend(card)
        except DaemonSilentError:
            await self._tend(card)

    async def _tend(self, card: _Card) -> None:
        try:
            await self._serve(card)
            card.hangs = False
        except (DaemonSilentError, OSError) as error:
            if not card.hangs:
                logger.error("the MPS daemon of GPU %s %s: no further job gets a share of it", card.gpu.uuid, error)
            card.hangs = True

    async def _look(self, card: _Card) -> None:
        """Take in its clients. Raises DaemonSilentError."""
        clients = await card.daemon.clients()
        self._lose(card, card.clients.keys() - clients.keys())
        runs = {pid: card.runs.get(pid) or run_of(environment_of(pid)) for pids in clients.values() for pid in pids}
        card.runs = {pid: key for pid, key in runs.items() if key is not None}
        card.clients, card.looked_at = clients, time.monotonic()

    def _lose(self, card: _Card, servers: Collection[int]) -> None:
        """These servers are gone, and what their clients had on the GPU."""
        lost = frozenset[int]().union(*(card.clients[server] for server in servers))
        card.clients = {server: pids for server, pids in card.clients.items() if server not in servers}
        for pid in sorted(lost & card.runs.keys()):
            key = card.runs.pop(pid)
            if key in self._held:
                logger.warning("the MPS daemon of GPU %s ended: %s has lost what it had there", card.gpu.uuid, key)
                self._broken[key] = self._broken.get(key, frozenset()) | {pid}

    async def _end(self, card: _Card) -> None:
        if not card.has_daemon:
            return
        try:
            with suppress(DaemonGoneError):
                await card.daemon.end()
        except DaemonSilentError as error:
            logger.warning("the MPS daemon of GPU %s is left as it is: it %s", card.gpu.uuid, error)
        else:
            for folder in (card.daemon.pipe, self._folder / gpu_name(card.gpu.uuid)):
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        card.has_daemon, card.clients, card.runs = False, {}, {}

    def _keys(self, card: _Card) -> list[RunKey]:
        return [key for key, held in self._held.items() if held.gpu == card.gpu.uuid]

    def _on(self, gpu: GpuSample) -> dict[RunKey, dict[int, int | None]]:
        """The processes on a GPU of the runs that have a share of it, with the memory of each there."""
        found: dict[RunKey, dict[int, int | None]] = {}
        for process in gpu.processes:
            key = RunKey(process.job_id, process.epoch, process.rank)
            if key in self._held and self._held[key].gpu == gpu.uuid:
                found.setdefault(key, {})[process.pid] = process.memory_used
        return found

    def _not_held(self, held: HeldShare, memory: Mapping[int, int | None], clients: frozenset[int]) -> frozenset[int]:
        """Those processes of a run on its GPU that MPS does not hold to the share: no clients, clients without the
        limits, and all of them once they have more memory than the run may have."""
        began = {pid: environment_of(pid) for pid in memory.keys() - self._broken.get(held.key, frozenset())}
        living = {pid: environment for pid, environment in began.items() if environment}
        if held.is_over(memory[pid] for pid in living):
            return frozenset(living)
        return frozenset(pid for pid, env in living.items() if pid not in clients or not held.holds(env))

    def _files(self, name: str = "") -> list[Path]:
        folder = self._folder / name
        return sorted(folder.iterdir()) if folder.is_dir() else []

    def _record(self, key: RunKey) -> Path:
        return self._folder / RUNS / str(key)

    def _write(self, held: HeldShare) -> None:
        path = self._record(held.key)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(path, held)


def _tell(gpu: str, look: asyncio.Task[None]) -> None:
    error = None if look.cancelled() else look.exception()
    if error is not None:
        logger.error("the MPS daemon of GPU %s was not looked after", gpu, exc_info=error)


def _write(path: Path, value: Struct) -> None:
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(msgspec.json.encode(value))
    os.replace(new, path)


def _read(path: Path, kind: type[S]) -> S | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):
        return None
