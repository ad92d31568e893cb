"""A small file system of its own, that a test may fill to the last byte."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

DISK_BYTES = 48 << 20


@contextmanager
def small_disk(folder: Path, *, size: int = DISK_BYTES, mode: str = "700") -> Iterator[Path]:
    """Mounted there while the block lasts; where nothing can be mounted the test is skipped."""
    folder.mkdir()
    options = f"size={size},mode={mode}"
    command = ["mount", "-t", "tmpfs", "-o", options, "weft-test", str(folder)]
    mounted = subprocess.run(command, capture_output=True, check=False, timeout=20)
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=20)


def fill(disk: Path) -> None:
    """To the last byte, in the file `filling`."""
    with (disk / "filling").open("ab", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    assert os.statvfs(disk).f_bavail == 0
