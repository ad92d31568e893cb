"""A clock for stamps and deadlines: seconds since the epoch when it was made, and from then on it does not jump."""

import time
from collections.abc import Callable


def steady() -> Callable[[], float]:
    """The wall clock now, advanced by the monotonic one: never back, never by a correction."""
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()
