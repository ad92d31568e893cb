"""Leases and loads of pools, on a real Postgres."""

from weft.domain.lease import Lease, Pledge
from weft.store import LeaseLostError
from weft.store.asking import Asking
from weft.store.rows import lease_of


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

    async def lead_by(self, lease: Lease, policy: str, *, preemption_after: float = 0.0) -> int:
        row = await self.asking.row("lead_by", lease.name, lease.holder, lease.epoch, policy, preemption_after)
        if row is None:
            raise LeaseLostError(f"lease {lease.name} is no longer held by {lease.holder} in epoch {lease.epoch}")
        return int(row["loads"])

    async def policy(self, *, pool: str) -> str:
        row = await self.asking.row("policy", pool)
        return "" if row is None else str(row["policy"])

    async def preemption_after(self, *, pool: str) -> float:
        row = await self.asking.row("policy", pool)
        return 0.0 if row is None else float(row["preemption_after"])

    async def leaderships(self, name: str) -> list[Lease]:
        return [Lease(**row) for row in await self.asking.rows("leaderships", name)]
