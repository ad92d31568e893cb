"""Samples a GPU's clocks, power and temperature while it is measured, if NVML is available."""

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from weft.domain.cluster import Gpu
from weft.gpus.nvml import DRIVER, Nvml, NvmlError
from weft.gpus.sample import GpuReader
from weft.messages.signals import GpuSample

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.2
STOP_SECONDS_MAX = 5.0


class Unwatched:
    """The watch without NVML: it has no samples."""

    def start(self) -> None: ...

    def stop(self) -> Sequence[GpuSample]:
        return ()


class NvmlWatch:
    """Samples in its own thread; `stop` waits for it no longer than `stop_seconds_max`, because a driver may hang."""

    def __init__(
        self,
        uuid: str,
        *,
        nvml: Nvml = DRIVER,
        look_seconds: float = LOOK_SECONDS,
        stop_seconds_max: float = STOP_SECONDS_MAX,
    ) -> None:
        self._gpu = Gpu(index=0, uuid=uuid, model="", memory=0)
        self._nvml = nvml
        self._look_seconds = look_seconds
        self._stop_seconds_max = stop_seconds_max
        self._over = threading.Event()
        self._seen: list[GpuSample] = []
        self._thread = threading.Thread(target=self._look, name="bench-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> Sequence[GpuSample]:
        self._over.set()
        self._thread.join(self._stop_seconds_max)
        return tuple(seen for seen in self._seen if not seen.problem)

    def _look(self) -> None:
        try:
            self._nvml.nvmlInit()
        except NvmlError as error:
            logger.info("clocks and power are not looked at: %s", error)
            return
        reader = GpuReader((self._gpu,), nvml=self._nvml)
        while not self._over.is_set():
            self._seen.extend(reader.read(now=time.monotonic()))
            self._over.wait(self._look_seconds)
        reader.free()
        with suppress(NvmlError):
            self._nvml.nvmlShutdown()
