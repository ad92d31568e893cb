"""Events on a real Postgres, and the accounts that are computed from them."""

from collections.abc import Sequence

from weft.messages.accounts import JobFacts
from weft.messages.events import Event, place_of
from weft.store import EVENTS_BYTES_MAX, UNSENT_BYTES_MAX, Unsent
from weft.store.accounts import Moment
from weft.store.asking import Asking
from weft.store.postgres.decoding import decoded
from weft.store.rows import as_micros, event_of, facts_of, unsent_of

END = f"{2**63 - 1}-{2**63 - 1}"  # behind all events
CLOCKS_APART_SECONDS_MAX = 3600.0  # events that were recorded one after the other may have times the other way round
ROUNDED_SECONDS = 0.001  # a job ends at the time of its last event, but for microseconds


class PostgresEvents:
    asking: Asking

    async def story(
        self,
        job_id: str,
        *,
        after: str = "",
        before: str = "",
        newest: bool = False,
        events: Sequence[str] = (),
        limit: int = 1000,
        bytes_max: int = EVENTS_BYTES_MAX,
    ) -> list[Event]:
        query, place = ("story_newest", place_of(before or END)) if newest else ("story_after", place_of(after))
        rows = await self.asking.rows(query, job_id, *place, limit, bytes_max, list(events))
        return await decoded(rows, event_of)

    async def last_told(self, topic: str, subject_ids: Sequence[str], *, events: Sequence[str]) -> list[Event]:
        rows = await self.asking.rows("last_told", topic, list(subject_ids), list(events)) if subject_ids else []
        return [event_of(row) for row in rows]

    async def events(
        self,
        *,
        after: str = "",
        before: str = "",
        tenant: str | None = None,
        newest: bool = False,
        limit: int = 1000,
        bytes_max: int = EVENTS_BYTES_MAX,
    ) -> list[Event]:
        place = (*place_of(after), limit, bytes_max, *(place_of(before or END) if newest else ()))
        way = "newest" if newest else "after"
        if tenant is None:
            rows = await self.asking.rows(f"events_{way}", *place)
        else:
            rows = await self.asking.rows(f"events_of_tenant_{way}", *place, tenant)
        return await decoded(rows, event_of)

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


class PostgresAccounts:
    """Implements `AccountStore` on Postgres."""

    asking: Asking

    async def jobs_between(self, begins: float, *, limit: int) -> list[str]:
        row = await self.asking.row("jobs_between", begins, limit)
        return [] if row is None else list(row["ids"])

    async def job_facts(self, job_ids: Sequence[str]) -> list[JobFacts]:
        return await decoded(await self.asking.rows("job_facts", list(job_ids)), facts_of)

    async def accounts(self, job_ids: Sequence[str], *, begins: float, ends: float) -> list[Event]:
        rows = await self.asking.rows("accounts", as_micros(begins), as_micros(ends), list(job_ids))
        return await decoded(rows, event_of)

    async def node_stories(self, *, begins: float, ends: float) -> list[Event]:
        return await decoded(await self.asking.rows("node_stories", as_micros(begins), as_micros(ends)), event_of)

    async def told_until(self, moment: Moment) -> list[Event]:
        about, apart = moment.at, ROUNDED_SECONDS
        if moment.cursor:
            row = await self.asking.row("time_of", *moment.place)
            about, apart = (min(about, row["at"]) if row is not None else 0.0), CLOCKS_APART_SECONDS_MAX
        return await decoded(await self.asking.rows("told_until", moment.at, *moment.place, about, apart), event_of)
