"""Handles each message of a subscription: decode it, call the handler, answer. A bad message harms no other."""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from weft.bus import RawRequest
from weft.bus.wire import decode, encode, subject_of
from weft.messages import Message

M = TypeVar("M", bound=Message)

logger = logging.getLogger(__name__)

WAITING_MAX = 16_384
WAITING_BYTES_MAX = 64 << 20
BYTES_PER_SECOND = 1 << 20  # of one subject, where only the newest message counts
APART_SECONDS_MAX = 2.0  # however large it is


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """One message as it arrived. `respond` is None if the sender expects no answer."""

    subject: str
    payload: bytes
    headers: dict[str, str]
    respond: Callable[[bytes], Awaitable[None]] | None
    sender: str = ""  # the first two parts of the subject for the answer: the inbox of one connection


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
        answer = await handler(RawRequest(payload=heard.payload, headers=heard.headers, sender=heard.sender))
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


class NewestQueue(HandlerQueue):
    """The messages of one subject at least `apart_seconds` apart, large ones farther; of those between, the newest.

    What is left out costs no decoding, and waits in no place that another sender needs.
    """

    def __init__(self, work: Work, *, at_once: int, counts: "Counter[str]", apart_seconds: float) -> None:
        super().__init__(work, at_once=at_once, counts=counts)
        self._apart_seconds = apart_seconds
        self._newest: dict[str, Heard | None] = {}  # of each subject that rests: what came since
        self._rests: dict[str, asyncio.TimerHandle] = {}

    def give(self, heard: Heard) -> None:
        if heard.subject not in self._rests:
            self._take(heard)
            return
        if self._newest[heard.subject] is not None:
            self._counts["superseded"] += 1
        self._newest[heard.subject] = heard

    async def finish(self) -> None:
        for subject in [*self._rests]:
            self._rests.pop(subject).cancel()
            if (heard := self._newest.pop(subject)) is not None:
                super().give(heard)
        await super().finish()

    def cancel(self) -> None:
        for rest in self._rests.values():
            rest.cancel()
        self._rests.clear()
        self._newest.clear()
        super().cancel()

    def _take(self, heard: Heard) -> None:
        self._newest[heard.subject] = None
        seconds = max(self._apart_seconds, min(len(heard.payload) / BYTES_PER_SECOND, APART_SECONDS_MAX))
        self._rests[heard.subject] = asyncio.get_running_loop().call_later(seconds, self._rested, heard.subject)
        super().give(heard)

    def _rested(self, subject: str) -> None:
        del self._rests[subject]
        if (heard := self._newest.pop(subject)) is not None:
            self._take(heard)


def handler_queue(work: Work, *, at_once: int, counts: "Counter[str]", apart_seconds: float) -> HandlerQueue:
    """`apart_seconds` 0: every message is handled."""
    if not apart_seconds:
        return HandlerQueue(work, at_once=at_once, counts=counts)
    return NewestQueue(work, at_once=at_once, counts=counts, apart_seconds=apart_seconds)


def count_loss(counts: "Counter[str]", what: str, sentence: str) -> None:
    """Count a lost message; log the first of a kind and every thousandth: a flood must not fill the disk."""
    counts[what] += 1
    if counts[what] % 1000 == 1:
        logger.warning("%s (%s so far: %d)", sentence, what, counts[what])
