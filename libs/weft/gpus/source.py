"""The sources of samples: the driver as one, which is opened, read and closed."""

import logging
import time
import weakref
from collections.abc import Callable
from typing import Protocol

from weft.domain.cluster import Gpu
from weft.gpus.nvml import DRIVER, Nvml, NvmlError, provider_of, text
from weft.gpus.sample import GpuReader, ResetCounts, Xids
from weft.gpus.topology import Near, topology
from weft.gpus.xid import XidCounts, XidListener
from weft.messages.signals import GpuSample

logger = logging.getLogger(__name__)

Samples = tuple[GpuSample, ...]


class SourceError(Exception):
    """The source does not open. The message gives the reason, for a person."""


class Source(Protocol):
    """The source that a `GpuWatch` reads. `open`, `read` and `close` may block; one thread at a time calls them."""

    @property
    def provider(self) -> str: ...
    @property
    def near(self) -> Near: ...  # as of the last opening
    def xids(self, uuid: str) -> Xids: ...  # so far; also while another thread reads
    def open(self) -> None: ...  # raises SourceError
    def read(self) -> Samples: ...  # one sample of each GPU, whatever goes wrong
    def close(self) -> bool: ...  # False: not closed yet, call again


class DriverSource:
    """Samples from NVML. XID errors are counted over all openings."""

    def __init__(
        self, gpus: tuple[Gpu, ...], *, nvml: Nvml = DRIVER, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._gpus = gpus
        self._nvml = nvml
        self._clock = clock
        self._xids = XidCounts()
        self._resets = ResetCounts()
        self._listener: XidListener | None = None
        self._reader: GpuReader | None = None
        self._closing = False
        self.near: Near = {}

    @property
    def provider(self) -> str:
        return provider_of(self._nvml)

    def xids(self, uuid: str) -> Xids:
        return self._xids.of(uuid)

    def open(self) -> None:
        try:
            self._nvml.nvmlInit()
        except NvmlError as error:
            raise SourceError(str(error)) from error
        self.near = topology(self._gpus, nvml=self._nvml)
        self._reader = GpuReader(
            self._gpus, nvml=self._nvml, driver=self._version(), xids=self._xids.of, resets=self._resets
        )

    def read(self) -> Samples:
        if self._reader is None:
            raise SourceError("it is not open")
        if not self._closing and (self._listener is None or not self._listener.alive):
            self._listener = XidListener(self._nvml, self._gpus, self._xids)
            self._listener.start()
            weakref.finalize(self, self._listener.stop)  # stops the thread of a source that was dropped without `close`
        return self._reader.read(now=self._clock())

    def errors(self) -> dict[str, dict[str, str]]:
        """The errors of the last reading, by uuid and function."""
        return {} if self._reader is None else self._reader.errors()

    def close(self) -> bool:
        """Close the driver; False while a thread is still inside it, because closing could then crash the process."""
        self._closing = True
        if self._listener is not None and self._listener.alive:
            self._listener.stop()
            return False
        self._listener, self._closing = None, False
        if self._reader is not None:
            self._reader.free()
            self._reader = None
        try:
            self._nvml.nvmlShutdown()
        except NvmlError as error:
            logger.debug("NVML shutdown: %s", error)
        return True

    def _version(self) -> str:
        try:
            return text(self._nvml.nvmlSystemGetDriverVersion())
        except (NvmlError, UnicodeDecodeError):
            return ""
