"""Nodes and the whole cluster: look, drain, resume."""

from aiohttp import web

from libs.domain.job import Job
from libs.messages.asks import AskKind
from libs.messages.http import Accepted, NodesView
from services.gateway.gateway import Gateway
from services.gateway.route import Call, NoQuery, answer
from services.gateway.views import cluster_view, node_views


async def nodes(call: Call[NoQuery]) -> web.StreamResponse:
    found = await call.gateway.snapshots.nodes.get()
    holding = await _holding(call.gateway)
    return answer(NodesView(nodes=node_views(found.all, holding, call.gateway.cluster, call.who)))


async def cluster(call: Call[NoQuery]) -> web.StreamResponse:
    gateway = call.gateway
    found = await gateway.snapshots.nodes.get()
    holding = await _holding(gateway)
    queued = [job for pool in await gateway.snapshots.pools() for job in await gateway.snapshots.queued(pool)]
    return answer(cluster_view(found.all, holding, queued, gateway.cluster, call.who, now=gateway.now()))


async def drain(call: Call[NoQuery]) -> web.StreamResponse:
    return await _ask(call, AskKind.DRAIN)


async def resume(call: Call[NoQuery]) -> web.StreamResponse:
    return await _ask(call, AskKind.RESUME)


async def _ask(call: Call[NoQuery], kind: AskKind) -> web.StreamResponse:
    gateway = call.gateway
    node = await gateway.node(call.path("node"))
    await gateway.store.ask(kind, subject_id=node.id, pool=node.pool, tenant=call.who.tenant, at=gateway.now())
    gateway.nudges.asked(node.pool)
    state = "drained" if node.drained else "ready" if node.ready else "lost"
    return answer(Accepted(id=node.id, ask=kind, state=state), status=202)


async def _holding(gateway: Gateway) -> list[Job]:
    return [job for pool in await gateway.snapshots.pools() for job in await gateway.snapshots.holding(pool)]
