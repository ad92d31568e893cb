"""Decides when a run that serves requests is asked whether it is ready, and what is published of it. No clock, no I/O.

A run is ready at the first good answer, and not ready any more after FAILURES_MAX bad ones in a row. When it was first
ready is kept in the executor's memory; whether it is ready now is asked again after a restart.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from weft.messages.nodes import RunState
from weft.messages.serving import (
    ENDED_MAX,
    LAST_WORDS_CHARS_MAX,
    WHY_CHARS_MAX,
    Endpoint,
    ReplicaEnded,
    ServicesServed,
)
from weftd.executor.runs import Run, RunKey
from weftd.executor.thinking.draining import Draining

FIRST_SECONDS = 0.2  # between two probes, until a run was ready for the first time
AGAIN_SECONDS = 1.0
FAILURES_MAX = 3
ENDED_SECONDS = 10.0  # that the end of a run is reported for
WORDS_CHARS_MAX = 200_000  # of all runs, in one message
SETTLE_SECONDS = 2.5  # for the first answers of the runs that an executor finds when it starts


class ReadySince(Struct, frozen=True):
    """When a run was first ready, in seconds since the epoch."""

    key: RunKey
    at: float


class _Answers(Struct, kw_only=True):
    due_at: float
    asking: bool = False
    ready: bool | None = None  # None: not known yet
    failures: int = 0  # in a row
    why: str = ""  # the last bad answer


class Readiness:
    def __init__(self, ready: Iterable[ReadySince] = ()) -> None:
        self.draining = Draining()
        self._ready_at = {since.key: since.at for since in ready}
        self._found: dict[RunKey, _Answers] = {}
        self._runs: dict[RunKey, Run] = {}
        self._said: dict[RunKey, str] = {}  # the last words of runs that are not ready
        self._ended: dict[RunKey, tuple[float, ReplicaEnded]] = {}  # when it was noticed
        self._began: float | None = None
        self.changed = False  # the endpoints are not those of before

    @property
    def serves(self) -> bool:
        """True if a run of this node serves requests."""
        return bool(self._runs)

    @property
    def memory(self) -> tuple[ReadySince, ...]:
        return tuple(ReadySince(key, self._ready_at[key]) for key in sorted(self._ready_at))

    def look(self, runs: Iterable[Run], now: float) -> None:
        """Take in the runs of this node, of which those that serve requests are asked from now on."""
        if self._began is None:
            self._began = self.draining.listens_since = now
        before = self._runs
        known = [run for run in runs if run.serve is not None]
        self._runs = {run.key: run for run in known if run.state is RunState.RUNNING and run.port is not None}
        self._found = {key: self._found.get(key) or _Answers(due_at=now) for key in self._runs}
        if known or self._ready_at:
            kept = {run.key for run in known}
            self._ready_at = {key: at for key, at in self._ready_at.items() if key in kept}
        self.changed |= before.keys() != self._runs.keys()
        self.draining.keep(self.draining.keys & self._runs.keys())

    def due(self, now: float) -> list[Run]:
        """The runs to ask now, those that wait the longest first; each is asked once at a time."""
        due = [key for key, found in self._found.items() if not found.asking and now >= found.due_at]
        due.sort(key=lambda key: self._found[key].due_at)
        return [self._runs[key] for key in due]

    def asked(self, key: RunKey, now: float) -> None:
        """A run is being asked."""
        found = self._found.get(key)
        if found is not None:
            found.asking = True
            found.due_at = now + (AGAIN_SECONDS if key in self._ready_at else FIRST_SECONDS)

    def answered(self, key: RunKey, why: str, *, at: float) -> None:
        """A run answered: empty, or why it is not ready. `at`: seconds since the epoch."""
        found = self._found.get(key)
        if found is None:
            return
        found.asking, found.why = False, why
        found.failures = found.failures + 1 if why else 0
        ready = not why or (found.ready is True and found.failures < FAILURES_MAX)
        if not why:
            self._ready_at.setdefault(key, at)
        self.changed |= ready is not found.ready
        found.ready = ready

    def settled(self, now: float) -> bool:
        """True if the endpoints may be published. A replica that a list omits is gone, so the first list waits until
        all runs that were there when the executor started have answered, or should have."""
        if self._began is None:
            return False
        return now >= self._began + SETTLE_SECONDS or all(found.ready is not None for found in self._found.values())

    def ready(self, key: RunKey) -> bool | None:
        found = self._found.get(key)
        return None if found is None else found.ready

    def why_not(self, key: RunKey) -> str:
        """Why a run is not ready, by its last answer; empty if it is, or was not asked yet."""
        found = self._found.get(key)
        return "" if found is None or found.ready else found.why

    def hear_words(self, runs: Sequence[Run], lines: Mapping[RunKey, str], now: float) -> None:
        """The last lines of the logs of these runs, those that ended badly among them."""
        self._said = {run.key: lines[run.key] for run in runs if run.live and run.key in lines}
        for run in runs:
            if not run.live and run.key in lines and run.key not in self._ended:
                self._ended[run.key] = now, _ended(run, lines[run.key])
                self.changed = True
        here = {run.key for run in runs}
        self._ended = {
            key: (at, one) for key, (at, one) in self._ended.items() if key in here or now - at <= ENDED_SECONDS
        }

    def ended(self, now: float) -> tuple[ReplicaEnded, ...]:
        """The runs whose bad end was noticed within the last ENDED_SECONDS."""
        return tuple(one for at, one in self._ended.values() if now - at <= ENDED_SECONDS)[-ENDED_MAX:]

    def was_ready(self, key: RunKey) -> bool:
        return key in self._ready_at

    def endpoints(self) -> tuple[Endpoint, ...]:
        self.changed = False
        room, found = WORDS_CHARS_MAX, []
        for key, run in sorted(self._runs.items()):
            if run.port is None:
                continue
            why = self.why_not(key)[:WHY_CHARS_MAX] if room > 0 else ""
            words = self._said.get(key, "")[-LAST_WORDS_CHARS_MAX:] if why else ""
            room -= len(why) + len(words)
            found.append(
                Endpoint(
                    job_id=key.job_id,
                    epoch=key.epoch,
                    rank=key.rank,
                    port=run.port,
                    ready=bool(self.ready(key)),
                    draining=key in self.draining.keys,
                    started_at=run.started_at,
                    ready_at=self._ready_at.get(key),
                    why=why,
                    last_words=words,
                )
            )
        return tuple(found)

    def must_finish(self, run: Run, now: float, *, seconds_max: float | None = None) -> bool:
        """True if a run that is to be stopped must first be left to finish its requests."""
        if run.serve is None or run.key not in self._runs or not self.was_ready(run.key):
            return False
        if self.draining.begin(run.key, run.serve.drain, now):
            self.changed = True
        if seconds_max is not None:
            self.draining.hurry(seconds_max)
        return not self.draining.over(run.key, now)

    def stays(self, key: RunKey) -> None:
        """A run is ordered, perhaps again."""
        if key in self.draining.keys:
            self.draining.keep(self.draining.keys - {key})
            self.changed = True

    def ends(self, key: RunKey, now: float) -> None:
        """A run is being stopped: it gets no more requests."""
        if key in self._runs and self.draining.begin(key, 0.0, now):
            self.changed = True

    def heard(self, served: ServicesServed, now: float) -> bool:
        """A router speaks. True if a run may be stopped now."""
        return self.draining.heard(served, now)


def _ended(run: Run, words: str) -> ReplicaEnded:
    how = "" if run.exit_code is None else f"it ended with status {run.exit_code}"
    return ReplicaEnded(
        job_id=run.key.job_id,
        epoch=run.key.epoch,
        rank=run.key.rank,
        why=(run.detail or how or "it ended")[:WHY_CHARS_MAX],
        last_words=words[-LAST_WORDS_CHARS_MAX:],
    )
