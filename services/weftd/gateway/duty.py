"""A duty that one gateway of several does, as Postgres has it. If that gateway ends, another takes the duty over."""

import logging
from collections.abc import Callable

from weft.store import StoreUnavailableError
from weft.store.webhooks import WebhookStore

logger = logging.getLogger(__name__)

DUTY_SECONDS = 20.0  # a gateway that was killed is followed by another after so long
RENEW_SECONDS = 5.0


class Duty:
    """`clock` does not jump; `holder` tells this gateway from others."""

    def __init__(self, store: WebhookStore, name: str, *, holder: str, clock: Callable[[], float]) -> None:
        self._store = store
        self._name = name
        self._holder = holder
        self._clock = clock
        self._taken_at = -RENEW_SECONDS
        self.held = False

    async def renew(self) -> bool:
        """Take the duty or go on with it, if the last try was a while ago; returns whether this gateway has it. Raises
        StoreUnavailableError."""
        if self._clock() - self._taken_at >= RENEW_SECONDS:
            had, self._taken_at = self.held, self._clock()
            self.held = await self._store.take_duty(self._name, holder=self._holder, seconds=DUTY_SECONDS)
            if self.held and not had:
                logger.debug("this gateway has the duty %s", self._name)
        return self.held

    async def leave(self) -> None:
        """Let another gateway take the duty at once."""
        if self.held:
            try:
                await self._store.leave_duty(self._name, holder=self._holder)
            except StoreUnavailableError as error:
                logger.warning("the duty %s is left when its time is over: %s", self._name, error)
