"""Which of several scorers has which node: rendezvous hashing, so that a scorer that comes or goes moves only the nodes
that it takes or leaves.
"""

from collections.abc import Iterable
from hashlib import blake2b

HEARD_WITHIN_SECONDS = 5.0
BEGINS_AFTER_SECONDS = 2.0  # by then every other scorer has published twice that it runs


def owner(of: str, scorers: Iterable[str]) -> str:
    """Which of these scorers (one at least) has the node, or the workload, of that name."""
    return max(scorers, key=lambda scorer: (_weight(of, scorer), scorer))


def owned(by: str, of: Iterable[str], scorers: Iterable[str]) -> frozenset[str]:
    everybody = tuple(scorers)
    return frozenset(one for one in of if owner(one, everybody) == by)


def _weight(of: str, scorer: str) -> bytes:
    return blake2b(f"{scorer}\0{of}".encode(), digest_size=8).digest()


class ScorerPeers:
    """The scorers with a recent message, and this one once it could have got a message of every other."""

    def __init__(self, me: str) -> None:
        self.me = me
        self._heard: dict[str, float] = {}
        self._began: float | None = None

    def heard(self, scorer: str, now: float) -> None:
        if scorer != self.me:
            self._heard[scorer] = now

    def present(self, now: float) -> tuple[str, ...]:
        """The scorers in order; none before we are sure to know all of them."""
        if self._began is None:
            self._began = now
        if now - self._began < BEGINS_AFTER_SECONDS:
            return ()
        self._heard = {name: at for name, at in self._heard.items() if now - at <= HEARD_WITHIN_SECONDS}
        return tuple(sorted((self.me, *self._heard)))
