"""The answers to nodes while no scheduler leads. All nodes report at once then: one read of the store serves all."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from weft.messages.nodes import JobOrder, NodeDesired, NodeReported
from weft.store import SchedulerStore, StoreUnavailableError
from weftd.scheduler.thinking.answers import Answers, known_part
from weftd.scheduler.thinking.state.orders import job_order, node_orders

FRESH_SECONDS = 0.5

OrdersByNode = Mapping[str, Sequence[JobOrder]]


class StoreOutage:
    def __init__(self, *, pool: str, store: SchedulerStore, clock: Callable[[], float]) -> None:
        self._pool = pool
        self._store = store
        self._clock = clock
        self._answers = Answers()
        self._reading: asyncio.Task[OrdersByNode] | None = None
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
        wanted = [known_part(order, has) for order in orders.get(report.node_id, ())]
        return self._answers.answer(report, tuple(order for order in wanted if order.ranks))

    async def _orders(self) -> OrdersByNode:
        reading = self._reading
        if reading is None or (reading.done() and self._clock() > self._read_at + FRESH_SECONDS):
            reading = self._reading = asyncio.create_task(self._read())
            reading.add_done_callback(lambda task: task.cancelled() or task.exception())  # all callers may be gone
            self._read_at = self._clock()
        return await asyncio.shield(reading)  # A cancelled caller does not cancel the read of the others.

    async def _read(self) -> OrdersByNode:
        nodes = {node.id: node for node in await self._store.nodes(pool=self._pool)}
        by_node: dict[str, list[JobOrder]] = {}
        for job in await self._store.holding_jobs(pool=self._pool):
            if job.placement is not None and job.stopping_for is None:
                for node_id, order in node_orders(job, job_order(job, nodes)).items():
                    by_node.setdefault(node_id, []).append(order)
        self._answers.forget()  # the answers of an earlier read: equal orders are other objects now
        return by_node
