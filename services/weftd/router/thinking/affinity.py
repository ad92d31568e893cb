"""Which replica probably has the beginning of a prompt in its prefix cache: that which had the last one like it.

Consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam: "Consistent Hashing with Bounded Loads", 2016):
each prompt has its own order of the replicas, and goes to the first that does not have more than its part of all
requests, and a quarter. So the requests of one conversation stay at one replica, a replica that comes or goes moves
hardly more than its own, and no replica has many more than the others.
"""

from bisect import bisect
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from math import ceil

from weftd.router.thinking.table import RunKey

SLACK = 1.25
POINTS = 32  # each replica has on the ring
LOOKED_AT_MAX = 32  # replicas, for one request


class PrefixRing:
    def __init__(self) -> None:
        self._keys: frozenset[RunKey] = frozenset()
        self._points: dict[RunKey, list[int]] = {}
        self._ring: list[tuple[int, RunKey]] = []

    def know(self, keys: Iterable[RunKey]) -> None:
        """The replicas that there are now."""
        known = frozenset(keys)
        if known == self._keys:
            return
        self._keys = known
        self._points = {key: self._points.get(key) or [_hash(f"{key}-{n}") for n in range(POINTS)] for key in known}
        self._ring = sorted((point, key) for key, points in self._points.items() for point in points)

    def order(self, prefix: str) -> Iterator[RunKey]:
        """The replicas for a prompt, the first few of them."""
        begin = bisect(self._ring, (_hash(prefix),))
        seen: set[RunKey] = set()
        for place in range(len(self._ring)):
            key = self._ring[(begin + place) % len(self._ring)][1]
            if key not in seen:
                seen.add(key)
                yield key
            if len(seen) >= min(LOOKED_AT_MAX, len(self._keys)):
                return


def load_bound(total: int, replicas: int) -> int:
    """How many requests a replica may have, the next one included, if all have `total` without it."""
    return ceil(SLACK * (total + 1) / replicas)


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())
