"""Decides the guard's next actions from the last good sync, the runs, and the time. No clock, no I/O.

All times are seconds on one clock that never jumps.
"""

from collections.abc import Iterable, Mapping, Set

from msgspec import Struct

from weftd.executor.runs import RunKey
from weftd.executor.thinking.core import Kill, Remove, Terminate

Action = Terminate | Kill | Remove


class FenceTimings(Struct, frozen=True, kw_only=True):
    """The guard acts `slack_seconds` after the fence, so that a healthy executor acts first."""

    fence_seconds: float
    slack_seconds: float
    grace_max: float
    kill_again_seconds: float = 2.0


class Seen(Struct, frozen=True, kw_only=True):
    """A run that lives, or was created and may start at any moment (`begun` is False)."""

    key: RunKey
    grace: float
    begun: bool = True


class Guard:
    """The same history gives the same decisions. `began`: its start. `ended`: the runs that an earlier guard ended."""

    def __init__(self, timings: FenceTimings, *, began: float, ended: Iterable[RunKey] = ()) -> None:
        self._timings = timings
        self._began = began
        self._kill_at: dict[RunKey, float] = dict.fromkeys(ended, began + timings.grace_max)
        self._killed_at: dict[RunKey, float] = {}
        self._fallen = False  # at the last look

    @property
    def ended(self) -> frozenset[RunKey]:
        """The runs that the guard has stopped."""
        return frozenset(self._kill_at)

    def falls_at(self, synced_at: float | None) -> float:
        """When the guard acts. Without any sync on record the executor gets the slack alone."""
        since = self._began if synced_at is None else synced_at + self._timings.fence_seconds
        return since + self._timings.slack_seconds

    def decide(
        self, runs: Iterable[Seen], *, synced_at: float | None, stops: Mapping[RunKey, float], now: float
    ) -> list[Action]:
        """`stops` are the runs that the executor has asked to end, with the times at which it kills them.

        A stop is carried through, also when the node syncs again meanwhile.
        """
        falls_at = self.falls_at(synced_at)
        fallen = now > falls_at
        actions: list[Action] = []
        for run in sorted(runs, key=lambda run: run.key):
            if fallen and not run.begun:
                actions.append(Remove(run.key))
            elif run.begun and (fallen or run.key in self._kill_at):
                actions += self._end(run, stops, falls_at if fallen else None, now)
        self._fallen = fallen
        return actions

    def keep(self, known: Set[RunKey]) -> None:
        """Forget the runs that are not `known` on the node any more."""
        self._kill_at = {key: at for key, at in self._kill_at.items() if key in known}
        self._killed_at = {key: at for key, at in self._killed_at.items() if key in known}

    def _end(self, run: Seen, stops: Mapping[RunKey, float], falls_at: float | None, now: float) -> list[Action]:
        key, asked = run.key, run.key in self._kill_at
        kill_at = self._kill_at[key] if asked else self._first(run, stops, now)
        if falls_at is not None:  # No grace goes beyond this: the promise counts from the last good sync.
            kill_at = min(kill_at, falls_at + self._timings.grace_max)
        self._kill_at[key] = kill_at
        if now < kill_at:
            return [] if asked or key in stops else [Terminate(key)]
        if now - self._killed_at.get(key, float("-inf")) < self._timings.kill_again_seconds:
            return []
        self._killed_at[key] = now
        return [Kill(key)]

    def _first(self, run: Seen, stops: Mapping[RunKey, float], now: float) -> float:
        """When to kill a run that the guard meets under a fallen fence. One that has begun since: at once."""
        if self._fallen:
            return now
        return min(stops.get(run.key, now + run.grace), now + self._timings.grace_max)
