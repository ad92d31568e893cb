"""Files of jobs: what their runs left on a node in their results and checkpoints, listed, read and deleted."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from email.utils import formatdate
from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct

from weft.bus import BusError, NoAnswerError
from weft.domain.job import Job
from weft.domain.spec import TOKEN_PATTERN
from weft.messages.files import (
    FILES_MAX,
    PATH_CHARACTERS_MAX,
    PIECE_BYTES,
    DeleteFiles,
    FileRead,
    FilesDeleted,
    FilesDeletedView,
    FilesListed,
    JobFilesView,
    ListFiles,
    ReadFile,
)
from weft.messages.problems import PROBLEM
from weftd.gateway.api.logs import BROUGHT_SECONDS_PER_BYTE, part_of, run_of, unanswered
from weftd.gateway.errors import RejectedError
from weftd.gateway.gateway import Gateway
from weftd.gateway.http.route import Call, Header, RouteAnswer, answer, operation
from weftd.gateway.limits.streams import write
from weftd.gateway.sessions.runs import ANSWER_SECONDS_MAX, RankRun

WHAT = "the files"
PIECES_AT_ONCE = 3  # kept in memory for each reader, so that node and gateway work at the same time

Path = Annotated[
    str,
    Meta(
        max_length=PATH_CHARACTERS_MAX,
        description="Path below `results` or `checkpoints`; any other path counts as below `results`.",
    ),
]
Rank = Annotated[
    int, Meta(ge=0, le=65535, description="Rank whose node has the files, or with `role` within that role.")
]
Role = Annotated[str, Meta(pattern=TOKEN_PATTERN)]
Epoch = Annotated[int, Meta(ge=0, le=2**31 - 1, description="Epoch (default: the newest that was placed).")]


class FilesQuery(Struct, frozen=True, forbid_unknown_fields=True):
    path: Path = ""
    rank: Rank = 0
    role: Role | None = None
    epoch: Epoch | None = None
    after: Annotated[str, Meta(max_length=PATH_CHARACTERS_MAX, description="`next` of the previous page.")] = ""
    limit: Annotated[int, Meta(ge=1, le=FILES_MAX)] = FILES_MAX


class FileQuery(Struct, frozen=True, forbid_unknown_fields=True):
    path: Path = ""
    rank: Rank = 0
    role: Role | None = None
    epoch: Epoch | None = None


FILE_HEADERS = (
    Header(name="Range", description="`bytes=a-b`, `bytes=a-` or `bytes=-n`."),
    Header(name="If-Range", description="An `ETag`: with another one the whole file is sent."),
    Header(name="ETag", description="Changes when the file changes.", of_answer=True),
    Header(name="X-Weft-Node", description="The node that has the file.", of_answer=True),
)


@operation(
    "GET /v1/jobs/{job}/files",
    "jobs",
    "List the files of a job",
    description="Files that its runs wrote to `WEFT_RESULTS` and `WEFT_CHECKPOINT_DIR`, on the node of one rank, also"
    " after the end of the job, for as long as the node keeps them.",
    answers={200: RouteAnswer(description="A page of files.", type=JobFilesView)},
    example="?path=results",
)
async def files(call: Call[FilesQuery]) -> web.StreamResponse:
    query, gateway = call.query, call.gateway
    job, run, node_id = await _where(call)
    asked = ListFiles(node_id=node_id, job_id=job.id, path=query.path, after=query.after, limit=query.limit)
    try:
        listed = await gateway.bus.request(asked, FilesListed, seconds_max=ANSWER_SECONDS_MAX)
    except BusError:
        raise await unanswered(gateway, run, what=WHAT) from None
    _check(listed, query.path, job, run)
    return answer(
        JobFilesView(
            files=listed.files[: query.limit],
            node=node_id,
            rank=run.rank,
            epoch=run.epoch,
            next=listed.next,
            left_out=listed.left_out,
            cut=listed.cut,
        )
    )


@operation(
    "GET /v1/jobs/{job}/file",
    "jobs",
    "Read a file of a job",
    description="To resume an interrupted download, send `Range`, and the `ETag` as `If-Range`.",
    headers=FILE_HEADERS,
    answers={
        200: RouteAnswer(description="The file.", type=bytes, media=("application/octet-stream",)),
        206: RouteAnswer(description="The requested part.", type=bytes, media=("application/octet-stream",)),
    },
    example="?path=results/model.pt",
)
async def file(call: Call[FileQuery]) -> web.StreamResponse:
    job, run, node_id = await _where(call)
    asked = ReadFile(node_id=node_id, job_id=job.id, path=call.query.path, limit=0)
    call.turn.end()
    async with call.gateway.streams.one(call.who.tenant, call.request):
        try:
            head = await _read(call.gateway, asked)
            _check(head, call.query.path, job, run)
            return await _send(call, asked, head)
        except BusError:
            raise await unanswered(call.gateway, run, what=WHAT) from None


@operation(
    "DELETE /v1/jobs/{job}/files",
    "jobs",
    "Delete files of a job",
    description="Delete files of a job that has ended. Without a path, delete all of its files on that node.",
    answers={200: RouteAnswer(description="The files are deleted.", type=FilesDeletedView)},
    example="?path=checkpoints",
)
async def delete(call: Call[FilesQuery]) -> web.StreamResponse:
    query, gateway = call.query, call.gateway
    job, run, node_id = await _where(call)
    if not job.state.final:
        raise RejectedError(409, "job", f"{job.name} is {job.state}: its files can be deleted once it has ended")
    asked = DeleteFiles(node_id=node_id, job_id=job.id, path=query.path)
    try:
        deleted = await gateway.bus.request(asked, FilesDeleted, seconds_max=ANSWER_SECONDS_MAX)
    except BusError:
        raise await unanswered(gateway, run, what=WHAT) from None
    _check(deleted, query.path, job, run)
    return answer(FilesDeletedView(node=node_id, path=query.path))


async def _where(call: Call[FilesQuery] | Call[FileQuery]) -> tuple[Job, RankRun, str]:
    """The job, the requested run, and the node on which it is or was. Raises RejectedError."""
    query = call.query
    job = await call.gateway.job(call.who, call.path("job"))
    run = await run_of(call.gateway, job, rank=query.rank, role=query.role, epoch=query.epoch)
    if run.node_id is None:
        raise RejectedError(404, "job", f"{job.name} has no files: it is {job.state}, and no node has run it yet")
    return job, run, run.node_id


def _check(found: FilesListed | FileRead | FilesDeleted, path: str, job: Job, run: RankRun) -> None:
    """Raises RejectedError if the node does not have the file or refuses it."""
    shown = path[:200] or "all files"
    if found.refused:
        raise RejectedError(400, "path", f"{shown} {found.refused}")
    if found.missing:
        kept = "it wrote none, or they were deleted, as old files are (EXECUTOR_RESULTS_KEPT_DAYS)"
        what = f"no {shown}" if path else "no files"
        raise RejectedError(404, "path", f"node {run.node_id} has {what} of {job.name}: {kept}")


async def _read(gateway: Gateway, asked: ReadFile) -> FileRead:
    return await gateway.bus.request(asked, FileRead, seconds_max=ANSWER_SECONDS_MAX)


async def _send(call: Call[FileQuery], asked: ReadFile, head: FileRead) -> web.StreamResponse:
    mark = f'"{head.mark}"'
    asked_range = call.request.headers.get("Range")
    if asked_range is not None and call.request.headers.get("If-Range", mark) != mark:
        asked_range = None
    begin, end, status = 0, head.size, 200
    if asked_range is not None and (part := part_of(asked_range)) is not None:
        first, last = part
        begin = max(0, head.size - (last or 0)) if first is None else first
        end = head.size if first is None or last is None else min(last + 1, head.size)
        status = 206
        if begin >= end:
            return _too_far(head.size)
    headers = {
        "Content-Type": "application/octet-stream",
        "Cache-Control": "no-store",
        "Accept-Ranges": "bytes",
        "ETag": mark,
        "Last-Modified": formatdate(head.modified_at, usegmt=True),
        "X-Weft-Node": asked.node_id,
        **({"Content-Range": f"bytes {begin}-{end - 1}/{head.size}"} if status == 206 else {}),
    }
    response = web.StreamResponse(status=status, headers=headers)
    response.content_length = end - begin
    await response.prepare(call.request)
    try:
        async with aclosing(pieces(call.gateway, asked, begin, end)) as coming:
            async for piece in coming:
                if piece.mark != head.mark or not piece.data:
                    raise ConnectionAbortedError("the file has changed")
                await write(response, piece.data)
                call.gateway.cpu_budgets.charge(call.who.tenant, BROUGHT_SECONDS_PER_BYTE * len(piece.data))
                await call.gateway.cpu_budgets.write(call.who.tenant)
    except (ConnectionError, BusError):
        if call.request.transport is not None:
            call.request.transport.abort()  # The client must not take this for the end of the file.
    return response


def _too_far(size: int) -> web.Response:
    rejected = RejectedError(416, "Range", f"the file has {size} bytes")
    headers = {"Content-Range": f"bytes */{size}"}
    return web.Response(body=rejected.body, status=416, content_type=PROBLEM, headers=headers)


async def pieces(gateway: Gateway, asked: ReadFile, begin: int, end: int) -> AsyncGenerator[FileRead, None]:
    """The pieces in order. Up to PIECES_AT_ONCE are requested ahead of the reader."""
    coming = deque[asyncio.Task[FileRead]]()
    try:
        while begin < end or coming:
            while begin < end and len(coming) < PIECES_AT_ONCE:
                size = min(PIECE_BYTES, end - begin)
                one = ReadFile(node_id=asked.node_id, job_id=asked.job_id, path=asked.path, offset=begin, limit=size)
                coming.append(asyncio.create_task(_whole(gateway, one, size)))
                begin += size
            yield await coming.popleft()
    finally:
        for task in coming:
            task.cancel()
        await asyncio.gather(*coming, return_exceptions=True)


async def _whole(gateway: Gateway, asked: ReadFile, size: int) -> FileRead:
    """One piece, asked for once more if its node does not answer."""
    try:
        found = await _read(gateway, asked)
    except NoAnswerError:
        found = await _read(gateway, asked)
    if len(found.data) != size:
        raise ConnectionAbortedError("the file has changed")
    return found
