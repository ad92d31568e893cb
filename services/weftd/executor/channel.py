"""A session's channel: the two ends of a process, or of a connection, beside a run."""

from typing import Protocol

from msgspec import Struct

from weft.messages.sessions import SessionKind

READ_BYTES = 32 << 10


class SessionRefusedError(Exception):
    """This session is impossible; the text tells the person why."""


class SessionWanted(Struct, frozen=True, kw_only=True):
    """`mark`: what each process of the session has in its environment as WEFT_SESSION; it opens nothing."""

    kind: SessionKind
    mark: str
    command: tuple[str, ...] = ()
    tty: bool = False
    rows: int = 24
    columns: int = 80
    term: str = "xterm"
    port: int = 0


class Channel(Protocol):
    async def read(self, limit: int) -> tuple[int, bytes]:
        """The stream (1 output, 2 errors) and bytes of it; no bytes: all is read."""

    async def write(self, data: bytes) -> None:
        """Return when all is written, or nothing reads it any more."""

    async def close_input(self) -> None: ...

    async def resize(self, rows: int, columns: int) -> None: ...

    async def status(self) -> int | None:
        """After all is read: how the command ended. None: it was no command, or that is not known."""

    async def end(self) -> None:
        """End all that began with this session; within seconds."""
