"""The files of a folder as links elsewhere, so that they are read while a program writes in the folder.

A program can put a link in the place of a folder in the moment between the look at a file and its opening. It is in a
container, and the reader of its files is not: such a link would lead to the files of the node. Here each folder is
opened below the one above it, and no link is followed. The links are in folders that the program cannot change.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

DEPTH_MAX = 64  # files in deeper folders are left out
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def link_files(folder: str, into: str) -> None:
    """Make the folder `into` with a hard link to each file of `folder`, in the same folders. It leaves out what is gone
    meanwhile, and what this user may not link. Raises OSError if there is no such folder, or `into` cannot be made."""
    os.mkdir(into, 0o700)
    with _opened(folder) as source, _opened(into) as target:
        _link_all(source, target, DEPTH_MAX)


def _link_all(source: int, target: int, depth: int) -> None:
    with os.scandir(source) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.is_file(follow_symlinks=False):
                    os.link(entry.name, entry.name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
                elif entry.is_dir(follow_symlinks=False) and depth:
                    with _opened(entry.name, source) as inner:
                        os.mkdir(entry.name, 0o700, dir_fd=target)
                        with _opened(entry.name, target) as made:
                            _link_all(inner, made, depth - 1)


@contextmanager
def _opened(folder: str, above: int | None = None) -> Iterator[int]:
    fd = os.open(folder, _FOLDER, dir_fd=above)
    try:
        yield fd
    finally:
        os.close(fd)
