"""Which boot of the kernel this is, and a clock that counts from it."""

import os
import time
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """The name of this boot. Where there is none, of this process: nothing kept earlier is believed."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return f"process-{os.getpid()}-{time.time_ns()}"


def boot_clock() -> float:
    """Seconds on a clock that goes on while the host is suspended, and never jumps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
