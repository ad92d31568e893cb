"""The runs that each node should have, the nodes to hint, and the size of the orders on the wire."""

from collections.abc import Iterable, Mapping
from typing import Any

from libs.domain.cluster import Node
from libs.domain.job import Job
from libs.messages.nodes import JobOrder, StartRun
from services.scheduler.thinking.openjobs import OpenJobs
from services.scheduler.thinking.orders import OrderBytes, job_order, order_bytes, run_orders


class Desired:
    """By job, `orders`: the part that all its ranks share; `order_bytes`: the size of its orders on the wire."""

    def __init__(self, jobs: OpenJobs, nodes: Mapping[str, Node]) -> None:
        self.orders: dict[str, JobOrder] = {}
        self.order_bytes: dict[str, OrderBytes] = {}
        self._jobs = jobs
        self._nodes = nodes
        self._runs: dict[str, dict[str, list[StartRun]]] = {}  # by node and job
        self._hinted: set[str] = set()
        self._sharing: set[str] = set()  # nodes that read orders with the shared part of a job's ranks once

    def __getstate__(self) -> dict[str, object]:
        """The state without the orders: they follow from the jobs, and hold their environments."""
        state = {name: part for name, part in self.__dict__.items() if name != "orders"}
        return {**state, "_runs": {node_id: tuple(of_node) for node_id, of_node in self._runs.items()}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.orders = {job_id: job_order(self._jobs[job_id], self._nodes) for job_id in self.order_bytes}
        job_ids = {job_id for of_node in state["_runs"].values() for job_id in of_node}
        orders = {job_id: run_orders(self._jobs[job_id], self._nodes) for job_id in job_ids}
        self._runs = {
            node_id: {job_id: orders[job_id][node_id] for job_id in of_node}
            for node_id, of_node in state["_runs"].items()
        }

    def want(self, job: Job, *, before: Job | None = None) -> None:
        """The nodes of a placed job should run it, with the limits of its placement; without the ranks that leave.
        `before`: the job with its orders so far."""
        self.orders[job.id] = job_order(job, self._nodes)
        self.order_bytes[job.id] = order_bytes(job, self.orders[job.id])
        by_node = run_orders(job, self._nodes)
        if before is not None and before.placement is not None:
            for node_id in {allocation.node_id for allocation in before.placement.allocations} - by_node.keys():
                self._withdraw(node_id, job.id)
        for node_id, orders in by_node.items():
            of_node = self._runs.setdefault(node_id, {})
            if of_node.get(job.id) != orders:
                of_node[job.id] = orders
                self._hinted.add(node_id)

    def stop(self, job: Job) -> None:
        """The nodes of the job should stop it."""
        assert job.placement is not None
        for allocation in job.placement.allocations:
            self._withdraw(allocation.node_id, job.id)

    def _withdraw(self, node_id: str, job_id: str) -> None:
        if self._runs.get(node_id, {}).pop(job_id, None) is not None:
            self._hinted.add(node_id)

    def drop(self, job: Job) -> None:
        """Forget the orders of a job that holds nothing any more."""
        self.stop(job)
        self.order_bytes.pop(job.id, None)
        self.orders.pop(job.id, None)

    def on(self, node_id: str) -> list[StartRun]:
        return [run for of_job in self._runs.get(node_id, {}).values() for run in of_job]

    def forget(self, node_id: str) -> None:
        """Forget a removed node."""
        self._runs.pop(node_id, None)
        self._hinted.discard(node_id)

    def reads_shared(self, node_id: str, *, shared: bool) -> None:
        (self._sharing.add if shared else self._sharing.discard)(node_id)

    def is_shared(self, node_id: str) -> bool:
        """Does the node read orders that hold the shared part of a job's ranks once?"""
        return node_id in self._sharing

    def hint(self, node_ids: Iterable[str]) -> None:
        """These nodes should report at once."""
        self._hinted.update(node_ids)

    def answered(self, node_id: str) -> None:
        self._hinted.discard(node_id)

    def take_hinted(self) -> set[str]:
        """The nodes to hint since the last call: their runs changed, or `hint` named them."""
        hinted, self._hinted = self._hinted, set()
        return hinted
