"""A session in a container: a process that the engine starts there, with its own stream, and connections to its ports.

The process is the container's in all: its limits, user, folder, environment, network. The engine does not end it when
its stream is closed, so each bears a mark by which it is found and ended: from this host where its processes are seen
here, else by one more process in the container, which needs `sh` and `grep` there.
"""

import asyncio
import os
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from docker.utils import kwargs_from_env

from weft.messages.sessions import SessionKind
from weftd.executor.channel import SessionRefusedError, SessionWanted
from weftd.executor.runs import RuntimeUnavailableError
from weftd.executor.runtime.docker.egress import NEW_NETWORK, elsewhere, system
from weftd.executor.runtime.docker.engine import DockerEngine, EngineRefusedError
from weftd.executor.runtime.docker.resizing import Held
from weftd.executor.runtime.process.entering import kill_marked
from weftd.executor.runtime.process.listening import connect, pids_in
from weftd.executor.sessions.connection import PortChannel

UNIX = "unix://"
DEFAULT_SOCKET = "/var/run/docker.sock"
START_SECONDS_MAX = 15.0
STATUS_LOOKS, STATUS_PAUSE_SECONDS = 40, 0.05
CONNECT_SECONDS_MAX = 3.0
HEADER = struct.Struct(">BxxxL")  # of each piece of a stream without a terminal
SWITCHING = (101, 200)
_SHELL = ("/bin/sh", "-c", 'if [ -x "${SHELL:-}" ]; then exec "$SHELL" -i; elif command -v bash >/dev/null; '
          "then exec bash -i; else exec sh -i; fi")  # fmt: skip
# $1: the mark, or as much of its head as all to be ended have.
_END = """for p in /proc/[0-9]*; do
if grep -q "WEFT_SESSION=$1" "$p/environ" 2>/dev/null; then kill -9 "${p#/proc/}" 2>/dev/null; fi; done"""


async def enter(engine: DockerEngine, held: Held, wanted: SessionWanted, *, owner: str) -> "ExecChannel | PortChannel":
    """`owner`: the head of every mark of this node. Raises SessionRefusedError and RuntimeUnavailableError."""
    if wanted.kind is SessionKind.PORT:
        return await _to_port(engine, held, wanted.port)
    mark = f"{owner}{wanted.mark}"
    environment = {"WEFT_SESSION": mark, **({"TERM": wanted.term} if wanted.tty else {})}
    command = list(wanted.command or _SHELL)
    try:
        made = await engine.call(
            lambda: engine.client.exec_create(held.id, command, stdin=True, tty=wanted.tty, environment=environment)[
                "Id"
            ]
        )
    except EngineRefusedError as error:
        raise SessionRefusedError(f"the engine refuses it: {error}") from error
    reader, writer = await _started(str(made), tty=wanted.tty)
    channel = ExecChannel(engine, str(made), held, mark, reader, writer, tty=wanted.tty)
    try:
        if wanted.tty:
            with suppress(EngineRefusedError, RuntimeUnavailableError):  # The command may have ended.
                await channel.resize(wanted.rows, wanted.columns)
    except BaseException:
        await channel.end()
        raise
    return channel


async def end_marked(engine: DockerEngine, held: Iterable[Held], owner: str) -> None:
    """End the sessions that earlier executors of this node left in these containers."""
    await asyncio.to_thread(kill_marked, lambda mark: mark.startswith(owner))
    for one in held:
        if not _is_seen(one):
            with suppress(EngineRefusedError):  # It has ended since, or has no shell.
                await _end_inside(engine, one.id, owner)


def _is_seen(held: Held) -> bool:
    """True if this container's processes can be seen from here."""
    try:
        return held.id in Path(f"/proc/{held.pid}/cgroup").read_text()
    except OSError:
        return False


async def _end_inside(engine: DockerEngine, container: str, mark: str) -> None:
    made = await engine.call(lambda: engine.client.exec_create(container, ["/bin/sh", "-c", _END, "weft", mark])["Id"])
    await engine.call(lambda: engine.client.exec_start(made, detach=True))


async def _started(made: str, *, tty: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The stream of a process that the engine starts."""
    address = str(kwargs_from_env().get("base_url") or f"{UNIX}{DEFAULT_SOCKET}")
    path = address.removeprefix("http+").removeprefix(UNIX)
    if not path.startswith("/"):
        raise SessionRefusedError(
            "this node's engine is on another host: sessions cannot enter its containers from here"
        )
    body = msgspec.json.encode({"Detach": False, "Tty": tty})
    head = (
        f"POST /exec/{made}/start HTTP/1.1\r\nHost: engine\r\nContent-Type: application/json\r\n"
        f"Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(START_SECONDS_MAX):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(head.encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            status = int(answer.split(b" ", 2)[1])
            if status in SWITCHING:
                kept, writer = writer, None
                return reader, kept
            words = (await reader.read(4096)).decode(errors="replace")
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise RuntimeUnavailableError(f"the engine does not answer: {error}") from error
    finally:
        if writer is not None:
            writer.close()
    raise SessionRefusedError(f"the engine refuses it: {words.strip()[:300]}")


class ExecChannel:
    def __init__(
        self,
        engine: DockerEngine,
        made: str,
        held: Held,
        mark: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        tty: bool,
    ) -> None:
        self._engine, self._made, self._held, self._mark, self._tty = engine, made, held, mark, tty
        self._reader, self._writer = reader, writer
        self._stream, self._left = 1, 0  # of the present piece

    async def read(self, limit: int) -> tuple[int, bytes]:
        try:
            if self._tty:
                return 1, await self._reader.read(limit)
            while not self._left:
                stream, self._left = HEADER.unpack(await self._reader.readexactly(HEADER.size))
                self._stream = 2 if stream == 2 else 1
            data = await self._reader.read(min(limit, self._left))
        except (OSError, asyncio.IncompleteReadError):
            return 1, b""
        self._left -= len(data)
        return self._stream, data

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def close_input(self) -> None:
        if not self._tty:
            self._writer.write_eof()

    async def resize(self, rows: int, columns: int) -> None:
        engine, made = self._engine, self._made
        await engine.call(lambda: engine.client.exec_resize(made, height=rows, width=columns))

    async def status(self) -> int | None:
        """The engine notes the status a moment after the stream's end."""
        for _ in range(STATUS_LOOKS):
            found = await self._inspected()
            if found is None or not found.get("Running"):
                status = None if found is None else found.get("ExitCode")
                return status if isinstance(status, int) and 0 <= status <= 255 else None
            await asyncio.sleep(STATUS_PAUSE_SECONDS)
        return None

    async def end(self) -> None:
        self._writer.close()
        if await asyncio.to_thread(_is_seen, self._held):
            await asyncio.to_thread(kill_marked, lambda mark: mark == self._mark)
        else:
            try:
                await _end_inside(self._engine, self._held.id, self._mark)
            except EngineRefusedError:
                return  # The container is gone, or has no shell; what is left ends with it.

    async def _inspected(self) -> dict[str, Any] | None:
        engine, made = self._engine, self._made
        try:
            return await engine.call(lambda: dict(engine.client.exec_inspect(made)))
        except EngineRefusedError:
            return None


async def _to_port(engine: DockerEngine, held: Held, port: int) -> PortChannel:
    if not held.own_network:  # That of its host, or of another container: only what it listens on itself.
        return await connect(port, lambda: pids_in(held.groups.values()))
    try:
        found = await asyncio.to_thread(_inside, held, port)
    except PermissionError:
        found = await _from_outside(engine, held, port)
    except OSError as error:
        raise SessionRefusedError(f"nothing listens on port {port} of this run: {error.strerror or error}") from error
    found.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=found)
    return PortChannel(reader, writer)


def _inside(held: Held, port: int) -> socket.socket:
    """A connection to 127.0.0.1 of the container, made in its network. Blocks. Raises OSError."""
    made: list[socket.socket] = []
    namespace = os.open(f"/proc/{held.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not _is_seen(held):  # After the open, so that the file is of this container, and of no reused pid.
            raise FileNotFoundError("it ended")
        if os.path.samestat(os.fstat(namespace), os.stat("/proc/self/ns/net")):
            raise PermissionError("it has the network of its host")
        elsewhere(lambda: system("setns", namespace, NEW_NETWORK), lambda: made.append(_connected(port)))
    finally:
        os.close(namespace)
    return made[0]


def _connected(port: int) -> socket.socket:
    try:
        return socket.create_connection(("127.0.0.1", port), CONNECT_SECONDS_MAX)
    except ConnectionRefusedError:
        return socket.create_connection(("::1", port), CONNECT_SECONDS_MAX)


async def _from_outside(engine: DockerEngine, held: Held, port: int) -> socket.socket:
    """Where this executor may not enter the network: to the container's address, for what listens on all."""
    inspected = await engine.call(lambda: dict(engine.client.inspect_container(held.id)))
    networks = (inspected.get("NetworkSettings") or {}).get("Networks") or {}
    addresses = [str(one.get("IPAddress") or "") for one in networks.values()]
    for address in filter(None, addresses):
        try:
            return await asyncio.to_thread(socket.create_connection, (address, port), CONNECT_SECONDS_MAX)
        except OSError:
            continue
    raise SessionRefusedError(f"nothing listens on port {port} of this run at an address that this node reaches")
