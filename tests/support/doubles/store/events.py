"""Events and their outbox, in memory: what was told of jobs and nodes, and what the relay has still to publish."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

import msgspec

from tests.support.doubles.store.times import micro
from weft.domain.cluster import Node
from weft.messages.events import Event, JobEventData, place_of
from weft.store import EVENTS_BYTES_MAX, UNSENT_BYTES_MAX, Unsent


class MemoryEvents:
    def __init__(self) -> None:
        super().__init__()
        self._events: list[Event] = []
        self._event_id = 0
        self._stories: dict[str, list[Event]] = {}
        self._xid = 0
        self._outbox: dict[int, int] = {}  # the entry of each event
        self._entry = 0
        self._stream_id = ""  # of the stream that what is not in the outbox was published to

    async def story(
        self,
        job_id: str,
        *,
        after: str = "",
        before: str = "",
        newest: bool = False,
        events: Sequence[str] = (),
        limit: int = 1000,
        bytes_max: int = EVENTS_BYTES_MAX,
    ) -> list[Event]:
        every = (event for event in self._stories.get(job_id, []) if not events or event.event in events)
        if newest:
            return _page(reversed([event for event in every if _is_before(event, before)]), limit, bytes_max)[::-1]
        return _page((event for event in every if (event.xid, event.id) > place_of(after)), limit, bytes_max)

    async def last_told(self, topic: str, subject_ids: Sequence[str], *, events: Sequence[str]) -> list[Event]:
        told = [event for event in self._events if event.topic == topic and event.event in events]
        newest = {event.subject_id: event for event in sorted(told, key=lambda event: event.version)}
        return [newest[subject_id] for subject_id in subject_ids if subject_id in newest]

    async def events(
        self,
        *,
        after: str = "",
        before: str = "",
        tenant: str | None = None,
        newest: bool = False,
        limit: int = 1000,
        bytes_max: int = EVENTS_BYTES_MAX,
    ) -> list[Event]:
        begin = bisect_right(self._events, place_of(after), key=lambda event: (event.xid, event.id))
        seen = (event for event in islice(self._events, begin, None) if tenant in (None, event.tenant))
        if newest:
            return _page(reversed([event for event in seen if _is_before(event, before)]), limit, bytes_max)[::-1]
        return _page(seen, limit, bytes_max)

    async def unsent(self, *, limit: int) -> list[Unsent]:
        begin = bisect_left(self._events, min(self._outbox), key=lambda event: event.id) if self._outbox else 0
        waiting = [event for event in islice(self._events, begin, None) if event.id in self._outbox]
        found = [*_in_turn(waiting, limit), *waiting[:1]]
        found = sorted({event.id: event for event in found}.values(), key=lambda event: event.id)
        return [Unsent(entry=self._outbox[event.id], event=event) for event in found]

    async def unsent_count(self) -> int:
        return len(self._outbox)

    async def sent(self, published: Sequence[Unsent]) -> None:
        for unsent in published:
            if self._outbox.get(unsent.event.id) == unsent.entry:
                del self._outbox[unsent.event.id]

    async def resend(self, *, since: float) -> int:
        again = {event.id for event in self._events if event.at >= micro(since)} - self._outbox.keys()
        for event_id in sorted(again | self._outbox.keys()):
            self._put(event_id)
        return len(again)

    async def fill_stream(self, stream_id: str, *, since: float) -> int:
        if stream_id == self._stream_id:
            return 0
        self._stream_id = stream_id
        return await self.resend(since=since)

    def _put(self, event_id: int) -> None:
        """Put an event into the outbox, as a new entry."""
        self._entry += 1
        self._outbox[event_id] = self._entry

    def _first_version(self, node_id: str) -> int:
        """The first version of a new node, or the next one of a node that was removed and joins again."""
        told = (event.version for event in self._events if event.topic == "nodes" and event.subject_id == node_id)
        return max(told, default=0) + 1

    def _tell_node(self, node: Node, version: int, event: str, cause: str, *, at: float) -> None:
        data = {
            "node_id": node.id,
            "pool": node.pool,
            "address": node.address,
            "ready": node.ready,
            "drained": node.drained,
            "runtime": node.runtime,
            "capacity": node.capacity,
            "version": version,
            "sentence": cause,
        }
        self._tell("nodes", event, node.id, version, micro(at), data)

    def _tell(
        self,
        topic: str,
        what: str,
        subject_id: str,
        version: int,
        at: float,
        data: JobEventData | dict[str, Any],
        *,
        tenant: str = "",
        alone: bool = True,
    ) -> None:
        """Record an event. `alone`: it is a transaction of its own."""
        self._xid += alone
        self._event_id += 1
        event = Event(
            id=self._event_id,
            xid=self._xid,
            topic=topic,
            event=str(what),
            subject_id=subject_id,
            version=version,
            at=at,
            tenant=tenant,
            data=msgspec.Raw(msgspec.json.encode(data)),
        )
        self._events.append(event)
        self._put(event.id)
        if topic == "jobs":
            self._stories.setdefault(subject_id, []).append(event)


def _is_before(event: Event, cursor: str) -> bool:
    return not cursor or (event.xid, event.id) < place_of(cursor)


def _page(events: Iterable[Event], limit: int, bytes_max: int) -> list[Event]:
    found: list[Event] = []
    size = 0
    for event in islice(events, limit):
        found.append(event)
        size += len(event.data)
        if size >= bytes_max:
            break
    return found


def _in_turn(waiting: Sequence[Event], limit: int) -> list[Event]:
    """Events in the order of the bytes that their tenants have to publish up to them, as many as a batch has."""
    up_to_it: Counter[str] = Counter()
    places: list[tuple[int, int, Event]] = []
    for event in waiting:
        up_to_it[event.tenant] += len(event.data)
        places.append((up_to_it[event.tenant], event.id, event))
    return _page((event for _, _, event in sorted(places, key=itemgetter(0, 1))), limit, UNSENT_BYTES_MAX)
