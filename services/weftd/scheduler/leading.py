"""Renews and takes the leases of all pools that this process may lead, so that schedulers share them evenly."""

import asyncio
import logging
from collections.abc import Callable, Mapping

from weftd.scheduler.leadership import Leadership
from weftd.scheduler.thinking.pool_balancer import PoolBalancer

logger = logging.getLogger(__name__)


class Leading:
    """`wake` is set when a pool was taken: there may be more to take at once."""

    def __init__(
        self,
        *,
        leaderships: Mapping[str, Leadership],
        balancer: PoolBalancer,
        clock: Callable[[], float],
        taken: Callable[[str], None],
        left: Callable[[str], None],
    ) -> None:
        """`taken` is called with each pool that this process leads from now on, `left` with those that it does not."""
        self.wake = asyncio.Event()
        self._leaderships = leaderships
        self._balancer = balancer
        self._clock = clock
        self._taken = taken
        self._left = left

    @property
    def led(self) -> list[str]:
        return [pool for pool, leadership in self._leaderships.items() if leadership.leader is not None]

    async def cycle(self) -> None:
        """Renew the leases of led pools, then check the other pools. Raises StoreUnavailableError."""
        renewals = [self._leaderships[pool].beat() for pool in self.led]
        answers = await asyncio.gather(*renewals, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        for pool in self._balancer.in_turn:
            if self._leaderships[pool].leader is None:
                self._left(pool)
                await self._watch(pool)
        if given := self._balancer.gives_up(self._clock(), led=self.led):
            logger.info("gives up a pool: another scheduler leads fewer", extra={"pool": given})
            await self._leaderships[given].give_up()

    async def _watch(self, pool: str) -> None:
        leadership = self._leaderships[pool]
        await leadership.beat(may_take=lambda: self._balancer.may_take(pool, self._clock(), led=self.led))
        if leadership.leader is not None:
            self._balancer.taken(pool)
            self._taken(pool)
            self.wake.set()
        elif not leadership.abandoned:
            self._balancer.went_over(pool)
