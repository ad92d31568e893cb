"""A small disk of its own for the logs of one node, which may be filled without harm to anything else."""

import os
import subprocess
from contextlib import suppress
from pathlib import Path

MEGABYTES = 64
CALL_SECONDS_MAX = 10
WRITE_BYTES = 1 << 20


def mount(logs: Path) -> bool:
    """False where we may not."""
    if os.geteuid() != 0:
        return False
    logs.mkdir(parents=True, mode=0o700)
    size = f"size={MEGABYTES}m,mode=0700"
    return _ran("mount", "-t", "tmpfs", "-o", size, "weft-chaos", str(logs))


def unmount(logs: Path) -> None:
    _ran("umount", "--lazy", str(logs))


def fill(filler: Path) -> None:
    """Until nothing more fits."""
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(WRITE_BYTES))


def _ran(*command: str) -> bool:
    return subprocess.run(command, check=False, timeout=CALL_SECONDS_MAX).returncode == 0
