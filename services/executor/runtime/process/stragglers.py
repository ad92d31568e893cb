"""Finds what a run left behind outside its process group, by the WEFT_PROGRESS in its environment.

Only where there are no cgroups is this how such processes are found; one that also changed its environment is not.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress

from services.executor.runs import RunKey


def kill_stragglers(runs_folder: str, ended: Callable[[RunKey], bool]) -> int:
    """SIGKILL every process of a run that has `ended`; how many there were. It reads all of /proc: not for the loop."""
    count = 0
    for pid, key in stragglers(runs_folder):
        if ended(key):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                count += 1
    return count


def stragglers(runs_folder: str) -> Iterator[tuple[int, RunKey]]:
    """Every process with the mark of a run of this folder; those of its own group have it too."""
    marker = f"WEFT_PROGRESS={runs_folder}/".encode()
    with suppress(FileNotFoundError):
        for name in os.listdir("/proc"):
            if name.isdecimal() and (key := _run_of(name, marker)) is not None:
                yield int(name), key


def _run_of(pid: str, marker: bytes) -> RunKey | None:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            names = file.read()
    except OSError:  # Gone, or somebody else's.
        return None
    if marker not in names:
        return None
    for name in names.split(b"\0"):
        if name.startswith(marker):
            return RunKey.parse(name[len(marker) :].partition(b"/")[0].decode(errors="replace"))
    return None
