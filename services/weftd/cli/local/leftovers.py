"""Ends what a killed executor may leave: its runs and its guard. After the last executor nothing may live on."""

import contextlib
import fcntl
import os
import re
import signal
import time
from pathlib import Path

GUARD_LOOK_SECONDS = 0.02


def kill_runs(nodes: Path) -> list[str]:
    """Kill every run that still lives below these executors' homes; returns their names.

    A run's leader holds a lock on the file with its pid, so the pid is never another process's.
    """
    killed = []
    for file in sorted(nodes.glob("*/runs/*/pid")):
        pid = _leader(file)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
                killed.append(file.parent.name)
    return killed


def living_runs(nodes: Path) -> list[int]:
    """The leaders of the living runs."""
    leaders = (_leader(file) for file in nodes.glob("*/runs/*/pid"))
    return [pid for pid in leaders if pid is not None]


def end_guards(nodes: Path, *, seconds_max: float = 3.0) -> None:
    """Return when no guard of these homes lives: each ends by itself when no run is left; one that hangs is killed."""
    deadline = time.monotonic() + seconds_max
    guards = [file for file in nodes.glob("*/guard") if _held(file)]
    while guards and time.monotonic() < deadline:
        time.sleep(GUARD_LOOK_SECONDS)
        guards = [file for file in guards if _held(file)]
    for file in guards:
        if found := re.search(rb'"pid":(\d+)', file.read_bytes()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(found[1]), signal.SIGKILL)


def _leader(file: Path) -> int | None:
    """The pid in the file while its process lives."""
    if not _held(file):
        return None
    line, end, _ = file.read_bytes().partition(b"\n")
    return int(line) if end and line.isdigit() else None


def _held(file: Path) -> bool:
    """True if a process holds its lock."""
    try:
        with file.open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
