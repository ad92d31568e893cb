"""Finds processes that a run left outside its process group, by the WEFT_PROGRESS in their environment.

It is needed only without cgroups, and does not find a process that has changed its environment as well.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress

from weftd.executor.runs import RunKey

SESSION_MARK = b"WEFT_SESSION="


def kill_stragglers(runs_folder: str, ended: Callable[[RunKey], bool]) -> int:
    """SIGKILL every process of runs that have `ended`; returns their number. Reads all of /proc: not for the loop."""
    count = 0
    for pid, key in stragglers(runs_folder):
        if ended(key):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                count += 1
    return count


def stragglers(runs_folder: str) -> Iterator[tuple[int, RunKey]]:
    """Every process with the variable of a run of this folder, also those in the run's own group."""
    marker = f"WEFT_PROGRESS={runs_folder}/".encode()
    with suppress(FileNotFoundError):
        for name in os.listdir("/proc"):
            if name.isdecimal() and (key := _run_of(name, marker)) is not None:
                yield int(name), key


def _run_of(pid: str, marker: bytes) -> RunKey | None:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            names = file.read()
    except OSError:  # Gone, or of another user.
        return None
    if marker not in names:
        return None
    for name in names.split(b"\0"):
        if name.startswith(marker):
            return RunKey.parse(name[len(marker) :].partition(b"/")[0].decode(errors="replace"))
    return None
