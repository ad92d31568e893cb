"""The id of this boot of the kernel, and a clock that counts from it."""

import os
import time
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """The id of this boot. Without one, an id of this process, so that state kept earlier is not trusted."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return f"process-{os.getpid()}-{time.time_ns()}"


def boot_clock() -> float:
    """Seconds on a clock that goes on while the host is suspended, and never jumps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
