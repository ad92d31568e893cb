"""The clock of everything here: what counts from boot is the same in every process."""

import time


def boot_clock() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
