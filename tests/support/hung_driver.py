"""A driver that hangs: the driver's own Python package, on a library that does not answer."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.fake_gpu import FakeGpu
from tests.support.fake_nvml_library import FakeLibrary, installed

PATIENCE_SECONDS = 20.0


@contextmanager
def a_driver_that_hangs() -> Iterator[FakeLibrary]:
    """Until it is released, at the latest at the end of the block. It has one GPU, GPU-0."""
    library = FakeLibrary([FakeGpu(uuid="GPU-0")])
    with installed(library):
        library.hang()
        try:
            yield library
        finally:
            library.release()
            for thread in threading.enumerate():
                if thread.name in ("gpu-inventory", "gpu-watch", "gpu-record"):
                    thread.join(PATIENCE_SECONDS)
