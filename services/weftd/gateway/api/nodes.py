"""Nodes and the whole cluster: look, join, drain, resume, label."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from aiohttp import web
from msgspec import Meta, Struct

from weft.credentials.permissions import NODE_ID
from weft.domain.cluster import GPUS_MAX, Drain, Node
from weft.domain.job import Job
from weft.domain.labels import LABELS_MAX, Marking
from weft.health.spares import holding_of, spare_nodes
from weft.messages.asks import AskKind
from weft.messages.http import Accepted, ClusterView, NodesView
from weft.messages.http.joining import JoinTokenMade, JoinTokenWanted, JoinWanted, NodeJoined
from weft.store.accounts import Moment
from weft.store.tenants import Access
from weftd.gateway.api.gpus import slowest_of
from weftd.gateway.errors import RejectedError
from weftd.gateway.gateway import Gateway
from weftd.gateway.http.route import ACCEPTED, Audience, Call, NoQuery, RouteAnswer, answer, json_of, operation
from weftd.gateway.limits.access import source_of
from weftd.gateway.readmodel.past import Past, PastQuery, moment_of, past_of
from weftd.gateway.readmodel.views import cluster_view, node_views, with_reasons
from weftd.gateway.readmodel.visibility import seen_of

PRINTABLE = r"^[^\x00-\x1f\x7f]*$"
UNTIL_MAX = 253402300799.0  # the end of the year 9999
JOIN_TOKENS_MAX = 1000  # kept until a week after they expired
JOIN_BYTES_MAX = 96 << 10
NODE_ID_WORDS = "not a name for a node: up to 40 of a-z, 0-9 and -, neither first nor last a -"


@operation(
    "GET /v1/nodes",
    "cluster",
    "List the nodes",
    description="Each node with its resources, the jobs that hold them, and their current use. Emulated GPUs are"
    " marked.",
    answers={200: RouteAnswer(description="All nodes.", type=NodesView)},
)
async def nodes(call: Call[NoQuery]) -> web.StreamResponse:
    found = await call.gateway.snapshots.nodes.get()
    holding = await _holding(call.gateway)
    slowest = await slowest_of(call.gateway, sorted({node.pool for node in found.all}))
    spares = await _spares(call.gateway, found.all, holding)
    views = node_views(
        found.all, holding, call.gateway.cluster, call.who, slowest=slowest, now=call.gateway.now(), spares=spares
    )
    return answer(NodesView(nodes=views))


@operation(
    "GET /v1/cluster",
    "cluster",
    "The cluster and its queue at a glance",
    answers={200: RouteAnswer(description="The cluster at one moment.", type=ClusterView)},
)
async def cluster(call: Call[PastQuery]) -> web.StreamResponse:
    """The cluster now, or as it was at a moment; of the past, live data such as telemetry is left out."""
    gateway = call.gateway
    if call.query.at:
        past = await _past(gateway, call.who, moment_of(call.query.at, now=gateway.now()))
        holding = [job for job in past.jobs if job.state.holding]
        queued = [job for job in past.jobs if not job.state.holding]
        return answer(cluster_view(past.nodes, holding, queued, gateway.unheard, call.who, now=past.at))
    found = await gateway.snapshots.nodes.get()
    holding = await _holding(gateway)
    queued = [
        job
        for pool in await gateway.snapshots.pools()
        for job in seen_of(await gateway.snapshots.queued(pool), call.who)
    ]
    view = cluster_view(found.all, holding, queued, gateway.cluster, call.who, now=gateway.now(), live=True)
    shown = {job.id for job in view.queued}
    fresh = await gateway.reasons.fresh([job for job in queued if job.id in shown])
    return answer(with_reasons(view, fresh))


async def _past(gateway: Gateway, who: Access, moment: Moment) -> Past:
    await gateway.must_be_kept(moment.at)
    async with gateway.looking_back.one(who.tenant):
        with gateway.cpu_budgets.elsewhere(who.tenant):
            told = await gateway.store.told_until(moment)
            ids = dict.fromkeys(event.subject_id for event in told if event.topic == "jobs")
            jobs = await gateway.store.jobs_of(list(ids))
        past = await asyncio.to_thread(past_of, told, jobs, moment)  # many jobs take a second
    await gateway.must_be_kept(past.at)
    return past


@operation(
    "PUT /v1/nodes/{node}/join-token",
    "cluster",
    "Make a join token for a node",
    description="`weft node add` uses this. The gateway never gets the token: only the hash of its public part, and the"
    " node's credentials, encrypted with the token. The token is good for one node, once, until it expires. Another one"
    " for the same node replaces it.",
    who=Audience.ADMIN,
    body=JoinTokenWanted,
    body_bytes_max=JOIN_BYTES_MAX,
    answers={201: RouteAnswer(description="The node, and when its token expires.", type=JoinTokenMade)},
)
async def make_join_token(call: Call[NoQuery]) -> web.StreamResponse:
    gateway, node = call.gateway, _node_id(call)
    wanted = await json_of(call.request, JoinTokenWanted)
    if any(one.id == node and one.ready for one in await gateway.store.nodes()):
        raise RejectedError(409, "node", f"{node} is in the cluster already, and ready: give the new node another name")
    now = gateway.now()
    expires_at = now + wanted.seconds
    stored = await gateway.store.set_join_token(
        node,
        token_hash=bytes.fromhex(wanted.hash),
        sealed=wanted.sealed,
        at=now,
        expires_at=expires_at,
        most=JOIN_TOKENS_MAX,
    )
    if not stored:
        reason = f"there are join tokens of {JOIN_TOKENS_MAX} nodes; each goes a week after it expired"
        raise RejectedError(409, "node", reason)
    return answer(JoinTokenMade(node=node, expires_at=expires_at), status=201)


@operation(
    "POST /v1/nodes/{node}/join",
    "cluster",
    "Exchange a join token for the credentials of a node",
    description="`weft node join` uses this. The answer can be opened with the join token alone. It is given once.",
    who=Audience.ANYONE,
    body=JoinWanted,
    body_bytes_max=JOIN_BYTES_MAX,
    answers={200: RouteAnswer(description="The sealed credentials.", type=NodeJoined)},
)
async def join(call: Call[NoQuery]) -> web.StreamResponse:
    gateway, request, node = call.gateway, call.request, _node_id(call)
    wanted = await json_of(request, JoinWanted)
    try:
        sealed = await gateway.access.join(wanted.public_part, node=node, source=source_of(request.remote))
    except RejectedError as error:
        await gateway.auditing.refused(request, call.who, error, act=f"join of node {node}")
        raise
    await gateway.auditing.done(gateway.auditing.actor(request, call.who), f"join of node {node}", "")
    return answer(NodeJoined(node=node, sealed=sealed), headers={"Cache-Control": "no-store"})


def _node_id(call: Call[NoQuery]) -> str:
    node = call.path("node")
    if not NODE_ID.fullmatch(node):
        raise RejectedError(400, "node", NODE_ID_WORDS)
    return node


class DrainQuery(Struct, frozen=True, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(max_length=200, pattern=PRINTABLE, description="Reason, shown to people.")] = ""
    until: Annotated[float, Meta(ge=0, le=UNTIL_MAX, description="End of the drain, in seconds since 1970.")] | None = (
        None
    )
    evict: Annotated[bool, Meta(description="1: stop the jobs on the node and queue them again; no retry is used.")] = (
        False
    )


@operation(
    "POST /v1/nodes/{node}/drain",
    "cluster",
    "Give a node no new work",
    description="Running jobs continue, unless `evict` is given. A service then leaves replica by replica, each one"
    " when the others run. A second drain of a node replaces the first.",
    who=Audience.OPERATOR,
    answers=ACCEPTED,
    example="?reason=new%20memory&evict=1",
)
async def drain(call: Call[DrainQuery]) -> web.StreamResponse:
    query = call.query
    if query.until is not None and query.until <= call.gateway.now():
        raise RejectedError(400, "until", "must be in the future")
    return await _ask(call, AskKind.DRAIN, drain=Drain(reason=query.reason, until=query.until, evicts=query.evict))


@operation(
    "POST /v1/nodes/{node}/resume", "cluster", "Let a node take work again", who=Audience.OPERATOR, answers=ACCEPTED
)
async def resume(call: Call[NoQuery]) -> web.StreamResponse:
    return await _ask(call, AskKind.RESUME)


class ReturnQuery(Struct, frozen=True, forbid_unknown_fields=True):
    gpu: (
        Annotated[int, Meta(ge=0, lt=GPUS_MAX, description="Index of the GPU (default: the node and all its GPUs).")]
        | None
    ) = None


@operation(
    "POST /v1/nodes/{node}/return",
    "cluster",
    "Use a sick GPU or node again",
    description="The GPU or node is on probation. A fault that is still present takes it out of use again.",
    who=Audience.OPERATOR,
    answers=ACCEPTED,
)
async def give_back(call: Call[ReturnQuery]) -> web.StreamResponse:
    node, gpu = await call.gateway.node(call.path("node")), call.query.gpu
    if gpu is not None and all(each.index != gpu for each in node.capacity.gpus):
        raise RejectedError(404, "gpu", f"{node.id} has no GPU {gpu}")
    return await _ask(call, AskKind.RETURN, gpu=gpu)


@operation(
    "PATCH /v1/nodes/{node}",
    "cluster",
    "Change the labels and taints of a node",
    description="Those that are named; null takes one away, also one of the node's own settings. What runs there goes"
    " on. They survive restarts of the node.",
    who=Audience.OPERATOR,
    body=Marking,
    answers=ACCEPTED,
    example="""-d '{"labels": {"zone": "a", "old": null}, "taints": {"dedicated": "vision"}}'""",
)
async def mark(call: Call[NoQuery]) -> web.StreamResponse:
    node, wanted = await call.gateway.node(call.path("node")), await json_of(call.request, Marking)
    for field, changes in (("labels", wanted.labels), ("taints", wanted.taints)):
        for name, value in changes.items():
            if value is not None and not value.isprintable():
                raise RejectedError(400, f"{field}.{name}", "has a character that cannot be printed")
    if not (wanted.labels or wanted.taints):
        raise RejectedError(400, "", "names no label and no taint")
    if not node.marking.then(wanted).is_bounded:
        raise RejectedError(409, "labels", f"at most {LABELS_MAX} labels and {LABELS_MAX} taints of a node are changed")
    return await _ask(call, AskKind.MARK, marking=wanted)


async def _ask(
    call: Call[Any],
    kind: AskKind,
    *,
    gpu: int | None = None,
    drain: Drain | None = None,
    marking: Marking | None = None,
) -> web.StreamResponse:
    gateway = call.gateway
    node = await gateway.node(call.path("node"))
    await gateway.store.ask(
        kind,
        subject_id=node.id,
        pool=node.pool,
        tenant=call.who.tenant,
        at=gateway.now(),
        gpu=gpu,
        drain=drain,
        marking=marking,
        who=call.who.named,
    )
    gateway.wakeups.asked(node.pool)
    state = "drained" if node.drained else "ready" if node.ready else "lost"
    return answer(Accepted(id=node.id, ask=kind, state=state), status=202)


async def _spares(gateway: Gateway, nodes: Sequence[Node], holding: Sequence[Job]) -> frozenset[str]:
    """The spares of all pools, as their schedulers choose them."""
    found: set[str] = set()
    for pool in sorted({node.pool for node in nodes}):
        if spares := await gateway.store.spares(pool=pool):
            there = [node for node in nodes if node.pool == pool]
            found.update(spare_nodes(there, holding_of(job for job in holding if job.pool == pool), spares))
    return frozenset(found)


async def _holding(gateway: Gateway) -> list[Job]:
    return [job for pool in await gateway.snapshots.pools() for job in await gateway.snapshots.holding(pool)]
