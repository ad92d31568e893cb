"""GPUs: each with its model, its use, the run that holds it, and its score for each class of jobs."""

from collections.abc import Iterable
from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct, structs

from weft.domain.spec import TOKEN_PATTERN
from weft.messages.http import GpuScoreView, GpusView
from weft.messages.signals import GpuScore
from weftd.gateway.gateway import Gateway
from weftd.gateway.http.route import Call, RouteAnswer, answer, operation
from weftd.gateway.readmodel.views import node_views


class GpusQuery(Struct, frozen=True, forbid_unknown_fields=True):
    node: Annotated[str, Meta(pattern=TOKEN_PATTERN, description="Only GPUs of this node.")] | None = None
    pool: Annotated[str, Meta(pattern=TOKEN_PATTERN, description="Only GPUs of this pool.")] | None = None


@operation(
    "GET /v1/gpus",
    "cluster",
    "List the GPUs",
    description="Each GPU with its model, current use, holder, and speed for each class of jobs: the estimate, the"
    " number of samples, their age and their source. Emulated GPUs are marked. Jobs of other tenants appear only as"
    " an id.",
    answers={200: RouteAnswer(description="All GPUs.", type=GpusView)},
    example="?node=node-1",
)
async def gpus(call: Call[GpusQuery]) -> web.StreamResponse:
    gateway, query = call.gateway, call.query
    nodes = [
        node
        for node in (await gateway.snapshots.nodes.get()).all
        if query.node in (None, node.id) and query.pool in (None, node.pool)
    ]
    pools = sorted({node.pool for node in nodes})
    holding = [job for pool in pools for job in await gateway.snapshots.holding(pool)]
    scores: dict[tuple[str, int], list[GpuScoreView]] = {}
    for score in await _scores(gateway, pools):
        view = score_view(score, now=gateway.now())
        scores.setdefault((score.node_id, score.gpu_index), []).append(view)
    found = tuple(
        structs.replace(gpu, node_id=node.id, pool=node.pool, scores=tuple(scores.get((node.id, gpu.index), ())))
        for node in node_views(nodes, holding, gateway.cluster, call.who, now=gateway.now())
        for gpu in node.gpus
    )
    return answer(GpusView(gpus=found))


async def slowest_of(gateway: Gateway, pools: Iterable[str]) -> dict[str, GpuScoreView]:
    """By node, the score of the GPU that counts as slowest in placement, for any class."""
    worst: dict[str, GpuScore] = {}
    for score in await _scores(gateway, pools):
        known = worst.get(score.node_id)
        if known is None or score.believed > known.believed:
            worst[score.node_id] = score
    return {node_id: score_view(score, now=gateway.now()) for node_id, score in worst.items()}


def score_view(score: GpuScore, *, now: float) -> GpuScoreView:
    return GpuScoreView(
        gpu_index=score.gpu_index,
        job_class=score.job_class,
        score=score.score,
        believed=score.believed,
        confidence=score.confidence,
        samples=score.samples,
        age_seconds=None if score.measured_at is None else max(0.0, now - score.measured_at),
        source=score.source,
        quarantined_until=score.quarantined_until,
    )


async def _scores(gateway: Gateway, pools: Iterable[str]) -> list[GpuScore]:
    return [score for pool in pools for score in await gateway.snapshots.scores(pool)]
