"""Counts XID errors: the driver reports one when a GPU, or a program on it, fails.

A thread waits for them, because NVML has no other way to receive all of them.
"""

import logging
import threading
from collections import Counter
from typing import Any, Final

from weft.domain.cluster import Gpu
from weft.gpus.nvml import (
    EVENT_XID,
    MIG_PREFIX,
    TIMEOUT,
    Nvml,
    NvmlError,
    available,
    code_of,
    key_of,
    known,
)

logger = logging.getLogger(__name__)

WAIT_MILLISECONDS: Final = 500
"""How long one wait for events takes at most: the driver can be closed only between two waits."""

PAUSE_SECONDS: Final = 0.05
"""Pause after each event, so that a GPU that fails a thousand times a second does not take a CPU as well."""

RETRY_SECONDS: Final = (5.0, 300.0)
"""Pause after the driver refused: the first one and the longest one; each refusal doubles it."""

KINDS_MAX: Final = 64
OTHER: Final = "other"
"""The name under which further XIDs of one GPU are counted; the driver knows fewer than 200 in all."""


class XidCounts:
    """The number of errors by GPU and XID since telemetry started. Written by one thread, read by another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[str]] = {}
        self._last: dict[str, int] = {}

    def add(self, uuid: str, xid: int) -> None:
        with self._lock:
            counts = self._counts.setdefault(uuid, Counter())
            kind = str(xid) if str(xid) in counts or len(counts) < KINDS_MAX else OTHER
            counts[kind] += 1
            self._last[uuid] = xid

    def of(self, uuid: str) -> tuple[dict[str, int], int | None]:
        with self._lock:
            return dict(self._counts.get(uuid, {})), self._last.get(uuid)


class XidListener:
    """Listens while the driver is open. Call `stop`, wait until it is no longer `alive`, then close the driver."""

    def __init__(
        self,
        nvml: Nvml,
        gpus: tuple[Gpu, ...],
        counts: XidCounts,
        *,
        retry_seconds: tuple[float, float] = RETRY_SECONDS,
    ) -> None:
        self._nvml = nvml
        self._gpus = [gpu for gpu in gpus if not gpu.emulated]
        self._counts = counts
        self._retry_seconds = retry_seconds
        self._heard = False  # whether the driver has answered since the last event set was created
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="gpu-xid", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _listen(self) -> None:
        seconds, longest = self._retry_seconds
        while not self._stop.is_set():
            self._heard = False
            try:
                self._listen_to(self._nvml.nvmlEventSetCreate())
            except NvmlError as error:
                logger.debug("XID errors are not heard of: %s", error)
            seconds = self._retry_seconds[0] if self._heard else min(longest, seconds * 2)
            self._stop.wait(seconds)

    def _listen_to(self, events: Any) -> None:
        """Count events until `stop` is called or the driver refuses."""
        try:
            sources = self._registered(events)
            while sources and not self._stop.is_set():
                event = self._next(events)
                self._heard = True
                if event is not None and event.eventType & EVENT_XID:
                    self._count(event, sources)
                self._stop.wait(PAUSE_SECONDS)
        finally:
            self._nvml.nvmlEventSetFree(events)

    def _next(self, events: Any) -> Any:
        try:
            return self._nvml.nvmlEventSetWait_v2(events, WAIT_MILLISECONDS)
        except NvmlError as error:
            if code_of(error) == TIMEOUT:  # nothing happened
                return None
            raise

    def _registered(self, events: Any) -> dict[int, list[tuple[str, int | None]]]:
        """Register every GPU for XID events.

        Returns a list of (GPU's uuid, its MIG instance or None) for each device, by the device's `key_of`. A lost GPU
        is left out until the next registration.
        """
        sources: dict[int, list[tuple[str, int | None]]] = {}
        for gpu in self._gpus:
            try:
                handle, instance = self._source(gpu)
                supported = known(self._nvml.nvmlDeviceGetSupportedEventTypes, handle) or 0
                if not supported & EVENT_XID:
                    continue
                if key_of(handle) not in sources:
                    self._nvml.nvmlDeviceRegisterEvents(handle, EVENT_XID & supported, events)
                sources.setdefault(key_of(handle), []).append((gpu.uuid, instance))
            except NvmlError as error:
                logger.debug("XID errors of GPU %s are not heard of: %s", gpu.uuid, error)
        return sources

    def _source(self, gpu: Gpu) -> tuple[Any, int | None]:
        handle = self._nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
        if not gpu.uuid.startswith(MIG_PREFIX):
            return handle, None
        instance = self._nvml.nvmlDeviceGetGpuInstanceId(handle)
        return self._nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle), instance

    def _count(self, event: Any, sources: dict[int, list[tuple[str, int | None]]]) -> None:
        """Count one event. In MIG mode, an XID that names no instance counts for every instance of the GPU."""
        named = available(event.gpuInstanceId)
        for uuid, instance in sources.get(key_of(event.device), []):
            if instance is None or named is None or instance == named:
                self._counts.add(uuid, int(event.eventData))
                logger.warning("GPU %s: XID %d", uuid, event.eventData)
