"""What a killed executor may leave: runs that go on without it. After the last executor nothing may."""

import contextlib
import fcntl
import os
import signal
from pathlib import Path


def kill_runs(nodes: Path) -> list[str]:
    """Kill every run that still lives below these executors' homes; returns their names.

    A run's leader holds the lock of the file that its pid is written in, so the pid is its own and no stranger's.
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
    """The leaders of the runs that live."""
    leaders = (_leader(file) for file in nodes.glob("*/runs/*/pid"))
    return [pid for pid in leaders if pid is not None]


def _leader(file: Path) -> int | None:
    """The pid in the file while its process lives."""
    try:
        with file.open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return None
    except BlockingIOError:
        text = file.read_bytes()
        return int(text) if text.endswith(b"\n") else None
    return None
