"""A control plane of a few lines for one node: it answers reports with what the test wants to run."""

import asyncio

from tests.support.runs import desired
from weft.bus import Bus, Subscription
from weft.messages.nodes import Leader, NodeDesired, NodeHinted, NodeReported, RunSeen, StartRun
from weftd.executor.runs import RunKey


class ControlPlane:
    def __init__(self, bus: Bus, node_id: str = "node-1") -> None:
        self.bus = bus
        self._node_id = node_id
        self._subscription: Subscription | None = None
        self.desired: dict[RunKey, StartRun] = {}
        self.reports: list[NodeReported] = []
        self.seen: dict[RunKey, RunSeen] = {}  # the newest said of each run that was ever reported
        self.refused = ""
        self.leader: Leader | None = None
        self.strict = False
        self.drop_ended = True  # as a scheduler does: what has ended is no longer desired

    async def listen(self) -> None:
        self._subscription = await self.bus.answer(NodeReported, self._answer, node_id=self._node_id)

    async def fall_silent(self) -> None:
        if self._subscription is not None:
            await self._subscription.drain()
            self._subscription = None

    async def want(self, *orders: StartRun, hint: bool = True) -> None:
        self.desired = {RunKey.of(order): order for order in orders}
        if hint:
            await self.bus.publish(NodeHinted(node_id=self._node_id))

    async def hears(self, key: RunKey, *states: str, seconds_max: float = 60.0) -> RunSeen:
        async with asyncio.timeout(seconds_max):
            while key not in self.seen or self.seen[key].state not in states:  # noqa: ASYNC110 - bounded
                await asyncio.sleep(0.01)
        return self.seen[key]

    async def _answer(self, report: NodeReported) -> NodeDesired:
        self.reports.append(report)
        if self.refused:
            return NodeDesired(seq=report.seq, refused=self.refused)
        for run in report.runs:
            key = RunKey(run.job_id, run.epoch, run.rank)
            self.seen[key] = run
            if run.state == "exited" and self.drop_ended:
                self.desired.pop(key, None)
        return desired(*self.desired.values(), seq=report.seq, leader=self.leader, strict=self.strict)
