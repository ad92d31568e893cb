"""The live stream of the cluster state: each reader gets a snapshot, then changes.

One reading of the store serves all readers, and happens only while there are any: the newest event is read each quarter
of a second, all else only after a new event. The pause after a pass grows with its cost, so that open pages take a
small part of the gateway's time. Each frame is encoded once for all readers that may see the same.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import msgspec
from msgspec import structs

from weft.domain.job import Job
from weft.messages.signals import GpuScore
from weft.store import GatewayStore, StoreUnavailableError
from weft.store.tenants import Access
from weftd.gateway.readmodel.cluster import LiveCluster
from weftd.gateway.readmodel.live_picture import ClusterSeen, LiveChange, LiveCounts, LivePicture, ShownJob, waiting_of
from weftd.gateway.readmodel.snapshots import SECONDS, Snapshots

logger = logging.getLogger(__name__)

GAP_SECONDS = 0.25  # minimum time between two passes
SPARING = 15  # the pause after a pass is this many times as long as the pass
PAUSE_SECONDS_MAX = 5.0
SAMPLED_SECONDS = 1.0  # between two readings of samples and progress
LINGER_SECONDS = 10.0  # kept without readers for this long, for pages that are loaded again
WHOLE_SECONDS = 5.0  # all is read again after this, event or not: nodes report without one
SCORES_SECONDS = 15.0
COUNT_SECONDS_MAX = 1.0  # maximum wait of the first pass for the number of waiting jobs
FIRST_SECONDS_MAX = 10.0  # maximum wait of a reader for the first pass
AWAY_SECONDS_MAX = 5.0  # readers are cut when the store has been away for this long: the state is too old then
WAITING_MAX = 64  # frames, and
WAITING_BYTES_MAX = 4 << 20  # bytes of them, that a reader may be behind; then it gets a snapshot instead

Key = tuple[str, bool]
"""A reader's tenant, and whether it is an administrator."""


class LiveView:
    """The part of the cluster state that readers of one tenant, or its administrators, may see."""

    def __init__(self, live: "Live", key: Key) -> None:
        self._live = live
        self.tenant, self.admin = key
        self.readers: set[LiveReader] = set()
        self._counts: dict[str, bytes] = {}  # as the readers know them
        self._snapshot: tuple[int, bytes] | None = None

    def snapshot(self) -> bytes:
        """The whole state as JSON, encoded once for each version."""
        looks = self._live.looks
        if self._snapshot is None or self._snapshot[0] != looks:
            picture = self._live.picture
            counts = self._counted()
            jobs = b",".join(shown.entry(mine=self._is_mine(shown)) for shown in picture.jobs(self._only))
            told = {
                **self._head(),
                "tenant": self.tenant,
                "admin": self.admin,
                "totals": msgspec.Raw(picture.totals),
                **{name: msgspec.Raw(each) for name, each in counts.items()},
                "nodes": msgspec.Raw(b"[%s]" % b",".join(picture.nodes())),
                "jobs": msgspec.Raw(b"{%s}" % jobs),
            }
            self._snapshot = (looks, msgspec.json.encode(told))
        return self._snapshot[1]

    def delta(self, change: LiveChange, nodes: bytes) -> bytes:
        """Changes for these readers, as JSON, or empty if there are none. `nodes`: the changed nodes, encoded."""
        self._snapshot = None
        counts = self._counted()
        others = {name: msgspec.Raw(each) for name, each in counts.items() if self._counts.get(name) != each}
        self._counts = counts
        if change.totals:
            others["totals"] = msgspec.Raw(change.totals)
        jobs = list(change.jobs(self._only))
        jobs_gone = [shown.job.id for shown in change.jobs_gone(self._only)]
        if not (others or jobs or jobs_gone or change.nodes or change.nodes_gone):
            return b""
        entries = b",".join(shown.entry(mine=self._is_mine(shown)) for shown in jobs)
        told = {
            **self._head(),
            "nodes": msgspec.Raw(nodes),
            "nodes_gone": change.nodes_gone,
            "jobs": msgspec.Raw(b"{%s}" % entries),
            "jobs_gone": jobs_gone,
            **others,
        }
        return msgspec.json.encode(told)

    def tell(self, frame: bytes) -> None:
        for reader in self.readers:
            reader.put(frame)

    def begin_anew(self) -> None:
        """Send every reader a snapshot next."""
        for reader in self.readers:
            reader.begin_anew()

    def frame(self, event: str, told: bytes) -> bytes:
        return b"id: %s\nevent: %s\ndata: %s\n\n" % (self._live.cursor.encode(), event.encode(), told)

    @property
    def _only(self) -> str | None:
        """The tenant whose jobs are shown; None: all tenants."""
        return None if self.admin else self.tenant

    def _head(self) -> dict[str, object]:
        return {"at": self._live.at, "cursor": self._live.cursor}

    def _counted(self) -> dict[str, bytes]:
        picture = self._live.picture
        return {
            "states": msgspec.json.encode(picture.states(self._only)),
            "waiting": msgspec.json.encode(picture.waiting(self._only)),
            "findings": self._live.findings if self.admin else b"[]",
        }

    def _is_mine(self, shown: ShownJob) -> bool:
        return shown.job.tenant == self.tenant


class LiveReader:
    """The frames that one stream has not read yet. The first is a snapshot, as is the next one after too many
    frames."""

    def __init__(self, view: LiveView, live: "Live") -> None:
        self._view = view
        self._live = live
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._behind = True
        self._more = asyncio.Event()
        self._more.set()

    def snapshot(self) -> bytes:
        return self._view.snapshot()

    def put(self, frame: bytes) -> None:
        if self._behind:
            return
        if len(self._waiting) >= WAITING_MAX or self._bytes + len(frame) > WAITING_BYTES_MAX:
            self.begin_anew()
            return
        self._waiting.append(frame)
        self._bytes += len(frame)
        self._more.set()

    def begin_anew(self) -> None:
        self._waiting.clear()
        self._bytes = 0
        self._behind = True
        self._more.set()

    async def frames(self, seconds: float) -> bytes:
        """The next frames; empty if none came in that time. Raises StoreUnavailableError if the stream has ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._more.wait()
        self._live.check()
        self._more.clear()
        if self._behind:
            self._behind = False
            return self._view.frame("snapshot", self._view.snapshot())
        frames = b"".join(self._waiting)
        self._waiting.clear()
        self._bytes = 0
        return frames


class Live:
    """Reads the state of the cluster for all readers, while there are any. `clock` does not jump, `now` is the time of
    day."""

    def __init__(
        self,
        store: GatewayStore,
        snapshots: Snapshots,
        cluster: LiveCluster,
        *,
        clock: Callable[[], float],
        now: Callable[[], float],
    ) -> None:
        self._store = store
        self._snapshots = snapshots
        self._cluster = cluster
        self._clock = clock
        self._now = now
        self._views: dict[Key, LiveView] = {}
        self._left_at = clock()  # when the last reader did
        self._task: asyncio.Task[None] | None = None
        self._begin()

    @asynccontextmanager
    async def reader(self, who: Access) -> AsyncIterator[LiveReader]:
        """A new reader, once a snapshot is ready. Raises StoreUnavailableError."""
        key = (who.tenant, who.admin)
        view = self._views.setdefault(key, LiveView(self, key))
        reader = LiveReader(view, self)
        view.readers.add(reader)
        try:
            await self._running()
            yield reader
        finally:
            view.readers.discard(reader)
            if not view.readers and self._views.get(key) is view:
                del self._views[key]
            self._left_at = self._clock()

    def check(self) -> None:
        """Raises StoreUnavailableError if the state is not up to date."""
        if self._task is None or self._task.done():
            raise StoreUnavailableError("the live picture has stopped")
        if self._away_since is not None and (not self.looks or self._clock() - self._away_since > AWAY_SECONDS_MAX):
            raise StoreUnavailableError("the store is away")

    async def close(self) -> None:
        if running := [task for task in (self._task, self._counting) if task is not None]:
            for task in running:
                task.cancel()
            await asyncio.wait(running)

    def _begin(self) -> None:
        self.picture = LivePicture(self._cluster)
        self.cursor = ""
        self.at = self._now()
        self.looks = 0
        self.findings = b"[]"
        self._seen: ClusterSeen | None = None
        self._away_since: float | None = None
        self._tried = asyncio.Event()
        self._counting: asyncio.Task[None] | None = None
        self._read_anew()

    def _read_anew(self) -> None:
        self._changed_at = self._sampled_at = self._read_at = self._scored_at = self._counted_at = float("-inf")
        self._count_pause = SECONDS
        self._waiting = LiveCounts()

    async def _running(self) -> None:
        if self._task is None or self._task.done():
            self._begin()
            self._task = asyncio.create_task(self._run(), name="live")
            self._task.add_done_callback(_noticed)
        try:
            async with asyncio.timeout(FIRST_SECONDS_MAX):
                await self._tried.wait()
        except TimeoutError:
            raise StoreUnavailableError("reading the state of the cluster took too long") from None
        self.check()

    async def _run(self) -> None:
        while self._views or self._clock() - self._left_at < LINGER_SECONDS:
            began = self._clock()
            try:
                await self._look()
            except StoreUnavailableError as error:
                if self._away_since is None:
                    self._away_since = began
                    logger.warning("the live picture waits for the store: %s", error)
                self._read_anew()
            except Exception:
                logger.exception("the live state could not be computed")
                raise
            finally:
                self._tried.set()
            took = self._clock() - began
            await asyncio.sleep(max(GAP_SECONDS, min(PAUSE_SECONDS_MAX, SPARING * took)))

    async def _look(self) -> None:
        began = self._clock()
        newest = await self._store.events(newest=True, limit=1)
        cursor = newest[-1].cursor if newest else ""
        if cursor != self.cursor:
            self._changed_at = began
        sampled = began - self._sampled_at >= SAMPLED_SECONDS
        is_read = self._read_at - self._changed_at >= SECONDS  # snapshots that others share may be as old as that
        if is_read and not sampled and began - self._read_at < WHOLE_SECONDS:
            return
        seen, scores = self._seen, await self._scores(began)
        if seen is None or not is_read or began - self._read_at >= WHOLE_SECONDS:
            seen = await self._read(began)
        seen = structs.replace(seen, waiting=self._waiting, now=self._now())
        self._sampled_at = began if sampled else self._sampled_at
        self._take(seen, cursor, sampled=sampled, scores=scores)

    def _take(self, seen: ClusterSeen, cursor: str, *, sampled: bool, scores: list[GpuScore] | None) -> None:
        """Apply the reading and send the changes to the readers, without a pause in which a reader could join."""
        anew, self._away_since = self._away_since is not None, None
        if anew:
            logger.info("the live picture goes on")
            self.picture = LivePicture(self._cluster)  # the store may have come back as an older one
        change = self.picture.look(seen, sampled=sampled, scores=scores)
        self.findings = msgspec.json.encode(self._cluster.findings())
        self.cursor, self.at, self._seen = cursor, seen.now, seen
        self.looks += 1
        nodes = b"[%s]" % b",".join(change.nodes)
        for view in self._views.values():
            told = view.delta(change, nodes)
            if anew:
                view.begin_anew()
            elif told:
                view.tell(view.frame("delta", told))

    async def _read(self, began: float) -> ClusterSeen:
        nodes = await self._snapshots.nodes.get()
        pools = await self._snapshots.pools()
        holding = [job for pool in pools for job in await self._snapshots.holding(pool)]
        await self._count(pools, holding, began)
        self._read_at = began
        return ClusterSeen(nodes=nodes.all, holding=holding, waiting=self._waiting, now=self._now())

    async def _count(self, pools: Sequence[str], holding: Sequence[Job], began: float) -> None:
        """Count the waiting jobs in the background, as there may be very many. The first pass waits a little for the
        result."""
        if self._counting is None and began - self._counted_at >= self._count_pause:
            self._counting = asyncio.create_task(self._counted(pools, holding), name="live counts")
            if not self.looks:
                await asyncio.wait([self._counting], timeout=COUNT_SECONDS_MAX)

    async def _counted(self, pools: Sequence[str], holding: Sequence[Job]) -> None:
        began = self._clock()
        try:
            queued = [job for pool in pools for job in await self._snapshots.queued(pool)]
            self._waiting = waiting_of(queued, holding)
        except StoreUnavailableError:
            return  # the next pass reads that too
        finally:
            self._counting = None
            self._counted_at = began
            self._count_pause = max(SECONDS, min(PAUSE_SECONDS_MAX, SPARING * (self._clock() - began)))

    async def _scores(self, began: float) -> list[GpuScore] | None:
        if began - self._scored_at < SCORES_SECONDS:
            return None
        self._scored_at = began
        return [score for pool in await self._snapshots.pools() for score in await self._snapshots.scores(pool)]


def _noticed(task: asyncio.Task[None]) -> None:
    """Its error was logged; the readers end because the task is done."""
    if not task.cancelled():
        task.exception()
