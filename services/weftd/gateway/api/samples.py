"""Figures as they were sampled, of the last day at most: of a job, of a node and its GPUs, of the cluster."""

from collections.abc import Mapping
from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct

from weft.domain.cluster import GPUS_MAX
from weft.domain.spec import TOKEN_PATTERN
from weft.messages.series import SeriesView
from weftd.gateway.errors import RejectedError
from weftd.gateway.http.route import Call, RouteAnswer, answer, operation
from weftd.gateway.readmodel.sampling import CLUSTER
from weftd.gateway.thinking.rings import COARSE_SECONDS, FINE_SECONDS, FINE_STEPS, Series

GPUS_AT_ONCE_MAX = 64  # of one node, in one answer
SECONDS_MAX = 86_400
WIDE_SECONDS = 300  # the steps of answers over more than WIDE_FROM_SECONDS
WIDE_FROM_SECONDS = 21_600
GpuIndex = Annotated[int, Meta(ge=0, lt=GPUS_MAX, description="Only this GPU of the node.")]


class SamplesQuery(Struct, frozen=True, forbid_unknown_fields=True):
    job: Annotated[str, Meta(pattern=TOKEN_PATTERN, description="Id or name of a job.")] | None = None
    node: Annotated[str, Meta(pattern=TOKEN_PATTERN, description="Name of a node.")] | None = None
    gpu: GpuIndex | None = None
    cluster: Annotated[bool, Meta(description="Totals of the cluster.")] = False
    seconds: Annotated[int, Meta(ge=60, le=SECONDS_MAX, description="Length of the period, in seconds.")] = 900


@operation(
    "GET /v1/samples",
    "cluster",
    "Sampled figures of the last day",
    description="Figures of one job, of one node with its GPUs, or of the cluster: the last quarter of an hour in steps"
    " of 5 s, the last day in longer steps. Gaps in the samples of this gateway are null.",
    answers={200: RouteAnswer(description="The figures, by name.", type=SeriesView)},
    example="?node=node-1&seconds=900",
)
async def samples(call: Call[SamplesQuery]) -> web.StreamResponse:
    gateway, query = call.gateway, call.query
    named = [name for name in ("job", "node", "cluster") if getattr(query, name)]
    if len(named) != 1:
        raise RejectedError(400, named[1] if named else "job", "say one of job=ID, node=ID and cluster=1")
    if query.gpu is not None and query.node is None:
        raise RejectedError(400, "gpu", "say of which node=ID")
    if query.job is not None:
        found = gateway.samples.jobs.get((await gateway.job(call.who, query.job)).id)
    elif query.node is not None:
        found = _of_gpus(gateway.samples.nodes.get((await gateway.node(query.node)).id), query.gpu)
    else:
        found = gateway.samples.cluster.get(CLUSTER)
        found = found if call.who.admin else {name: of for name, of in found.items() if name != "queued"}
    return answer(view_of(found, seconds=query.seconds, now=gateway.now()))


def view_of(series: Mapping[str, Series], *, seconds: int, now: float) -> SeriesView:
    step = FINE_SECONDS if seconds <= FINE_SECONDS * FINE_STEPS else COARSE_SECONDS
    step = step if seconds <= WIDE_FROM_SECONDS else WIDE_SECONDS
    count = -(-seconds // step)
    begins = (int(now // step) - count + 1) * step
    values = {name: tuple(of.read(begins, count, step)) for name, of in sorted(series.items())}
    return SeriesView(step_seconds=step, begins=begins, series=values)


def _of_gpus(series: Mapping[str, Series], gpu: int | None) -> Mapping[str, Series]:
    """The series of one GPU, or of the node with its first GPUs."""
    if gpu is not None:
        return {name: of for name, of in series.items() if name.startswith(f"gpu.{gpu}.")}
    return {name: of for name, of in series.items() if not name.startswith("gpu.") or _index(name) < GPUS_AT_ONCE_MAX}


def _index(name: str) -> int:
    return int(name.split(".")[1])
