"""The records of leaders' decisions, on a real Postgres."""

from weft.domain.lease import Lease
from weft.messages.history import Record
from weft.store.asking import Asking
from weft.store.rows import columns_of

TRIM_RECORDS, TRIM_BYTES = 2000, 32 << 20  # of a history, dropped in one statement
TRIM_PARTS = 100  # statements in one call: the next call drops the rest


class PostgresHistory:
    asking: Asking

    async def history(
        self, *, pool: str, after: tuple[int, int] = (0, 0), limit: int = 100, bytes_max: int = 1 << 20
    ) -> list[Record]:
        return [Record(**row) for row in await self.asking.rows("history", pool, *after, limit, bytes_max)]

    async def record(self, lease: Lease, record: Record) -> None:
        await self.asking.row("record", lease.name, lease.holder, lease.epoch, *columns_of(record))

    async def trim_history(self, lease: Lease, *, before: float, bytes_max: int) -> int:
        cut = await self.asking.row("history_cut", lease.name, before, bytes_max)
        if cut is None:
            return 0
        held, place, dropped = (lease.name, lease.holder, lease.epoch), (cut["epoch"], cut["number"]), 0
        for _ in range(TRIM_PARTS):
            part = await self.asking.row("trim_history", *held, *place, TRIM_RECORDS, TRIM_BYTES)
            if part is None or not part["count"]:
                break
            dropped += part["count"]
        return dropped
