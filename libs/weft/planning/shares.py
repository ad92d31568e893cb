"""The dominant share of each tenant: its part of the pool's resource of which it holds the largest part."""

from collections.abc import Iterable

from weft.domain.cluster import Node
from weft.domain.job import Job
from weft.planning.resource_request import gpus_in

Amounts = tuple[float, float, float]
"""GPUs, CPU cores, memory in bytes."""

NOTHING: Amounts = (0.0, 0.0, 0.0)


class Shares:
    def __init__(self) -> None:
        self._held: dict[str, Amounts] = {}
        self._there: Amounts = NOTHING

    def measure(self, nodes: Iterable[Node]) -> None:
        """Take the pool's size as the sum of these nodes."""
        capacities = [node.capacity for node in nodes]
        self._there = (
            float(sum(len(capacity.gpus) for capacity in capacities)),
            sum(capacity.cpus for capacity in capacities),
            float(sum(capacity.memory for capacity in capacities)),
        )

    def hold(self, job: Job) -> None:
        self._count(job, 1)

    def let_go(self, job: Job) -> None:
        self._count(job, -1)

    def of(self, tenant: str) -> float:
        held = self._held.get(tenant, NOTHING)
        return max(part / whole if whole else 0.0 for part, whole in zip(held, self._there, strict=True))

    def _count(self, job: Job, sign: int) -> None:
        gpus, cpus, memory = self._held.get(job.tenant, NOTHING)
        held = job.held
        gpus += sign * gpus_in(held)
        for allocation in held:
            cpus += sign * allocation.cpus
            memory += sign * allocation.memory
        self._held[job.tenant] = (gpus, cpus, memory)
