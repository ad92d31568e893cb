"""Logs: the bytes that one run wrote, read from its node, whole, in part, or as they are written."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta, Struct

from libs.bus import BusError, NoAnswerError
from libs.domain.job import Job
from libs.domain.spec import TOKEN_PATTERN
from libs.store import StoreUnavailableError
from services.gateway import runs
from services.gateway.errors import RejectedError
from services.gateway.gateway import Gateway
from services.gateway.route import Call
from services.gateway.runs import Run
from services.gateway.streams import gone, write

OFFSET_MAX = 2**53
WAIT_SECONDS = 10.0  # one request to a node waits this long for bytes
PATIENCE_SECONDS = 60.0  # a node that is silent for longer ends the stream
PLACED_POLL_SECONDS = 0.3
RANGE = re.compile(r"bytes=([0-9]{0,16})-([0-9]{0,16})")

Offset = Annotated[int, Meta(ge=0, le=OFFSET_MAX)]


class LogQuery(Struct, frozen=True, forbid_unknown_fields=True):
    rank: Annotated[int, Meta(ge=0, le=65535, description="With a role, it counts within that role.")] = 0
    role: Annotated[str, Meta(pattern=TOKEN_PATTERN)] | None = None
    epoch: Annotated[int, Meta(ge=0, le=2**31 - 1, description="Without: the newest that was placed.")] | None = None
    follow: Annotated[bool, Meta(description="Go on as it is written, until the run is over.")] = False
    offset: Annotated[int, Meta(ge=0, le=OFFSET_MAX, description="Begin at this byte.")] = 0
    tail: Annotated[int, Meta(ge=0, le=OFFSET_MAX, description="Only this many bytes from the end.")] | None = None


async def logs(call: Call[LogQuery]) -> web.StreamResponse:
    query, gateway = call.query, call.gateway
    asked_range = call.request.headers.get("Range")
    if sum((asked_range is not None, bool(query.offset), query.tail is not None)) > 1:
        raise RejectedError(400, "offset", "give one of offset, tail and a Range header")
    job = await gateway.job(call.who, call.path("job"))
    run = await _run(gateway, job, query)
    with gateway.streams.one(call.who.tenant, call.request):
        try:
            if asked_range is not None and not query.follow and (part := _part(asked_range)) is not None:
                return await _send_part(call, run, *part)
            offset = query.offset
            if query.tail is not None and run.node_id is not None:
                offset = max(0, await runs.size(gateway.bus, run) - query.tail)
            return await _send(call, job, run, offset)
        except BusError:
            raise RejectedError(503, "", f"node {run.node_id}, which has the log, does not answer") from None


async def _run(gateway: Gateway, job: Job, query: LogQuery) -> Run:
    """The newest epoch of a placed job is known without its story."""
    needs_story = job.placement is None or query.epoch not in (None, job.epoch)
    story = await gateway.store.story(job.id) if needs_story else []
    known = runs.placements(job, story)
    return runs.find_run(job, known, epoch=query.epoch, role=query.role, rank=query.rank)


async def _send(call: Call[LogQuery], job: Job, run: Run, offset: int) -> web.StreamResponse:
    request = call.request
    chunks = _follow(call.gateway, job, run, offset, request) if call.query.follow else _read(call, job, run, offset)
    async with aclosing(chunks):
        first = await anext(chunks, b"")  # What can be refused is refused before a status is sent.
        response = web.StreamResponse(headers=_headers(run, offset))
        try:
            await response.prepare(request)
            if first:
                await write(response, first)
            async for chunk in chunks:
                await write(response, chunk)
        except (ConnectionError, BusError, StoreUnavailableError):
            if request.transport is not None:
                request.transport.abort()  # Its reader must not take this for the end of the log.
    return response


async def _read(call: Call[LogQuery], job: Job, run: Run, offset: int) -> AsyncGenerator[bytes, None]:
    """What is there now."""
    while run.node_id is not None:
        got = await runs.read(call.gateway.bus, run, offset=offset)
        if got.missing and (job.state.final or run.epoch < job.epoch):
            raise RejectedError(404, "epoch", f"node {run.node_id} no longer has this log")
        if got.data:
            yield got.data
            offset += len(got.data)
        if got.ended or not got.data:
            return


async def _follow(
    gateway: Gateway, job: Job, run: Run, offset: int, request: web.Request
) -> AsyncGenerator[bytes, None]:
    """What is there and what comes, until the run is over."""
    yield b""  # The status is sent at once, however long the first byte takes.
    over = False
    while not gone(request):
        missing = True
        if run.node_id is not None:
            wait = 0.0 if over else WAIT_SECONDS
            got = await runs.read_patiently(gateway.bus, run, offset=offset, wait=wait, patience=PATIENCE_SECONDS)
            if got.data:
                yield got.data
                offset += len(got.data)
            if got.ended:
                return
            if got.data:
                continue
            missing = got.missing
        if over:
            return  # It was over before this last look.
        if missing:
            await asyncio.sleep(PLACED_POLL_SECONDS)
        fresh = await gateway.store.job(job.id)
        over = fresh is None or fresh.epoch > run.epoch or fresh.state.final
        if run.node_id is None and fresh is not None:
            run = await _placed(gateway, fresh, run)


async def _placed(gateway: Gateway, fresh: Job, run: Run) -> Run:
    """`run` with its node, if it has been placed by now; the story knows it, too, of an epoch that came and went."""
    placement = fresh.placement if fresh.epoch == run.epoch else None
    if placement is None and (fresh.epoch > run.epoch or fresh.state.final):
        placement = runs.placements(fresh, await gateway.store.story(run.job_id)).get(run.epoch)
    if placement is None:
        return run
    node_id = next((each.node_id for each in placement.allocations if each.rank == run.rank), None)
    return msgspec.structs.replace(run, node_id=node_id)


async def _send_part(call: Call[LogQuery], run: Run, first: int | None, last: int | None) -> web.StreamResponse:
    bus = call.gateway.bus
    size = await runs.size(bus, run) if run.node_id is not None else 0
    if first is None:
        begin, end = max(0, size - (last or 0)), size
    else:
        begin, end = first, size if last is None else min(last + 1, size)
    if begin >= end:
        rejected = RejectedError(416, "Range", f"the log has {size} bytes")
        return web.Response(
            body=rejected.body,
            status=416,
            content_type="application/json",
            headers={"Content-Range": f"bytes */{size}"},
        )
    headers = {**_headers(run, begin), "Content-Range": f"bytes {begin}-{end - 1}/{size}"}
    response = web.StreamResponse(status=206, headers=headers)
    response.content_length = end - begin
    offset = begin
    try:
        while offset < end:
            got = await runs.read(bus, run, offset=offset, limit=min(runs.CHUNK_BYTES, end - offset))
            if not got.data:
                raise NoAnswerError("the log has become shorter")
            if not response.prepared:
                await response.prepare(call.request)
            await write(response, got.data)
            offset += len(got.data)
    except (ConnectionError, BusError):
        if not response.prepared:
            raise
        if call.request.transport is not None:
            call.request.transport.abort()
    return response


def _part(header: str) -> tuple[int | None, int | None] | None:
    """First and last byte of `bytes=a-b`, `bytes=a-` or `bytes=-n` (the last n); None for what may be ignored."""
    found = RANGE.fullmatch(header.strip())
    if found is None or header.strip() == "bytes=-":
        return None  # Several ranges, or another unit: the whole is a right answer too.
    first, last = (int(number) if number else None for number in found.groups())
    if first is not None and last is not None and last < first:
        return None
    return first, last


def _headers(run: Run, offset: int) -> dict[str, str]:
    headers = {
        "Content-Type": "text/plain; charset=utf-8",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
        "Accept-Ranges": "bytes",
        "X-Weft-Job": run.job_id,
        "X-Weft-Epoch": str(run.epoch),
        "X-Weft-Rank": str(run.rank),
        "X-Weft-Offset": str(offset),
    }
    return headers if run.node_id is None else {**headers, "X-Weft-Node": run.node_id}
