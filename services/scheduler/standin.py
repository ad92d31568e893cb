"""The answers to nodes while no scheduler leads. All nodes report at once then: one read of the store serves all."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from libs.messages.nodes import JobOrder, NodeDesired, NodeReported, StartRun
from libs.store import SchedulerStore, StoreUnavailableError
from services.scheduler.thinking.answers import Answers
from services.scheduler.thinking.orders import job_order, run_orders

FRESH_SECONDS = 0.5


class StoredOrders(Struct, frozen=True):
    """The orders of all nodes, from the store."""

    by_node: Mapping[str, Sequence[StartRun]]
    of_jobs: Mapping[str, JobOrder]


class StandIn:
    def __init__(self, *, pool: str, store: SchedulerStore, clock: Callable[[], float]) -> None:
        self._pool = pool
        self._store = store
        self._clock = clock
        self._answers = Answers()
        self._reading: asyncio.Task[StoredOrders] | None = None
        self._read_at = 0.0

    async def answer(self, report: NodeReported) -> NodeDesired | None:
        """The answer from the store, so that no node is cut off while leadership moves; None without the store.

        The node keeps the runs that it has, and starts none: other runs are not known here.
        """
        try:
            orders = await self._orders()
        except StoreUnavailableError:
            return None
        has = {(run.job_id, run.epoch, run.rank) for run in report.runs}
        wanted = orders.by_node.get(report.node_id, ())
        runs = tuple(run for run in wanted if (run.job_id, run.epoch, run.rank) in has)
        return self._answers.answer(report, runs, orders.of_jobs)

    async def _orders(self) -> StoredOrders:
        reading = self._reading
        if reading is None or (reading.done() and self._clock() > self._read_at + FRESH_SECONDS):
            reading = self._reading = asyncio.create_task(self._read())
            reading.add_done_callback(lambda task: task.cancelled() or task.exception())  # all callers may be gone
            self._read_at = self._clock()
        return await asyncio.shield(reading)  # A cancelled caller does not cancel the read of the others.

    async def _read(self) -> StoredOrders:
        nodes = {node.id: node for node in await self._store.nodes(pool=self._pool)}
        by_node: dict[str, list[StartRun]] = {}
        of_jobs: dict[str, JobOrder] = {}
        for job in await self._store.holding_jobs(pool=self._pool):
            if job.placement is not None and job.stopping_for is None:
                of_jobs[job.id] = job_order(job, nodes)
                for node_id, runs in run_orders(job, nodes).items():
                    by_node.setdefault(node_id, []).extend(runs)
        self._answers.forget()  # the answers of an earlier read: equal orders are other objects now
        return StoredOrders(by_node, of_jobs)
