"""Decides which progress to publish now. Pure: times are arguments."""

from collections.abc import Mapping

from msgspec import Struct

from weft.messages.nodes import Pace, RunProgressed
from weftd.executor.runs import RunKey

TELL_SECONDS = 1.0  # between two messages of a node
AGAIN_SECONDS = 3.0  # a published pace may be lost, so it is repeated
RUNS_MAX = 64  # in one message, which then has some 200 kB at most


class Told(Struct, frozen=True, kw_only=True):
    """The progress of one live run. `at`: when it was read, seconds since the epoch, UTC."""

    progress: dict[str, float]
    at: float = 0.0
    pace: Pace | None = None
    disbelieved: int = 0


class Telling:
    """Remembers the last publications."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._said: dict[RunKey, tuple[float, Told]] = {}

    def due(self, told: Mapping[RunKey, Told], *, now: float) -> list[tuple[RunProgressed, ...]]:
        """The progress to publish now, in messages of RUNS_MAX. `now`: seconds on a monotonic clock."""
        if self._last is not None and now < self._last + TELL_SECONDS:
            return []
        said = {key: self._said[key] for key in self._said.keys() & told.keys()}
        news = [key for key in sorted(told) if _is_due(said.get(key), told[key], now)]
        self._said = said | {key: (now, told[key]) for key in news}
        if news:
            self._last = now
        runs = [_progressed(key, told[key]) for key in news]
        return [tuple(runs[start : start + RUNS_MAX]) for start in range(0, len(runs), RUNS_MAX)]


def _is_due(said: tuple[float, Told] | None, told: Told, now: float) -> bool:
    if said is None:
        return True
    at, before = said
    if told.pace is not None and now >= at + AGAIN_SECONDS:
        return True
    return (told.progress, told.pace, told.disbelieved) != (before.progress, before.pace, before.disbelieved)


def _progressed(key: RunKey, told: Told) -> RunProgressed:
    return RunProgressed(
        job_id=key.job_id,
        epoch=key.epoch,
        rank=key.rank,
        progress=told.progress,
        at=told.at,
        pace=told.pace,
        disbelieved=told.disbelieved,
    )
