"""A node as the scheduler's core sees one: it reports, is answered, and runs what it is told, at the test's pace."""

from msgspec import structs

from weft.domain.cluster import IGNORES_IMAGES, Capacity
from weft.domain.shares import WHOLE
from weft.messages.nodes import (
    EndReason,
    JobOrder,
    Leader,
    NodeDesired,
    NodeReported,
    NodeSigns,
    Noted,
    RunSeen,
    RunState,
    StartRun,
)
from weftd.executor.thinking.orders import runs_of

Key = tuple[str, int, int]


class ScriptedNode:
    """`report` → `hear(answer)`; between them the test ends runs with `end`."""

    def __init__(self, node_id: str, capacity: Capacity) -> None:
        self.node_id = node_id
        self.capacity = capacity
        self.boot_id = "boot"
        self.incarnation = 1
        self.seq = 0
        self.runs: dict[Key, RunSeen] = {}
        self.orders: dict[Key, StartRun] = {}
        self.leaving = False
        self.ending = False
        self.unkillable: set[Key] = set()  # go on, whatever they are told
        self.tells_gpus = True
        self.not_enforced: tuple[str, ...] = (IGNORES_IMAGES,)  # or jobs with images would have no place
        self.holds = ""
        self.rack = ""
        self.labels: dict[str, str] = {}
        self.taints: dict[str, str] = {}
        self.leader: Leader | None = None  # who answered last
        self.desired: tuple[JobOrder, ...] = ()
        self.ready: set[Key] = set()  # runs that take requests
        self.becomes_ready = True  # runs that serve requests do so at once
        self.signs: NodeSigns | None = None
        self._preparing: set[Key] = set()
        self._told: set[Key] = set()

    def report(self) -> NodeReported:
        self.seq += 1
        self._told = {key for key, run in self.runs.items() if run.state is RunState.EXITED}
        return NodeReported(
            node_id=self.node_id,
            pool="default",
            address="127.0.0.1",
            boot_id=self.boot_id,
            incarnation=self.incarnation,
            seq=self.seq,
            capacity=self.capacity,
            runs=tuple(self._seen(key, run) for key, run in self.runs.items()),
            leaving=self.leaving,
            ending=self.ending,
            leader=self.leader,
            holds=self.holds,
            not_enforced=self.not_enforced,
            rack=self.rack,
            labels=self.labels,
            taints=self.taints,
            signs=self.signs,
        )

    def _seen(self, key: Key, run: RunSeen) -> RunSeen:
        if run.state is RunState.EXITED:
            return run
        state = RunState.STARTING if key in self._preparing else run.state
        order = self.orders.get(key)
        if order is not None and order.serve is not None and state is RunState.RUNNING:
            run = structs.replace(run, port=30000 + key[2] % 30000, ready=self.becomes_ready or key in self.ready)
        return structs.replace(
            run, state=state, gpus=self.orders[key].gpus if self.tells_gpus and key in self.orders else None
        )

    def prepares(self, key: Key) -> None:
        """It is seen to be there, and never comes to run."""
        self._preparing.add(key)

    def take(self, answer: NodeDesired, *, now: float = 0.0) -> None:
        """An answer as it is on the wire."""
        assert not answer.refused
        self.leader = answer.leader or self.leader
        if not answer.unchanged:
            self.desired, self.holds = answer.jobs, answer.digest
        self.hear(self.desired, now=now)

    def hear(self, desired: tuple[JobOrder, ...], *, now: float = 0.0, leader: Leader | None = None) -> None:
        self.leader = leader or self.leader
        wanted = {(run.job_id, run.epoch, run.rank): run for order in desired for run in runs_of(order)}
        for key in [key for key in self._told if key not in wanted]:
            self.runs.pop(key, None)
        for key, run in list(self.runs.items()):
            if key not in wanted and run.state is not RunState.EXITED and key not in self.unkillable:
                self.end(key, 143, reason=EndReason.STOPPED)
        self.orders.update({key: order for key, order in wanted.items() if key in self.orders})
        for key, order in wanted.items():
            if key not in self.runs and not self._in_the_way(order):
                self.orders[key] = order
                self.runs[key] = RunSeen(
                    job_id=key[0], epoch=key[1], rank=key[2], state=RunState.RUNNING, started_at=now
                )

    def _in_the_way(self, order: StartRun) -> bool:
        """An executor starts nothing beside an older epoch of the same rank, or on a GPU that has no room for it."""
        here = [self.orders[key] for key in self.live]
        used = {gpu: sum(_part(other) for other in here if gpu in other.gpus) for gpu in order.gpus}
        same = any((key[0], key[2]) == (order.job_id, order.rank) for key in self.live)
        return same or any(part + _part(order) > WHOLE for part in used.values())

    def end(self, key: Key, exit_code: int, *, reason: EndReason = EndReason.EXIT, detail: str = "") -> None:
        self._end(key, exit_code, reason, detail)

    def end_for_good(self, key: Key, detail: str) -> None:
        """As a node does where the run cannot start, and no other try there would."""
        self._end(key, None, EndReason.START_FAILED, detail, for_good=True)

    def note(self, key: Key, noted: Noted) -> None:
        """As a node does that saw something of a run which the run may not show itself."""
        self.runs[key] = structs.replace(self.runs[key], noted=(*self.runs[key].noted, noted))

    def end_outside(self, key: Key) -> None:
        """As a node does in a strict pool: the run used its GPU outside its share."""
        self._end(key, 137, EndReason.STOPPED, uncontrolled=True)

    def _end(
        self,
        key: Key,
        exit_code: int | None,
        reason: EndReason,
        detail: str = "",
        *,
        uncontrolled: bool = False,
        for_good: bool = False,
    ) -> None:
        self.runs[key] = RunSeen(
            job_id=key[0],
            epoch=key[1],
            rank=key[2],
            state=RunState.EXITED,
            exit_code=exit_code,
            reason=reason,
            detail=detail,
            uncontrolled=uncontrolled,
            for_good=for_good,
            noted=self.runs[key].noted if key in self.runs else (),
        )

    @property
    def live(self) -> list[Key]:
        return [key for key, run in self.runs.items() if run.state is not RunState.EXITED]


def _part(order: StartRun) -> int:
    return WHOLE if order.share is None else order.share.request
