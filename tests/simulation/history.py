"""What happened in one simulated life: its digest, and the lines themselves when somebody wants to read them."""

import asyncio
import hashlib
import logging
import random
import sys
from collections import Counter
from typing import Any

from msgspec import Struct

from tests.support.virtual_time import this_process

NOISE = ("asyncio",)


def dice(seed: int, *names: object) -> random.Random:
    """Its own source of randomness for each purpose, so that one more throw here changes nothing there."""
    return random.Random("/".join(map(str, (seed, *names))))


class Failure(Struct, frozen=True):
    at: float
    what: str

    def __str__(self) -> str:
        return f"{self.at:.3f} s: {self.what}"


class History:
    def __init__(self, loop: asyncio.AbstractEventLoop, *, trace: bool) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: list[Failure] = []
        self._loop = loop
        self._trace = trace
        self._digest = hashlib.blake2b(digest_size=16)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def note(self, who: str, what: str) -> None:
        line = f"{self._loop.time():12.6f} {who:14} {what}\n"
        self._digest.update(line.encode())
        if self._trace:
            sys.stdout.write(line)

    def comment(self, who: str, what: str) -> None:
        """For the reader only: it is no part of the history."""
        if self._trace:
            sys.stdout.write(f"{self._loop.time():12.6f} {who:14} {what}\n")

    def fail(self, what: str) -> None:
        self.note("witness", f"FAILURE {what}")
        self.failures.append(Failure(self._loop.time(), what))


class Listener(logging.Handler):
    """Hears what the services log: to show it in a trace, and because a bug that was only logged is a failure too."""

    def __init__(self, history: History, *, forgiven: tuple[type[BaseException], ...]) -> None:
        super().__init__()
        self._history = history
        self._forgiven = forgiven

    def emit(self, record: logging.LogRecord) -> None:
        process = this_process()
        who = process.name if process is not None else "world"
        extra: dict[str, Any] = {name: value for name, value in vars(record).items() if name not in _OWN}
        told = " ".join((record.getMessage(), *(f"{name}={value}" for name, value in extra.items())))
        self._history.comment(who, f"    | {told}")
        error = record.exc_info[1] if record.exc_info else None
        restored = self._history.counts["restores"] and "the store went back in time" in told
        if (record.levelno >= logging.CRITICAL and not restored) or (
            error is not None and not isinstance(error, self._forgiven)
        ):
            self._history.fail(f"{who} logged: {told} {error!r}{_where(error)}")


def _where(error: BaseException | None) -> str:
    if error is None or error.__traceback__ is None:
        return ""
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    return f" in {code.co_qualname} ({code.co_filename.rpartition('/')[2]}:{trace.tb_lineno})"


_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
