"""Removes files that jobs left on the disk: folders of any depth, any number of names, any modes.

A folder is first moved aside, which takes no time however large it is. A separate thread then empties it, so
removal neither blocks the event loop nor delays the end of the process. Removal does not recurse: a folder that lies in
another is moved to the top first. What cannot be removed stays aside, is logged once, and is tried again later.
"""

import logging
import os
import stat
import threading
import uuid
from contextlib import suppress

logger = logging.getLogger(__name__)

AGAIN_SECONDS = 600.0
STUCK_MAX = 10_000  # folders that one sweep cannot remove; with more of them it ends
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Discards:
    """`folder` is created when first needed; discarded paths must be on the same file system."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._wanted = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._warned: set[str] = set()

    def take(self, path: str, *, dir_fd: int | None = None) -> bool:
        """Move `path` aside, to be removed. False if that fails: it stays where it is. Never raises, never waits.

        `dir_fd`: the open folder in which `path` is a name.
        """
        try:
            _move(path, self._folder, dir_fd)
        except FileNotFoundError:
            return True
        except OSError as error:
            self._warn(path, error)
            return False
        self.sweep()
        return True

    def sweep(self) -> None:
        """Remove soon everything aside, also from an earlier process."""
        self._wanted.set()
        if self._thread is None and os.path.isdir(self._folder):
            self._thread = threading.Thread(target=self._work, name="discards", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop soon, without waiting. The next process removes the rest."""
        self._stopping = True
        self._wanted.set()

    def _work(self) -> None:
        while not self._stopping:
            self._wanted.clear()
            try:
                self._empty()
            except OSError as error:
                self._warn(self._folder, error)
            self._wanted.wait(AGAIN_SECONDS)

    def _empty(self) -> None:
        """Pass over the folder until nothing in it can be removed any more. Raises OSError."""
        stuck: set[str] = set()
        top = os.open(self._folder, _FOLDER)
        try:
            moved = True
            while moved and len(stuck) < STUCK_MAX:
                moved = False
                with os.scandir(top) as entries:
                    for entry in entries:
                        if self._stopping:
                            return
                        if entry.name in stuck:
                            continue
                        moved = True
                        if not self._remove(top, entry.name, is_folder=entry.is_dir(follow_symlinks=False)):
                            stuck.add(entry.name)
        finally:
            os.close(top)

    def _remove(self, top: int, name: str, *, is_folder: bool) -> bool:
        """Remove one name of the folder aside, after its own folders were moved beside it. False if it is stuck."""
        try:
            if not is_folder:
                os.unlink(name, dir_fd=top)
                return True
            self._clear(top, name)
            os.rmdir(name, dir_fd=top)
        except FileNotFoundError:
            return True
        except OSError as error:
            if not self._stopping:
                self._warn(f"{self._folder}/{name}", error)
            return self._stopping
        return True

    def _clear(self, top: int, name: str) -> None:
        """Raises OSError where the folder cannot be read; what cannot be removed in it makes its `rmdir` fail."""
        if os.stat(name, dir_fd=top, follow_symlinks=False).st_mode & 0o700 != 0o700:
            os.chmod(name, 0o700, dir_fd=top)
        folder = os.open(name, _FOLDER, dir_fd=top)
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if self._stopping:
                        return
                    with suppress(OSError):
                        if entry.is_dir(follow_symlinks=False):
                            _move_up(folder, entry.name, top)
                        else:
                            os.unlink(entry.name, dir_fd=folder)
        finally:
            os.close(folder)

    def _warn(self, path: str, error: OSError) -> None:
        """Warn once for each path."""
        if path not in self._warned and len(self._warned) < STUCK_MAX:
            self._warned.add(path)
            logger.warning("%s cannot be removed now, and is tried again later: %s", path, error)


def _move(path: str, folder: str, dir_fd: int | None) -> None:
    """Raises OSError."""
    target = f"{folder}/{uuid.uuid4().hex}"
    try:
        os.rename(path, target, src_dir_fd=dir_fd)
    except OSError:
        # The folder aside may be missing, and a folder that its owner may not write to cannot be moved.
        if not stat.S_ISLNK(os.stat(path, dir_fd=dir_fd, follow_symlinks=False).st_mode):
            with suppress(PermissionError):
                os.chmod(path, 0o700, dir_fd=dir_fd)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        os.rename(path, target, src_dir_fd=dir_fd)


def _move_up(folder: int, name: str, top: int) -> None:
    """Remove an empty folder, move any other to the top. Raises OSError."""
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError:
        target = uuid.uuid4().hex
        try:
            os.rename(name, target, src_dir_fd=folder, dst_dir_fd=top)
        except PermissionError:
            os.chmod(name, 0o700, dir_fd=folder)
            os.rename(name, target, src_dir_fd=folder, dst_dir_fd=top)
