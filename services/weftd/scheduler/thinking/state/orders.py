"""From a placed job to the orders for each of its nodes."""

from collections.abc import Container, Mapping, Sequence

import msgspec
from msgspec import Struct, structs

from weft.domain.cluster import Node
from weft.domain.job import Allocation, Job
from weft.domain.sizes import how_resized
from weft.domain.spec import ResizeHow, Role, ServiceProtocol
from weft.messages.nodes import (
    JobOrder,
    Member,
    Members,
    RankOrder,
    RevisionOrder,
    RoleOrder,
    Serve,
)

RANK_BYTES, GPU_BYTES = 96, 5  # the size of one rank's own part of an order, and of each of its GPUs
AHEAD_MAX = 1 << 20  # ranks that were given in a time which the store forgot
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
    """How many ports the job needs: one for each rank that it may ever have at once, those that leave among them. The
    replicas of a service do not meet."""
    if job.spec.is_service:
        return 0
    return most_ranks(job) if how_resized(job.spec) is ResizeHow.LIVE else len(allocations)


def most_ranks(job: Job) -> int:
    return sum(role.replicas.most for role in job.spec.roles.values())


def fresh_ranks(job: Job, count: int, *, above: int = -1) -> list[int]:
    """Rank numbers greater than `above` for `count` ranks that join: none that this epoch has given, and each with a
    port of its own, of which there must be enough."""
    assert job.placement is not None
    first = job.placement.fresh_rank
    if above < first + AHEAD_MAX:  # a node that tells of a higher one makes it up
        first = max(first, above + 1)
    ports = ports_needed(job, job.placement.allocations)
    if not ports:
        return list(range(first, first + count))
    taken = {allocation.rank % ports for allocation in job.placement.allocations}
    assert len(taken) + count <= ports, f"{job.id} has {ports} ports, and {count} ranks more than {len(taken)}"
    ranks: list[int] = []
    rank = first
    while len(ranks) < count:
        if rank % ports not in taken:
            taken.add(rank % ports)
            ranks.append(rank)
        rank += 1
    return ranks


def members_of(job: Job, nodes: Mapping[str, Node]) -> Members | None:
    """The ranks that stay, for a job that resizes live."""
    placement = job.placement
    if placement is None or job.spec.is_service or how_resized(job.spec) is not ResizeHow.LIVE:
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

    shared: int  # once for each node
    rank: int  # for each rank


def order_bytes(job: Job, order: JobOrder) -> OrderBytes:
    assert job.placement is not None
    gpus = max((len(allocation.gpus) for allocation in job.placement.allocations), default=0)
    return OrderBytes(shared=len(msgspec.json.encode(order)), rank=RANK_BYTES + GPU_BYTES * gpus)


def node_orders(job: Job, order: JobOrder) -> dict[str, JobOrder]:
    """The order of a placed job for each of its nodes. `order`: the part that all ranks share, from `job_order`."""
    assert job.placement is not None
    staying = job.placement.staying
    # The lowest rank of a role is of the core, which never leaves: so the number of a rank in its role never changes.
    # A replica of a service does not know the others, so it is numbered as the job numbers it.
    first = {
        role.name: 0 if job.spec.is_service else min((one.rank for one in staying if one.role == role.name), default=0)
        for role in order.roles
    }
    places = {role.name: place for place, role in enumerate(order.roles)}
    ranks: dict[str, list[RankOrder]] = {}
    for allocation in staying:
        ranks.setdefault(allocation.node_id, []).append(
            RankOrder(
                rank=allocation.rank,
                role=places[allocation.role],
                role_rank=allocation.rank - first[allocation.role],
                gpus=allocation.gpus,
                cpus=allocation.cpus,
                memory=allocation.memory,
                egress=allocation.egress,
                share=allocation.share,
                revision=allocation.revision,
            )
        )
    return {node_id: _with_ranks(order, tuple(of_node)) for node_id, of_node in ranks.items()}


def _with_ranks(order: JobOrder, ranks: tuple[RankOrder, ...]) -> JobOrder:
    """The order for these ranks, with the revisions that they run: so another node's update does not change it."""
    numbers = {rank.revision for rank in ranks}
    revisions = {number: revision for number, revision in order.revisions.items() if number in numbers}
    return structs.replace(order, ranks=ranks, revisions=revisions)


def job_order(job: Job, nodes: Mapping[str, Node], *, preflight: bool = False) -> JobOrder:
    """The part of the order that all ranks of a placed job share, without any rank. `preflight`: its pool checks the
    GPUs of gangs."""
    placement, spec = job.placement, job.spec
    assert placement is not None
    places: dict[str, int] = {}
    rows: dict[str, list[tuple[int, int]]] = {}
    if spec.is_service:  # what a replica is told does not depend on the others
        rows = {name: [] for name in spec.roles}
    for allocation in () if spec.is_service else placement.staying:
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
        world_size=1 if spec.is_service else len(placement.staying),
        command=spec.command or (),
        image=spec.image,
        workdir=spec.workdir,
        entrypoint=spec.entrypoint,
        env=spec.env,
        grace=spec.grace_seconds,
        volumes=spec.folders,
        named_volumes=spec.named_volumes,
        stop_signal=spec.stop_signal,
        ulimits=spec.ulimits.numbers,
        hung=job.hung_since is not None,
        hang_signal=spec.hang.signal if job.hung_since is not None else None,
        preflight=spec.preflight or (preflight and len(placement.staying) > 1 and not spec.is_service),
        read_only=spec.read_only,
        progress_pattern=spec.progress.pattern if spec.progress else None,
        master_address=placement.master_address,
        master_port=placement.master_port,
        addresses=tuple(places),
        members=members_of(job, nodes),
        serve=serve_of(job),
        revisions=_revisions(job),
        secrets=spec.secrets,
        secret_files=spec.secret_files,
        context=spec.context,
        from_checkpoint=spec.from_checkpoint,
        mounts=spec.mounts,
        outputs=spec.outputs,
        object_store=spec.object_store,
        roles=tuple(_role_order(name, spec.roles[name], row) for name, row in rows.items()),
        ranks=(),
    )


def serve_of(job: Job) -> Serve | None:
    """How the runs of a job serve requests; `{job}` in a path stands for the id of the job."""
    rules = job.spec.service
    if rules is None:
        return None
    return Serve(
        port=rules.port,
        path=rules.path.replace("{job}", job.id),
        # A server of HTTP/2 alone understands no probe of ours: it is ready once its port takes a connection.
        ready="" if rules.protocol is ServiceProtocol.H2C else (rules.ready or "").replace("{job}", job.id),
        drain=job.spec.drain_seconds,
        address=f"/s/{job.id}/",
    )


def _revisions(job: Job) -> dict[int, RevisionOrder]:
    """The revisions that the ranks which stay run."""
    assert job.placement is not None
    numbers = {allocation.revision for allocation in job.placement.staying}
    return {
        one.number: RevisionOrder(command=one.command, image=one.image, env=one.env)
        for one in job.revisions
        if one.number in numbers and (one.command, one.image, one.env) != (None, None, None)
    }


def _role_order(name: str, role: Role, nodes: list[tuple[int, int]]) -> RoleOrder:
    return RoleOrder(
        name=name,
        command=role.command or (),
        image=role.image,
        env=role.env,
        shm=role.shm_bytes,
        nodes=tuple(nodes),
    )


def _address(nodes: Mapping[str, Node], node_id: str) -> str:
    node = nodes.get(node_id)
    return node.address if node else "127.0.0.1"
