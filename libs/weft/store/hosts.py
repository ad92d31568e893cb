"""Several Postgres servers in one DSN: which of them is written to.

Postgres does not keep two servers from taking writes: after a standby was promoted, the old primary may come back. Each
promotion begins a timeline with a greater number. So of all servers that take writes the one with the greatest timeline
is chosen, and none whose timeline is smaller than one that this process has seen.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from urllib.parse import urlsplit

import asyncpg
from msgspec import Struct

from weft.names import has_address

logger = logging.getLogger(__name__)

OTHERS_SECONDS = 0.25  # how long a server that takes writes waits for the answers of the others
OPEN_SECONDS_MAX = 3.0  # of one server; it answers by then, or counts as away
TIMELINE = "SELECT pg_walfile_name(pg_current_wal_lsn())"  # its first 8 digits, hexadecimal

Connection = asyncpg.Connection
Open = Callable[[str], Awaitable["Connection[asyncpg.Record]"]]


class OldPrimaryError(ConnectionError):
    """The server takes writes and must not be written to: another was promoted after it."""


class Opened(Struct, frozen=True, kw_only=True):
    """A connection to a server that takes writes."""

    number: int
    connection: "Connection[asyncpg.Record]"
    timeline: int


class Hosts:
    """The servers of one DSN, tried together. With one server there is nothing to choose."""

    def __init__(self, dsn: str) -> None:
        self.dsns = each_host(dsn)
        self.timeline = 0  # the greatest seen
        self._chosen = 0
        self._told: set[tuple[int, int]] = set()  # by server and timeline: an old primary is reported once

    @property
    def several(self) -> bool:
        return len(self.dsns) > 1

    async def connect(self, open_one: Open) -> "Connection[asyncpg.Record]":
        """A connection to the server to write to. Raises what `open_one` raises, or OldPrimaryError."""
        if not self.several:
            async with asyncio.timeout(OPEN_SECONDS_MAX):
                await has_address(urlsplit(self.dsns[0]).hostname)
            return await open_one(self.dsns[0])
        opening = [asyncio.create_task(self._opened(open_one, number)) for number in range(len(self.dsns))]
        chosen: Opened | None = None
        try:
            await _first_and_others(opening)
            chosen = self._choose([found for task in opening if (found := _of(task)) is not None])
        finally:
            for task in opening:
                task.cancel()
                task.add_done_callback(partial(_drop, keep=chosen))
        if chosen is None:
            raise _why([task.exception() for task in opening if task.done() and not task.cancelled()])
        self._chosen = chosen.number
        return chosen.connection

    async def look(self, open_one: Open) -> bool:
        """Ask the servers that are not written to. True: one of them was promoted, and is to be written to from now."""
        before = self.timeline
        for number in range(len(self.dsns)):
            if number != self._chosen:
                with suppress(
                    OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError
                ):
                    (await self._opened(open_one, number)).connection.terminate()
        return self.timeline > before

    async def _opened(self, open_one: Open, number: int) -> Opened:
        async with asyncio.timeout(OPEN_SECONDS_MAX):
            await has_address(urlsplit(self.dsns[number]).hostname)
            connection = await open_one(self.dsns[number])
            try:
                timeline = int(str(await connection.fetchval(TIMELINE))[:8], 16)
            except BaseException:
                connection.terminate()
                raise
        if timeline < self.timeline:
            connection.terminate()
            self._tell(number, timeline)
            raise OldPrimaryError(
                f"server {number + 1} of the DSN is of timeline {timeline}, and {self.timeline} began"
            )
        self.timeline = timeline
        return Opened(number=number, connection=connection, timeline=timeline)

    def _choose(self, opened: list[Opened]) -> Opened | None:
        found = [each for each in opened if each.timeline == self.timeline]
        for each in opened:
            if each.timeline < self.timeline:
                self._tell(each.number, each.timeline)
        return next((each for each in found if each.number == self._chosen), found[0] if found else None)

    def _tell(self, number: int, timeline: int) -> None:
        if (number, timeline) not in self._told:
            self._told.add((number, timeline))
            logger.critical(
                "an old primary of Postgres takes writes, and is not written to",
                extra={"server": number + 1, "timeline": timeline, "newest": self.timeline},
            )


def each_host(dsn: str) -> list[str]:
    """One DSN for each of its hosts."""
    parts = urlsplit(dsn)
    user, at, hosts = parts.netloc.rpartition("@")
    return [parts._replace(netloc=f"{user}{at}{host}").geturl() for host in hosts.split(",")]


async def _first_and_others(opening: "list[asyncio.Task[Opened]]") -> None:
    """Return when all have ended, or OTHERS_SECONDS after the first that takes writes."""
    waiting: set[asyncio.Task[Opened]] = set(opening)
    until: float | None = None
    now = asyncio.get_running_loop().time
    while waiting and (until is None or now() < until):
        left = None if until is None else until - now()
        done, waiting = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if until is None and any(_of(task) for task in done):
            until = now() + OTHERS_SECONDS


def _of(task: "asyncio.Task[Opened]") -> Opened | None:
    if not task.done() or task.cancelled() or task.exception() is not None:
        return None
    return task.result()


def _drop(ended: "asyncio.Task[Opened]", keep: Opened | None) -> None:
    opened = _of(ended)
    if opened is not None and opened is not keep:
        opened.connection.terminate()


def _why(errors: "list[BaseException | None]") -> BaseException:
    """The error that says most: of a server that refused us or is not trusted, before one that is away or a standby."""
    order = (asyncpg.PostgresError, ssl.SSLError, OldPrimaryError, asyncpg.InternalClientError, OSError, TimeoutError)
    found = [error for error in errors if error is not None]
    for kind in order:
        for error in found:
            if isinstance(error, kind):
                return error
    return found[0] if found else ConnectionError("no server of the DSN answered")
