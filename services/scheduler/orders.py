"""From a placed job to what each of its nodes is told to run."""

from collections.abc import Container, Mapping

import msgspec

from libs.domain.cluster import Node
from libs.domain.job import Job
from libs.domain.quantity import size_bytes
from libs.messages.nodes import StartRun

ORDER_BYTES, PEER_BYTES = 2048, 64  # besides its command and environment; for each other rank
PORT_FIRST, PORT_COUNT = 10000, 22000  # below the range that Linux gives to outgoing connections


def master_port(job: Job, *, ranks: int, taken: Container[int]) -> int:
    """Where rank 0 listens, with a port behind it for each other rank (TensorFlow wants one for every task).

    Another one for every epoch, so that a port found busy is not tried again. Where all are taken, some are shared:
    then the node finds out, and the next epoch is luckier.
    """
    start = (job.seq * 7919 + job.epoch * 104729) % PORT_COUNT
    for step in range(PORT_COUNT - ranks):
        port = PORT_FIRST + (start + step) % (PORT_COUNT - ranks + 1)
        if not any(port + rank in taken for rank in range(ranks)):
            return port
    return PORT_FIRST + start % (PORT_COUNT - ranks + 1)


def ports_of(job: Job) -> range:
    """The ports that a placed job may use at its master's address."""
    assert job.placement is not None
    first = job.placement.master_port
    return range(first, first + len(job.placement.allocations))


def order_bytes_max(job: Job) -> int:
    """What one order of a placed job takes as JSON, at most: its part of the specification, and who the others are."""
    assert job.placement is not None
    return len(msgspec.json.encode(job.spec)) + ORDER_BYTES + PEER_BYTES * len(job.placement.allocations)


def run_orders(job: Job, nodes: Mapping[str, Node]) -> dict[str, list[StartRun]]:
    """The runs of `job` by node."""
    placement = job.placement
    assert placement is not None
    peers: dict[str, list[str]] = {}
    for allocation in placement.allocations:
        node = nodes.get(allocation.node_id)
        peers.setdefault(allocation.role, []).append(node.address if node else "127.0.0.1")
    by_role = {role: tuple(addresses) for role, addresses in peers.items()}
    orders: dict[str, list[StartRun]] = {}
    role_ranks = dict.fromkeys(peers, 0)
    spec = job.spec
    for allocation in placement.allocations:
        role = spec.roles[allocation.role]
        orders.setdefault(allocation.node_id, []).append(
            StartRun(
                job_id=job.id,
                name=spec.name,
                tenant=job.tenant,
                epoch=job.epoch,
                rank=allocation.rank,
                role=allocation.role,
                role_rank=role_ranks[allocation.role],
                world_size=len(placement.allocations),
                command=role.command or spec.command or (),
                image=role.image or spec.image,
                workdir=spec.workdir,
                env={**spec.env, **role.env},
                gpus=allocation.gpus,
                cpus=allocation.cpus,
                memory=allocation.memory,
                egress=allocation.egress,
                shm=size_bytes(role.shm),
                grace=spec.grace_seconds,
                volumes=spec.volumes,
                read_only=spec.read_only,
                progress_pattern=spec.progress.pattern if spec.progress else None,
                master_address=placement.master_address,
                master_port=placement.master_port,
                peers=by_role,
            )
        )
        role_ranks[allocation.role] += 1
    return orders
