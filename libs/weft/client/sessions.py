"""A session in a run: output to read, input to write, and a line that is made again when it breaks.

All bytes are numbered on both ways. So after a line broke, or a gateway was started again, the session goes on where it
was: nothing is doubled and nothing is missing. If it cannot be gone on with in time, it ends, with the reason.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

import aiohttp
import msgspec

from weft.client.errors import ClientError, Refused, Unreachable
from weft.client.wire import Wire
from weft.messages.sessions import (
    ALIVE_SECONDS,
    DEAD_SECONDS,
    FRAME_BYTES_MAX,
    WINDOW_BYTES,
    SessionSaid,
    SessionTold,
)

LINE_SECONDS_MAX = 25.0  # to get a new line: the node ends a session that has none for a little longer
PAUSE_SECONDS = 0.5
PIECE_BYTES = 32 << 10
ACK_BYTES = 64 << 10
CLOSE_SECONDS_MAX = 2.0
BROKEN = (aiohttp.ClientError, OSError)
FINAL = frozenset({400, 401, 403, 404, 409, 410, 426})
_encode = msgspec.json.Encoder().encode


class RunSession:
    """`async with` opens it; leaving ends it. `status` and `reason` are known once `output` has ended."""

    def __init__(self, wire: Wire, path: str, query: Mapping[str, str], command: Sequence[str]) -> None:
        self._wire, self._path, self._query, self._command = wire, path, dict(query), tuple(command)
        self.id = ""
        self.node = ""
        self.rank = 0
        self.status: int | None = None
        self.reason = ""
        self.lines = 0  # how many it has had
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._pieces: deque[tuple[int, bytes]] = deque()
        self._read = self._acked = self._consumed = 0
        self._input = bytearray()  # not acknowledged
        self._taken = 0  # bytes of the input that are acknowledged
        self._sent = 0  # bytes of the input sent over this connection
        self._input_over = self._over = False
        self._refused: ClientError | None = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Raises Refused and Unreachable."""
        if len(_encode(SessionSaid(command=self._command))) > FRAME_BYTES_MAX:  # the gateway would hang up
            raise Refused(413, "command", f"the command has more than {FRAME_BYTES_MAX} bytes")
        try:
            self._socket = await self._line()
        except BROKEN as error:
            raise Unreachable(str(error) or type(error).__name__) from error
        self._task = asyncio.create_task(self._carry())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(TimeoutError, ConnectionError, aiohttp.ClientError):
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                if not self._over:
                    await self._say(SessionSaid(end=True))
                    while not self._over:
                        await self._change()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._socket is not None:
            with suppress(TimeoutError, ConnectionError, aiohttp.ClientError):
                async with asyncio.timeout(CLOSE_SECONDS_MAX):
                    await self._socket.close()

    async def output(self) -> AsyncGenerator[tuple[int, bytes], None]:
        """Each piece with its stream: 1 is the command's output, 2 its errors. Raises Refused."""
        while True:
            if self._pieces:
                stream, data = self._pieces.popleft()
                yield stream, data
                self._consumed += len(data)
                if self._consumed - self._acked >= ACK_BYTES or not self._pieces:
                    await self._acknowledge()
            elif self._over:
                if self._refused is not None:
                    raise self._refused
                return
            else:
                await self._change()

    async def write(self, data: bytes) -> None:
        """Return once the session has room for more. After the session's end the bytes go nowhere."""
        for at in range(0, len(data), PIECE_BYTES):
            while len(self._input) >= WINDOW_BYTES and not self._over:
                await self._change()
            if self._over:
                return
            self._input += data[at : at + PIECE_BYTES]
            await self._send_input()

    async def close_input(self) -> None:
        self._input_over = True
        await self._say(SessionSaid(over=True))

    async def resize(self, rows: int, columns: int) -> None:
        self._query |= {"rows": str(rows), "columns": str(columns)}
        await self._say(SessionSaid(rows=rows, columns=columns))

    async def leave(self, reason: str) -> None:
        """End it now, whatever state its line is in."""
        self.reason = reason
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await self._say(SessionSaid(end=True))
        self._end(None)

    async def _acknowledge(self) -> None:
        if self._consumed > self._acked and not self._over:
            self._acked = self._consumed
            await self._say(SessionSaid(acked=self._acked))

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _say(self, said: SessionSaid) -> None:
        """A line that breaks meanwhile is made again by `_carry`, which says all of it once more."""
        with suppress(ConnectionError, aiohttp.ClientError):
            if self._socket is not None and not self._over:
                await self._socket.send_str(_encode(said).decode())

    async def _send_input(self) -> None:
        with suppress(ConnectionError, aiohttp.ClientError):
            while self._socket is not None and (rest := self._taken + len(self._input) - self._sent) > 0:
                begins = self._sent - self._taken
                piece = bytes(self._input[begins : begins + min(rest, PIECE_BYTES)])
                self._sent += len(piece)
                await self._socket.send_bytes(piece)

    async def _line(self) -> aiohttp.ClientWebSocketResponse:
        """A new line, after the gateway's first word on it."""
        query = {**self._query, "session": self.id, "read": str(self._read)} if self.id else self._query
        socket = await self._wire.socket(self._path, query=query)
        try:
            if not self.id and self._query["kind"] != "port":
                await socket.send_str(_encode(SessionSaid(command=self._command)).decode())
            while True:
                frame = await socket.receive(timeout=LINE_SECONDS_MAX)
                if frame.type is not aiohttp.WSMsgType.TEXT:
                    raise ConnectionResetError("the line broke before it was open")
                told = msgspec.json.decode(frame.data, type=SessionTold)
                if told.refused:
                    raise Refused(told.refused, "", told.reason)
                if told.session:
                    break
        except BaseException:
            await socket.close()
            raise
        self.id, self.node, self.rank = told.session, told.node, told.rank or 0
        self.lines += 1
        self._note_taken(told.taken or 0)
        self._sent = self._taken
        return socket

    def _note_taken(self, taken: int) -> None:
        fresh = min(max(0, taken - self._taken), len(self._input))
        del self._input[:fresh]
        self._taken += fresh
        self._changed.set()

    async def _carry(self) -> None:
        """Read the line until the session is over; make it again when it breaks."""
        while not self._over:
            beat = asyncio.create_task(self._beat())
            try:
                await self._hear()
            except (*BROKEN, msgspec.DecodeError):
                pass
            finally:
                beat.cancel()
            if not self._over:
                await self._again()
        self._changed.set()

    async def _hear(self) -> None:
        assert self._socket is not None
        while not self._over:
            frame = await self._socket.receive(timeout=DEAD_SECONDS)
            if frame.type is aiohttp.WSMsgType.BINARY and frame.data:
                self._read += len(frame.data) - 1
                self._pieces.append((frame.data[0], frame.data[1:]))
                self._changed.set()
            elif frame.type is aiohttp.WSMsgType.TEXT:
                told = msgspec.json.decode(frame.data, type=SessionTold)
                if told.taken is not None:
                    self._note_taken(told.taken)
                if told.refused:
                    self._end(Refused(told.refused, "", told.reason))
                elif told.ended:
                    self.status, self.reason = told.status, told.reason
                    self._end(None)
            else:
                return

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(ALIVE_SECONDS)
            await self._say(SessionSaid())

    async def _again(self) -> None:
        """Another line for the same session; its end if there is none in time."""
        if self._query["kind"] == "port":  # A forwarded connection cannot be resumed.
            self.reason = "the line broke"
            self._end(None)
            return
        if self._socket is not None:
            with suppress(*BROKEN):
                async with asyncio.timeout(CLOSE_SECONDS_MAX):
                    await self._socket.close()
        self._socket = None
        deadline = asyncio.get_running_loop().time() + LINE_SECONDS_MAX
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    self._socket = await self._line()
                break
            except Refused as error:
                if error.status in FINAL or asyncio.get_running_loop().time() > deadline:
                    self.reason = error.reason
                    self._end(error if error.status == 401 else None)
                    return
            except (*BROKEN, ClientError) as error:
                if asyncio.get_running_loop().time() > deadline:
                    self._end(Unreachable(f"the connection broke and could not be restored: {error}"))
                    return
            await asyncio.sleep(PAUSE_SECONDS)
        await self._say(SessionSaid(acked=self._acked, over=self._input_over and not self._input))
        await self._send_input()
        if self._input_over:
            await self._say(SessionSaid(over=True))

    def _end(self, error: ClientError | None) -> None:
        self._refused, self._over = error, True
        self._changed.set()
