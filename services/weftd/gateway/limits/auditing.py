"""Entries of the audit log: their actor, and the rate at which a caller may cause them, so that a caller who is refused
again and again fills no disk.

Sign-ins are written in the statement that makes them.
"""

from collections.abc import Callable

from aiohttp import web

from weft.store import GatewayStore
from weft.store.audit import Actor, Outcome
from weft.store.tenants import Access
from weftd.gateway.errors import RejectedError, too_fast
from weftd.gateway.thinking.rates import Rate, RateLimit

CHANGES = Rate(20.0, 500.0)  # audited changes of one tenant
REFUSALS = Rate(0.2, 20.0)  # refusals of one tenant or source that are written
REQUEST_CHARACTERS = 12
DETAIL_CHARACTERS = 2000
ACT_CHARACTERS = 500


class Auditing:
    """`characters` is a source of randomness."""

    def __init__(
        self,
        store: GatewayStore,
        *,
        now: Callable[[], float],
        clock: Callable[[], float],
        characters: Callable[[int], str],
    ) -> None:
        self._store, self._now, self._clock, self._characters = store, now, clock, characters
        self._changes, self._refusals = RateLimit(CHANGES), RateLimit(REFUSALS)

    def actor(self, request: web.Request, who: Access) -> Actor:
        return Actor(
            tenant=who.tenant,
            who=who.label,
            session=who.session,
            person=who.person,
            source=request.remote or "",
            request=self._characters(REQUEST_CHARACTERS),
        )

    def count(self, who: Access) -> None:
        """Raises RejectedError 429 for a tenant with too many audited changes."""
        if not who.admin and (wait := self._changes.take(who.tenant, self._clock())):
            raise too_fast("", f"tenant {who.tenant} may make {CHANGES.per_second:g} such changes a second", wait)

    async def asked(self, actor: Actor, act: str, detail: str) -> None:
        """Write an act before it is executed. After StoreUnavailableError it must not be executed."""
        await self._store.write_audit(actor, clean(act), Outcome.ASKED, detail=clean(detail), at=self._now())

    async def done(self, actor: Actor, act: str, detail: str) -> None:
        """Write an act that was executed. After StoreUnavailableError it must be undone."""
        await self._store.write_audit(actor, clean(act), Outcome.DONE, detail=clean(detail), at=self._now())

    async def refused(self, request: web.Request, who: Access, error: RejectedError, *, act: str = "") -> None:
        """Write a refusal, unless this caller had too many."""
        caller = who.tenant or request.remote or ""
        if not self._refusals.take(caller, self._clock()):
            await self.refusal(self.actor(request, who), act or f"{request.method} {request.path}", error)

    async def refusal(self, actor: Actor, act: str, error: RejectedError) -> None:
        detail = clean(f"{error.status} {error.field}: {error.reason}")
        await self._store.write_audit(actor, clean(act), Outcome.REFUSED, detail=detail, at=self._now())


def clean(text: str) -> str:
    """The text without characters that Postgres or one line of a terminal cannot hold."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text[:DETAIL_CHARACTERS])
