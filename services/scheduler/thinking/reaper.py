"""Which silent nodes are given up, and when so many fall silent at once that rather our own side is broken."""

from collections.abc import Iterable, Mapping

from libs.domain.quantity import duration_text

SILENT_PART = 4  # heard of for the last time a quarter of its lease ago: it is falling silent
TOGETHER_PART = 3  # of more than a third of the pool at once it is not believed at first


class Reaper:
    """A node silent for longer than its lease is lost; many at once only one lease later than the first of them.

    Until `held_until` an earlier leader that cannot reach the store may hold the nodes that do not follow this one yet:
    what they run may run for a lease after that, however long they have been silent to us.
    """

    def __init__(self, *, lease_seconds: float, held_until: float | None = None) -> None:
        self._lease_seconds = lease_seconds
        self._held_until = held_until
        self._following: set[str] = set()
        self._patient_until: float | None = None
        self._looked_at: float | None = None
        self.held_back = 0  # nodes whose lease is over and that are not given up yet
        self._notices: list[str] = []

    def not_listening(self, now: float) -> float:
        """For how long nobody looked, in seconds, where that was so long that nodes may have spoken in vain."""
        before, self._looked_at = self._looked_at, now
        unseen = 0.0 if before is None else now - before
        return unseen if unseen > self._lease_seconds / SILENT_PART else 0.0

    def follows(self, node_id: str) -> None:
        """The node was answered by this leader: it takes no word of an earlier one any more."""
        self._following.add(node_id)

    def unfollowing(self, node_ids: Iterable[str]) -> list[str]:
        return sorted(set(node_ids) - self._following)

    def silent_since(self, node_id: str, heard_at: float) -> float:
        """From when on a lease of its silence counts, for a node that was heard of at `heard_at`."""
        if self._held_until is None or node_id in self._following:
            return heard_at
        return max(heard_at, self._held_until)

    def lost(self, heard: Mapping[str, float], now: float, *, leaving: Iterable[str]) -> list[str]:
        """Who of the ready nodes is lost now. `heard` is when each last reported; `leaving` said that they go."""
        silent = {node_id: now - at for node_id, at in heard.items()}
        due = sorted(node_id for node_id, seconds in silent.items() if seconds > self._lease_seconds)
        expected = set(leaving).intersection(due)
        doubted = [node_id for node_id in due if node_id not in expected]
        if not self._doubts(silent, doubted, now, leaving=leaving):
            self.held_back = 0
            return due
        self.held_back = len(doubted)
        return sorted(expected)

    def take_notices(self) -> list[str]:
        """What people should know, each once."""
        notices, self._notices = self._notices, []
        return notices

    def _doubts(self, silent: Mapping[str, float], due: list[str], now: float, *, leaving: Iterable[str]) -> bool:
        """Is it to be waited still for those who are due?"""
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
                f"{len(falling)} of {len(staying)} nodes fell silent together: rather a fault of the control plane than"
                f" of theirs, so none of them is given up for {duration_text(self._patient_until - now)} more"
            )
        if now < self._patient_until:
            return True
        self._patient_until = None
        return False
