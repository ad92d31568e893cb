"""One connection: a person's WebSocket on one side, requests to the run's node on the other, both bounded.

The gateway asks a node for more output only after the person's program has acknowledged the last: a program that does
not read stops the writing process, and takes at most one window of memory here.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from enum import Enum
from typing import Any

import msgspec
from aiohttp import WSMsgType, web

from weft.bus import Bus, BusError, NoAnswerError
from weft.messages.sessions import (
    ALIVE_SECONDS,
    DEAD_SECONDS,
    FRAME_BYTES_MAX,
    WINDOW_BYTES,
    ReadSession,
    SessionRead,
    SessionSaid,
    SessionTold,
    SessionWritten,
    WriteSession,
)
from weftd.gateway.limits.streams import WRITE_SECONDS_MAX
from weftd.gateway.thinking.rates import Bucket, Rate, taken

READ_BYTES = 64 << 10
READ_WAIT_SECONDS = 3.0
ANSWER_SECONDS_MAX = 4.0
NODE_SILENT_SECONDS_MAX = 12.0
AGAIN_SECONDS = 0.25
FRAMES = Rate(2000.0, 8000.0)  # per second from one program; more of them wait
REASON_MAX = 500
_encode = msgspec.json.Encoder().encode


class SessionEnd(Enum):
    """How a connection ended."""

    ENDED = "ended"  # the session ended, and the program was informed
    CLOSED = "closed"  # the person ended it
    BROKEN = "broken"  # the connection broke; the session waits for another one
    ELSEWHERE = "elsewhere"  # another connection has the session


class SessionLine:
    def __init__(
        self,
        socket: web.WebSocketResponse,
        bus: Bus,
        *,
        node_id: str,
        session_id: str,
        number: int,
        taken: int,
        read: int,
        clock: Callable[[], float],
        pace: Callable[[int], Awaitable[None]],
    ) -> None:
        """`pace` is awaited with the bytes of each carried piece, and charges them to the tenant of the session."""
        self._socket, self._bus, self._clock, self._pace = socket, bus, clock, pace
        self._node_id, self._session_id, self._number = node_id, session_id, number
        self._read = self._acked = read
        self._sent = taken  # to the node, of the input
        self._input = bytearray()
        self._input_over = False
        self._size: tuple[int, int] | None = None
        self._end = False
        self._wrote = asyncio.Event()  # the person's program sent something for the node
        self._acks = asyncio.Event()
        self._room = asyncio.Event()
        self._heard_at = clock()
        self.status: int | None = None
        self.reason = ""

    async def carry(self) -> SessionEnd:
        """Carry bytes until one side ends, and drop the work of the other tasks. All bytes are numbered, so none is
        lost."""
        works: list[Coroutine[Any, Any, SessionEnd]] = [self._hear(), self._push(), self._pull(), self._beat()]
        tasks = [asyncio.create_task(work) for work in works]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            if isinstance(task.exception(), ConnectionError | TimeoutError):
                return SessionEnd.BROKEN
        return next(iter(done)).result()

    async def tell(self, told: SessionTold) -> None:
        await self._send(self._socket.send_str(_encode(told).decode()))

    async def _send(self, sending: Coroutine[Any, Any, None]) -> None:
        """Raises ConnectionError if the program does not read its input any more."""
        try:
            async with asyncio.timeout(WRITE_SECONDS_MAX):
                await sending
        except (TimeoutError, RuntimeError) as error:  # RuntimeError: the socket is closing
            raise ConnectionAbortedError("the program does not read its input") from error

    # ── messages of the person's program ──────────────────────────────────────────────────────────────────────────

    async def _hear(self) -> SessionEnd:
        bucket = Bucket(FRAMES.burst, self._clock())
        while True:
            while len(self._input) >= WINDOW_BYTES:  # The node sent more than it may without an acknowledgement.
                self._room.clear()
                self._heard_at = self._clock()
                await self._room.wait()
            bucket, rest = taken(bucket, FRAMES, self._clock())
            if rest:
                await asyncio.sleep(rest)
            frame = await self._socket.receive()
            self._heard_at = self._clock()
            if frame.type is WSMsgType.BINARY and len(frame.data) <= FRAME_BYTES_MAX:
                self._input += frame.data
                self._wrote.set()
            elif frame.type is WSMsgType.TEXT:
                try:
                    self._take(msgspec.json.decode(frame.data, type=SessionSaid))
                except (msgspec.DecodeError, UnicodeError):
                    await self.tell(SessionTold(refused=400, reason="this frame is not understood"))
                    return SessionEnd.CLOSED
            else:
                return SessionEnd.BROKEN  # closed without a word, or cut

    def _take(self, said: SessionSaid) -> None:
        if said.acked is not None and self._acked < said.acked <= self._read:
            self._acked = said.acked
            self._acks.set()
        if said.rows > 0 and said.columns > 0:
            self._size = (said.rows, said.columns)
        self._input_over = self._input_over or said.over
        self._end = self._end or said.end
        if said.rows or said.over or said.end:
            self._wrote.set()

    # ── to the node ─────────────────────────────────────────────────────────────────────────────────────────────

    async def _push(self) -> SessionEnd:
        told_over = False
        while True:
            self._wrote.clear()
            piece = bytes(self._input[:FRAME_BYTES_MAX])
            size, self._size = self._size, None
            over = self._input_over and len(piece) == len(self._input)
            if piece or size or self._end or (over and not told_over):
                rows, columns = size or (0, 0)
                wrote = WriteSession(
                    node_id=self._node_id,
                    session_id=self._session_id,
                    line=self._number,
                    offset=self._sent,
                    data=piece,
                    over=over,
                    rows=rows,
                    columns=columns,
                    end=self._end,
                )
                answer = await self._ask(wrote, SessionWritten)
                if answer is None or answer.gone:  # The reader learns how it ended.
                    await asyncio.Event().wait()
                    raise AssertionError("unreachable")
                if self._end:
                    return SessionEnd.CLOSED
                moved = min(max(0, answer.taken - self._sent), len(piece))
                told_over = told_over or (over and moved == len(piece))
                if moved:
                    del self._input[:moved]
                    self._sent += moved
                    self._room.set()
                    await self.tell(SessionTold(taken=self._sent))
                    await self._pace(moved)
                elif piece:
                    await asyncio.sleep(AGAIN_SECONDS)
                continue
            await self._wrote.wait()

    async def _pull(self) -> SessionEnd:
        while True:
            credit = WINDOW_BYTES - (self._read - self._acked)
            if credit <= 0:
                self._acks.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(READ_WAIT_SECONDS):
                        await self._acks.wait()
            wait = READ_WAIT_SECONDS if credit > 0 else 0.0
            limit = min(READ_BYTES, max(0, credit))
            asked = ReadSession(
                node_id=self._node_id,
                session_id=self._session_id,
                line=self._number,
                offset=self._read,
                acked=self._acked,
                limit=limit,
                wait=wait,
            )
            answer = await self._ask(asked, SessionRead, wait=wait)
            if answer is None:
                self.reason = "its node does not answer"
                await self.tell(SessionTold(lost=True, reason=self.reason))
                return SessionEnd.BROKEN
            if answer.elsewhere:
                await self.tell(SessionTold(ended=True, reason="it continues on another connection"))
                return SessionEnd.ELSEWHERE
            if answer.data:
                data = answer.data[:limit]  # A node that sends more than requested gets no more room.
                await self._send(self._socket.send_bytes(bytes((2 if answer.stream == 2 else 1,)) + data))
                self._read += len(data)
                await self._pace(len(data))
            if answer.gone or answer.ended:
                self.status = answer.status if answer.status in range(256) else None
                self.reason = "its node ended it" if answer.gone else answer.reason[:REASON_MAX]
                await self.tell(SessionTold(ended=True, status=self.status, reason=self.reason))
                return SessionEnd.ENDED

    async def _beat(self) -> SessionEnd:
        while True:
            await asyncio.sleep(ALIVE_SECONDS)
            if self._clock() - self._heard_at > DEAD_SECONDS:
                return SessionEnd.BROKEN
            await self.tell(SessionTold())

    async def _ask(self, asked: Any, kind: type[Any], *, wait: float = 0.0) -> Any:
        """The node's answer. The request is repeated while none comes; None if the node stays silent for long."""
        deadline = self._clock() + NODE_SILENT_SECONDS_MAX
        while True:
            try:
                return await self._bus.request(asked, kind, seconds_max=wait + ANSWER_SECONDS_MAX)
            except NoAnswerError:
                if self._clock() > deadline:
                    return None
                await asyncio.sleep(AGAIN_SECONDS)
            except BusError:
                return None
