"""Statements of the leader of a pool, on a real Postgres: its lease, its record and the deletion of old data."""

from weft.domain.lease import Lease, Pledge
from weft.messages.history import Record
from weft.messages.http.status import DatabaseView
from weft.store import JobsKept, LeaseLostError
from weft.store.asking import Asking
from weft.store.rows import columns_of, lease_of

TRIM_RECORDS, TRIM_BYTES = 2000, 32 << 20  # of a history, dropped in one statement
TRIM_PARTS = 100  # statements in one call: the next call drops the rest
COUNTED_MAX = 10_000  # of what waits


class PostgresLeases:
    asking: Asking

    async def lease(self, name: str) -> Lease | None:
        return lease_of(await self.asking.row("lease", name))

    async def take_lease(self, name: str, *, holder: str, seen: Lease | None) -> Lease | None:
        epoch, seq = (seen.epoch, seen.seq) if seen else (0, 0)
        return lease_of(await self.asking.row("take_lease", name, holder, epoch, seq))

    async def renew_lease(self, lease: Lease, *, pledge: Pledge | None = None) -> Lease | None:
        pledged = (None, None, None) if pledge is None else (pledge.seconds, list(pledge.members), pledge.nats)
        return lease_of(await self.asking.row("renew_lease", lease.name, lease.holder, lease.epoch, *pledged))

    async def release_lease(self, lease: Lease, *, pledge_ends: bool = False) -> None:
        await self.asking.row("release_lease", lease.name, lease.holder, lease.epoch, pledge_ends)

    async def raise_lease(self, lease: Lease, *, above: int) -> Lease | None:
        return lease_of(await self.asking.row("raise_lease", lease.name, lease.holder, lease.epoch, above))

    async def settle_lease(self, lease: Lease) -> Lease | None:
        return lease_of(await self.asking.row("settle_lease", lease.name, lease.holder, lease.epoch))

    async def lead_by(self, lease: Lease, policy: str, *, preemption_after: float = 0.0, spares: int = 0) -> int:
        row = await self.asking.row("lead_by", lease.name, lease.holder, lease.epoch, policy, preemption_after, spares)
        if row is None:
            raise LeaseLostError(f"lease {lease.name} is no longer held by {lease.holder} in epoch {lease.epoch}")
        return int(row["loads"])

    async def policy(self, *, pool: str) -> str:
        row = await self.asking.row("policy", pool)
        return "" if row is None else str(row["policy"])

    async def preemption_after(self, *, pool: str) -> float:
        row = await self.asking.row("policy", pool)
        return 0.0 if row is None else float(row["preemption_after"])

    async def spares(self, *, pool: str) -> int:
        row = await self.asking.row("policy", pool)
        return 0 if row is None else int(row["spares"])

    async def leaderships(self, name: str) -> list[Lease]:
        return [Lease(**row) for row in await self.asking.rows("leaderships", name)]


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


class PostgresRetention:
    asking: Asking

    async def forget_jobs(self, lease: Lease, *, before: float, kept_seconds: float, limit: int) -> int:
        return await self.asking.count(
            "forget_jobs", lease.name, lease.holder, lease.epoch, before, kept_seconds, limit
        )

    async def jobs_kept(self) -> list[JobsKept]:
        return [JobsKept(**row) for row in await self.asking.rows("jobs_kept")]

    async def database_status(self) -> DatabaseView:
        row = await self.asking.row("database_status", COUNTED_MAX)
        assert row is not None
        return DatabaseView(**{**row, "ran": tuple(row["ran"])})
