"""The state that both runtimes keep of their runs beside the processes or containers themselves."""

import asyncio
import time
from collections.abc import Collection

from weft.messages.nodes import StartRun
from weftd.executor.files.discards import Discards
from weftd.executor.files.home import Home
from weftd.executor.machine.node import NodeFacts, Refusal, gpus_of, refused
from weftd.executor.machine.numa import Pins
from weftd.executor.runs import Run, RunKey
from weftd.executor.serving.listening import Ears
from weftd.executor.serving.records import ServedRuns
from weftd.executor.shares.backend import NOTHING, Attached, ShareBackend, TimeSlicing


class Bookkeeping:
    """`over`: runs that ended or never started, in memory only: after a restart a failed start is tried again."""

    def __init__(self, home: Home, node: NodeFacts, shares: ShareBackend | None, *, contained: bool) -> None:
        self._home = home
        self._node = node
        self._contained = contained
        self._changed = asyncio.Event()
        self.shares: ShareBackend = shares or TimeSlicing()
        self.served = ServedRuns(home)
        self.discards = Discards(str(home.discarded))
        self.ears = Ears()
        self.pins = Pins(home, node)
        self.over: dict[RunKey, Run] = {}

    async def attach(self, order: StartRun) -> Attached:
        """Hold the run to its share of a GPU, if it has one. Raises Refusal, RuntimeUnavailableError."""
        if order.share is None:
            return NOTHING
        [gpu] = gpus_of(order, self._node)
        return await self.shares.attach(order, gpu, contained=self._contained)

    async def keep(self, keys: Collection[RunKey]) -> None:
        """After a restart: these runs are there, all others have ended."""
        await self.shares.keep(keys)
        self.served.forget_others(keys)
        self.pins.keep(keys)

    def refuse(self, key: RunKey, refusal: Refusal) -> None:
        """Note a failed start."""
        self.served.forget(key)
        self.end(refused(key, refusal, at=time.time()))

    def end(self, run: Run) -> None:
        self.over[run.key] = run
        self.pins.forget(run.key)
        self.note_change()

    def forget(self, key: RunKey) -> None:
        """The run is removed: drop its share, its folder, and how it served requests."""
        self._home.close_log(key)
        self.discards.take(self._home.run(key))
        self.served.forget(key)
        self.shares.detach(key)
        self.pins.forget(key)

    def note_change(self) -> None:
        self._changed.set()

    async def changed(self) -> None:
        await self._changed.wait()
        self._changed.clear()
