"""Who of several scorers looks after which node: rendezvous hashing, so that a scorer that comes or goes moves no node
but those it takes or leaves.
"""

from collections.abc import Iterable
from hashlib import blake2b

HEARD_WITHIN_SECONDS = 5.0
BEGINS_AFTER_SECONDS = 2.0  # by then everybody else has said twice that it is there


def owner(of: str, scorers: Iterable[str]) -> str:
    """Which of them (one at least) looks after the node, or the workload, of that name."""
    return max(scorers, key=lambda scorer: (_weight(of, scorer), scorer))


def owned(by: str, of: Iterable[str], scorers: Iterable[str]) -> frozenset[str]:
    everybody = tuple(scorers)
    return frozenset(one for one in of if owner(one, everybody) == by)


def _weight(of: str, scorer: str) -> bytes:
    return blake2b(f"{scorer}\0{of}".encode(), digest_size=8).digest()


class ScorerPeers:
    """The scorers heard of lately, ourselves among them from the moment that we could have heard the others."""

    def __init__(self, me: str) -> None:
        self.me = me
        self._heard: dict[str, float] = {}
        self._began: float | None = None

    def heard(self, scorer: str, now: float) -> None:
        if scorer != self.me:
            self._heard[scorer] = now

    def present(self, now: float) -> tuple[str, ...]:
        """In order; nobody before we are sure to know the others."""
        if self._began is None:
            self._began = now
        if now - self._began < BEGINS_AFTER_SECONDS:
            return ()
        self._heard = {name: at for name, at in self._heard.items() if now - at <= HEARD_WITHIN_SECONDS}
        return tuple(sorted((self.me, *self._heard)))
