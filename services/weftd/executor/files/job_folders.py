"""The folders of jobs' results and checkpoints, one for each job, in a folder that only the executor's user can enter.

The image sets a container's user, and an engine may map that user to another of the host. So the folder of
a job in a container is open to every user; but only that container reaches it, by its mount, because the folder above
is closed to all other users of the host. A plain process runs as the executor's user, so its folder is closed as well.

A folder's own time is when a node last had a run of the job. Where the owner of the nodes has set for how long, older
folders are removed; the nodes may share one file system, and a job that waits in the queue for as long loses its own.
Where the owner has set how many bytes all of them may have, the oldest go until they have no more.
"""

import logging
import os
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress

from weftd.executor.files.discards import Discards

logger = logging.getLogger(__name__)

OWN = 0o700
OF_ANY_USER = 0o777
SWEEP_SECONDS = 3600.0
_warned: set[str] = set()


def make_folder(parent: str, job_id: str, *, mode: int) -> None:
    """The job's folder below `parent`. Raises OSError."""
    folder = f"{parent}/{job_id}"
    try:
        os.mkdir(folder, OWN)
    except FileNotFoundError:
        os.makedirs(parent, mode=OWN, exist_ok=True)
        os.makedirs(folder, mode=OWN, exist_ok=True)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise
        with suppress(PermissionError):
            os.utime(folder)
    _set_mode(parent, OWN)
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


class JobFolders:
    """The folders of all jobs. A folder is removed `kept_seconds` after a node last had a run of its job, or once all
    have more than `bytes_max`; 0: there is no such limit."""

    def __init__(self, folder: str, *, kept_seconds: float = 0.0, bytes_max: int = 0) -> None:
        self.discards = Discards(f"{folder}/.discarded")
        self._folder = folder
        self._kept_seconds = kept_seconds
        self._bytes_max = bytes_max
        self._swept_at: float | None = None

    def of(self, job_id: str) -> str:
        """The path of one job's folder."""
        return f"{self._folder}/{job_id}"

    def sweep(self, held: Collection[str], *, now: float) -> None:
        """Remove old folders. `held`: the jobs that have a run on this node. Blocks. Raises OSError."""
        if not self._kept_seconds or (self._swept_at is not None and 0 <= now - self._swept_at < SWEEP_SECONDS):
            return
        self._swept_at = now
        for job_id in held:
            with suppress(FileNotFoundError, PermissionError):
                os.utime(self.of(job_id), (now, now))
        for written_at, job_id in self._found():
            if now - written_at > self._kept_seconds and job_id not in held:
                logger.info("removing %s, of which no node has had a run for a long time", self.of(job_id))
                self.discards.take(self.of(job_id))
        self.discards.sweep()

    def shrink(self, held: Collection[str]) -> None:
        """Remove the oldest folders while all have more bytes than they may. Blocks, for as long as it takes to count
        every file. Raises OSError."""
        if not self._bytes_max:
            return
        sizes = {job_id: _bytes_in(self.of(job_id)) for _, job_id in self._found()}
        over = sum(sizes.values()) - self._bytes_max
        for _, job_id in sorted(self._found()):
            if over > 0 and job_id not in held and self.discards.take(self.of(job_id)):
                over -= sizes.get(job_id, 0)
                logger.info("removed %s: all such folders had more than %d bytes", self.of(job_id), self._bytes_max)

    def kept(self) -> Iterator[tuple[str, int, str]]:
        """Each job with its bytes on the disk, and a mark of its folder, which all nodes see that share it. Blocks."""
        for _, job_id in self._found():
            with suppress(OSError):
                found = os.stat(self.of(job_id), follow_symlinks=False)
                if not stat.S_ISDIR(found.st_mode):
                    continue  # the node's owner may have put anything here
                yield job_id, _bytes_in(self.of(job_id)), f"{found.st_ino:x}-{found.st_mtime_ns:x}"

    def close(self) -> None:
        self.discards.close()

    def _found(self) -> list[tuple[float, str]]:
        """When each job's folder was last used, and the job."""
        found: list[tuple[float, str]] = []
        with suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                if not entry.name.startswith("."):
                    with suppress(FileNotFoundError):
                        found.append((entry.stat(follow_symlinks=False).st_mtime, entry.name))
        return found


def _bytes_in(folder: str) -> int:
    """The bytes that a folder takes on the disk; unreadable parts count as none."""
    found = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            with suppress(OSError):
                found += os.lstat(f"{parent}/{name}").st_blocks * 512
    return found
