"""What accounting and views of the past read, on a real Postgres."""

from collections.abc import Sequence

from weft.messages.accounts import JobFacts
from weft.messages.events import Event
from weft.store.accounts import Moment
from weft.store.asking import Asking
from weft.store.postgres.decoding import decoded
from weft.store.rows import as_micros, event_of, facts_of

CLOCKS_APART_SECONDS_MAX = 3600.0  # events that were recorded one after the other may have times the other way round
ROUNDED_SECONDS = 0.001  # a job ends at the time of its last event, but for microseconds


class PostgresAccounts:
    """What `AccountStore` promises."""

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
