"""Feed of new events for many readers: each hint causes one read of the store for all of them."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager
from functools import partial

import msgspec

from weft.bus import Bus, BusError, Subscription
from weft.messages.events import CloudEvent, Event, EventTold, cloud_event, place_of
from weft.store import GatewayStore, StoreUnavailableError, is_full
from weftd.gateway.limits.concurrency import ConcurrencyLimit

logger = logging.getLogger(__name__)

WAITING_MAX = 4096  # events that one reader may be behind before it must read the store itself
WAITING_BYTES_MAX = 4 << 20  # of these events together; readers share them
TAKEN_MAX = 256  # events that one reader gets at once
TAKEN_BYTES_MAX = 256 << 10  # of these events together, except the last
PAGE = 1000
CATCHING_UP_MAX = 128  # streams that have a page of the store's events in memory
CATCHING_UP_PER_TENANT = 64  # a reader that does not read keeps its slot until it is cut off
POLL_SECONDS = 1.0  # hints may be lost
EVERYBODY = "admin"  # the name under which administrators, who read events of all tenants, take slots
GAP_SECONDS = 0.02  # between two reads of the store, however many hints there are
GAP_SECONDS_PER_READER = 0.001  # in addition: each read wakes all readers
READERS_AT_ONCE = 16  # then other requests run


class ToldEvent(CloudEvent, frozen=True, kw_only=True):
    """A CloudEvent with its cursor, as an extension attribute."""

    cursor: str


def told(event: Event) -> ToldEvent:
    envelope = cloud_event(event)
    fields = {name: getattr(envelope, name) for name in CloudEvent.__struct_fields__}
    return ToldEvent(**fields, cursor=event.cursor)


def place(event: Event) -> tuple[int, int]:
    return event.xid, event.id


class Item:
    """One event, encoded once however many read it."""

    __slots__ = ("_frame", "event")

    def __init__(self, event: Event) -> None:
        self.event = event
        self._frame: bytes | None = None

    @property
    def size(self) -> int:
        return len(self.event.data)

    @property
    def frame(self) -> bytes:
        if self._frame is None:
            kind = f"weft.{self.event.topic}.{self.event.event}"
            body = msgspec.json.encode(told(self.event))
            self._frame = b"id: %s\nevent: %s\ndata: %s\n\n" % (self.event.cursor.encode(), kind.encode(), body)
        return self._frame


class Reader:
    """The events that one reader has not taken yet. `behind`: too many; it reads the store from its place."""

    def __init__(self, wants: Callable[[Event], bool], waiting_max: int) -> None:
        self.wants = wants
        self._waiting_max = waiting_max
        self.behind = False
        self.back_to: tuple[int, int] | None = None  # the store went back in time: go on from its present place
        self._items: deque[Item] = deque()
        self._bytes = 0
        self._more = asyncio.Event()

    def put(self, item: Item) -> None:
        if not self.wants(item.event):
            return
        if len(self._items) >= self._waiting_max or self._bytes + item.size > WAITING_BYTES_MAX:
            self._items.clear()
            self._bytes = 0
            self.behind = True
        elif not self.behind:
            self._items.append(item)
            self._bytes += item.size
        self._more.set()

    def take(self) -> list[Item]:
        """The next events, few at a time: they stay in memory while the reader's connection takes nothing."""
        items: list[Item] = []
        size = 0
        while self._items and len(items) < TAKEN_MAX and size < TAKEN_BYTES_MAX:
            items.append(self._items.popleft())
            size += items[-1].size
        self._bytes -= size
        if not self._items:
            self._more.clear()
        return items

    async def wait(self, seconds: float) -> bool:
        """False if no event came in that time."""
        try:
            async with asyncio.timeout(seconds):
                await self._more.wait()
        except TimeoutError:
            return False
        return True


class Feed:
    """The feed of all events. It reads the store, and listens on the bus, only while it has readers.

    `paying(tenant)`: the tenant pays for the time in it, in which the store reads past events for it.
    """

    def __init__(
        self,
        store: GatewayStore,
        reading: ConcurrencyLimit,
        bus: Bus,
        *,
        paying: Callable[[str], AbstractContextManager[None]],
        waiting_max: int = WAITING_MAX,
    ) -> None:
        self._store = store
        self._bus = bus
        self._reading_turns, self._paying = reading, paying
        self._catching_up = ConcurrencyLimit(
            "streams that catch up", at_once=CATCHING_UP_MAX, per_tenant=CATCHING_UP_PER_TENANT
        )
        self._waiting_max = waiting_max
        self._at = ""  # the cursor of the last event that the readers got
        self._readers: set[Reader] = set()
        self._hint = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    async def hear(self, _: EventTold) -> None:
        self._hint.set()

    async def follow(
        self, *, after: str, wants: Callable[[Event], bool], tenant: str | None, job_id: str = "", beat: float
    ) -> AsyncGenerator[list[Item], None]:
        """Every event after `after` (empty: from now) that the reader `wants`, in order; [] after each `beat` seconds
        of silence. With a `job_id`, an empty `after` means from its first event. Raises StoreUnavailableError.
        """
        with self._reading(wants) as reader:
            await self._running()
            if job_id:
                last = place_of(after)
                async with aclosing(self._pages(last, tenant, job_id)) as pages:
                    async for page in pages:
                        last = place(page[-1])
                        yield [Item(event) for event in page]
            elif after and not await self._is_ahead(after):
                last = place_of(after)
                reader.behind = True
            else:
                last = place_of(self._at)
            while True:
                if reader.back_to is not None:
                    last, reader.back_to = reader.back_to, None
                if reader.behind:
                    reader.behind = False
                    async with aclosing(self._pages(last, tenant)) as pages:
                        async for page in pages:
                            last = place(page[-1])
                            yield [Item(event) for event in page if wants(event)]
                items = [item for item in reader.take() if place(item.event) > last]
                if items:
                    last = place(items[-1].event)
                    yield items
                elif not reader.behind and not await reader.wait(beat):
                    self._check_running()
                    yield []

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._leaving:
            await asyncio.wait(self._leaving)

    @contextmanager
    def _reading(self, wants: Callable[[Event], bool]) -> Iterator[Reader]:
        reader = Reader(wants, self._waiting_max)
        self._readers.add(reader)
        try:
            yield reader
        finally:
            self._readers.discard(reader)

    async def _running(self) -> None:
        """Return when every event from now on will reach the readers."""
        if self._task is None or self._task.done():
            newest = await self._newest()
            if self._task is None or self._task.done():  # Another reader may have started it meanwhile.
                self._at = newest
                self._task = asyncio.create_task(self._run())

    def _check_running(self) -> None:
        if self._task is None or self._task.done():
            raise StoreUnavailableError("the feed of events has stopped")

    async def _newest(self) -> str:
        newest = await self._store.events(newest=True, limit=1)
        return newest[-1].cursor if newest else ""

    async def _run(self) -> None:
        subscription = await self._subscribed()
        try:
            await self._read_on()
        finally:
            if subscription is not None:  # in its own task, so that a reader that comes now finds this one ended
                leaving = asyncio.create_task(subscription.drain())
                self._leaving.add(leaving)
                leaving.add_done_callback(self._leaving.discard)

    async def _subscribed(self) -> Subscription | None:
        try:
            return await self._bus.subscribe(EventTold, self.hear)
        except BusError as error:
            logger.warning("the feed of events goes on without hints: %s", error)
            return None

    async def _read_on(self) -> None:
        failed = False
        while self._readers:
            self._hint.clear()
            try:
                if failed:
                    await self._look_back()
                events = await self._store.events(after=self._at, limit=PAGE)
                failed = False
            except StoreUnavailableError as error:
                if not failed:
                    logger.warning("the feed of events waits for the store: %s", error)
                events, failed = [], True
            if events:
                self._at = events[-1].cursor
                await self._hand_out([Item(event) for event in events])
            await asyncio.sleep(GAP_SECONDS + GAP_SECONDS_PER_READER * len(self._readers))
            if not is_full(events, PAGE):
                await self._hinted()

    async def _hand_out(self, items: list[Item]) -> None:
        """Give events to all present readers. A reader that joins meanwhile starts after them, or reads them from the
        store."""
        for number, reader in enumerate(tuple(self._readers), 1):
            for item in items:
                reader.put(item)
            if number % READERS_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _look_back(self) -> None:
        """Check if the store came back as an older copy, whose new events lie before our cursor."""
        newest = await self._newest()
        if place_of(newest) < place_of(self._at):
            logger.warning("the store went back in time: the feed goes on from its newest event")
            self._at = newest
            for reader in self._readers:
                reader.back_to = place_of(newest)

    async def _is_ahead(self, cursor: str) -> bool:
        """True if the cursor is from a time that the store has lost."""
        return place_of(cursor) > place_of(self._at) and place_of(cursor) > place_of(await self._newest())

    async def _hinted(self) -> None:
        try:
            async with asyncio.timeout(POLL_SECONDS):
                await self._hint.wait()
        except TimeoutError:
            return

    async def _pages(
        self, last: tuple[int, int], tenant: str | None, job_id: str = ""
    ) -> AsyncGenerator[list[Event], None]:
        """The store's events behind `last`, or those of one job, page by page. A page has a turn until its reader has
        written it: few pages are in memory, however many readers there are and however slow they are."""
        cursor, more, whose = f"{last[0]}-{last[1]}", True, tenant or EVERYBODY
        read = partial(self._store.story, job_id) if job_id else partial(self._store.events, tenant=tenant)
        while more:
            async with self._catching_up.one(whose, patient=True):
                async with self._reading_turns.one(whose, patient=True):
                    with self._paying(whose):
                        page = await read(after=cursor, limit=TAKEN_MAX, bytes_max=TAKEN_BYTES_MAX)
                more = is_full(page, TAKEN_MAX, TAKEN_BYTES_MAX)
                if page:
                    cursor = page[-1].cursor
                    yield page
