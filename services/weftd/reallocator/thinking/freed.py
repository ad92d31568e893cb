"""What nodes have left beside the jobs that hold resources, for changes of limits."""

from collections.abc import Iterable, Mapping

from weft.domain.cluster import Node
from weft.domain.job import Job
from weft.tuning.proposal import Free, Proposal


def free_of(nodes: Iterable[Node], holding: Iterable[Job]) -> dict[str, Free]:
    """By node: what is left of those that are ready."""
    left = {node.id: [node.capacity.cpus, node.capacity.memory] for node in nodes if node.ready}
    for job in holding:
        for allocation in job.placement.allocations if job.placement else ():
            if (of_node := left.get(allocation.node_id)) is not None:
                of_node[0] -= allocation.cpus
                of_node[1] -= allocation.memory
    return {name: Free(cpus=max(0.0, cpus), memory=max(0, int(memory))) for name, (cpus, memory) in left.items()}


def less(free: Mapping[str, Free], job: Job, proposal: Proposal) -> dict[str, Free]:
    """The free room less what the change takes; room that it gives is free only once it was given."""
    assert job.placement is not None
    nodes = {allocation.rank: allocation.node_id for allocation in job.placement.allocations}
    cpus: dict[str, float] = {}
    memory: dict[str, int] = {}
    for before, after in zip(proposal.before, proposal.after, strict=True):
        node = nodes[after.rank]
        cpus[node] = cpus.get(node, 0.0) + (after.cpus or 0.0) - (before.cpus or 0.0)
        memory[node] = memory.get(node, 0) + (after.memory or 0) - (before.memory or 0)
    return {
        name: Free(
            cpus=max(0.0, left.cpus - max(0.0, cpus.get(name, 0.0))),
            memory=max(0, left.memory - max(0, memory.get(name, 0))),
        )
        for name, left in free.items()
    }
