"""The retention of ended jobs: the leader deletes older ones, a few at a time."""

import asyncio
import logging
from collections.abc import Callable

from weft.store import LeaseLostError, SchedulerStore
from weftd.scheduler.leadership import Leadership

logger = logging.getLogger(__name__)

FORGET_SECONDS = 60.0
AT_ONCE = 100  # jobs in one transaction: it takes some milliseconds
PAUSE_SECONDS = 0.05  # between two transactions, so that deleting uses only a part of the database's time
BATCHES_MAX = 500  # in one cycle; the rest is deleted in the next


class Retention:
    def __init__(
        self, *, store: SchedulerStore, leadership: Leadership, clock: Callable[[], float], kept_seconds: float | None
    ) -> None:
        """`kept_seconds` is counted from the end of a job; None: jobs are kept for ever."""
        self._store = store
        self._leadership = leadership
        self._clock = clock
        self._kept_seconds = kept_seconds

    async def cycle(self) -> None:
        """Delete jobs beyond the retention. Raises StoreUnavailableError; the next cycle goes on from there."""
        if self._kept_seconds is None:
            return
        count = 0
        for _ in range(BATCHES_MAX):
            deleted = await self._delete(self._kept_seconds)
            count += deleted
            if deleted < AT_ONCE:
                break
            await asyncio.sleep(PAUSE_SECONDS)
        if count:
            logger.info("jobs and events of nodes deleted", extra={"count": count})

    async def _delete(self, kept_seconds: float) -> int:
        lease = self._leadership.lease
        if lease is None:
            return 0
        before = self._clock() - kept_seconds
        try:
            return await self._store.forget_jobs(lease, before=before, kept_seconds=kept_seconds, limit=AT_ONCE)
        except LeaseLostError:
            return 0  # the scheduler loop finds out by itself
