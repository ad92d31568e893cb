"""Reads what the arbiter of this node counted of each run that holds a share of a GPU, from the run's slot folder.

A job may have written anything into the part of the folder that it sees: files are read within bounds, and without
waiting for another process.
"""

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from weft.sharing.pages import PAGE_BYTES, read_limits
from weft.sharing.places import slot_of
from weft.sharing.slots import JOB, LIMITS, open_folder, read_file, read_seen, read_share
from weftd.telemetry.thinking.readings import FoundRun
from weftd.telemetry.thinking.shares import RunKey, ShareReading


class ShareReader:
    """`root`: of the slot folders, which need not be there."""

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._clock = clock

    def read(self, runs: Iterable[FoundRun]) -> dict[RunKey, ShareReading]:
        """A reading of each run that holds a share."""
        try:
            root = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return {}
        try:
            found = {run.key: self._reading(root, slot_of(*run.key)) for run in runs}
        finally:
            os.close(root)
        return {key: reading for key, reading in found.items() if reading is not None}

    def _reading(self, root: int, name: str) -> ShareReading | None:
        """The content of one slot folder; None if there is none with a share."""
        try:
            folder = open_folder(name, beside=root)
        except OSError:
            return None
        try:
            share, seen, beat_ns = read_share(folder), read_seen(folder), _beat_ns(folder)
            return ShareReading(share=share, seen=seen, beat_ns=beat_ns, at_ns=round(self._clock() * 1e9))
        except (OSError, ValueError):
            return None
        finally:
            os.close(folder)


def _beat_ns(folder: int) -> int | None:
    """When the arbiter last said that it serves the slot, in ns of CLOCK_MONOTONIC; None if that cannot be read."""
    try:
        job = open_folder(JOB, beside=folder)
    except OSError:
        return None
    try:
        limits = read_limits(read_file(job, LIMITS, bytes_max=PAGE_BYTES))
    except (OSError, ValueError):
        return None
    finally:
        os.close(job)
    return None if limits is None else limits.beat_ns
