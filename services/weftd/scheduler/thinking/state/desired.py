"""The orders that each node should have, the nodes to hint, and the size of the orders on the wire."""

from collections.abc import Iterable, Mapping
from typing import Any

from weft.domain.cluster import Node
from weft.domain.job import Job
from weft.messages.nodes import JobOrder
from weftd.scheduler.thinking.state.openjobs import OpenJobs
from weftd.scheduler.thinking.state.orders import OrderBytes, job_order, node_orders, order_bytes


class Desired:
    """`order_bytes`: by job, the size of its orders on the wire."""

    def __init__(self, jobs: OpenJobs, nodes: Mapping[str, Node], *, preflight: bool = False) -> None:
        self.order_bytes: dict[str, OrderBytes] = {}
        self._jobs = jobs
        self._nodes = nodes
        self._preflight = preflight
        self._orders: dict[str, dict[str, JobOrder]] = {}  # by node and job
        self._hinted: set[str] = set()

    def __getstate__(self) -> dict[str, object]:
        """The state without the orders: they follow from the jobs, and hold their environments."""
        return {**self.__dict__, "_orders": {node_id: tuple(of_node) for node_id, of_node in self._orders.items()}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        job_ids = {job_id for of_node in state["_orders"].values() for job_id in of_node}
        jobs = [self._jobs[job_id] for job_id in job_ids]
        orders = {job.id: node_orders(job, self._order(job)) for job in jobs}
        self._orders = {
            node_id: {job_id: orders[job_id][node_id] for job_id in of_node}
            for node_id, of_node in state["_orders"].items()
        }

    def want(self, job: Job, *, before: Job | None = None) -> None:
        """The nodes of a placed job should run it, with the limits of its placement; without the ranks that leave.
        `before`: the job with its orders so far."""
        shared = self._order(job)
        self.order_bytes[job.id] = order_bytes(job, shared)
        by_node = node_orders(job, shared)
        if before is not None and before.placement is not None:
            for node_id in {allocation.node_id for allocation in before.placement.allocations} - by_node.keys():
                self._withdraw(node_id, job.id)
        for node_id, order in by_node.items():
            of_node = self._orders.setdefault(node_id, {})
            if of_node.get(job.id) != order:
                of_node[job.id] = order
                self._hinted.add(node_id)

    def _order(self, job: Job) -> JobOrder:
        return job_order(job, self._nodes, preflight=self._preflight)

    def stop(self, job: Job) -> None:
        """The nodes of the job should stop it."""
        assert job.placement is not None
        for allocation in job.placement.allocations:
            self._withdraw(allocation.node_id, job.id)

    def _withdraw(self, node_id: str, job_id: str) -> None:
        if self._orders.get(node_id, {}).pop(job_id, None) is not None:
            self._hinted.add(node_id)

    def drop(self, job: Job) -> None:
        """Forget the orders of a job that holds nothing any more."""
        self.stop(job)
        self.order_bytes.pop(job.id, None)

    def on(self, node_id: str) -> list[JobOrder]:
        return list(self._orders.get(node_id, {}).values())

    def forget(self, node_id: str) -> None:
        """Forget a removed node."""
        self._orders.pop(node_id, None)
        self._hinted.discard(node_id)

    def hint(self, node_ids: Iterable[str]) -> None:
        """These nodes should report at once."""
        self._hinted.update(node_ids)

    def answered(self, node_id: str) -> None:
        self._hinted.discard(node_id)

    def take_hinted(self) -> set[str]:
        """The nodes to hint since the last call: their runs changed, or `hint` named them."""
        hinted, self._hinted = self._hinted, set()
        return hinted
