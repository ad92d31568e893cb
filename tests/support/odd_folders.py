"""Folders as a hostile job would leave them."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def swept(*folders: Path) -> Iterator[None]:
    """Nothing is left below them at the end: pytest cannot remove such folders itself."""
    try:
        yield
    finally:
        subprocess.run(["rm", "-rf", *map(str, folders)], check=True)


def make_deep(folder: Path, depth: int) -> None:
    """A folder in a folder in a folder …, as deep as the kernel lets one go step by step."""
    folder.mkdir()
    inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=inside)
        deeper = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=inside)
        os.close(inside)
        inside = deeper
    os.close(os.open("last", os.O_CREAT | os.O_WRONLY, dir_fd=inside))
    os.close(inside)
