"""From a placed job to the orders for each of its nodes."""

from collections.abc import Container, Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct, structs

from libs.domain.cluster import Node
from libs.domain.job import Allocation, Job
from libs.domain.quantity import size_bytes
from libs.domain.sizes import how_resized
from libs.domain.spec import ResizeHow, Role
from libs.messages.nodes import JobOrder, Member, Members, RankOrder, RoleOrder, StartRun

RANK_BYTES, GPU_BYTES = 96, 5  # the size of one rank's own part of an order, and of each of its GPUs
ORDER_BYTES, PEER_BYTES = 2048, 64  # of one rank's separate order, besides the shared part; of each peer in it
PORT_FIRST, PORT_COUNT = 10000, 22000  # below the range that Linux gives to outgoing connections


def master_port(job: Job, *, ranks: int, taken: Container[int]) -> int:
    """The port of rank 0, followed by a port for each other rank (TensorFlow wants one for every task).

    Every epoch has another port, so that a busy port is not tried again. If all are taken, jobs share some: then the
    node finds the port busy, and the next epoch tries another.
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
    return range(first, first + ports_needed(job, job.placement.allocations))


def ports_needed(job: Job, allocations: Sequence[Allocation]) -> int:
    """How many ports the job needs: one for each rank that it may ever have at once, those that leave among them."""
    return most_ranks(job) if how_resized(job.spec) is ResizeHow.LIVE else len(allocations)


def most_ranks(job: Job) -> int:
    return sum(role.replicas.most for role in job.spec.roles.values())


def fresh_ranks(job: Job, count: int, *, above: int = -1) -> list[int]:
    """Rank numbers greater than `above` for `count` ranks that join: none that this epoch has given, and each with a
    port of its own, of which there must be enough."""
    assert job.placement is not None
    ports = ports_needed(job, job.placement.allocations)
    taken = {allocation.rank % ports for allocation in job.placement.allocations}
    assert len(taken) + count <= ports, f"{job.id} has {ports} ports, and {count} ranks more than {len(taken)}"
    ranks: list[int] = []
    rank = max(job.placement.fresh_rank, above + 1)
    while len(ranks) < count:
        if rank % ports not in taken:
            taken.add(rank % ports)
            ranks.append(rank)
        rank += 1
    return ranks


def members_of(job: Job, nodes: Mapping[str, Node]) -> Members | None:
    """The ranks that stay, for a job that resizes live."""
    placement = job.placement
    if placement is None or how_resized(job.spec) is not ResizeHow.LIVE:
        return None
    ports = ports_needed(job, placement.allocations)
    return Members(
        changes=placement.changes,
        ranks=tuple(
            Member(
                role=allocation.role,
                rank=allocation.rank,
                address=_address(nodes, allocation.node_id),
                port=placement.master_port + allocation.rank % ports,
            )
            for allocation in placement.staying
        ),
        least=sum(role.replicas.least for role in job.spec.roles.values()),
        most=most_ranks(job),
        signal=job.spec.resize.signal or "",
    )


class OrderBytes(Struct, frozen=True, kw_only=True):
    """The greatest size of the orders of one job on the wire."""

    shared: int  # once for each node that reads `NodeDesired.jobs`
    rank: int  # for each rank there
    alone: int  # for each rank on a node of the previous version, whose orders share nothing


def order_bytes(job: Job, order: JobOrder) -> OrderBytes:
    assert job.placement is not None
    gpus = max(len(allocation.gpus) for allocation in job.placement.allocations)
    shared = len(msgspec.json.encode(order))
    return OrderBytes(
        shared=shared,
        rank=RANK_BYTES + GPU_BYTES * gpus,
        alone=shared + ORDER_BYTES + PEER_BYTES * len(job.placement.allocations),
    )


def job_order(job: Job, nodes: Mapping[str, Node]) -> JobOrder:
    """The part of the order that all ranks of a placed job share, without any rank."""
    placement, spec = job.placement, job.spec
    assert placement is not None
    places: dict[str, int] = {}
    rows: dict[str, list[tuple[int, int]]] = {}
    for allocation in placement.staying:
        place = places.setdefault(_address(nodes, allocation.node_id), len(places))
        row = rows.setdefault(allocation.role, [])
        if row and row[-1][0] == place:
            row[-1] = (place, row[-1][1] + 1)
        else:
            row.append((place, 1))
    return JobOrder(
        job_id=job.id,
        name=spec.name,
        tenant=job.tenant,
        epoch=job.epoch,
        world_size=len(placement.staying),
        command=spec.command or (),
        image=spec.image,
        workdir=spec.workdir,
        env=spec.env,
        grace=spec.grace_seconds,
        volumes=spec.volumes,
        read_only=spec.read_only,
        progress_pattern=spec.progress.pattern if spec.progress else None,
        master_address=placement.master_address,
        master_port=placement.master_port,
        addresses=tuple(places),
        members=members_of(job, nodes),
        roles=tuple(_role_order(name, spec.roles[name], row) for name, row in rows.items()),
        ranks=(),
    )


def _role_order(name: str, role: Role, nodes: list[tuple[int, int]]) -> RoleOrder:
    return RoleOrder(
        name=name,
        command=role.command or (),
        image=role.image,
        env=role.env,
        shm=size_bytes(role.shm),
        nodes=tuple(nodes),
    )


def as_jobs(runs: Iterable[StartRun], orders: Mapping[str, JobOrder]) -> tuple[JobOrder, ...]:
    """The same runs, with the shared part of each job once."""
    ranks: dict[str, list[RankOrder]] = {}
    for run in runs:
        ranks.setdefault(run.job_id, []).append(_rank_order(run, orders[run.job_id]))
    return tuple(structs.replace(orders[job_id], ranks=tuple(of_job)) for job_id, of_job in ranks.items())


def _rank_order(run: StartRun, order: JobOrder) -> RankOrder:
    return RankOrder(
        rank=run.rank,
        role=next(index for index, role in enumerate(order.roles) if role.name == run.role),
        role_rank=run.role_rank,
        gpus=run.gpus,
        cpus=run.cpus,
        memory=run.memory,
        egress=run.egress,
        share=run.share,
    )


def run_orders(job: Job, nodes: Mapping[str, Node]) -> dict[str, list[StartRun]]:
    """The runs of `job` by node."""
    placement = job.placement
    assert placement is not None
    peers: dict[str, list[str]] = {}
    for allocation in placement.staying:
        peers.setdefault(allocation.role, []).append(_address(nodes, allocation.node_id))
    by_role = {role: tuple(addresses) for role, addresses in peers.items()}
    orders: dict[str, list[StartRun]] = {}
    # The lowest rank of a role is of the core, which never leaves: so the number of a rank in its role never changes.
    first = {role: min(each.rank for each in placement.staying if each.role == role) for role in peers}
    spec = job.spec
    members = members_of(job, nodes)
    for allocation in placement.staying:
        role = spec.roles[allocation.role]
        orders.setdefault(allocation.node_id, []).append(
            StartRun(
                job_id=job.id,
                name=spec.name,
                tenant=job.tenant,
                epoch=job.epoch,
                rank=allocation.rank,
                role=allocation.role,
                role_rank=allocation.rank - first[allocation.role],
                world_size=len(placement.staying),
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
                members=members,
                share=allocation.share,
            )
        )
    return orders


def _address(nodes: Mapping[str, Node], node_id: str) -> str:
    node = nodes.get(node_id)
    return node.address if node else "127.0.0.1"
