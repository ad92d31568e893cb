"""Events and their outbox, on a real Postgres."""

from collections.abc import Sequence

from libs.messages.events import Event
from libs.store import UNSENT_BYTES_MAX, Unsent
from libs.store.asking import Asking
from libs.store.postgres.decoding import decoded
from libs.store.rows import event_of, unsent_of


class PostgresEvents:
    asking: Asking

    async def story(self, job_id: str, *, after: int = 0) -> list[Event]:
        return await decoded(await self.asking.rows("story", job_id, after), event_of)

    async def last_told(self, topic: str, subject_ids: Sequence[str], *, events: Sequence[str]) -> list[Event]:
        rows = await self.asking.rows("last_told", topic, list(subject_ids), list(events)) if subject_ids else []
        return [event_of(row) for row in rows]

    async def events(
        self, *, after: str = "", tenant: str | None = None, newest: bool = False, limit: int = 1000
    ) -> list[Event]:
        xid, _, event_id = (after or "0-0").partition("-")
        way, place = "newest" if newest else "after", (int(xid), int(event_id), limit)
        if tenant is None:
            rows = await self.asking.rows(f"events_{way}", *place)
        else:
            rows = await self.asking.rows(f"events_of_tenant_{way}", *place, tenant)
        return [event_of(row) for row in rows]

    async def unsent(self, *, limit: int) -> list[Unsent]:
        return [unsent_of(row) for row in await self.asking.rows("unsent", limit, UNSENT_BYTES_MAX)]

    async def unsent_count(self) -> int:
        return await self.asking.count("unsent_count")

    async def sent(self, published: Sequence[Unsent]) -> None:
        await self.asking.row("sent", [unsent.event.id for unsent in published], [unsent.entry for unsent in published])

    async def resend(self, *, since: float) -> int:
        return await self.asking.count("resend", since)

    async def fill_stream(self, stream_id: str, *, since: float) -> int:
        return await self.asking.count("fill_stream", stream_id, since)
