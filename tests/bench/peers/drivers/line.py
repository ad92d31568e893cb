"""The lines of a driver: `{"do": "singles" | "array", "count": 1000}` in, what was measured out."""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

SLOTS = 64
NO_OP = "/bin/true"
_ANSWERS = os.fdopen(os.dup(1), "w")  # only answers go to standard output: a peer may print as it starts
os.dup2(2, 1)


def serve(singles: Callable[[int], dict[str, Any]], array: Callable[[int], None], **said: object) -> None:
    """Answer until the input ends."""
    _answer({"ready": True, **said})
    for line in sys.stdin:
        asked = json.loads(line)
        began = time.monotonic()
        found = (array(asked["count"]) or {}) if asked["do"] == "array" else singles(asked["count"])
        _answer({"seconds": time.monotonic() - began, **found})


def _answer(value: dict[str, Any]) -> None:
    _ANSWERS.write(json.dumps(value) + "\n")
    _ANSWERS.flush()


def one_by_one(count: int, submit: Callable[[], Any], wait: Callable[[list[Any]], None]) -> dict[str, Any]:
    """Submit all, then wait for all: how long each submission took to be accepted."""
    accepted, handles = [], []
    for _ in range(count):
        asked = time.monotonic()
        handles.append(submit())
        accepted.append(time.monotonic() - asked)
    wait(handles)
    return {"accepted": accepted}


def at_rest(submit: Callable[[], Any], wait: Callable[[Any], None], count: int = 20) -> list[float]:
    """Submit → seen as done, one at a time."""
    took = []
    for _ in range(count):
        asked = time.monotonic()
        wait(submit())
        took.append(time.monotonic() - asked)
    return took
