"""What nodes are told while nobody leads. They all ask at once then: the store is read once for all of them."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from libs.messages.nodes import NodeDesired, NodeReported, StartRun
from libs.store import SchedulerStore, StoreUnavailableError
from services.scheduler.orders import run_orders

FRESH_SECONDS = 0.5

Orders = Mapping[str, Sequence[StartRun]]  # by node


class StandIn:
    def __init__(self, *, pool: str, store: SchedulerStore, clock: Callable[[], float]) -> None:
        self._pool = pool
        self._store = store
        self._clock = clock
        self._reading: asyncio.Task[Orders] | None = None
        self._read_at = 0.0

    async def answer(self, report: NodeReported) -> NodeDesired | None:
        """What the store says, so that no node is cut off while leadership moves; None while it says nothing.

        It may go on with what it has, and start nothing: what else runs is not known here.
        """
        try:
            orders = await self._orders()
        except StoreUnavailableError:
            return None
        has = {(run.job_id, run.epoch, run.rank) for run in report.runs}
        runs = tuple(run for run in orders.get(report.node_id, ()) if (run.job_id, run.epoch, run.rank) in has)
        return NodeDesired(seq=report.seq, runs=runs)

    async def _orders(self) -> Orders:
        reading = self._reading
        if reading is None or (reading.done() and self._clock() > self._read_at + FRESH_SECONDS):
            reading = self._reading = asyncio.create_task(self._read())
            reading.add_done_callback(lambda task: task.cancelled() or task.exception())  # there may be nobody left
            self._read_at = self._clock()
        return await asyncio.shield(reading)  # One who leaves does not take it from the others.

    async def _read(self) -> Orders:
        nodes = {node.id: node for node in await self._store.nodes(pool=self._pool)}
        orders: dict[str, list[StartRun]] = {}
        for job in await self._store.holding_jobs(pool=self._pool):
            if job.placement is not None and job.stopping_for is None:
                for node_id, runs in run_orders(job, nodes).items():
                    orders.setdefault(node_id, []).extend(runs)
        return orders
