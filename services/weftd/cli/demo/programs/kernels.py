"""Keeps a GPU busy through the driver's own interface, and tells each second which part of the GPU's time it got.

It is written for emulated GPUs: there a kernel computes nothing and takes as many µs of the device as its grid is wide.
Needs nothing but Python and the driver's library, which Weft puts on the path of jobs with a share of an emulated GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
import time
from collections import deque

KERNEL_US = 1000
AHEAD = 8  # kernels that are launched before the first of them is over
DISABLE_TIMING = 2


class Driver:
    """The calls of the CUDA driver that this program needs. Raises OSError if there is no driver, or if it refuses."""

    def __init__(self) -> None:
        self._calls = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self("cuDeviceGet", ctypes.byref(device), 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self("cuCtxSetCurrent", context)
        module, self._kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self("cuModuleLoadData", ctypes.byref(module), b"emulated")
        self("cuModuleGetFunction", ctypes.byref(self._kernel), module, b"busy")

    def __call__(self, name: str, *arguments: object) -> None:
        status = getattr(self._calls, name)(*arguments)
        if status:
            raise OSError(f"{name}: the driver's error {status}")

    def launch(self) -> ctypes.c_void_p:
        """Launch a kernel; the event is complete when it is."""
        event = ctypes.c_void_p()
        self("cuLaunchKernel", self._kernel, KERNEL_US, 1, 1, 1, 1, 1, 0, None, None, None)
        self("cuEventCreate", ctypes.byref(event), DISABLE_TIMING)
        self("cuEventRecord", event, None)
        return event

    def wait(self, event: ctypes.c_void_p) -> None:
        self("cuEventSynchronize", event)
        self("cuEventDestroy_v2", event)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, metavar="N", help="seconds of work")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    driver = Driver()
    ahead = deque(driver.launch() for _ in range(AHEAD))
    began = second = time.monotonic()
    kernels = step = 0
    while (now := time.monotonic()) < began + args.seconds:
        driver.wait(ahead.popleft())
        ahead.append(driver.launch())
        kernels += 1
        if now >= second + 1.0:
            step += 1
            tell(step, kernels * KERNEL_US / 1e6 / (now - second))
            kernels, second = 0, now
    while ahead:
        driver.wait(ahead.popleft())
    return 0


def tell(step: int, part: float) -> None:
    print(f"second {step}: {part:.2f} of the GPU", flush=True)
    with open(os.environ.get("WEFT_PROGRESS", os.devnull), "a", encoding="utf-8") as progress:
        progress.write(f"step={step} part={part:.3f}\n")


if __name__ == "__main__":
    sys.exit(main())
