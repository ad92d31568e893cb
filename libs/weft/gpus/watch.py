"""Samples GPUs again and again while the event loop goes on, even when the driver hangs."""

import asyncio
import logging
import time
from collections.abc import Callable

from weft.domain.cluster import Gpu
from weft.gpus.nvml import DRIVER, Nvml
from weft.gpus.sample import unknown
from weft.gpus.source import DriverSource, Samples, Source, SourceError
from weft.gpus.topology import Near
from weft.threads import aside

logger = logging.getLogger(__name__)


class GpuWatch:
    """Reads the driver, or another source, beside the event loop, one reading at a time.

    A GPU that fell off the bus can hang its driver for good, so the caller waits for `seconds_max` at most: then every
    GPU is unknown, and no second reading starts until the first one returns. After a GPU had a problem, the driver is
    closed and opened again, but not within `retry_seconds` of the last opening; each time that it did not help, this
    time doubles, up to `retry_seconds_max`.
    """

    def __init__(
        self,
        gpus: tuple[Gpu, ...],
        *,
        nvml: Nvml = DRIVER,
        source: Source | None = None,
        seconds_max: float = 0.5,
        retry_seconds: float = 30.0,
        retry_seconds_max: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seconds_max = seconds_max
        self._nvml = nvml
        self._retry_seconds = (retry_seconds, retry_seconds_max)
        self._clock = clock
        self.offer(gpus, source=source)
        self._open = False
        self._closing = False
        self._open_next = clock()
        self._wait_seconds = 0.0  # between the last opening and the next
        self._failure = ""
        self._asked: asyncio.Future[Samples] | None = None

    def offer(self, gpus: tuple[Gpu, ...], *, source: Source | None = None) -> None:
        """Set the GPUs to watch; allowed late only if no GPUs were watched before."""
        self.gpus = gpus
        self._has_source = source is not None
        self._asks = source is not None or any(not gpu.emulated for gpu in gpus)
        self._source: Source = source or DriverSource(gpus, nvml=self._nvml, clock=self._clock)

    @property
    def near(self) -> Near:
        """How near the GPUs are to each other, read when the driver was opened last."""
        return self._source.near

    async def sample(self) -> Samples:
        if not self._asks:
            return self._unknown("")
        if self._asked is None:
            self._asked = asyncio.wrap_future(aside(self._read, name="gpu-watch"))
        await asyncio.wait({self._asked}, timeout=self.seconds_max)
        if not self._asked.done():
            return self._unknown("the driver does not answer")
        answer, self._asked = self._asked, None
        return answer.result()

    def _read(self) -> Samples:
        """Runs in a thread of its own, never two at once."""
        if self._closing:
            self._close()
        if not self._open and not self._opened():
            return self._unknown(self._failure)
        samples = self._source.read()
        if not any(one.problem for one in samples):
            self._wait_seconds = 0.0
        elif not self._closing and self._clock() >= self._open_next:
            self._close()
        return samples

    def _opened(self) -> bool:
        now = self._clock()
        if now < self._open_next:
            return False
        least, most = self._retry_seconds
        self._wait_seconds = min(most, self._wait_seconds * 2) if self._wait_seconds else least
        self._open_next = now + self._wait_seconds
        try:
            self._source.open()
        except SourceError as error:
            self._failure = str(error)
            logger.warning("the NVIDIA driver does not open: %s", error)
        else:
            self._open = True
        return self._open

    def _close(self) -> None:
        closed = self._source.close()
        self._open, self._closing = not closed, not closed

    def _unknown(self, problem: str) -> Samples:
        provider, xids = self._source.provider, self._source.xids
        shown = {True: problem if self._has_source else "", False: problem}  # by: is the GPU emulated?
        return tuple(unknown(gpu, shown[gpu.emulated], provider=provider, xids=xids(gpu.uuid)) for gpu in self.gpus)
