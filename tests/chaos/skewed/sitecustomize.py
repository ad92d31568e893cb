"""Python loads this as it starts where this folder is in PYTHONPATH: the time of day is off by what a file says.

The file is named by CHAOS_CLOCK and holds seconds, which may change at any time. Clocks that count from boot are
right, as on a machine whose time of day was set wrong. Not done by libfaketime: its `clock_nanosleep` breaks the
`time.sleep` of Python 3.11.
"""

import os
import time

LOOK_SECONDS = 0.5

true_time = time.time
state = {"off": 0.0, "look_at": 0.0}


def skewed_time() -> float:
    now = time.monotonic()
    if now >= state["look_at"]:
        state["look_at"] = now + LOOK_SECONDS
        try:
            with open(os.environ["CHAOS_CLOCK"], encoding="utf-8") as file:
                state["off"] = float(file.read())
        except (KeyError, OSError, ValueError):
            pass  # half written, or gone: as it was
    return true_time() + state["off"]


time.time = skewed_time
