"""From a placed job to what each of its nodes is told to run."""

from collections.abc import Mapping

from libs.domain.cluster import Node
from libs.domain.job import Job
from libs.domain.quantity import size_bytes
from libs.messages.nodes import StartRun

PORT_FIRST, PORT_COUNT = 20000, 10000  # below the range that Linux gives to outgoing connections


def master_port(job: Job, taken: set[int]) -> int:
    """Where rank 0 listens: another port for every epoch, so that one found busy is not tried again."""
    start = (job.seq * 7919 + job.epoch * 104729) % PORT_COUNT
    for step in range(PORT_COUNT):
        port = PORT_FIRST + (start + step) % PORT_COUNT
        if port not in taken:
            return port
    raise AssertionError(f"{PORT_COUNT} gangs on one address")


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
