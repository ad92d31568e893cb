"""The bus over a NATS server: it reconnects by itself, bounds every wait, and counts dropped messages."""

import asyncio
import logging
import random
import re
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from nats import errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from weft.bus import BusClosedError, BusError, NoAnswerError, StreamEvent
from weft.bus.handling import HandlerQueue, Heard, count_loss
from weft.bus.nats_client import FLUSH_SECONDS_MAX, SteadyClient
from weft.bus.nats_stream import emit, ensure_reader, ensure_stream
from weft.bus.typed import TypedBus
from weft.bus.wire import check_event, decode_answer, encode, subject_of
from weft.credentials.permissions import inbox_prefix
from weft.messages import Connection, Message

R = TypeVar("R", bound=msgspec.Struct)
logger = logging.getLogger(__name__)
PING_SECONDS = 5
PINGS_UNANSWERED_MAX = 2
RECONNECT_SECONDS = (0.4, 1.0)  # drawn by each client, so that not all reconnect at once
ATTEMPT_SECONDS_MAX = 2
DRAIN_SECONDS_MAX = 5.0
CLOSE_SECONDS_MAX = 2.0
UNSENT_BYTES_MAX = 2 << 20  # published, and not yet taken by a slow server
LARGE_AFTER_BYTES_MAX = UNSENT_BYTES_MAX // 2  # while fewer bytes wait, a message of any size is taken
ROOM_SECONDS_MAX = 5  # the server takes what waits in this time, or a request is not made
PENDING_BYTES_MAX = 16 << 20  # the client would block then: never reached, for NATS carries 8 MiB
FORBIDDEN = re.compile(r"permissions violation for (publish|subscription) to \"([^\"]+)\"", re.IGNORECASE)


class NatsSubscription:
    def __init__(
        self, client: SteadyClient, subscription: Subscription, hands: HandlerQueue, among: "set[NatsSubscription]"
    ) -> None:
        self._client = client
        self._subscription = subscription
        self.hands = hands
        self._among = among
        among.add(self)

    async def drain(self) -> None:
        try:
            # A server that is away, or goes away while we close, sends nothing more either.
            with suppress(errors.Error):
                if self._client.is_connected:
                    await self._subscription.drain()  # type: ignore[no-untyped-call]
        finally:
            self._client.forget(self._subscription)
        await self.hands.finish()
        self._among.discard(self)


INBOXES = "_INBOX"
INBOX_PARTS = 2  # `_INBOX` and the connection's own letters; the number of the request follows


class NatsBus(TypedBus):
    """One connection. `counts` of: dropped, overrun, undecodable, failed, forbidden, refused, left, reconnects."""

    def __init__(
        self,
        client: SteadyClient,
        *,
        on_closed: Callable[[], None] | None,
        replicas: int,
        leaves_after_seconds: float | None = None,
    ) -> None:
        super().__init__()
        self._client = client
        self._on_closed = on_closed
        self._replicas = replicas
        self._unanswered = Unanswered(leaves_after_seconds)
        self._stream_with_reader = ""
        self._subscriptions: set[NatsSubscription] = set()
        self._forbidden: set[str] = set()
        self._changed = asyncio.Event()  # set when the connection came back or is closed for good
        self._closing = False
        self._lost = False

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        url: str,
        *,
        name: str,
        user: str = "",
        password: str | Callable[[], str] = "",
        tls: Callable[[], ssl.SSLContext] | None = None,
        connect_seconds_max: float = 10.0,
        on_closed: Callable[[], None] | None = None,
        replicas: int = 1,
        leaves_after_seconds: float | None = None,
    ) -> "AsyncIterator[NatsBus]":
        """Connect, or raise BusError after `connect_seconds_max`. Leaving drains, then closes, within bounds.

        `url` may name several servers of a cluster, with commas: they are tried in turn, each client in an order of its
        own. With `tls` nothing is sent to a server without TLS. It and a
        `password` that is a function are called for each connection, so that renewed files take effect.

        `leaves_after_seconds`: where several servers are named, and for so long no `request` was answered although some
        were made, another server is connected to: this one may be cut off from the others.

        When the server closes the connection for good, as after a breach of protocol, `on_closed` is called; leaving
        then
        raises BusClosedError.
        """
        client = SteadyClient(tls)
        bus = cls(client, on_closed=on_closed, replicas=replicas, leaves_after_seconds=leaves_after_seconds)
        try:
            await bus._connect(url, name, user, password, connect_seconds_max)
            yield bus
        finally:
            await bus._close()
        if bus._lost:
            raise BusClosedError(f"NATS at {_without_password(url)} closed our connection: {client.last_error}")

    @property
    def connected(self) -> bool:
        return self._client.is_connected

    @property
    def connection(self) -> Connection | None:
        found = self._client.server_and_number
        return None if found is None else Connection(server=found[0], number=found[1])

    async def request(self, message: Message, reply: type[R], *, seconds_max: float) -> R:
        subject = subject_of(message)
        try:
            answer = await self.request_raw(subject, encode(message), seconds_max=seconds_max)
        except NoAnswerError:
            await self._note_unanswered()
            raise
        self._unanswered.end()
        return decode_answer(subject, reply, answer)

    async def request_raw(
        self, subject: str, payload: bytes, *, headers: Mapping[str, str] | None = None, seconds_max: float
    ) -> bytes:
        """Request with a payload that is not one of our messages. Errors as `request`.

        While disconnected, or while too much waits to be sent, it waits within the same bound. A request whose caller
        has given up is not sent.
        """
        cancels_before = cancels()
        try:
            async with asyncio.timeout(seconds_max):
                await self._until_connected()
                await self._until_room(subject, payload)
                answer = await self._client.request(
                    subject, payload, timeout=seconds_max, headers=dict(headers) if headers else None
                )
        except errors.NoRespondersError:
            raise NoAnswerError(f"nobody listens on {subject}") from None
        except TimeoutError:
            raise NoAnswerError(f"no answer on {subject} within {seconds_max} s{self._why(subject)}") from None
        except errors.MaxPayloadError as error:
            raise BusError(f"{subject}: {len(payload)} bytes are more than NATS takes") from error
        except errors.ConnectionClosedError as error:
            raise BusClosedError("this bus is closed") from error
        except errors.Error as error:
            raise NoAnswerError(f"no answer on {subject}: {error}") from error
        if cancels() > cancels_before:  # before 3.12 `wait_for` loses it if the answer comes at that moment
            raise asyncio.CancelledError
        return answer.data

    async def ensure_stream(self) -> str:
        stream_id = await ensure_stream(self.request_raw, replicas=self._replicas)
        if stream_id != self._stream_with_reader:
            self._stream_with_reader = stream_id
            await ensure_reader(self.request_raw)
        return stream_id

    async def emit(self, events: list[StreamEvent]) -> None:
        for event in events:
            check_event(event)
        await emit(self._send_with_room, self.request_raw, events)

    async def _send_with_room(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> None:
        await self._until_room(subject, payload)
        await self._send(subject, payload, headers)

    async def _send(self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None) -> None:
        if not self._client.is_connected:
            self._check_open()
            # The client would keep the message, and send it later, when it is no longer true.
            count_loss(self.counts, "dropped", f"{subject}: dropped, NATS is away")
            return
        if self._is_full(payload):
            # The client would block the publisher, and keep the message all the same.
            count_loss(self.counts, "dropped", f"{subject}: dropped, too much is waiting to be sent")
            return
        try:
            await self._client.publish(subject, payload, headers=dict(headers) if headers else None)
        except errors.OutboundBufferLimitError:
            count_loss(self.counts, "dropped", f"{subject}: dropped, NATS went away")
        except errors.MaxPayloadError as error:
            raise BusError(f"{subject}: {len(payload)} bytes are more than NATS takes") from error
        except errors.ConnectionClosedError as error:
            raise BusClosedError("this bus is closed") from error

    async def _note_unanswered(self) -> None:
        if self._client.is_connected and len(self._client.servers) > 1 and self._unanswered.for_too_long():
            count_loss(self.counts, "left", "no request was answered at this NATS server: going to another one")
            await self._client.force_reconnect()

    async def _until_room(self, subject: str, payload: bytes) -> None:
        """Wait until the server has taken enough of what was sent before. Raises NoAnswerError if it takes nothing."""
        while self._is_full(payload):
            if not await self._flushed(ROOM_SECONDS_MAX):
                raise NoAnswerError(f"{subject}: not asked, too much is waiting to be sent")

    def _is_full(self, payload: bytes) -> bool:
        """True if too many bytes wait already. A message that is large by itself is taken: else it would never go."""
        waiting = self._client.pending_data_size
        return waiting > LARGE_AFTER_BYTES_MAX and waiting + len(payload) > UNSENT_BYTES_MAX

    def _heard(self, message: Msg) -> Heard:
        async def respond(answer: bytes) -> None:
            with suppress(NoAnswerError):  # then it is dropped, and counted
                await self._until_room(message.subject, answer)
            await self._send(message.reply, answer)

        return Heard(
            subject=message.subject,
            payload=message.data,
            headers=message.headers or {},
            # An answer goes to an inbox alone: else a requester could have us publish on any subject that is ours.
            respond=respond if message.reply.startswith(INBOXES) else None,
            sender=".".join(message.reply.split(".")[:INBOX_PARTS]),
        )

    async def _listen(self, subject: str, hands: HandlerQueue, group: str) -> NatsSubscription:
        """Return when the server has the subscription; one made while it is away is sent when it is back."""
        self._check_open()

        async def hear(message: Msg) -> None:
            hands.give(self._heard(message))

        self._forbidden.discard(subject.lower())
        try:
            heard = await self._client.subscribe(subject, queue=group, cb=hear)
        except errors.Error as error:
            raise BusError(f"cannot listen on {subject}: {error}") from error
        if not await self._flushed():
            logger.warning("%s: NATS did not confirm the subscription; it is sent again when NATS is back", subject)
        subscription = NatsSubscription(self._client, heard, hands, self._subscriptions)
        if subject.lower() in self._forbidden:
            await subscription.drain()
            raise BusError(f"cannot listen on {subject}{self._why(subject)}")
        return subscription

    async def _connect(
        self, url: str, name: str, user: str, password: str | Callable[[], str], seconds_max: float
    ) -> None:
        servers = [address.strip() for address in url.split(",")]
        random.shuffle(servers)  # and then in turn: after a connection is lost, each other server is tried before it
        said_by = user or urlsplit(servers[0]).username
        try:
            await within(
                seconds_max,
                self._client.connect(
                    servers,
                    name=name,
                    user=user or None,
                    password=password or None,
                    inbox_prefix=inbox_prefix(said_by) if said_by else "_INBOX",
                    connect_timeout=ATTEMPT_SECONDS_MAX,
                    dont_randomize=True,
                    ping_interval=PING_SECONDS,
                    max_outstanding_pings=PINGS_UNANSWERED_MAX,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=random.uniform(*RECONNECT_SECONDS),  # type: ignore[arg-type]  # theirs is wrong
                    flush_timeout=FLUSH_SECONDS_MAX,
                    pending_size=PENDING_BYTES_MAX,
                    error_cb=self._on_error,
                    disconnected_cb=self._on_disconnected,
                    reconnected_cb=self._on_reconnected,
                    closed_cb=self._on_client_closed,
                ),
            )
        except TimeoutError:
            why = self._client.last_error or "no answer"
            raise BusError(f"cannot reach NATS at {_without_password(url)} within {seconds_max} s: {why}") from None
        except (errors.Error, ValueError) as error:
            raise BusError(f"cannot reach NATS at {_without_password(url)}: {error}") from error

    async def _close(self) -> None:
        self._closing = True
        with suppress(TimeoutError, errors.Error):
            async with asyncio.timeout(DRAIN_SECONDS_MAX):
                async with asyncio.TaskGroup() as tasks:
                    for subscription in list(self._subscriptions):
                        tasks.create_task(subscription.drain())
                await self._flushed()  # The last messages arrive.
        for subscription in self._subscriptions:
            subscription.hands.cancel()  # Those that did not finish in time.
        if not self._client.is_connected:
            self._client.abort()
        with suppress(TimeoutError, OSError, errors.Error):
            await within(CLOSE_SECONDS_MAX, self._client.close())
        self._client.abort()

    async def _flushed(self, seconds_max: int = FLUSH_SECONDS_MAX) -> bool:
        """True if the server has confirmed all that was published before."""
        if not self._client.is_connected:
            return False
        with suppress(errors.Error):
            await self._client.flush(seconds_max)
            return True
        return False

    async def _until_connected(self) -> None:
        while not self._client.is_connected:
            self._check_open()
            self._changed.clear()
            await self._changed.wait()

    def _check_open(self) -> None:
        if self._client.is_closed:
            raise BusClosedError("this bus is closed")

    def _why(self, subject: str) -> str:
        return ": NATS does not permit it to this user" if subject.lower() in self._forbidden else ""

    async def _on_error(self, error: Exception) -> None:
        if forbidden := FORBIDDEN.search(str(error)):
            self._forbidden.add(forbidden[2].lower())
            self.counts["forbidden"] += 1
            logger.error("NATS does not permit it: %s", error)
        elif isinstance(error, errors.SlowConsumerError):
            count_loss(self.counts, "overrun", f"{error.subject}: more arrives than is taken")
        elif "authorization violation" in str(error).lower():
            count_loss(self.counts, "refused", "NATS does not accept our credentials")
        else:
            logger.debug("NATS: %s: %s", type(error).__name__, error)

    async def _on_disconnected(self) -> None:
        if not self._closing:
            logger.warning("NATS is away")

    async def _on_reconnected(self) -> None:
        self.counts["reconnects"] += 1
        self._unanswered.end()
        self._changed.set()
        logger.info("NATS is back")

    async def _on_client_closed(self) -> None:
        self._changed.set()
        if not self._closing:
            self._lost = True
            logger.error("NATS closed our connection for good: %s", self._client.last_error)
            if self._on_closed:
                self._on_closed()


def _without_password(url: str) -> str:
    return re.sub(r"//[^/@,]*@", "//", url)


class Unanswered:
    """Since when no request over the present connection was answered. `seconds_max` None: it is never too long."""

    def __init__(self, seconds_max: float | None) -> None:
        self._seconds_max = seconds_max
        self._since: float | None = None

    def end(self) -> None:
        """A request was answered, or the connection is a new one."""
        self._since = None

    def for_too_long(self) -> bool:
        """Return True, and start again, if requests had no answer for too long. Call it after each of them."""
        now = asyncio.get_running_loop().time()
        if self._seconds_max is None or self._since is None:
            self._since = now
            return False
        if now - self._since <= self._seconds_max:
            return False
        self._since = None
        return True


async def within(seconds_max: float, doing: Coroutine[Any, Any, None]) -> None:
    """Raises TimeoutError. Where the client swallows the cancellation and waits on, its task is abandoned."""
    task = asyncio.create_task(doing)
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    try:
        done, _ = await asyncio.wait([task], timeout=seconds_max)
    finally:
        task.cancel()
    if not done:
        raise TimeoutError
    task.result()


def cancels() -> int:
    """How often the calling task was cancelled."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()
