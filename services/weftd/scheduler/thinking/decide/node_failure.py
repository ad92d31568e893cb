"""Decides which silent nodes are lost, and suspects the control plane if many fall silent together."""

from collections.abc import Iterable, Mapping
from math import inf

from weft.domain.quantity import duration_text

SILENT_PART = 4  # a node silent for more than a quarter of its lease is falling silent
TOGETHER_PART = 3  # silence of more than a third of the pool together is doubted at first
ROUNDING_SECONDS = 1e-3  # more than sums of times are wrong by


class NodeFailures:
    """A node silent for longer than its lease is lost; many together only one lease later than the first of them.

    Until `held_until` an earlier leader that cannot reach the store may hold the nodes that do not follow this leader
    yet: their runs may live for a lease after that, however long the nodes have been silent to this leader.
    """

    def __init__(self, *, lease_seconds: float, held_until: float | None = None) -> None:
        self._lease_seconds = lease_seconds
        self._held_until = held_until
        self._following: set[str] = set()
        self._patient_until: float | None = None
        self._looked_at: float | None = None
        self._none_due_until = -inf
        self.held_back = 0  # nodes whose lease is over and that are not lost yet
        self._notices: list[str] = []

    def not_listening(self, now: float) -> float:
        """The seconds since the last call, if long enough for missed reports; else 0."""
        before, self._looked_at = self._looked_at, now
        unseen = 0.0 if before is None else now - before
        return unseen if unseen > self._lease_seconds / SILENT_PART else 0.0

    def follows(self, node_id: str) -> None:
        """This leader has answered the node: it ignores earlier leaders from now on."""
        self._following.add(node_id)

    def unfollowing(self, node_ids: Iterable[str]) -> list[str]:
        return sorted(set(node_ids) - self._following)

    def silent_since(self, node_id: str, heard_at: float) -> float:
        """The time from which the silence of a node counts that was last heard at `heard_at`."""
        if self._held_until is None or node_id in self._following:
            return heard_at
        return max(heard_at, self._held_until)

    def may_be_due(self, now: float) -> bool:
        """False while no node can be due: none was when `lost` looked, and a report only puts it off."""
        return now > self._none_due_until

    def lost(self, heard: Mapping[str, float], now: float, *, leaving: Iterable[str]) -> list[str]:
        """The ready nodes that are lost now. `heard`: when each last reported; `leaving`: nodes that leave."""
        silent = {node_id: now - at for node_id, at in heard.items()}
        due = sorted(node_id for node_id, seconds in silent.items() if seconds > self._lease_seconds)
        expected = set(leaving).intersection(due)
        doubted = [node_id for node_id in due if node_id not in expected]
        if not due:
            longest = max(
                (0.0, *silent.values())
            )  # of a node that is still to come, the silence begins now at the earliest
            self._none_due_until = now + self._lease_seconds - longest - ROUNDING_SECONDS
        if not self._doubts(silent, doubted, now, leaving=leaving):
            self.held_back = 0
            return due
        self.held_back = len(doubted)
        return sorted(expected)

    def take_notices(self) -> list[str]:
        """Notices for operators, each once."""
        notices, self._notices = self._notices, []
        return notices

    def _doubts(self, silent: Mapping[str, float], due: list[str], now: float, *, leaving: Iterable[str]) -> bool:
        """Return True if the due nodes should get more time."""
        if not due:
            self._patient_until = None
            return False
        if self._patient_until is None:
            staying = silent.keys() - set(leaving)
            falling = [node_id for node_id in staying if silent[node_id] > self._lease_seconds / SILENT_PART]
            if len(falling) < 2 or len(falling) * TOGETHER_PART <= len(staying):
                return False
            first_at = now - (max(silent[node_id] for node_id in due) - self._lease_seconds)
            self._patient_until = first_at + self._lease_seconds
            self._notices.append(
                f"{len(falling)} of {len(staying)} nodes fell silent together: probably a fault of the control plane,"
                f" not of the nodes, which keep their jobs for {duration_text(self._patient_until - now)} more"
            )
        if now < self._patient_until:
            return True
        self._patient_until = None
        return False
