"""What the reallocator keeps of running jobs, and asks of the scheduler, in memory."""

from collections.abc import Mapping, Sequence

from msgspec import structs

from tests.support.doubles.store.jobs import MemoryJobs
from tests.support.doubles.store.times import micro
from weft.domain.job import Cause, JobState
from weft.domain.sizes import RestartCost
from weft.domain.sweeps import RungReached
from weft.messages.asks import AskKind, Reshare, Scale, Tune
from weft.store.tuning import Envelope


class MemoryTuning(MemoryJobs):
    """What `TuningStore` promises."""

    def __init__(self) -> None:
        super().__init__()
        self._envelopes: dict[str, Envelope] = {}
        self._rungs: dict[tuple[str, str, int], RungReached] = {}
        self._restart_costs: dict[tuple[str, str], RestartCost] = {}  # by pool and workload

    async def envelopes(self, *, pool: str) -> list[Envelope]:
        return [
            envelope
            for job_id, envelope in sorted(self._envelopes.items())
            if envelope.pool == pool and job_id in self._jobs and not self._jobs[job_id].state.final
        ]

    async def save_envelope(self, envelope: Envelope, *, at: float) -> None:
        del at
        self._envelopes[envelope.job_id] = envelope

    async def drop_envelopes(self, *, pool: str) -> int:
        gone = [
            job_id
            for job_id, envelope in self._envelopes.items()
            if envelope.pool == pool and job_id in self._jobs and self._jobs[job_id].state.final
        ]
        for job_id in gone:
            del self._envelopes[job_id]
        return len(gone)

    async def save_restart_costs(self, costs: Sequence[RestartCost], *, pool: str) -> None:
        for cost in costs:
            known, at = self._restart_costs.get((pool, cost.workload)), micro(cost.at)
            if known is None or known.at < at:
                measured = cost.measured + (0 if known is None else known.measured)
                self._restart_costs[pool, cost.workload] = structs.replace(cost, measured=measured, at=at)

    async def restart_costs(self, *, pool: str, limit: int) -> list[RestartCost]:
        of_pool = (cost for (name, _), cost in self._restart_costs.items() if name == pool)
        return sorted(of_pool, key=lambda cost: (-cost.at, cost.workload))[:limit]

    async def forget_restart_costs(self, *, pool: str, before: float, keep: int) -> int:
        costs = await self.restart_costs(pool=pool, limit=len(self._restart_costs))
        gone = [cost for place, cost in enumerate(costs) if place >= keep or cost.at < micro(before)]
        for cost in gone:
            del self._restart_costs[pool, cost.workload]
        return len(gone)

    async def ask_tune(self, envelope: Envelope, tune: Tune, *, at: float) -> bool:
        if not self._may_ask(AskKind.TUNE, envelope):
            return False
        self._add_ask(
            AskKind.TUNE, subject_id=envelope.job_id, pool=envelope.pool, tenant="weft", at=micro(at), tune=tune
        )
        self._envelopes[envelope.job_id] = envelope
        return True

    async def ask_scale(self, envelope: Envelope, scale: Scale, *, at: float) -> bool:
        if not self._may_ask(AskKind.SCALE, envelope):
            return False
        self._add_ask(
            AskKind.SCALE, subject_id=envelope.job_id, pool=envelope.pool, tenant="weft", at=micro(at), scale=scale
        )
        self._envelopes[envelope.job_id] = envelope
        return True

    async def ask_sizes(self, sizes: Mapping[str, Scale], *, pool: str, at: float) -> list[str]:
        asked = {ask.subject_id for _, ask in self._asks.values() if ask.kind is AskKind.SCALE and ask.tenant == "weft"}
        free = [job for job in map(self._jobs.get, sorted(sizes)) if job is not None and job.id not in asked]
        found = [job.id for job in free if job.pool == pool and not job.state.final]
        for job_id in found:
            scale = sizes[job_id]
            self._add_ask(AskKind.SCALE, subject_id=job_id, pool=pool, tenant="weft", at=micro(at), scale=scale)
        return found

    async def ask_shares(self, shares: Mapping[str, Reshare], *, pool: str, at: float) -> list[str]:
        asked = {ask.subject_id for _, ask in self._asks.values() if ask.kind is AskKind.SHARE and ask.tenant == "weft"}
        free = [job for job in map(self._jobs.get, sorted(shares)) if job is not None and job.id not in asked]
        found = [job.id for job in free if job.pool == pool and job.state is JobState.RUNNING]
        for job_id in found:
            share = shares[job_id]
            self._add_ask(AskKind.SHARE, subject_id=job_id, pool=pool, tenant="weft", at=micro(at), share=share)
        return found

    async def rungs(self, arrays: Sequence[str]) -> list[RungReached]:
        found = (one for one in self._rungs.values() if one.array in arrays)
        return sorted(found, key=lambda one: (one.array, one.rung, one.job_id))

    async def reach_rung(self, reached: RungReached, *, pool: str, why: Cause | None, at: float) -> bool:
        job, key = self._jobs.get(reached.job_id), (reached.array, reached.job_id, reached.rung)
        element = None if job is None or job.pool != pool else job.spec.element
        if job is None or element is None or element.array != reached.array or key in self._rungs:
            return False
        self._rungs[key] = reached
        if why is not None and not job.state.final:
            self._add_ask(AskKind.CANCEL, subject_id=job.id, pool=pool, tenant="weft", at=micro(at), why=why)
        return True

    def _may_ask(self, kind: AskKind, envelope: Envelope) -> bool:
        """Whether the job runs in that epoch, and the reallocator's last ask of the kind is done."""
        job = self._jobs.get(envelope.job_id)
        open_asks = (ask for _, ask in self._asks.values() if (ask.kind, ask.tenant) == (kind, "weft"))
        if job is None or any(ask.subject_id == job.id for ask in open_asks):
            return False
        return job.state is JobState.RUNNING and (job.pool, job.epoch) == (envelope.pool, envelope.epoch)
