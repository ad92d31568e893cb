"""The folders of jobs' checkpoints, one for each job, all in a folder that only the executor's user can enter.

The image sets a container's user, and an engine may map that user to another of the host. So the folder of
a job in a container is open to every user; but only that container reaches it, by its mount, because the folder above
is closed to all other users of the host. A plain process runs as the executor's user, so its folder is closed as well.

A folder's own time is when a node last had a run of the job. Where the owner of the nodes has set for how long, older
folders are removed; the nodes may share one file system, and a job that waits in the queue for as long loses its own.
"""

import logging
import os
import stat
from collections.abc import Collection
from contextlib import suppress

from weftd.executor.files.discards import Discards

logger = logging.getLogger(__name__)

OWN = 0o700
OF_ANY_USER = 0o777
SWEEP_SECONDS = 3600.0
_warned: set[str] = set()


def make_folder(checkpoints: str, job_id: str, *, mode: int) -> None:
    """The job's folder below `checkpoints`. Raises OSError."""
    folder = f"{checkpoints}/{job_id}"
    try:
        os.mkdir(folder, OWN)
    except FileNotFoundError:
        os.makedirs(checkpoints, mode=OWN, exist_ok=True)
        os.makedirs(folder, mode=OWN, exist_ok=True)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise
        with suppress(PermissionError):
            os.utime(folder)
    _set_mode(checkpoints, OWN)
    _set_mode(folder, mode)


def _set_mode(folder: str, mode: int) -> None:
    """A folder of another owner, such as one of a shared file system, stays as its owner has it."""
    if stat.S_IMODE(os.stat(folder).st_mode) == mode:
        return
    try:
        os.chmod(folder, mode)
    except PermissionError as error:
        if folder not in _warned:
            _warned.add(folder)
            logger.warning("%s cannot be given the mode %o: %s", folder, mode, error)


class Checkpoints:
    """The folders of all jobs. A folder is removed `kept_seconds` after a node last had a run of its job; 0: never."""

    def __init__(self, folder: str, *, kept_seconds: float) -> None:
        self._folder = folder
        self._kept_seconds = kept_seconds
        self._discards = Discards(f"{folder}/.discarded")
        self._swept_at: float | None = None

    def sweep(self, held: Collection[str], *, now: float) -> None:
        """Remove old folders. `held`: the jobs that have a run on this node. Blocks. Raises OSError."""
        if not self._kept_seconds or (self._swept_at is not None and 0 <= now - self._swept_at < SWEEP_SECONDS):
            return
        self._swept_at = now
        for job_id in held:
            with suppress(FileNotFoundError, PermissionError):
                os.utime(f"{self._folder}/{job_id}", (now, now))
        with suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                old = now - entry.stat(follow_symlinks=False).st_mtime > self._kept_seconds
                if old and entry.name not in held and not entry.name.startswith("."):
                    logger.info("removing the checkpoints of %s, of which no node had a run for long", entry.name)
                    self._discards.take(entry.path)
        self._discards.sweep()

    def close(self) -> None:
        self._discards.close()
