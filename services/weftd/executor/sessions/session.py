"""One session: output that waits for its reader, input that waits for its process, and how it ended."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from weft.messages.sessions import SIDE_MAX, WINDOW_BYTES
from weftd.executor.channel import READ_BYTES, Channel
from weftd.executor.runs import RunKey, RuntimeUnavailableError

logger = logging.getLogger(__name__)
FULL_SECONDS_MAX = 2.0  # a gateway waits this long for room for its input
END_SECONDS_MAX = 10.0
PIECE_BYTES = 16 << 10
PIECE_COST = 64  # what a piece costs beside its bytes, so that single bytes of two streams in turn fill it too


class Session:
    """`pace` is awaited with the number of bytes that were moved: it holds back a session that takes too much."""

    def __init__(
        self,
        session_id: str,
        key: RunKey,
        channel: Channel,
        *,
        clock: Callable[[], float],
        pace: "Callable[[Session, int], float]",
    ) -> None:
        self.id, self.key = session_id, key
        self.line = 1
        self.port = 0  # of a connection
        self.told = False  # the story of its job has its end, or a gateway sees to that
        self.asked_at = self.moved_at = clock()
        self.over_at: float | None = None
        self.exit_status: int | None = None
        self.reason = ""
        self.taken = 0
        self.window = OutputWindow(2 * WINDOW_BYTES)
        self._channel, self._clock, self._pace = channel, clock, pace
        self._input = bytearray()
        self._input_over = False
        self._news = asyncio.Event()  # output, or the end
        self._room = asyncio.Event()
        self._fed = asyncio.Event()
        self._eaten = asyncio.Event()
        self._size: tuple[int, int] | None = None
        self._tasks = [asyncio.create_task(self._carry_out()), asyncio.create_task(self._carry_in())]

    @property
    def over(self) -> bool:
        """The process is gone; output may be left."""
        return self.over_at is not None

    async def read(self, offset: int, acked: int, limit: int, wait: float) -> tuple[int, bytes]:
        self.window.forget(acked)
        self._room.set()
        deadline = self._clock() + wait
        while True:
            self._news.clear()
            found = self.window.read(offset, limit)
            left = deadline - self._clock()
            if found[1] or self.over or left <= 0:
                return found
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._news.wait()

    async def write(self, offset: int, data: bytes, *, over: bool) -> None:
        """Take the new bytes, as far as there is room for them."""
        if data and len(self._input) >= WINDOW_BYTES and not self.over:
            self._eaten.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(FULL_SECONDS_MAX):
                    await self._eaten.wait()
        if not 0 <= self.taken - offset <= len(data):
            return
        fresh = data[self.taken - offset :][: max(0, WINDOW_BYTES - len(self._input))]
        if fresh and not self._input_over:
            self._input += fresh
            self.moved_at = self._clock()
        self.taken += len(fresh)
        self._input_over = self._input_over or (over and self.taken == offset + len(data))
        self._fed.set()

    def resize(self, rows: int, columns: int) -> None:
        self._size = (min(max(1, rows), SIDE_MAX), min(max(1, columns), SIDE_MAX))
        self._fed.set()

    async def end(self, reason: str) -> None:
        """End its processes; their output so far can still be read."""
        if not self.over:
            self.reason = self.reason or reason
            await self._finish(cut=True)

    def drop(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _carry_out(self) -> None:
        try:
            while True:
                while not (room := self.window.room):
                    self._room.clear()
                    await self._room.wait()
                stream, data = await self._channel.read(min(room, READ_BYTES))
                if not data:
                    break
                self.window.add(stream, data)
                self.moved_at = self._clock()
                self._news.set()
                if (rest := self._pace(self, len(data))) > 0:
                    await asyncio.sleep(rest)
            self.exit_status = await self._channel.status()
        except (OSError, RuntimeUnavailableError) as error:
            logger.warning("a session in %s: %s", self.key, error)
            self.reason = self.reason or "its node failed to read from it"
        finally:
            await self._finish(cut=False)

    async def _carry_in(self) -> None:
        closed = False
        while not self.over:
            self._fed.clear()
            size, self._size = self._size, None
            if size is not None:
                with suppress(OSError, RuntimeUnavailableError):  # A terminal that is gone has no size.
                    await self._channel.resize(*size)
            piece = bytes(self._input[:READ_BYTES])
            try:
                if piece:
                    await self._channel.write(piece)
                    del self._input[: len(piece)]
                    self._eaten.set()
                    if (rest := self._pace(self, len(piece))) > 0:
                        await asyncio.sleep(rest)
                    continue
                if self._input_over and not closed:
                    closed = True
                    await self._channel.close_input()
            except (
                OSError,
                RuntimeUnavailableError,
                RuntimeError,
            ):  # uvloop raises RuntimeError on a closed connection
                # The process reads its input no longer. Later input is discarded, as by a pipe without a reader.
                self._input.clear()
                self._eaten.set()
                self._input_over = closed = True
            if not self._fed.is_set():
                await self._fed.wait()

    async def _finish(self, *, cut: bool) -> None:
        if self.over:
            return
        self.over_at = self._clock()
        if cut:
            self._tasks[0].cancel()
        self._tasks[1].cancel()
        try:
            async with asyncio.timeout(END_SECONDS_MAX):
                await self._channel.end()
        except (OSError, TimeoutError, RuntimeUnavailableError) as error:
            logger.warning("a session in %s is not cleaned up: %s", self.key, error)
        self._news.set()


class OutputWindow:
    """Bytes of several streams in the order in which they came, from `begins` to `ends`."""

    def __init__(self, most: int) -> None:
        self.begins = 0
        self.ends = 0
        self._most = most
        self._pieces: deque[tuple[int, int, bytearray]] = deque()  # offset, stream, bytes

    @property
    def room(self) -> int:
        return max(0, self._most - (self.ends - self.begins) - PIECE_COST * len(self._pieces))

    def add(self, stream: int, data: bytes) -> None:
        last = self._pieces[-1] if self._pieces else None
        if last is not None and last[1] == stream and len(last[2]) + len(data) <= PIECE_BYTES:
            last[2].extend(data)
        elif data:
            self._pieces.append((self.ends, stream, bytearray(data)))
        self.ends += len(data)

    def forget(self, before: int) -> None:
        """Drop the bytes before this offset. One beyond the end counts as the end."""
        self.begins = max(self.begins, min(before, self.ends))
        while self._pieces and self._pieces[0][0] + len(self._pieces[0][2]) <= self.begins:
            self._pieces.popleft()

    def read(self, offset: int, limit: int) -> tuple[int, bytes]:
        """The stream and bytes of it from `offset` on; none at the end, and for an offset that is forgotten."""
        found, of_stream = bytearray(), 1
        if not self.begins <= offset < self.ends:
            return of_stream, b""
        for begins, stream, data in self._pieces:
            if begins + len(data) <= offset:
                continue
            if found and stream != of_stream:
                break
            of_stream = stream
            skipped = max(0, offset - begins)
            found += data[skipped : skipped + limit - len(found)]
            if len(found) >= limit:
                break
        return of_stream, bytes(found)
