"""Status of the cluster: its services, its servers, and a remedy for each problem."""

from aiohttp import web

from weft.messages.http.status import StatusView
from weft.store import StoreUnavailableError
from weft.store.migrate import migrations
from weft.version import version
from weftd.gateway.http.route import Audience, Call, NoQuery, RouteAnswer, answer, operation
from weftd.gateway.readmodel.views import node_views
from weftd.gateway.thinking.status import findings


@operation(
    "GET /v1/status",
    "cluster",
    "Status of the cluster",
    description="The services and servers of the cluster, their problems, and a remedy for each. The gateway answers"
    " without Postgres, too.",
    who=Audience.OPERATOR,
    answers={200: RouteAnswer(description="The status, problems first.", type=StatusView)},
)
async def status(call: Call[NoQuery]) -> web.StreamResponse:
    gateway = call.gateway
    try:
        database = await gateway.store.database_status()
        known = (await gateway.snapshots.nodes.get()).all
        pools = await gateway.snapshots.pools()
    except StoreUnavailableError:
        database, known, pools = None, [], []
    nodes = node_views(known, [], gateway.cluster, call.who, now=gateway.now())
    services = gateway.processes.views()
    return answer(
        StatusView(
            version=version(),
            nats=gateway.bus.connected,
            database=database,
            services=services,
            nodes=len(nodes),
            nodes_ready=sum(node.ready for node in nodes),
            gpus=sum(len(node.gpus) for node in nodes),
            findings=tuple(
                findings(
                    version=version(),
                    nats=gateway.bus.connected,
                    database=database,
                    migrations=migrations(),
                    services=services,
                    heard_seconds=gateway.processes.heard_seconds,
                    routed=bool(gateway.settings.router_url),
                    pools=pools,
                    nodes=nodes,
                )
            ),
        )
    )
