"""Metrics of a job: the numbers that a rank reported, as series over all of its tries, from the nodes that stored
them."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Annotated, TypeVar

import msgspec
from aiohttp import web
from msgspec import Meta, Struct

from weft.bus import BusError
from weft.domain.job import PLACES, Job, Placement
from weft.messages.files import Area, FileRead, ReadFile
from weft.messages.metrics import POINTS_MAX, MetricsView
from weftd.gateway.api.files import pieces
from weftd.gateway.errors import RejectedError
from weftd.gateway.gateway import Gateway
from weftd.gateway.http.route import Call, RouteAnswer, answer, operation
from weftd.gateway.readmodel.event_history import story_pages
from weftd.gateway.sessions.runs import ANSWER_SECONDS_MAX

EPOCHS_MAX = 32  # the newest, of a job that was placed more often
BYTES_MAX = 32 << 20  # in one answer: the files of the newest epochs
VALUES_MAX = 1 << 20  # in one answer, those that are null among them: each epoch may have other names
POINTS = 1000

T = TypeVar("T")

Row = tuple[float, dict[str, float]]


class MetricsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    rank: Annotated[int, Meta(ge=0, le=65535)] = 0
    points: Annotated[int, Meta(ge=1, le=POINTS_MAX, description="Maximum number of points, evenly spaced.")] = POINTS


class _Placed(Struct, frozen=True):
    """The part of an event of `PLACES` that says where the ranks of an epoch are."""

    epoch: int
    placement: Placement | None = None


@operation(
    "GET /v1/jobs/{job}/metrics",
    "jobs",
    "The metrics of a job",
    description="The numbers that one rank reported as progress, over all epochs whose nodes still store them.",
    answers={200: RouteAnswer(description="The series, by name.", type=MetricsView)},
    example="?points=200",
)
async def metrics(call: Call[MetricsQuery]) -> web.StreamResponse:
    query, gateway = call.query, call.gateway
    job = await gateway.job(call.who, call.path("job"))
    async with gateway.metrics.one(call.who.tenant):
        parts, missing = await stored_metrics(gateway, job, query.rank)
        if not parts and not missing:
            raise RejectedError(
                404, "rank", f"{job.name} has no metrics: rank {query.rank} of it has run on no node yet"
            )
        if not parts:
            raise RejectedError(503, "", f"the nodes that have the metrics of {job.name} do not answer")
        view = await asyncio.to_thread(view_of, parts, rank=query.rank, points=query.points, missing=missing)
    return answer(view)


async def stored_metrics(gateway: Gateway, job: Job, rank: int) -> tuple[list[bytes], list[int]]:
    """The file of each epoch in which the rank was on a node, and the epochs that are missing: their node does not
    answer, or newer epochs fill the answer."""
    parts: list[bytes] = []
    missing: list[int] = []
    room = BYTES_MAX
    for epoch, node_id in sorted((await _nodes(gateway, job, rank)).items(), reverse=True):
        path = f"{Area.METRICS}/{epoch}-{rank}.jsonl"
        try:
            part = await _stored(gateway, ReadFile(node_id=node_id, job_id=job.id, path=path, limit=0), room)
        except (BusError, ConnectionError):
            part = None
        if part is None:
            missing.append(epoch)
        else:
            parts.append(part)
            room -= len(part)
    return parts[::-1], missing[::-1]


async def _nodes(gateway: Gateway, job: Job, rank: int) -> dict[int, str]:
    """For each epoch the node on which the rank was, of the newest epochs."""
    found: dict[int, str] = {}
    async for page in story_pages(gateway.store, job.id, events=sorted(PLACES)):
        for event in page:
            _note(found, msgspec.json.decode(event.data, type=_Placed), rank)
    _note(found, _Placed(job.epoch, job.placement), rank)
    return {epoch: found[epoch] for epoch in sorted(found)[-EPOCHS_MAX:]}


def _note(found: dict[int, str], placed: _Placed, rank: int) -> None:
    for allocation in placed.placement.allocations if placed.placement is not None else ():
        if allocation.rank == rank:
            found[placed.epoch] = allocation.node_id


async def _stored(gateway: Gateway, asked: ReadFile, room: int) -> bytes | None:
    """The file of one run; empty if its node has none, None if it has more bytes than `room`. Raises BusError,
    ConnectionError."""
    head = await gateway.bus.request(asked, FileRead, seconds_max=ANSWER_SECONDS_MAX)
    if head.missing or head.refused:
        return b""
    if head.size > room:
        return None
    async with aclosing(pieces(gateway, asked, 0, head.size)) as coming:
        return b"".join([piece.data async for piece in coming])


def view_of(parts: Sequence[bytes], *, rank: int, points: int, missing: Sequence[int] = ()) -> MetricsView:
    """The series in the lines of each epoch's file, thinned to this number of points, and to VALUES_MAX values."""
    lines = [line for part in parts for line in part.splitlines() if line.endswith(b"]")]  # one may be half written
    rows: Sequence[Row] = list(_rows(_evenly(lines, points)))
    names = sorted(set[str]().union(*(values for _, values in rows)))
    if len(rows) * len(names) > VALUES_MAX:
        rows = _evenly(rows, VALUES_MAX // len(names))
    return MetricsView(
        rank=rank,
        points=len(lines),
        at=tuple([at for at, _ in rows]),
        series={name: tuple([values.get(name) for _, values in rows]) for name in names},
        missing=tuple(missing),
    )


def _rows(lines: Iterable[bytes]) -> Iterator[Row]:
    decode = msgspec.json.Decoder(Row).decode
    for line in lines:
        try:
            yield decode(line)
        except msgspec.DecodeError:
            continue


def _evenly(items: Sequence[T], most: int) -> Sequence[T]:
    """At most that number of items, evenly spaced and with the last one."""
    total = len(items)
    if total <= most:
        return items
    step = total / most
    return [items[min(total - 1, int((place + 1) * step) - 1)] for place in range(most)]
