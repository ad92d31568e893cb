"""Decides when a run of a job that resizes live is shown the members of its job. No clock, no I/O.

After a restart of the executor it is unknown which members a run was shown. Then they are shown again, which changes
nothing where the run's file already has them. A signal that may not have been sent is kept in the executor's memory.
"""

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from weft.messages.nodes import Members, StartRun
from weftd.executor.runs import RunKey


class ShowMembers(Struct, frozen=True):
    """Show a run its order's members. `signal_due`: an earlier try at this change may have failed after the file was
    replaced, so the signal must be sent even if the file is right.
    """

    order: StartRun
    signal_due: bool = False

    @property
    def key(self) -> RunKey:
        return RunKey.of(self.order)


class Changing(Struct, frozen=True):
    """A run to which the signal of this change may not have been sent."""

    key: RunKey
    changes: int


class _Trying(Struct, frozen=True, kw_only=True):
    members: Members
    tries: int
    again_at: float
    why: str = ""


class Showing:
    """The members that each run has seen. A failed try is repeated after `again_seconds`, doubled up to `again_max`."""

    def __init__(self, *, again_seconds: float, again_max: float, changing: Iterable[Changing] = ()) -> None:
        self._again_seconds = again_seconds
        self._again_max = again_max
        self._shown: dict[RunKey, Members] = {}  # by this executor
        self._trying: dict[RunKey, _Trying] = {}
        self._due = {change.key: change.changes for change in changing}

    @property
    def changing(self) -> tuple[Changing, ...]:
        return tuple(Changing(key, self._due[key]) for key in sorted(self._due))

    def decide(self, order: StartRun, now: float) -> list[ShowMembers]:
        """The action for a running run with this order; none if there is nothing to show, or not yet again."""
        key, members, shown = RunKey.of(order), order.members, self._shown.get(RunKey.of(order))
        if members is None or members == shown:
            self._trying.pop(key, None)
            return []
        if shown is not None and shown.changes != members.changes:
            self._due[key] = members.changes
        before = self._trying.get(key)
        if before is None or before.members != members:  # A new change is shown at once.
            before = _Trying(members=members, tries=0, again_at=now)
        if now < before.again_at:
            return []
        wait = min(self._again_seconds * 2.0 ** min(before.tries, 30), self._again_max)
        self._trying[key] = replace(before, tries=before.tries + 1, again_at=now + wait)
        return [ShowMembers(order, self._due.get(key) == members.changes)]

    def done(self, action: ShowMembers, why: str) -> None:
        """The outcome of an action: empty, or why it failed."""
        key, members = action.key, action.order.members
        trying = self._trying.get(key)
        if members is None or trying is None:
            return
        if why:
            self._due[key] = members.changes
            self._trying[key] = replace(trying, why=why)
        else:
            self._shown[key] = members
            self._due.pop(key, None)
            self._trying.pop(key, None)

    def why(self, key: RunKey) -> str:
        """Why the last try failed; empty if none did."""
        return self._trying[key].why if key in self._trying else ""

    def keep(self, keys: set[RunKey]) -> None:
        """Forget all other runs."""
        for kept in (self._shown, self._trying, self._due):
            for key in kept.keys() - keys:
                del kept[key]
