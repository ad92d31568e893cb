"""The operation that opens a session in a run: permission, choice of the run, limits."""

import asyncio
from contextlib import suppress
from typing import Annotated

import msgspec
from aiohttp import WSMsgType, web
from msgspec import Meta, Struct

from weft.bus import BusError
from weft.domain.job import Job, JobState
from weft.domain.spec import TOKEN_PATTERN
from weft.messages.sessions import (
    FRAME_BYTES_MAX,
    SIDE_MAX,
    OpenSession,
    SessionKind,
    SessionOpened,
    SessionSaid,
    SessionTold,
    WriteSession,
)
from weftd.gateway.api.logs import BROUGHT_SECONDS_PER_BYTE
from weftd.gateway.errors import RejectedError
from weftd.gateway.gateway import Gateway
from weftd.gateway.http.route import Call, RouteAnswer, operation
from weftd.gateway.sessions import runs
from weftd.gateway.sessions.relayed import ANSWER_SECONDS_MAX, SessionEnd, SessionLine
from weftd.gateway.sessions.runs import RankRun

PROTOCOL = "weft.attach"  # a browser closes a WebSocket if the server chooses none of the offered protocols
ORDER_SECONDS_MAX = 10.0
OPEN_SECONDS_MAX = 20.0  # an engine takes a while to start a process
SESSION_SECONDS = 0.03  # cost on the node, which starts a process, and in the scheduler, which records it
PIECE_SECONDS = 0.001  # cost on the node and in NATS of a piece of any size
SESSION_CHARACTERS = 32  # of 36: 165 bits
COMMAND_PARTS_MAX = 4096
LIVE = (JobState.STARTING, JobState.RUNNING, JobState.STOPPING)
OFFSET_MAX = 2**53

Side = Annotated[int, Meta(ge=0, le=SIDE_MAX)]


class AttachQuery(Struct, frozen=True, forbid_unknown_fields=True):
    kind: SessionKind = SessionKind.SHELL
    rank: Annotated[int, Meta(ge=0, le=65535, description="Rank of the job, or with `role` within that role.")] = 0
    role: Annotated[str, Meta(pattern=TOKEN_PATTERN)] | None = None
    tty: Annotated[bool, Meta(description="Allocate a terminal.")] = False
    rows: Side = 0
    columns: Side = 0
    term: Annotated[
        str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,62}$(?!\n)", description="The type of the terminal.")
    ] = "xterm"
    port: Annotated[int, Meta(ge=0, le=65535, description="With `kind=port`: port on which the run listens.")] = 0
    session: Annotated[str, Meta(pattern=r"^[a-z0-9]{0,64}$(?!\n)", description="Resume this session.")] = ""
    read: Annotated[
        int,
        Meta(ge=0, le=OFFSET_MAX, description="With `session`: number of output bytes that the client has received."),
    ] = 0


@operation(
    "GET /v1/jobs/{job}/attach",
    "jobs",
    "A shell, a command or a connection in a run",
    description="A WebSocket. For a new shell or command, the first text frame has the command:"
    ' `{"command": ["ls", "-l"]}`, or `{}` for a shell. Binary frames to the run are its input. Binary frames from the'
    " run are one byte (1: stdout, 2: stderr), then the output. docs/shell.md describes the JSON of text frames.",
    answers={101: RouteAnswer(description="The WebSocket is open.")},
    example="?kind=exec&rank=0",
)
async def attach(call: Call[AttachQuery]) -> web.StreamResponse:
    query, gateway, request = call.query, call.gateway, call.request
    job = await gateway.job(call.who, call.path("job"))
    gateway.count(call.who, changes=True)
    gateway.auditing.count(call.who)
    if job.pool in gateway.settings.sessions_off_pools:
        raise RejectedError(403, "job", f"pool {job.pool} allows no sessions in its jobs (GATEWAY_SESSIONS_OFF_POOLS)")
    if (query.kind is SessionKind.PORT) != bool(query.port):
        raise RejectedError(400, "port", "and `kind=port` need each other; a port is 1 to 65535")
    run = _run(job, query)
    if request.headers.get("Upgrade", "").lower() != "websocket":
        raise RejectedError(426, "Upgrade", "this is a WebSocket: ask for it with `Upgrade: websocket`")
    call.turn.end()
    async with gateway.opening.one(call.who.tenant):  # one after the other, each when the ones before it are paid for
        await gateway.cpu_budgets.go(call.who.tenant)
        gateway.cpu_budgets.charge(call.who.tenant, SESSION_SECONDS)
    socket = web.WebSocketResponse(
        max_msg_size=FRAME_BYTES_MAX + 16, compress=False, timeout=2.0, protocols=(PROTOCOL,)
    )
    async with gateway.entered.one(call.who.tenant), gateway.streams.one(call.who.tenant, request):
        if not socket.can_prepare(request).ok:
            raise RejectedError(400, "Upgrade", "not a request for a WebSocket that can be understood")
        await socket.prepare(request)
        try:
            await _serve(call, job, run, socket)
        except ConnectionError:
            pass
        except RejectedError as refused:
            told = SessionTold(refused=refused.status, reason=refused.reason)
            with suppress(ConnectionError, RuntimeError):
                await socket.send_str(msgspec.json.encode(told).decode())
        with suppress(TimeoutError, ConnectionError, RuntimeError):
            await socket.close()
    return socket


def _run(job: Job, query: AttachQuery) -> RankRun:
    """The run of the present epoch. Raises RejectedError."""
    if job.state not in LIVE or job.placement is None:
        raise RejectedError(409, "job", f"{job.name} does not run: it is {job.state}")
    run = runs.find_run(job, {job.epoch: job.placement}, epoch=job.epoch, role=query.role, rank=query.rank)
    assert run.node_id is not None, "a placed run has a node"
    return run


async def _serve(call: Call[AttachQuery], job: Job, run: RankRun, socket: web.WebSocketResponse) -> None:
    query, gateway = call.query, call.gateway
    command = await _command(socket) if query.kind is not SessionKind.PORT and not query.session else ()
    if query.kind in (SessionKind.EXEC, SessionKind.COPY) and not command and not query.session:
        raise RejectedError(400, "command", "there is no command")
    session_id = query.session or gateway.characters(SESSION_CHARACTERS)
    opened = await _open(gateway, run, query, session_id, command)
    record = gateway.entries.begun(call.who, job, run, query, session_id, command)
    try:
        if record.is_new:
            actor = gateway.auditing.actor(call.request, call.who)
            await gateway.auditing.done(actor, "enter", f"{record.what} of {job.name} ({job.id})")
        await record.entered()
    except BaseException:
        await _close(gateway, run, session_id, opened.line)
        raise
    line = SessionLine(
        socket,
        gateway.bus,
        node_id=_node(run),
        session_id=session_id,
        number=opened.line,
        taken=opened.taken,
        read=query.read,
        clock=gateway.clock,
        pace=lambda count: _carried(gateway, call.who.tenant, count),
    )
    over = SessionEnd.BROKEN
    try:
        await line.tell(SessionTold(session=session_id, node=_node(run), rank=run.rank, taken=opened.taken))
        over = await line.carry()
    except asyncio.CancelledError:
        if call.request.transport is not None and not gateway.streams.closing:  # The token is no longer valid.
            over = SessionEnd.CLOSED
            await asyncio.shield(_close(gateway, run, session_id, opened.line))
        raise
    finally:
        if over is SessionEnd.BROKEN and query.kind is SessionKind.PORT:
            over = SessionEnd.CLOSED
            await asyncio.shield(_close(gateway, run, session_id, opened.line))
        record.over(over, line.status, line.reason, number=opened.line)


async def _carried(gateway: Gateway, tenant: str, count: int) -> None:
    """Charge the tenant for a piece by its bytes, and return when its next piece may be carried."""
    gateway.cpu_budgets.charge(tenant, PIECE_SECONDS + BROUGHT_SECONDS_PER_BYTE * count)
    await gateway.cpu_budgets.write(tenant)


async def _command(socket: web.WebSocketResponse) -> tuple[str, ...]:
    """The command in the first frame."""
    frame = await socket.receive(timeout=ORDER_SECONDS_MAX)
    if frame.type is not WSMsgType.TEXT:
        raise RejectedError(400, "command", 'the first frame is text, such as {"command": ["ls", "-l"]}')
    try:
        said = msgspec.json.decode(frame.data, type=SessionSaid)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise RejectedError(400, "command", f"the first frame is not understood: {error}") from None
    if len(said.command) > COMMAND_PARTS_MAX or any("\0" in part for part in said.command):
        raise RejectedError(400, "command", f"has a character 0, or more than {COMMAND_PARTS_MAX} parts")
    if said.command and not said.command[0]:
        raise RejectedError(400, "command", "begins with an empty text")
    return said.command


async def _open(
    gateway: Gateway, run: RankRun, query: AttachQuery, session_id: str, command: tuple[str, ...]
) -> SessionOpened:
    asked = OpenSession(
        node_id=_node(run),
        session_id=session_id,
        job_id=run.job_id,
        epoch=run.epoch,
        rank=run.rank,
        kind=query.kind,
        command=command,
        tty=query.tty,
        rows=query.rows,
        columns=query.columns,
        term=query.term,
        port=query.port,
        resumes=bool(query.session),
    )
    try:
        opened = await gateway.bus.request(asked, SessionOpened, seconds_max=OPEN_SECONDS_MAX)
    except BusError:
        await _close(gateway, run, session_id, 1)
        raise RejectedError(503, "", f"node {run.node_id} does not answer") from None
    if opened.refused:
        status = 503 if opened.full else 410 if query.session else 409
        raise RejectedError(status, "job", opened.refused)
    return opened


async def _close(gateway: Gateway, run: RankRun, session_id: str, line: int) -> None:
    """End the session on its node. A node that does not receive this ends it soon by itself."""
    asked = WriteSession(node_id=_node(run), session_id=session_id, line=line, end=True)
    with suppress(BusError):
        await gateway.bus.request(asked, msgspec.Raw, seconds_max=ANSWER_SECONDS_MAX)  # type: ignore[type-var]


def _node(run: RankRun) -> str:
    assert run.node_id is not None, "a placed run has a node"
    return run.node_id
