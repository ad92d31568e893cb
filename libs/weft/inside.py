"""The functions that a program calls inside a job. They need Python's standard library alone.

Every function works outside a job too, so a program runs unchanged on a laptop: `step` writes nothing, `rank` is 0, and
`checkpoint_dir` and `results_dir` are the current folder.
"""

import json
import os
import re
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

_METRIC = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WEFTS = frozenset({"step", "steps"})


class Member(NamedTuple):
    """One rank of the job. `address` and `port` lead to it; they are empty and 0 where its node did not report them."""

    rank: int
    role: str
    address: str
    port: int


def step(n: int, *, of: int | None = None, **metrics: float) -> None:
    """Report the progress of the job: step `n` of `of` steps, and numbers such as `loss`.

    Each call appends one line such as `step=120 steps=1000 loss=0.31` to the file that WEFT_PROGRESS names. The newest
    value of each name counts. Raises ValueError for a name that is no word, and OSError if the file cannot be written.
    """
    values: dict[str, float] = {"step": n} if of is None else {"step": n, "steps": of}
    values |= {_checked(name): float(value) for name, value in metrics.items()}
    _write(values)


def _checked(name: str) -> str:
    if name in _WEFTS or _METRIC.fullmatch(name) is None:
        raise ValueError(f"metric {name!r}: expected letters, digits and '_', other than step and steps")
    return name


def _write(values: Mapping[str, float]) -> None:
    path = os.environ.get("WEFT_PROGRESS")
    if not path:
        return
    words = (f"{name}={value:.9g}" if isinstance(value, float) else f"{name}={value}" for name, value in values.items())
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"{' '.join(words)}\n")


def metric(name: str, value: float) -> None:
    """Report one number, such as a validation loss, without a step. Raises as `step` does."""
    _write({_checked(name): float(value)})


def rank() -> int:
    """The number of this process among all replicas of the job, from 0."""
    return int(os.environ.get("WEFT_RANK") or 0)


def members() -> tuple[Member, ...]:
    """The ranks of the job now, in order.

    A job that resizes live finds its present ranks with their addresses; call it again after a change. Any other job
    finds all of its ranks, and the address of rank 0 alone. Raises ValueError if the program spoiled the file that
    WEFT_MEMBERS names, and OSError if the file cannot be read.
    """
    if path := os.environ.get("WEFT_MEMBERS"):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        try:
            return tuple(sorted(_member(each) for each in json.loads(text)["ranks"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} has no ranks as Weft writes them: {error!r}") from error
    role = os.environ.get("WEFT_ROLE", "")
    first, port = os.environ.get("MASTER_ADDR", ""), int(os.environ.get("MASTER_PORT") or 0)
    size = int(os.environ.get("WEFT_WORLD_SIZE") or 1)
    return tuple(
        Member(number, role if number == rank() else "", "" if number else first, 0 if number else port)
        for number in range(size)
    )


def _member(read: dict[str, Any]) -> Member:
    return Member(int(read["rank"]), read["role"], read["address"] or "", read["port"] or 0)


def checkpoint_dir() -> Path:
    """The folder for checkpoints, which outlives each try of the job and is the same for all its ranks on one node.

    `weft.checkpoint_dir` is its value. Outside a job it is the current folder.
    """
    return Path(os.environ.get("WEFT_CHECKPOINT_DIR") or ".")


def results_dir() -> Path:
    """The folder for results, which can be listed and fetched after the end of the job.

    `weft.results_dir` is its value. Outside a job it is the current folder.
    """
    return Path(os.environ.get("WEFT_RESULTS") or ".")


_stopping = threading.Event()
_handles = False


def should_stop() -> bool:
    """Return True once Weft has asked this process to stop, by SIGTERM: save a checkpoint and exit.

    The first call sets the handler, so call it once before the loop; until then SIGTERM ends the process as ever. A
    handler that the program had set before is called too. A job whose `stop_signal` is another signal handles that
    signal itself. Raises RuntimeError if the first call is not in the main thread.
    """
    if not _handles:
        _handle()
    return _stopping.is_set()


def _handle() -> None:
    global _handles
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("call weft.should_stop() in the main thread first: only there can it handle SIGTERM")
    before = signal.getsignal(signal.SIGTERM)

    def stop(number: int, frame: FrameType | None) -> None:
        _stopping.set()
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGTERM, stop)
    _handles = True
