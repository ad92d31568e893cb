"""Delivers events outside the cluster: posts them to webhooks, collects some into mails, and sends traces to a
collector.

One gateway at a time has this duty, which Postgres assigns; if that gateway ends, another one continues from the stored
cursors. Each webhook that is behind has its own task, so that a slow receiver delays no other.
"""

import asyncio
import logging
from collections.abc import Callable

from weft.messages.events import Event, place_of
from weft.store import GatewayStore, StoreUnavailableError, is_full
from weft.store.webhooks import WebhookKept
from weftd.gateway.duty import Duty
from weftd.gateway.notifications.mailing import Mailer, MailError
from weftd.gateway.notifications.posting import Poster, PostError
from weftd.gateway.notifications.tracing import Tracing
from weftd.gateway.thinking.notifications.mails import SCHEME, Gathered, is_mail, mistaken_address
from weftd.gateway.thinking.notifications.posts import (
    ERROR_CHARACTERS_MAX,
    body_of,
    ends_it,
    signed,
    wait_seconds,
)

logger = logging.getLogger(__name__)

DUTY = "telling"
BEAT_SECONDS = 1.0
WEBHOOKS_MAX = 2000  # in all
PAGE = 20  # events of one read: some are large
READS_AT_ONCE = 3
MAIL_PAGES_MAX = 1000  # of one mail
PAGES_MAX = 50  # of one webhook, before its task ends and may begin again
TYPE = "application/cloudevents+json"


class Dispatcher:
    """`now` is the time of day, `clock` does not jump; `holder` identifies this gateway."""

    def __init__(
        self,
        store: GatewayStore,
        *,
        poster: Poster | None,
        mailer: Mailer | None = None,
        tracing: Tracing | None,
        holder: str,
        now: Callable[[], float],
        clock: Callable[[], float],
        off_seconds: float,
    ) -> None:
        self._store = store
        self._poster = poster
        self._mailer = mailer
        self._tracing = tracing
        self._holder = holder
        self._now = now
        self._off_seconds = off_seconds
        self._duty = Duty(store, DUTY, holder=holder, clock=clock)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._passed: dict[str, str] = {}  # the cursor up to which a webhook needs no more events
        self._reading = asyncio.Semaphore(READS_AT_ONCE)

    @property
    def busy(self) -> bool:
        """True if a notification is being sent."""
        return any(not task.done() for task in self._tasks.values())

    async def beat(self) -> None:
        """Start the due deliveries. After StoreUnavailableError the store may come back as an older copy."""
        try:
            await self._beat()
        except StoreUnavailableError:
            self._passed.clear()
            raise

    async def _beat(self) -> None:
        await self._renew()
        for webhook_id in [one for one, task in self._tasks.items() if task.done()]:
            self._tasks.pop(webhook_id).result()
        if not self._duty.held:
            return
        newest = await self._store.events(newest=True, limit=1)
        if not newest:
            return
        known = await self._known()
        last, there = place_of(newest[-1].cursor), {one.id for one in known}
        self._passed = {name: at for name, at in self._passed.items() if name in there and place_of(at) <= last}
        for webhook in known:
            behind = place_of(self._from(webhook)) < last
            if behind and self._is_due(webhook) and not webhook.off and webhook.id not in self._tasks:
                self._tasks[webhook.id] = asyncio.create_task(self._serve(webhook, newest[-1].cursor))
        if self._tracing is not None and "" not in self._tasks:
            self._tasks[""] = asyncio.create_task(self._tracing.go_on(newest[-1].cursor))

    async def close(self) -> None:
        """Stop, and release the duty to another gateway."""
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())
        await self._duty.leave()

    async def _renew(self) -> None:
        had = self._duty.held
        if not await self._duty.renew() and had:
            self._passed.clear()
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            self._tasks.clear()

    async def _known(self) -> list[WebhookKept]:
        """The webhooks that this gateway can serve."""
        if self._poster is None and self._mailer is None:
            return []
        kept = await self._store.webhooks(limit=WEBHOOKS_MAX)
        return [one for one in kept if (self._mailer if is_mail(one.url) else self._poster) is not None]

    def _is_due(self, webhook: WebhookKept) -> bool:
        due = webhook.not_before or 0.0
        if self._mailer is not None and is_mail(webhook.url):
            due = max(due, (webhook.delivered_at or 0.0) + self._mailer.settings.mail_seconds)
        return due <= self._now()

    def _from(self, webhook: WebhookKept) -> str:
        passed = self._passed.get(webhook.id, "")
        return passed if place_of(passed) > place_of(webhook.cursor) else webhook.cursor

    async def _serve(self, webhook: WebhookKept, newest: str) -> None:
        """Post the pending events of the webhook in order, until a try fails."""
        try:
            if is_mail(webhook.url):
                await self._mail(webhook, newest)
                return
            for _ in range(PAGES_MAX):
                if not await self._page(webhook, newest):
                    return
        except StoreUnavailableError as error:
            logger.info("webhook %s waits for the store: %s", webhook.id, error)

    async def _page(self, webhook: WebhookKept, newest: str) -> bool:
        """Post the next few events. Return False if there are no more now, or the last try failed."""
        tenant = None if webhook.all_tenants else webhook.tenant
        async with self._reading:
            page = await self._store.events(after=self._from(webhook), tenant=tenant, limit=PAGE)
        for event in page:
            wanted = not webhook.events or event.event in webhook.events
            if wanted and not await self._post(webhook, event):
                return False
            self._passed[webhook.id] = event.cursor
        if is_full(page, PAGE):
            if not any(not webhook.events or event.event in webhook.events for event in page):
                await self._moved(webhook, page[-1].cursor, 0)
            return True
        if place_of(newest) > place_of(self._from(webhook)):
            self._passed[webhook.id] = newest  # skip events of other tenants that were read already
        return False

    async def _mail(self, webhook: WebhookKept, newest: str) -> None:
        """Send one mail with all pending events of the webhook."""
        assert self._mailer is not None, "without one no mail is read"
        tenant, gathered = None if webhook.all_tenants else webhook.tenant, Gathered()
        at, reads, ended = self._from(webhook), 0, False
        while reads < MAIL_PAGES_MAX and not ended:
            async with self._reading:
                page = await self._store.events(after=at, tenant=tenant, limit=PAGE)
            reads, ended = reads + 1, not is_full(page, PAGE)
            for event in page:
                if event.event in webhook.events:
                    gathered.take(event)
            at = page[-1].cursor if page else at
        if ended and place_of(newest) > place_of(at):
            at = newest  # skip events of other tenants that were read already
        if not gathered.count:
            self._passed[webhook.id] = at
            if reads > 1:
                await self._moved(webhook, at, 0)
            return
        to, settings = webhook.url.removeprefix(SCHEME), self._mailer.settings
        mail = gathered.message(
            to=to, sender=settings.mail_from, webhook=webhook.id, tenant=webhook.tenant, at=self._now()
        )
        try:
            if why := mistaken_address(webhook.url, settings.mail_domains):
                raise MailError(why)
            await self._mailer.send(to, mail)
        except MailError as error:
            await self._failed(webhook, 0, str(error), final=error.final)
            return
        if await self._moved(webhook, at, gathered.count):
            self._passed[webhook.id] = at

    async def _post(self, webhook: WebhookKept, event: Event) -> bool:
        assert self._poster is not None, "without one no webhook is read"
        body = await asyncio.to_thread(body_of, event)
        headers = {"Content-Type": TYPE, **signed(webhook.secret, event.message_id, int(self._now()), body)}
        status, error = 0, ""
        try:
            status = await self._poster.post(webhook.url, body, headers, of=webhook.tenant)
            error = "" if 200 <= status < 300 else f"it answered {status}"
        except PostError as unanswered:
            error = str(unanswered)
        if not error:
            return await self._moved(webhook, event.cursor, 1)
        await self._failed(webhook, status, error)
        return False

    async def _moved(self, webhook: WebhookKept, cursor: str, count: int) -> bool:
        return await self._store.webhook_delivered(
            webhook.id, cursor=cursor, count=count, at=self._now(), duty=DUTY, holder=self._holder
        )

    async def _failed(self, webhook: WebhookKept, status: int, error: str, *, final: bool = False) -> None:
        """Store a failed delivery. The stored webhook may be newer than the one this task began with."""
        kept = await self._store.webhooks(tenant=webhook.tenant)
        known = next((one for one in kept if one.id == webhook.id), webhook)
        now = self._now()
        failing = 0.0 if known.failing_since is None else now - known.failing_since
        off = error if final else ends_it(status, failing, self._off_seconds)
        if off:
            logger.info("webhook %s of %s is switched off: %s", webhook.id, webhook.tenant, off)
        await self._store.webhook_failed(
            webhook.id,
            error=error[:ERROR_CHARACTERS_MAX],
            at=now,
            not_before=now + wait_seconds(known.failures + 1),
            off=off[:ERROR_CHARACTERS_MAX],
            duty=DUTY,
            holder=self._holder,
        )
