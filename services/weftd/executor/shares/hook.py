"""Shares by our own hook: a library preloaded into the job, and the arbiter of the node that gives it turns.

Each run with a share has a slot folder (`weft.sharing.slots`), named by a digest of the run. The executor writes what
the run holds; the arbiter serves the folder. A job that drops the preload is not held: `docs/sharing.md`.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from msgspec import Struct, structs

from weft.domain.cluster import Gpu
from weft.domain.shares import Share, context_bytes
from weft.domain.spec import Kind
from weft.messages.nodes import StartRun
from weft.sharing.native import Library
from weft.sharing.places import make_own, slot_of
from weft.sharing.records import SlotShare
from weft.sharing.slots import LIMITS, SOCKET, USE, make_slot, read_share, slot_names, write_share
from weftd.executor.files.discards import Discards
from weftd.executor.runs import RunKey, RuntimeUnavailableError
from weftd.executor.shares.backend import HOOK, Attached, ShareMount

logger = logging.getLogger(__name__)

SERVED_SECONDS_MAX = 5.0  # until the arbiter serves a new slot
LOOK_SECONDS = 0.01
SHARE_INSIDE = "/weft/share"
HOOK_INSIDE = "/weft/libweft-share.so"
DRIVER_INSIDE = "/weft/driver"
DEVICE_INSIDE = "/weft/device"
LATENCY_KINDS = frozenset({Kind.INFERENCE, Kind.NOTEBOOK})  # their launches come ahead of those of other runs
DISCARDED = ".discarded"  # in the root: no name of a slot, so that no arbiter serves it


class OwnDriver(Protocol):
    """A driver that is loaded in place of the machine's."""

    @property
    def library(self) -> Library: ...

    def device(self, devices: Path, gpu: Gpu) -> Path:
        """The folder below `devices` for the state of the GPU, made if it is missing. Raises OSError."""

    def variables(self, gpu: Gpu, device: str) -> Mapping[str, str]:
        """The variables of a run that sees the folder as `device`."""


class PlacedDriver(Struct, frozen=True):
    """A driver, the folder with its library, and the folder for the states of all its GPUs."""

    driver: OwnDriver
    folder: Path
    devices: Path


class HookBackend:
    """`root`: of the slot folders. `hook`: the library to preload. `own`: the driver that runs load in place of the
    machine's, if their GPUs have one of their own. `needed` is called before there is a slot: from then on an arbiter
    has to serve them."""

    name: str = HOOK
    not_enforced: tuple[str, ...] = ()

    def __init__(self, root: Path, *, hook: Path, own: PlacedDriver | None, needed: Callable[[], None]) -> None:
        self._root, self._hook, self._own = root, hook, own
        self._needed = needed
        self._discards = Discards(str(root / DISCARDED))
        self._held: dict[RunKey, Share] = {}

    async def attach(self, order: StartRun, gpu: Gpu, *, contained: bool) -> Attached:
        key, share = RunKey.of(order), order.share
        assert share is not None, "only a run with a share is attached"
        slot = SlotShare(
            gpu=gpu.uuid,
            job=key.job_id[:256],
            epoch=key.epoch,
            rank=key.rank,
            request=share.request,
            limit=share.limit,
            memory=share.memory + context_bytes(emulated=gpu.emulated),
            latency=share.kind in LATENCY_KINDS,
            emulated=gpu.emulated,
            device_memory=gpu.memory,
            context_mib=context_bytes(emulated=gpu.emulated) >> 20,
        )
        try:
            make_own(self._root)
            self._needed()
            job = make_slot(self._root, _slot_of(key), slot)
            device = None if self._own is None else self._own.driver.device(self._own.devices, gpu)
        except (OSError, ValueError) as error:
            raise RuntimeUnavailableError(f"no share for {key}: {error}") from error
        try:
            await _served(job, key)
        except BaseException:
            if key not in self._held:
                self._remove(_slot_of(key))
            raise
        self._held[key] = share
        return self._attached(job, gpu, device, contained=contained)

    def held(self, key: RunKey) -> Share | None:
        return self._held.get(key)

    async def resize(self, key: RunKey, share: Share) -> str:
        folder = self._root / _slot_of(key)
        try:
            known = read_share(folder)
            memory = share.memory + context_bytes(emulated=known.emulated)
            slot = structs.replace(known, request=share.request, limit=share.limit, memory=memory)
            await asyncio.to_thread(write_share, folder, slot)
        except (OSError, ValueError) as error:
            return f"share: {error}"
        self._held[key] = share
        return ""

    def detach(self, key: RunKey) -> None:
        if self._held.pop(key, None) is not None:
            self._remove(_slot_of(key))

    async def keep(self, keys: Iterable[RunKey]) -> None:
        known = {_slot_of(key): key for key in keys}
        for name in slot_names(self._root) if self._root.is_dir() else ():
            key = known.get(name)
            if key is None:
                self._remove(name)
                continue
            self._needed()
            try:
                slot = read_share(self._root / name)
            except (OSError, ValueError) as error:
                logger.warning("cannot read the share of %s: %s", key, error)
                continue
            memory = slot.memory - context_bytes(emulated=slot.emulated)
            self._held[key] = Share(request=slot.request, limit=slot.limit, memory=memory)
        self._discards.sweep()

    def close(self) -> None:
        self._discards.close()

    def _remove(self, name: str) -> None:
        """Remove a slot folder, whatever its run made of it."""
        self._discards.take(str(self._root / name))

    def _attached(self, job: Path, gpu: Gpu, device: Path | None, *, contained: bool) -> Attached:
        env = {"WEFT_SHARE": SHARE_INSIDE if contained else str(job)}
        lists = {"LD_PRELOAD": (HOOK_INSIDE if contained else str(self._hook),)}
        mounts = [
            ShareMount(str(job), SHARE_INSIDE),
            ShareMount(str(job / LIMITS), f"{SHARE_INSIDE}/{LIMITS}", read_only=True),
            ShareMount(str(self._hook), HOOK_INSIDE, read_only=True),
        ]
        if self._own is not None:
            env |= self._own.driver.variables(gpu, DEVICE_INSIDE if contained else str(device))
            lists["LD_LIBRARY_PATH"] = (DRIVER_INSIDE if contained else str(self._own.folder),)
            mounts += [
                ShareMount(str(self._own.folder), DRIVER_INSIDE, read_only=True),
                ShareMount(str(device), DEVICE_INSIDE),
            ]
        return Attached(env=env, lists=lists, mounts=tuple(mounts) if contained else ())


def _slot_of(key: RunKey) -> str:
    return slot_of(key.job_id, key.epoch, key.rank)


async def _served(job: Path, key: RunKey) -> None:
    """Return when the arbiter serves the slot. Raises RuntimeUnavailableError if it does not in time."""
    deadline = time.monotonic() + SERVED_SECONDS_MAX
    while not _is_served(job):
        if time.monotonic() > deadline:
            raise RuntimeUnavailableError(f"no share for {key}: the arbiter of this node does not answer")
        await asyncio.sleep(LOOK_SECONDS)


def _is_served(job: Path) -> bool:
    return all(os.path.lexists(job / name) for name in (LIMITS, USE, SOCKET))
