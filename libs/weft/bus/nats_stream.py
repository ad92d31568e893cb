"""The stream of events in JetStream: created with our configuration, filled in order, each event once."""

import asyncio
import logging
import uuid
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from weft.bus import BusError, NoAnswerError, StreamEvent
from weft.bus.wire import EVENTS, decode
from weft.credentials.permissions import READER, STREAM

T = TypeVar("T")

logger = logging.getLogger(__name__)

BATCH_MAX = 1000  # the server's own limit
STORE_SECONDS_MAX = 5.0
API_SECONDS_MAX = 5.0
NANOSECONDS = 1_000_000_000
NOT_FOUND = 10059
REPEATED = 10201

CONFIG: Mapping[str, Any] = {
    "name": STREAM,
    "subjects": [f"{EVENTS}>"],
    "storage": "file",
    "retention": "limits",
    "discard": "old",
    "max_age": 24 * 3600 * NANOSECONDS,
    "max_bytes": 1 << 30,
    "duplicate_window": 120 * NANOSECONDS,
    "allow_direct": True,
    "allow_atomic": True,  # nats-py's StreamConfig has no such field
}

READER_CONFIG: Mapping[str, Any] = {
    "stream_name": STREAM,
    "config": {
        "durable_name": READER,
        "name": READER,
        "description": "Events for integrators. Its place in the stream is kept.",
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "ack_wait": 30 * NANOSECONDS,
        "max_ack_pending": 1000,
        "replay_policy": "instant",
    },
}


class Failure(msgspec.Struct, frozen=True):
    err_code: int = 0
    description: str = "it did not say why"


class StreamReply(msgspec.Struct, frozen=True):
    config: dict[str, Any] = {}
    created: str = ""
    error: Failure | None = None


class Stored(msgspec.Struct, frozen=True):
    """The acknowledgement of one message, or of a batch with its `count`."""

    stream: str = ""
    batch: str = ""
    count: int = 0
    error: Failure | None = None


class Say(Protocol):
    async def __call__(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> None: ...


class Requester(Protocol):
    async def __call__(
        self, subject: str, payload: bytes, *, headers: Mapping[str, str] | None = None, seconds_max: float
    ) -> bytes: ...


async def ensure_stream(ask: Requester, *, replicas: int) -> str:
    """Create the stream, or bring an existing one up to date. Returns when it was created, to the nanosecond, as the
    server says it: no other stream of that name has it.

    Raises NoAnswerError while JetStream does not answer, or has no room for the stream.
    """
    wanted = {**CONFIG, "num_replicas": replicas}
    found = await _api(ask, "INFO")
    if found.error is None:
        if any(found.config.get(name) != value for name, value in wanted.items()):
            _check("update", await _api(ask, "UPDATE", wanted))
            logger.info("the stream %s was brought up to date", STREAM)
    elif found.error.err_code != NOT_FOUND:
        _check("find", found)
    else:
        found = await _api(ask, "CREATE", wanted)
        _check("make", found)
        logger.info("the stream %s was made", STREAM)
    if not found.created:
        raise NoAnswerError(f"the server does not say when the stream {STREAM} was made")
    return found.created


async def ensure_reader(ask: Requester) -> None:
    """Make the pull consumer that integrators may use. Events are published without it too, so a failure is logged."""
    payload = msgspec.json.encode(READER_CONFIG)
    try:
        answer = await ask(f"$JS.API.CONSUMER.CREATE.{STREAM}.{READER}", payload, seconds_max=API_SECONDS_MAX)
        failure = _decoded(answer, StreamReply).error
    except BusError as error:
        failure = Failure(description=str(error))
    if failure is not None:
        logger.warning("the consumer %s of %s was not made: %s", READER, STREAM, failure.description)


async def emit(say: Say, ask: Requester, events: list[StreamEvent]) -> None:
    """Store all events in batches, each stored whole or not at all; one by one where the server cannot do batches.

    Raises NoAnswerError unless the server has confirmed each event.
    """
    for start in range(0, len(events), BATCH_MAX):
        batch = events[start : start + BATCH_MAX]
        if len(batch) == 1 or not await _store_as_one(say, ask, batch):
            await _store_each(ask, batch)


async def _store_as_one(say: Say, ask: Requester, events: list[StreamEvent]) -> bool:
    """False: the server refused the batch and stored none of it, as it does when it has one of the events already."""
    batch = uuid.uuid4().hex
    *most, last = [
        (event, {**_headers(event), "Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)})
        for number, event in enumerate(events, start=1)
    ]
    first, *middle = most
    try:
        async with asyncio.timeout(STORE_SECONDS_MAX):
            # The server does not answer the first messages of a batch. One without batches stores each and confirms it.
            if await ask(first[0].subject, first[0].payload, headers=first[1], seconds_max=STORE_SECONDS_MAX):
                return False
            for event, headers in middle:
                await say(event.subject, event.payload, headers)
            headers = {**last[1], "Nats-Batch-Commit": "1"}
            answer = await ask(last[0].subject, last[0].payload, headers=headers, seconds_max=STORE_SECONDS_MAX)
    except TimeoutError:
        raise NoAnswerError(f"{len(events)} events: not known to be stored after {STORE_SECONDS_MAX} s") from None
    stored = _decoded(answer, Stored)
    if stored.error and stored.error.err_code != REPEATED:
        logger.info("a batch of %d events is stored one by one: %s", len(events), stored.error.description)
    return stored.error is None and (stored.stream, stored.batch, stored.count) == (STREAM, batch, len(events))


async def _store_each(ask: Requester, events: list[StreamEvent]) -> None:
    """Send all at once, in their order; the server recognises by their id those that it has stored before."""
    async with asyncio.TaskGroup() as tasks:
        storing = [tasks.create_task(_store(ask, event)) for event in events]
    if reasons := [reason for task in storing if (reason := task.result())]:
        raise NoAnswerError(f"{len(reasons)} of {len(events)} events are not known to be stored: {reasons[0]}")


async def _store(ask: Requester, event: StreamEvent) -> str:
    """Why the event may not be stored; "" if it is."""
    try:
        answer = await ask(event.subject, event.payload, headers=_headers(event), seconds_max=STORE_SECONDS_MAX)
        stored = _decoded(answer, Stored)
    except BusError as error:
        return str(error)
    if stored.error:
        return stored.error.description
    return "" if stored.stream == STREAM else f"{stored.stream or 'someone else'} answered in place of {STREAM}"


def _headers(event: StreamEvent) -> dict[str, str]:
    return {**event.headers, "Nats-Msg-Id": event.id}


async def _api(ask: Requester, verb: str, body: Mapping[str, Any] | None = None) -> StreamReply:
    payload = msgspec.json.encode(body) if body else b""
    answer = await ask(f"$JS.API.STREAM.{verb}.{STREAM}", payload, seconds_max=API_SECONDS_MAX)
    return _decoded(answer, StreamReply)


def _check(what: str, reply: StreamReply) -> None:
    if reply.error:
        raise NoAnswerError(f"cannot {what} the stream {STREAM}: {reply.error.description} ({reply.error.err_code})")


def _decoded(answer: bytes, kind: type[T]) -> T:
    try:
        return decode(kind, answer)
    except msgspec.DecodeError as error:
        raise BusError(f"JetStream answered what is no {kind.__name__}: {error}") from error
