"""The GPUs of this node, read once at start; the driver may need some time to wake up."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

from weft.domain.cluster import Gpu
from weft.domain.topology import Topology
from weft.gpus.nvml import (
    DRIVER,
    LIBRARY_NOT_FOUND,
    MIG_ENABLED,
    Handle,
    Nvml,
    NvmlError,
    code_of,
    known,
    text,
)
from weft.gpus.topology import read_topology
from weft.threads import aside

logger = logging.getLogger(__name__)

INVENTORY_SECONDS_MAX = 30.0  # waking up many GPUs takes a driver several seconds


def inventory(nvml: Nvml = DRIVER) -> tuple[Gpu, ...]:
    """The node's GPUs in a stable order; () without a driver.

    A whole GPU has the driver's index. A GPU in MIG mode is not offered itself; each of its instances is, as a small
    GPU with an index after those of all whole ones, and CUDA knows it by its uuid. A GPU that the driver lists but
    cannot reach (lost, forbidden) is left out, and no other GPU's index changes.
    """
    try:
        nvml.nvmlInit()
    except NvmlError as error:
        if code_of(error) == LIBRARY_NOT_FOUND:
            logger.info("no NVIDIA driver here, so no real GPUs")
        else:
            # The node still runs jobs without GPUs; its driver must be repaired by a person.
            logger.warning("an NVIDIA driver is here and does not work, so no real GPUs: %s", error)
        return ()
    try:
        return tuple(sorted(_listed(nvml), key=lambda gpu: gpu.index))
    except NvmlError as error:
        logger.warning("the NVIDIA driver cannot list its GPUs: %s", error)
        return ()
    finally:
        _shut_down(nvml)


async def inventory_in_time(
    *,
    stop: asyncio.Event,
    late: Callable[[tuple[Gpu, ...]], None] = lambda _: None,
    nvml: Nvml = DRIVER,
    seconds_max: float = INVENTORY_SECONDS_MAX,
) -> tuple[Gpu, ...] | None:
    """As `inventory`, beside the event loop, and for no longer than `seconds_max` or until `stop`.

    A GPU that fell off the bus can hang its driver for good. Then the answer is None, and the hung thread is left
    behind without blocking the exit of the process. If the driver answers after all, `late` is called with the GPUs.
    """
    asked = asyncio.wrap_future(aside(lambda: inventory(nvml), name="gpu-inventory"))
    await _waited_for(asked, stop, seconds_max)
    if asked.done():
        return asked.result()
    if not stop.is_set():
        logger.error(
            "the NVIDIA driver has not said in %g s which GPUs there are, so no real GPUs until it does:"
            " one may have fallen off the bus; look into dmesg, and reboot the node if it never answers",
            seconds_max,
        )
    asked.add_done_callback(lambda answer: _come_late(answer, late))
    return None


async def topology_in_time(
    gpus: tuple[Gpu, ...], *, stop: asyncio.Event, nvml: Nvml = DRIVER, seconds_max: float = INVENTORY_SECONDS_MAX
) -> Topology | None:
    """As `read_topology`, beside the event loop, and for no longer than `seconds_max` or until `stop`; then None."""
    asked = asyncio.wrap_future(aside(lambda: read_topology(gpus, nvml=nvml), name="gpu-topology"))
    await _waited_for(asked, stop, seconds_max)
    return asked.result() if asked.done() else None


async def _waited_for(asked: asyncio.Future[Any], stop: asyncio.Event, seconds_max: float) -> None:
    """Wait until the driver has answered or `stop` is set, and for no longer than `seconds_max`."""
    stopping = asyncio.create_task(stop.wait())
    waiting: list[asyncio.Future[Any]] = [asked, stopping]
    try:
        await asyncio.wait(waiting, timeout=seconds_max, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()


def _come_late(answer: asyncio.Future[tuple[Gpu, ...]], late: Callable[[tuple[Gpu, ...]], None]) -> None:
    if not answer.cancelled() and answer.exception() is None:
        real = answer.result()
        logger.warning("the NVIDIA driver has answered late: %d GPUs are offered from now on", len(real))
        late(real)


def _shut_down(nvml: Nvml) -> None:
    try:
        nvml.nvmlShutdown()
    except NvmlError as error:
        logger.debug("NVML shutdown: %s", error)


def _listed(nvml: Nvml) -> Iterator[Gpu]:
    count = nvml.nvmlDeviceGetCount()
    for index in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            if not _in_mig_mode(nvml, handle):
                yield _gpu(nvml, handle, index)
                continue
            instances = list(_instances(nvml, handle))
        except NvmlError as error:
            logger.warning("GPU %d is not offered: %s", index, error)
            continue
        if not instances:
            logger.warning("GPU %d is not offered: it is in MIG mode and has no instance", index)
        for place, instance in instances:
            try:
                yield _gpu(nvml, instance, count + place + index * _MIG_INSTANCES_MAX)
            except NvmlError as error:
                logger.warning("MIG instance %d of GPU %d is not offered: %s", place, index, error)


_MIG_INSTANCES_MAX = 16  # more than any GPU has (7), so that a new model moves no index


def _in_mig_mode(nvml: Nvml, handle: Handle) -> bool:
    mode = known(nvml.nvmlDeviceGetMigMode, handle)
    return mode is not None and mode[0] == MIG_ENABLED


def _instances(nvml: Nvml, handle: Handle) -> Iterator[tuple[int, Handle]]:
    for place in range(known(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        instance = known(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place)  # None: that place is empty
        if instance is not None:
            yield place, instance


def _gpu(nvml: Nvml, handle: Handle, index: int) -> Gpu:
    uuid = text(nvml.nvmlDeviceGetUUID(handle))
    name = known(nvml.nvmlDeviceGetName, handle)
    memory = known(nvml.nvmlDeviceGetMemoryInfo, handle)
    if memory is None:
        logger.warning("GPU %d (%s) does not tell its memory: 0 stands for unknown", index, uuid)
    return Gpu(
        index=index,
        uuid=uuid,
        model=text(name) if name else "NVIDIA GPU",
        memory=memory.total if memory else 0,
    )
