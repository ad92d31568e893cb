"""I/O of the partition planner: reads the queue and the curves, plans in a thread, and stores the commands."""

import asyncio
import logging
from collections.abc import Callable, Container, Iterable, Sequence
from math import inf

from prometheus_client import CollectorRegistry, Counter, Histogram

from weft.bus import Bus
from weft.domain.classes import workload_of
from weft.domain.cluster import Node
from weft.domain.job import Job
from weft.domain.sizes import is_elastic
from weft.domain.spec import TuningMode
from weft.messages.asks import AskStored
from weft.messages.nodes import ProgressSeen
from weft.messages.signals import Finding
from weft.planning.partition.seen import models_of
from weft.store import ReviewStore
from weft.variability.penalties import believed
from weftd.reallocator.thinking.partitioning import JOBS_MAX, RESTARTS_KEPT, SizePlanner

logger = logging.getLogger(__name__)

RECALL_SECONDS = 60.0  # between two reads of costs that other reallocators measured
COSTS_KEPT_SECONDS = 90 * 86_400.0


class Sizes:
    def __init__(
        self,
        partitioning: SizePlanner,
        *,
        pool: str,
        mode: TuningMode,
        bus: Bus,
        store: ReviewStore,
        registry: CollectorRegistry,
        decided_about: Callable[[Iterable[Job]], list[Job]],
    ) -> None:
        """`decided_about`: filters jobs to those that may be planned."""
        self._partitioning, self._pool, self._mode = partitioning, pool, mode
        self._bus, self._store = bus, store
        self._decided_about = decided_about
        self._queued: dict[str, Job] = {}
        self._recalled_at = -inf
        self.findings: tuple[Finding, ...] = ()  # of the last plan
        self._asked = Counter("weft_reallocator_sizes_asked", "Sizes requested by the planner.", registry=registry)
        self._seconds = Histogram("weft_reallocator_plan_seconds", "How long a plan took.", registry=registry)

    def hear(self, seen: ProgressSeen, *, now: float) -> None:
        """Note the first steps of jobs that restart with another size."""
        self._partitioning.hear(seen, now=now)

    async def clean(self, now: float) -> None:
        """Delete old restart costs, and those of too many workloads."""
        await self._store.forget_restart_costs(pool=self._pool, before=now - COSTS_KEPT_SECONDS, keep=RESTARTS_KEPT)

    async def review(
        self, holding: Sequence[Job], nodes: Sequence[Node], now: float, *, under_trial: Container[str] = ()
    ) -> None:
        """Plan the sizes of all jobs if that is due, and request the changes. Jobs `under_trial` keep
        theirs."""
        self._partitioning.watch(holding)
        await self._remember(now)
        if not self._partitioning.due(now):
            return
        first = await self._store.queued_jobs(pool=self._pool, known=self._queued, limit=JOBS_MAX)
        self._queued = {job.id: job for job in first}
        queued = self._decided_about(self._queued.values())
        several_models = len({*models_of(nodes).values()}) > 1
        planned_for = [job for job in (*holding, *queued) if several_models or is_elastic(job.spec)]
        if not planned_for:
            return
        subjects = {f"job:{job.id}" for job in planned_for}
        subjects |= {f"workload:{workload_of(job.spec)}" for job in planned_for}
        curves = {each.subject: each for each in await self._store.curves(pool=self._pool, subjects=sorted(subjects))}
        penalties = {
            each.workload: believed(each.penalty, each.confidence)
            for each in await self._store.penalties(pool=self._pool)
        }
        scores, quotas = await self._store.scores(pool=self._pool), await self._store.quotas(pool=self._pool)
        try:
            with self._seconds.time():
                planned = await asyncio.to_thread(
                    self._partitioning.plan,
                    holding=holding,
                    queued=queued,
                    nodes=nodes,
                    curves=curves,
                    now=now,
                    under_trial=under_trial,
                    scores=scores,
                    quotas=quotas,
                    penalties=penalties,
                )
        except ValueError as error:  # one job that the planner refuses must not end the review of all others
            logger.warning("no plan of sizes: %s", error)
            return
        self.findings = planned.findings
        if self._mode is TuningMode.ON and planned.sizes:
            asked = await self._store.ask_sizes(planned.sizes, pool=self._pool, at=now)
            self._asked.inc(len(asked))
            if asked:
                await self._bus.publish(AskStored(pool=self._pool))

    async def _remember(self, now: float) -> None:
        """Store the measured costs of restarts, and read those of others."""
        if costs := self._partitioning.unsaved:
            await self._store.save_restart_costs(costs, pool=self._pool)
            self._partitioning.saved(costs)
        if now - self._recalled_at >= RECALL_SECONDS:
            self._partitioning.recall(await self._store.restart_costs(pool=self._pool, limit=RESTARTS_KEPT))
            self._recalled_at = now
