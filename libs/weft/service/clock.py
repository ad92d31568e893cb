"""A clock for timestamps and deadlines: set once from the wall clock, then advanced by the monotonic one."""

import time
from collections.abc import Callable


def steady() -> Callable[[], float]:
    """A clock in seconds since the epoch that never goes back and never follows a correction of the wall clock."""
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()
