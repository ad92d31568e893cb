"""From a placed job to the orders for each of its nodes."""

from collections.abc import Container, Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct, structs

from libs.domain.cluster import Node
from libs.domain.job import Allocation, Job, Revision
from libs.domain.sizes import how_resized
from libs.domain.spec import ResizeHow, Role, ServiceProtocol
from libs.messages.nodes import (
    JobOrder,
    Member,
    Members,
    RankOrder,
    RevisionOrder,
    RoleOrder,
    Serve,
    StartRun,
    env_with,
)

RANK_BYTES, GPU_BYTES = 96, 5  # the size of one rank's own part of an order, and of each of its GPUs
ORDER_BYTES, PEER_BYTES = 2048, 64  # of one rank's separate order, besides the shared part; of each peer in it
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

    shared: int  # once for each node that reads `NodeDesired.jobs`
    rank: int  # for each rank there
    alone: int  # for each rank on a node of the previous version, whose orders share nothing


def order_bytes(job: Job, order: JobOrder) -> OrderBytes:
    assert job.placement is not None
    gpus = max((len(allocation.gpus) for allocation in job.placement.allocations), default=0)
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


_AS_SPECIFIED = Revision(number=0)


def _role_order(name: str, role: Role, nodes: list[tuple[int, int]]) -> RoleOrder:
    return RoleOrder(
        name=name,
        command=role.command or (),
        image=role.image,
        env=role.env,
        shm=role.shm_bytes,
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
        revision=run.revision,
    )


def run_orders(job: Job, nodes: Mapping[str, Node]) -> dict[str, list[StartRun]]:
    """The runs of `job` by node."""
    placement = job.placement
    assert placement is not None
    peers: dict[str, list[str]] = {name: [] for name in job.spec.roles} if job.spec.is_service else {}
    alone = job.spec.is_service  # a replica knows of no other
    for allocation in () if alone else placement.staying:
        peers.setdefault(allocation.role, []).append(_address(nodes, allocation.node_id))
    by_role = {role: tuple(addresses) for role, addresses in peers.items()}
    orders: dict[str, list[StartRun]] = {}
    # The lowest rank of a role is of the core, which never leaves: so the number of a rank in its role never changes.
    first = {} if alone else {role: min(each.rank for each in placement.staying if each.role == role) for role in peers}
    spec = job.spec
    members, serve, ulimits = members_of(job, nodes), serve_of(job), spec.ulimits.numbers
    revisions = {one.number: one for one in job.revisions}
    for allocation in placement.staying:
        role = spec.roles[allocation.role]
        revision = revisions.get(allocation.revision, _AS_SPECIFIED)
        orders.setdefault(allocation.node_id, []).append(
            StartRun(
                job_id=job.id,
                name=spec.name,
                tenant=job.tenant,
                epoch=job.epoch,
                rank=allocation.rank,
                role=allocation.role,
                role_rank=allocation.rank if alone else allocation.rank - first[allocation.role],
                world_size=1 if alone else len(placement.staying),
                command=(role.command or spec.command or ()) if revision.command is None else revision.command,
                image=revision.image or role.image or spec.image,
                workdir=spec.workdir,
                entrypoint=spec.entrypoint,
                env=env_with({**spec.env, **role.env}, revision.env or {}),
                gpus=allocation.gpus,
                cpus=allocation.cpus,
                memory=allocation.memory,
                egress=allocation.egress,
                shm=role.shm_bytes,
                grace=spec.grace_seconds,
                volumes=spec.folders,
                named_volumes=spec.named_volumes,
                stop_signal=spec.stop_signal,
                ulimits=ulimits,
                read_only=spec.read_only,
                progress_pattern=spec.progress.pattern if spec.progress else None,
                master_address=placement.master_address,
                master_port=placement.master_port,
                peers=by_role,
                members=members,
                share=allocation.share,
                serve=serve,
                revision=allocation.revision,
                secrets=spec.secrets,
                secret_files=spec.secret_files,
                context=spec.context,
            )
        )
    return orders


def _address(nodes: Mapping[str, Node], node_id: str) -> str:
    node = nodes.get(node_id)
    return node.address if node else "127.0.0.1"
