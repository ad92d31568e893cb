"""Requests for the logs of runs: read as far as they are written, or followed until the job is over."""

import asyncio
import codecs
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

from msgspec import Struct

from weft.client.errors import Refused
from weft.client.paths import job_path, without_empty
from weft.client.wire import Wire, worth_another
from weft.domain.job import FINAL
from weft.messages.http import JobView

LOOK_SECONDS = 0.5  # between two looks at a job that goes on though its log has ended


class Gap(Struct, frozen=True, kw_only=True):
    """Bytes of one epoch's log that cannot be had, from `begins` to `ends` (None: to its end), and why."""

    epoch: int
    begins: int
    ends: int | None
    reason: str


OnGap = Callable[[Gap], None]


def unheard(_: Gap) -> None:
    """Ignores a gap: the default for callers that do not ask for gaps."""


class Following:
    """How far a reader of a log has come."""

    def __init__(self, epoch: int | None, offset: int) -> None:
        self.epoch = epoch
        self.offset = offset
        self.fixed = epoch is not None
        self.later = False  # whether this epoch began after the reader did


class LogRequests:
    """The part of a client that reads and follows logs."""

    _wire: Wire

    async def read_log(
        self,
        job: str,
        *,
        rank: int = 0,
        epoch: int | None = None,
        role: str | None = None,
        offset: int = 0,
        tail: int | None = None,
    ) -> bytes:
        """One run's log so far, from `offset`, or its last `tail` bytes, in one piece; see `stream_log`."""
        chunks = self.stream_log(job, rank=rank, epoch=epoch, role=role, offset=offset, tail=tail)
        return b"".join([chunk async for chunk in chunks])

    async def stream_log(
        self,
        job: str,
        *,
        rank: int = 0,
        epoch: int | None = None,
        role: str | None = None,
        offset: int = 0,
        tail: int | None = None,
        gap: OnGap = unheard,
    ) -> AsyncGenerator[bytes, None]:
        """One run's log as far as it is written, from `offset`, or its last `tail` bytes.

        The newest epoch unless given; with a `role`, `rank` counts within it. `gap` is called for bytes that the node
        has dropped.
        """
        query = _run(rank, epoch, role)
        retrying = self._wire.retrying()
        at = {"offset": str(offset)} if tail is None else {"tail": str(tail)}
        reached, end = (offset if tail is None else None), 0
        while True:
            try:
                async with self._wire.stream(job_path(job, "/logs"), query={**query, **at}, headers={}) as response:
                    query["epoch"] = response.headers["x-weft-epoch"]
                    begin = _begin(response.headers, reached, gap)
                    if not end and response.length is not None:
                        end = begin + response.length  # the log's size at the first request
                    reached = begin
                    async for chunk in response.pieces():
                        yield chunk
                        reached += len(chunk)
                        retrying.succeeded()
                return
            except OSError as error:
                if reached is not None:
                    at = {"offset": str(reached)}
                if end and reached is not None and reached >= end:
                    return
                await retrying.pause(error)
            except Refused as error:
                await retrying.pause(worth_another(error))

    async def follow_log(
        self,
        job: str,
        *,
        rank: int = 0,
        epoch: int | None = None,
        role: str | None = None,
        offset: int = 0,
        gap: OnGap = unheard,
    ) -> AsyncGenerator[bytes, None]:
        """The log as it is written, from `offset`, until the run is over; without an `epoch`, through every later one
        until the job is over. Survives a restart of the gateway without loss or repeat. `gap` is called for bytes that
        cannot be had, because their node dropped them or is lost.
        """
        following = Following(epoch, offset)
        while True:
            async with aclosing(self._follow_epoch(job, following, rank, role, gap)) as chunks:
                async for chunk in chunks:
                    yield chunk
            if epoch is not None or not await self._next_epoch(job, following):
                return

    async def _follow_epoch(
        self, job: str, following: Following, rank: int, role: str | None, gap: OnGap
    ) -> AsyncGenerator[bytes, None]:
        """One epoch's log to its end."""
        retrying = self._wire.retrying()
        while True:
            connected = False
            try:
                query = {**_run(rank, following.epoch, role), "follow": "1", "offset": str(following.offset)}
                async with self._wire.stream(job_path(job, "/logs"), query=query, headers={}) as response:
                    connected = True
                    retrying.connected()
                    following.epoch = int(response.headers["x-weft-epoch"])
                    following.offset = _begin(response.headers, following.offset, gap)
                    async for chunk in response.pieces():
                        following.offset += len(chunk)
                        retrying.succeeded()
                        yield chunk
                return
            except OSError as error:
                if not (connected and isinstance(error, TimeoutError)):  # Silence: check that the gateway is there.
                    await retrying.pause(error)
            except Refused as error:
                if following.later and error.status == 404 and error.field == "epoch":
                    return  # That epoch ended before it was placed.
                if error.status == 404 and error.field == "node" and not following.fixed:
                    following.epoch = await self._lost_epoch(job, following.epoch)
                    gap(Gap(epoch=following.epoch, begins=following.offset, ends=None, reason=error.reason))
                    return
                await retrying.pause(worth_another(error))

    async def _lost_epoch(self, job: str, epoch: int | None) -> int:
        """Return `epoch`, the one being followed; if None, the newest epoch of the job that was placed on nodes."""
        if epoch is not None:
            return epoch
        now = await self._job_now(job)
        return now.epoch if now.placement is not None else max(0, now.epoch - 1)

    async def _next_epoch(self, job: str, following: Following) -> bool:
        """After the end of one epoch's log, wait for the next epoch. False: the job is over."""
        while True:
            now = await self._job_now(job)
            if following.epoch is not None and now.epoch > following.epoch:
                following.epoch, following.offset, following.later = following.epoch + 1, 0, True
                return True
            if now.state in FINAL:
                return False
            await asyncio.sleep(LOOK_SECONDS)

    async def _job_now(self, job: str) -> JobView:
        return await self._wire.ask("GET", job_path(job), JobView)


def _begin(headers: Mapping[str, str], asked: int | None, gap: OnGap) -> int:
    """The offset of an answer's first byte; `asked` None: the last bytes were requested."""
    missed = asked if asked is not None else 0
    begin, begins = int(headers.get("x-weft-offset", missed)), int(headers.get("x-weft-begins", "0"))
    if begins == begin > missed:
        reason = f"dropped by the limits of node {headers.get('x-weft-node', '')} (EXECUTOR_LOG_BYTES_MAX)"
        gap(Gap(epoch=int(headers["x-weft-epoch"]), begins=missed, ends=begin, reason=reason))
    return begin


def _run(rank: int, epoch: int | None, role: str | None) -> dict[str, str]:
    return without_empty({"rank": str(rank), "epoch": "" if epoch is None else str(epoch), "role": role or ""})


async def lines_of(chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[str, None]:
    """The lines of a log without their ends; bytes that are no UTF-8 become U+FFFD."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    rest = ""
    async with aclosing(chunks):
        async for chunk in chunks:
            *lines, rest = (rest + decoder.decode(chunk)).split("\n")
            for line in lines:
                yield line
    rest += decoder.decode(b"", final=True)
    if rest:
        yield rest
