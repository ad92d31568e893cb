"""What the reallocator keeps of running jobs, and asks of the scheduler, on a real Postgres."""

from collections.abc import Mapping, Sequence

import msgspec

from weft.domain.job import Cause
from weft.domain.sizes import RestartCost
from weft.domain.sweeps import RungReached
from weft.messages.asks import Reshare, Scale, Tune
from weft.store.asking import Asking
from weft.store.rows import as_json, envelope_of
from weft.store.tuning import Envelope


class PostgresTuning:
    """Implements `TuningStore`."""

    asking: Asking

    async def envelopes(self, *, pool: str) -> list[Envelope]:
        return [envelope_of(row) for row in await self.asking.rows("envelopes", pool)]

    async def save_envelope(self, envelope: Envelope, *, at: float) -> None:
        await self.asking.row(
            "save_envelope", envelope.job_id, envelope.pool, envelope.epoch, envelope.state.decode(), at
        )

    async def drop_envelopes(self, *, pool: str) -> int:
        return await self.asking.count("drop_envelopes", pool)

    async def save_restart_costs(self, costs: Sequence[RestartCost], *, pool: str) -> None:
        await self.asking.row(
            "save_restart_costs",
            pool,
            [cost.workload for cost in costs],
            [cost.seconds for cost in costs],
            [cost.measured for cost in costs],
            [cost.at for cost in costs],
        )

    async def restart_costs(self, *, pool: str, limit: int) -> list[RestartCost]:
        return [RestartCost(**row) for row in await self.asking.rows("restart_costs", pool, limit)]

    async def forget_restart_costs(self, *, pool: str, before: float, keep: int) -> int:
        return await self.asking.count("forget_restart_costs", pool, before, keep)

    async def ask_tune(self, envelope: Envelope, tune: Tune, *, at: float) -> bool:
        what = msgspec.json.encode(tune).decode()
        row = await self.asking.row(
            "ask_tune", envelope.job_id, envelope.pool, envelope.epoch, what, envelope.state.decode(), at
        )
        return row is not None and bool(row["asked"])

    async def ask_scale(self, envelope: Envelope, scale: Scale, *, at: float) -> bool:
        what = msgspec.json.encode(scale).decode()
        row = await self.asking.row(
            "ask_scale", envelope.job_id, envelope.pool, envelope.epoch, what, envelope.state.decode(), at
        )
        return row is not None and bool(row["asked"])

    async def ask_sizes(self, sizes: Mapping[str, Scale], *, pool: str, at: float) -> list[str]:
        asked = [{"job": job_id, "scale": scale} for job_id, scale in sizes.items()]
        return [row["job_id"] for row in await self.asking.rows("ask_sizes", pool, as_json(asked), at)]

    async def ask_shares(self, shares: Mapping[str, Reshare], *, pool: str, at: float) -> list[str]:
        asked = [{"job": job_id, "share": share} for job_id, share in shares.items()]
        return [row["job_id"] for row in await self.asking.rows("ask_shares", pool, as_json(asked), at)]

    async def rungs(self, arrays: Sequence[str]) -> list[RungReached]:
        return [RungReached(**dict(row)) for row in await self.asking.rows("rungs", list(arrays))]

    async def reach_rung(self, reached: RungReached, *, pool: str, why: Cause | None, at: float) -> bool:
        given = (reached.job_id, reached.array, reached.rung, reached.value, pool, why and as_json(why), at)
        row = await self.asking.row("reach_rung", *given)
        return row is not None and row["reached"]
