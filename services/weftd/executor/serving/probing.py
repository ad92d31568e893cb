"""Asks many serving runs at once whether they take requests, and passes the answers on."""

import asyncio
import logging
import time
from collections.abc import Callable

from weft.bus import Bus
from weft.messages.serving import EndpointsSeen, ServicesServed
from weftd.executor.runs import Run, RunKey, Runtime, RuntimeUnavailableError
from weftd.executor.thinking.serving import Readiness

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.05  # between two looks for runs that are to be asked
TELL_SECONDS = 1.0
AT_ONCE_MAX = 256  # probes; a run that does not answer holds one for two seconds
STARTS_MAX = 64  # probes that one look begins: some 1,200 a second
ENDPOINTS_MAX = 8192  # of a node, in one message, which then has some 1.5 MB
REST_SECONDS_EACH, REST_SECONDS_MAX = 0.0002, 0.5  # between two messages: many changes of many runs make few of them
SECONDS_MAX = 5.0  # for one probe, whatever a runtime does


class Prober:
    """`changed`: called where a run became ready, or is not any more, or may be stopped now."""

    def __init__(
        self,
        *,
        bus: Bus,
        runtime: Runtime,
        serving: Readiness,
        node_id: str,
        incarnation: int,
        tasks: asyncio.TaskGroup,
        clock: Callable[[], float],
        now: Callable[[], float] = time.time,
        changed: Callable[[], None],
    ) -> None:
        self._bus, self._runtime, self._serving = bus, runtime, serving
        self._node_id, self._incarnation = node_id, incarnation
        self._tasks, self._clock, self._now, self._changed = tasks, clock, now, changed
        self._asking: dict[RunKey, asyncio.Task[None]] = {}
        self._seq = 0
        self._told_any = False
        self.news = asyncio.Event()  # the endpoints changed
        self._wanted = asyncio.Event()  # there are runs to ask

    def wake(self) -> None:
        """The runs of the node were looked at."""
        if self._serving.serves:
            self._wanted.set()
        if self._serving.changed:
            self.news.set()

    async def ask(self) -> None:
        """Ask the runs that serve requests, for ever; idle on a node without such runs."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while self._serving.serves:
                self._begin()
                await asyncio.sleep(LOOK_SECONDS)

    def _begin(self) -> None:
        """Begin to ask the runs whose time has come."""
        now = self._clock()
        room = min(STARTS_MAX, AT_ONCE_MAX - len(self._asking))
        for run in self._serving.due(now)[: max(0, room)]:
            self._serving.asked(run.key, now)
            self._asking[run.key] = self._tasks.create_task(self._ask(run))

    async def tell(self) -> None:
        """Publish the endpoints: at each change, and regularly. A node that never had any says nothing."""
        self.news.clear()
        now = self._clock()
        if not self._serving.settled(now):
            return
        endpoints = self._serving.endpoints()[:ENDPOINTS_MAX]
        ended = self._serving.ended(now)
        if not endpoints and not ended and not self._told_any:
            return
        self._told_any = True
        self._seq = max(self._seq + 1, int(now * 1000))  # it grows also where this executor begins anew on another bus
        await self._bus.publish(
            EndpointsSeen(
                node_id=self._node_id,
                incarnation=self._incarnation,
                seq=self._seq,
                at=self._now(),
                endpoints=endpoints,
                ended=ended,
            )
        )
        await asyncio.sleep(min(REST_SECONDS_MAX, len(endpoints) * REST_SECONDS_EACH))

    async def heard(self, served: ServicesServed) -> None:
        if self._serving.heard(served, self._clock()):
            self._changed()

    def drop(self) -> None:
        for task in self._asking.values():
            task.cancel()

    async def _ask(self, run: Run) -> None:
        try:
            async with asyncio.timeout(SECONDS_MAX):
                why = await self._runtime.probe(run)
        except (RuntimeUnavailableError, TimeoutError) as error:
            why = str(error) or "it does not answer"
        finally:
            self._asking.pop(run.key, None)
        before = self._serving.ready(run.key)
        self._serving.answered(run.key, why, at=self._now())
        after = self._serving.ready(run.key)
        if after is not before:
            if before is not None or after:
                logger.info("%s %s", run.key, "is ready" if after else f"is not ready: {why}")
            self.news.set()
            self._changed()
