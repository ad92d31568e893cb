"""Logs: the bytes that one run wrote, read from its node, whole, in part, or as they are written."""

import asyncio
import re
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta, Struct

from weft.bus import BusError, NoAnswerError
from weft.domain.job import Job
from weft.domain.quantity import size_text
from weft.domain.spec import TOKEN_PATTERN
from weft.messages.nodes import LogRead
from weft.messages.problems import PROBLEM
from weft.store import StoreUnavailableError
from weftd.gateway.errors import RejectedError
from weftd.gateway.gateway import Gateway
from weftd.gateway.http.route import Call, Header, RouteAnswer, operation
from weftd.gateway.limits.streams import gone, write
from weftd.gateway.sessions import runs
from weftd.gateway.sessions.runs import RankRun

OFFSET_MAX = 2**53
YEAR_2100 = 4_102_444_800.0
WAIT_SECONDS = 10.0  # one request to a node waits this long for bytes
PATIENCE_SECONDS = 60.0  # a node that is silent for longer ends the stream
PLACED_POLL_SECONDS = 0.3
AGAIN_SECONDS = 0.5  # before the next request to a node that did not answer
BROUGHT_SECONDS_PER_BYTE = 4e-9  # of the node's executor and of NATS: about 4 ms for a mebibyte
RANGE = re.compile(r"bytes=([0-9]{0,16})-([0-9]{0,16})")

Offset = Annotated[int, Meta(ge=0, le=OFFSET_MAX)]


class LogQuery(Struct, frozen=True, forbid_unknown_fields=True):
    rank: Annotated[int, Meta(ge=0, le=65535, description="Rank of the job, or with `role` within that role.")] = 0
    role: Annotated[str, Meta(pattern=TOKEN_PATTERN)] | None = None
    epoch: (
        Annotated[int, Meta(ge=0, le=2**31 - 1, description="Epoch (default: the newest that was placed).")] | None
    ) = None
    follow: Annotated[bool, Meta(description="Stream new output until the run has ended.")] = False
    offset: Annotated[int, Meta(ge=0, le=OFFSET_MAX, description="First byte.")] = 0
    tail: Annotated[int, Meta(ge=0, le=OFFSET_MAX, description="Number of bytes from the end.")] | None = None


LOG_HEADERS = (
    Header(name="Range", description="`bytes=a-b`, `bytes=a-` or `bytes=-n`; not while following."),
    Header(name="X-Weft-Epoch", description="The epoch whose log this is.", of_answer=True),
    Header(name="X-Weft-Rank", description="The rank whose log this is.", of_answer=True),
    Header(name="X-Weft-Node", description="The node that has the log, once the job is placed.", of_answer=True),
    Header(name="X-Weft-Offset", description="Offset of the first byte of this answer in the log.", of_answer=True),
    Header(
        name="X-Weft-Begins",
        description="Bytes at the beginning of the log that its node deleted to keep its limits.",
        of_answer=True,
    ),
)


@operation(
    "GET /v1/jobs/{job}/logs",
    "jobs",
    "A run's log",
    description="The bytes that one rank wrote to stdout and stderr. A stream that breaks while following is"
    " not complete: continue with `offset`.",
    headers=LOG_HEADERS,
    answers={
        200: RouteAnswer(description="The bytes.", type=bytes, media=("text/plain",)),
        206: RouteAnswer(description="The requested part.", type=bytes, media=("text/plain",)),
    },
    example="?follow=1",
)
async def logs(call: Call[LogQuery]) -> web.StreamResponse:
    query, gateway = call.query, call.gateway
    asked_range = call.request.headers.get("Range")
    if sum((asked_range is not None, bool(query.offset), query.tail is not None)) > 1:
        raise RejectedError(400, "offset", "give one of offset, tail and a Range header")
    job = await gateway.job(call.who, call.path("job"))
    run = await run_of(gateway, job, rank=query.rank, role=query.role, epoch=query.epoch)
    if query.follow:
        call.turn.end()
    async with gateway.streams.one(call.who.tenant, call.request):
        try:
            if asked_range is not None and not query.follow and (part := part_of(asked_range)) is not None:
                return await _send_part(call, run, *part)
            offset = query.offset
            if query.tail is not None and run.node_id is not None:
                begins, size = await runs.extent(gateway.bus, run)
                offset = max(begins, size - query.tail)
            return await _send(call, job, run, offset)
        except BusError:
            raise await unanswered(gateway, run) from None


async def run_of(gateway: Gateway, job: Job, *, rank: int, role: str | None, epoch: int | None) -> RankRun:
    """The requested run. The newest epoch of a placed job with all ranks needs no read of the event history."""
    needs_story = job.placement is None or epoch not in (None, job.epoch) or job.placement.changes > 0
    known = await runs.placements(gateway.store, job, epoch) if needs_story else runs.present_placement(job)
    return runs.find_run(job, known, epoch=epoch, role=role, rank=rank)


async def _send(call: Call[LogQuery], job: Job, run: RankRun, offset: int) -> web.StreamResponse:
    """Send the log, with its first offset in a header. If the node drops bytes while a slow reader reads, the answer is
    cut; the next request gets a later first offset."""
    request = call.request
    pieces = _follow(call.gateway, job, run, offset, request) if call.query.follow else _read(call, job, run, offset)
    async with aclosing(pieces):
        # All refusals come before a status is sent.
        piece: LogRead | None = await anext(pieces, LogRead(offset=offset, data=b"", size=offset))
        assert piece is not None, "the default is no None"
        response = web.StreamResponse(headers=_headers(run, piece.offset, begins=piece.begins))
        reached = piece.offset
        end = max(piece.size, piece.offset + len(piece.data))
        if not call.query.follow:
            response.content_length = end - piece.offset
        try:
            await response.prepare(request)
            while piece is not None:
                if piece.offset != reached:
                    raise ConnectionAbortedError(f"the log has a gap before {piece.offset}")
                if piece.data:
                    await write(response, piece.data)
                    reached += len(piece.data)
                call.gateway.cpu_budgets.charge(call.who.tenant, BROUGHT_SECONDS_PER_BYTE * len(piece.data))
                await call.gateway.cpu_budgets.write(call.who.tenant)
                piece = await anext(pieces, None)
            if response.content_length is not None and reached != end:
                raise ConnectionAbortedError("the log has become shorter")
        except (ConnectionError, BusError, StoreUnavailableError):
            if request.transport is not None:
                request.transport.abort()  # The client must not take this for the end of the log.
    return response


async def _read(call: Call[LogQuery], job: Job, run: RankRun, offset: int) -> AsyncGenerator[LogRead, None]:
    """The log as far as it is written now."""
    end: int | None = None
    while run.node_id is not None and (end is None or offset < end):
        limit = runs.CHUNK_BYTES if end is None else min(runs.CHUNK_BYTES, end - offset)
        got = await runs.read(call.gateway.bus, run, offset=offset, limit=limit)
        await _refuse_missing(call.gateway, got, job, run)
        yield got
        offset = got.offset + len(got.data)
        if end is None:
            end = got.size
        if got.ended or not got.data:
            return


async def _refuse_missing(gateway: Gateway, got: LogRead, job: Job, run: RankRun) -> None:
    if not got.missing or not (job.state.final or run.epoch < job.epoch):
        return
    cause = await runs.never_started(gateway.store, job, run)
    if cause is not None:
        why = cause.sentence.removeprefix("could not start: ")
        raise RejectedError(404, "epoch", f"{job.name} never started in epoch {run.epoch}: {why}")
    if 0 < got.dropped_at < YEAR_2100:
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(got.dropped_at))
        size = size_text(max(0, got.dropped_bytes))
        raise RejectedError(
            404,
            "epoch",
            f"node {run.node_id} dropped this log ({size}) at {at}, by its limits for logs"
            " (EXECUTOR_LOGS_KEPT_DAYS, EXECUTOR_LOGS_BYTES_MAX)",
        )
    reason = (
        f"node {run.node_id} has no log of epoch {run.epoch}: it never began there, or the node has dropped it,"
        " as it does with old ones (EXECUTOR_LOGS_KEPT_DAYS, EXECUTOR_LOGS_BYTES_MAX)"
    )
    raise RejectedError(404, "epoch", reason)


async def unanswered(gateway: Gateway, run: RankRun, *, what: str = "the log") -> RejectedError:
    """The refusal for a silent node. A lost node may never be back, so the client does not wait for it."""
    if await _lost(gateway, run):
        reason = (
            f"node {run.node_id}, which has {what} of epoch {run.epoch}, is lost: {what} can be read once it is back"
        )
        return RejectedError(404, "node", reason)
    return RejectedError(503, "", f"node {run.node_id}, which has {what}, does not answer")


async def _lost(gateway: Gateway, run: RankRun) -> bool:
    try:
        nodes = await gateway.store.nodes()
    except StoreUnavailableError:
        return False
    return any(node.id == run.node_id and not node.ready for node in nodes)


async def _first_look(gateway: Gateway, job: Job, run: RankRun, offset: int) -> LogRead:
    """The log's first offset, if its node answers at once. Raises RejectedError if no later answer can help."""
    if run.node_id is None:
        return LogRead(offset=offset, data=b"")
    try:
        got = await runs.read(gateway.bus, run, offset=offset)
    except BusError:
        refused = await unanswered(gateway, run)
        if refused.status == 404:
            raise refused from None
        return LogRead(offset=offset, data=b"")
    await _refuse_missing(gateway, got, job, run)
    return got


async def _follow(
    gateway: Gateway, job: Job, run: RankRun, offset: int, request: web.Request
) -> AsyncGenerator[LogRead, None]:
    """The log as it is and as it grows, until the run is over."""
    got = await _first_look(gateway, job, run, offset)
    yield got  # With data or without: the status is sent, however long the first byte takes.
    if got.ended:
        return
    offset = got.offset + len(got.data)
    over = False
    while not gone(request):
        missing = True
        if run.node_id is not None:
            wait = 0.0 if over else WAIT_SECONDS
            got = await _read_patiently(gateway, run, offset=offset, wait=wait)
            if got.data:
                yield got
                offset = got.offset + len(got.data)
            if got.ended:
                return
            if got.data:
                continue
            missing = got.missing
        if over:
            return  # The run was over before this last look.
        if missing:
            await asyncio.sleep(PLACED_POLL_SECONDS)
        fresh = await gateway.store.job(job.id)
        over = fresh is None or fresh.epoch > run.epoch or fresh.state.final
        if run.node_id is None and fresh is not None:
            run = await _placed(gateway, fresh, run)


async def _read_patiently(gateway: Gateway, run: RankRun, *, offset: int, wait: float) -> LogRead:
    """Repeat while the node does not answer (it may be restarting), unless it is lost. Raises NoAnswerError."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    while True:
        try:
            return await runs.read(gateway.bus, run, offset=offset, wait=wait)
        except NoAnswerError:
            if asyncio.get_running_loop().time() > deadline or await _lost(gateway, run):
                raise
        await asyncio.sleep(AGAIN_SECONDS)


async def _placed(gateway: Gateway, fresh: Job, run: RankRun) -> RankRun:
    """`run` with its node if it is placed. The event history also has the node of an ended epoch."""
    placement = fresh.placement if fresh.epoch == run.epoch else None
    if placement is None and (fresh.epoch > run.epoch or fresh.state.final):
        placement = (await runs.placements(gateway.store, fresh, run.epoch)).get(run.epoch)
    if placement is None:
        return run
    node_id = next((each.node_id for each in placement.allocations if each.rank == run.rank), None)
    return msgspec.structs.replace(run, node_id=node_id)


async def _send_part(call: Call[LogQuery], run: RankRun, first: int | None, last: int | None) -> web.StreamResponse:
    """Send a part of the log, without the bytes that the node has dropped."""
    bus = call.gateway.bus
    begins, size = await runs.extent(bus, run) if run.node_id is not None else (0, 0)
    if first is None:
        begin, end = max(begins, size - (last or 0)), size
    else:
        begin, end = max(begins, first), size if last is None else min(last + 1, size)
    if begin >= end:
        rejected = RejectedError(416, "Range", f"the log has the bytes {begins} to {size}")
        return web.Response(
            body=rejected.body,
            status=416,
            content_type=PROBLEM,
            headers={"Content-Range": f"bytes */{size}"},
        )
    headers = {**_headers(run, begin, begins=begins), "Content-Range": f"bytes {begin}-{end - 1}/{size}"}
    response = web.StreamResponse(status=206, headers=headers)
    response.content_length = end - begin
    offset = begin
    try:
        while offset < end:
            await call.gateway.cpu_budgets.write(call.who.tenant)
            got = await runs.read(bus, run, offset=offset, limit=min(runs.CHUNK_BYTES, end - offset))
            if not got.data or got.offset != offset:
                raise NoAnswerError("the log has become shorter")
            if not response.prepared:
                await response.prepare(call.request)
            await write(response, got.data)
            call.gateway.cpu_budgets.charge(call.who.tenant, BROUGHT_SECONDS_PER_BYTE * len(got.data))
            offset += len(got.data)
    except (ConnectionError, BusError):
        if not response.prepared:
            raise
        if call.request.transport is not None:
            call.request.transport.abort()
    return response


def part_of(header: str) -> tuple[int | None, int | None] | None:
    """First and last byte of `bytes=a-b`, `bytes=a-` or `bytes=-n` (the last n); None: ignore the header."""
    found = RANGE.fullmatch(header.strip())
    if found is None or header.strip() == "bytes=-":
        return None  # Several ranges, or another unit: the whole log is a valid answer too.
    first, last = (int(number) if number else None for number in found.groups())
    if first is not None and last is not None and last < first:
        return None
    return first, last


def _headers(run: RankRun, offset: int, *, begins: int) -> dict[str, str]:
    headers = {
        "Content-Type": "text/plain; charset=utf-8",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
        "Accept-Ranges": "bytes",
        "X-Weft-Job": run.job_id,
        "X-Weft-Epoch": str(run.epoch),
        "X-Weft-Rank": str(run.rank),
        "X-Weft-Offset": str(offset),
        "X-Weft-Begins": str(begins),
    }
    return headers if run.node_id is None else {**headers, "X-Weft-Node": run.node_id}
