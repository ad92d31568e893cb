"""One scheduler leads a pool; the others stand by. The lease is a row in the store, judged by our own clock.

Wall clocks are never compared: a lease whose `seq` has not moved for `leader_seconds` of our own time is abandoned.
Safety does not hang on this: every write carries the lease's epoch, and the store refuses a stale one.
"""

import logging
from collections.abc import Callable

from libs.store import Lease, LeaseLostError, SchedulerStore

logger = logging.getLogger(__name__)


class Leadership:
    def __init__(
        self, *, name: str, holder: str, store: SchedulerStore, clock: Callable[[], float], leader_seconds: float
    ) -> None:
        self.name = name
        self.holder = holder
        self.leader_seconds = leader_seconds
        self._store = store
        self._clock = clock
        self._lease: Lease | None = None
        self._sure_until = 0.0
        self._seen: Lease | None = None
        self._seen_at = clock()

    @property
    def lease(self) -> Lease | None:
        """Ours, as far as we can be sure: renewed so lately that nobody can have taken it."""
        return self._lease if self._clock() < self._sure_until else None

    @property
    def abandoned(self) -> bool:
        """Nobody leads, as far as we saw."""
        free = self._seen is None or self._seen.holder == ""
        return free or self._clock() - self._seen_at > self.leader_seconds

    def lost(self) -> None:
        self._lease, self._sure_until = None, 0.0

    async def beat(self) -> None:
        """Renew it if it is ours, take it if it is abandoned, else watch it."""
        asked_at = self._clock()
        if self._lease is not None:
            renewed = await self._store.renew_lease(self._lease)
            if renewed is None:
                logger.warning("lost the lease", extra={"pool": self.name, "epoch": self._lease.epoch})
                self.lost()
            else:
                self._hold(renewed, asked_at)
            return
        seen = await self._store.lease(self.name)
        if seen != self._seen:
            self._seen, self._seen_at = seen, asked_at
        if self.abandoned:
            taken = await self._store.take_lease(self.name, holder=self.holder, seen=seen)
            if taken is not None:
                logger.info("leads", extra={"pool": self.name, "epoch": taken.epoch})
                self._hold(taken, asked_at)

    async def resign(self) -> None:
        if self._lease is not None:
            await self._store.release_lease(self._lease)
            self.lost()

    def require(self) -> Lease:
        if (lease := self.lease) is None:
            raise LeaseLostError(f"{self.holder} does not lead {self.name}")
        return lease

    def _hold(self, lease: Lease, asked_at: float) -> None:
        # Counted from before we asked, and shorter than what others wait for: we stop first.
        self._lease, self._sure_until = lease, asked_at + 0.8 * self.leader_seconds
