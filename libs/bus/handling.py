"""What a subscription does with each message: decode it, call the handler, answer. A bad message harms no other."""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from libs.bus import RawRequest
from libs.bus.wire import decode, encode, subject_of
from libs.messages import Message

M = TypeVar("M", bound=Message)

logger = logging.getLogger(__name__)

WAITING_MAX = 16_384
WAITING_BYTES_MAX = 64 << 20


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """One message as it arrived. `respond` is None if the sender expects no answer."""

    subject: str
    payload: bytes
    headers: dict[str, str]
    respond: Callable[[bytes], Awaitable[None]] | None


Work = Callable[[Heard], Awaitable[None]]


class NotItsSubjectError(Exception):
    """The message names another sender than the subject on which it came."""


def _taken(kind: type[M], heard: Heard) -> M:
    """The decoded message, if its fields agree with its subject: NATS checks permissions on the subject alone."""
    message = decode(kind, heard.payload)
    try:
        named = subject_of(message)
    except ValueError as error:
        raise NotItsSubjectError(str(error)) from error
    if named != heard.subject:
        raise NotItsSubjectError(f"it says {named}")
    return message


def hearing(kind: type[M], handler: Callable[[M], Awaitable[None]]) -> Work:
    async def work(heard: Heard) -> None:
        await handler(_taken(kind, heard))

    return work


def answering(kind: type[M], handler: Callable[[M], Awaitable[msgspec.Struct | None]]) -> Work:
    async def work(heard: Heard) -> None:
        try:
            message = _taken(kind, heard)
        except msgspec.DecodeError as error:
            refusal = kind.refusal(str(error))
            if refusal is not None and heard.respond:
                await heard.respond(encode(refusal))
            raise
        answer = await handler(message)
        if answer is not None and heard.respond:
            await heard.respond(encode(answer))

    return work


def answering_raw(handler: Callable[[RawRequest], Awaitable[msgspec.Struct]]) -> Work:
    async def work(heard: Heard) -> None:
        answer = await handler(RawRequest(payload=heard.payload, headers=heard.headers))
        if heard.respond:
            await heard.respond(encode(answer))

    return work


class HandlerQueue:
    """Does `work` for each message, in the order of arrival, at most `at_once` at a time.

    A message that does not fit into the queue, cannot be decoded or whose work fails is logged and counted.
    """

    def __init__(self, work: Work, *, at_once: int, counts: "Counter[str]") -> None:
        if at_once < 1:
            raise ValueError(f"at_once must be 1 or more, not {at_once}")
        self._work = work
        self._at_once = at_once
        self._counts = counts
        self._waiting: deque[Heard] = deque()
        self._waiting_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def give(self, heard: Heard) -> None:
        size = len(heard.payload)
        if len(self._waiting) >= WAITING_MAX or self._waiting_bytes + size > WAITING_BYTES_MAX:
            count_loss(self._counts, "overrun", f"{heard.subject}: handlers are too slow")
            return
        self._waiting.append(heard)
        self._waiting_bytes += size
        self._idle.clear()
        self._start()

    async def finish(self) -> None:
        """Return when all messages are done."""
        await self._idle.wait()

    def cancel(self) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0
        for task in self._tasks:
            task.cancel()

    def _start(self) -> None:
        while self._waiting and len(self._tasks) < self._at_once:
            heard = self._waiting.popleft()
            self._waiting_bytes -= len(heard.payload)
            task = asyncio.get_running_loop().create_task(self._do(heard))
            self._tasks.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._start()
        if not self._tasks:
            self._idle.set()

    async def _do(self, heard: Heard) -> None:
        try:
            await self._work(heard)
        except msgspec.DecodeError as error:
            count_loss(self._counts, "undecodable", f"{heard.subject}: not understood: {error}")
        except NotItsSubjectError as error:
            count_loss(self._counts, "misplaced", f"{heard.subject}: dropped: {error}")
        except Exception:
            self._counts["failed"] += 1
            logger.exception("%s: the handler failed", heard.subject)


def count_loss(counts: "Counter[str]", what: str, sentence: str) -> None:
    """Count a lost message; log the first of a kind and every thousandth: a flood must not fill the disk."""
    counts[what] += 1
    if counts[what] % 1000 == 1:
        logger.warning("%s (%s so far: %d)", sentence, what, counts[what])
