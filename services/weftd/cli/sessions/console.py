"""This terminal, handed to a session: byte by byte, with its size; and input that is no terminal."""

import asyncio
import os
import select
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from weft.client.sessions import RunSession

READ_BYTES = 32 << 10
LEAVE = (b"~", b".")  # after Enter: for a session that hangs


class RawTerminal:
    """While it lasts, what is typed comes byte by byte, Ctrl-C as well; then the terminal is as it was."""

    def __init__(self) -> None:
        self._fd = sys.stdin.fileno()
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        import termios  # Windows has none
        import tty

        self._before = termios.tcgetattr(self._fd)
        tty.setraw(self._fd)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import termios

        with suppress(termios.error):
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def size(self) -> tuple[int, int]:
        """Rows and columns."""
        try:
            found = os.get_terminal_size(sys.stdout.fileno())
        except OSError:
            return 24, 80
        return min(max(1, found.lines), 1000), min(max(1, found.columns), 1000)

    async def carry(self, session: RunSession) -> None:
        """Send the input, and each new size of the terminal, until the person leaves."""
        loop, resized = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGWINCH, resized.set)
        resizing = asyncio.create_task(self._resize(session, resized))
        escape = Escape()
        try:
            async for typed in _pieces(self._fd):
                keys, leave = escape.feed(typed)
                if keys:
                    await session.write(keys)
                if leave:
                    await session.leave("you left it")
                    return
            await session.leave("this terminal is gone")
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)
            resizing.cancel()

    async def _resize(self, session: RunSession, resized: asyncio.Event) -> None:
        while True:
            await resized.wait()
            resized.clear()
            await session.resize(*self.size())


class Escape:
    """Finds Enter, ~, . in the input. A ~ before any other character is passed on."""

    def __init__(self) -> None:
        self._at_start = True
        self._held = b""

    def feed(self, typed: bytes) -> tuple[bytes, bool]:
        """The keys to send, and whether the person leaves."""
        keys = bytearray()
        for number in typed:
            key = bytes((number,))
            if self._held:
                self._held = b""
                if key == LEAVE[1]:
                    return bytes(keys), True
                keys += LEAVE[0]
            elif self._at_start and key == LEAVE[0]:
                self._held = key
                continue
            keys += key
            self._at_start = key in (b"\r", b"\n")
        return bytes(keys), False


async def piped_input() -> AsyncGenerator[bytes, None]:
    """All that comes on stdin, to its end."""
    async for piece in _pieces(sys.stdin.fileno()):
        yield piece


async def _pieces(fd: int) -> AsyncGenerator[bytes, None]:
    """Bytes as they come. No thread waits in a read that cannot be cancelled; a file never makes it wait."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(fd, ready.set)
        waits = True
    except (OSError, ValueError):
        waits = False
    try:
        while True:
            if waits:
                await ready.wait()
                ready.clear()
                if not select.select([fd], [], [], 0)[0]:  # The loop may say so once more than there is anything.
                    continue
            try:
                piece = os.read(fd, READ_BYTES)
            except OSError:
                return
            if not piece:
                return
            yield piece
            await asyncio.sleep(0)
    finally:
        if waits:
            loop.remove_reader(fd)
