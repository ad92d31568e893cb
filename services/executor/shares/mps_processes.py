"""What the environments of processes say of MPS: which run a process belongs to, and which limits it began with.

A process can change its variables before it loads CUDA, and nothing outside it sees that.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from services.executor.runs import RunKey
from services.executor.shares.mps_daemon import PIPE_VARIABLE

ENVIRONMENT_BYTES_MAX = 4 << 20


def environment_of(pid: int) -> Mapping[str, str]:
    """The environment with which a process began; empty if it has ended, or is another user's."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            text = file.read(ENVIRONMENT_BYTES_MAX)
    except OSError:
        return {}
    pairs = (entry.partition("=") for entry in text.decode(errors="replace").split("\0"))
    return {name: value for name, equals, value in pairs if name and equals}


def run_of(environment: Mapping[str, str]) -> RunKey | None:
    """Reads a run's job, epoch and rank from the variables that Weft gives to a run; None if they are not there."""
    numbers = environment.get("WEFT_EPOCH", ""), environment.get("WEFT_RANK", "")
    if not environment.get("WEFT_JOB_ID") or not all(number.isdecimal() for number in numbers):
        return None
    return RunKey(environment["WEFT_JOB_ID"], int(numbers[0]), int(numbers[1]))


def users_of(pipe: Path) -> dict[RunKey, frozenset[int]]:
    """The living processes of runs that were given this pipe folder. Reads all of /proc: not for the loop."""
    found: dict[RunKey, set[int]] = {}
    for pid in _pids():
        environment = environment_of(pid)
        if environment.get(PIPE_VARIABLE) == str(pipe) and (key := run_of(environment)) is not None:
            found.setdefault(key, set()).add(pid)
    return {key: frozenset(pids) for key, pids in found.items()}


def _pids() -> Iterator[int]:
    for name in os.listdir("/proc"):
        if name.isdecimal():
            yield int(name)
