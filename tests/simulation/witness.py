"""Sees from the outside whether Weft keeps its promises: by what runs on the hosts, and by what clients were told."""

import msgspec
from msgspec import Struct

from libs.domain.cluster import Capacity
from libs.domain.job import Allocation, Cause, CauseCode, JobState, Placement
from libs.messages.events import Event
from libs.messages.nodes import EndReason, StartRun
from services.executor.runs import RunKey
from tests.simulation.history import History

CPU_DUST = 1e-6
OVER = ("succeeded", "failed", "cancelled")


class Alive(Struct):
    node_id: str
    gpus: tuple[int, ...]


class Told(Struct):
    """What the events of a job or a node have said so far."""

    version: int = 0
    epoch: int = 0
    state: str = ""
    ranks: int = 0
    allocations: tuple[Allocation, ...] = ()  # while it holds something


class _Data(Struct):
    epoch: int = 0
    state: str = ""
    placement: Placement | None = None
    cause: Cause | None = None


_data = msgspec.json.Decoder(_Data)


class Witness:
    def __init__(self, history: History) -> None:
        self.history = history
        self.alive: dict[RunKey, Alive] = {}
        self.begun: set[RunKey] = set()
        self.ends: dict[RunKey, int | None] = {}
        self.told_to_stop: set[RunKey] = set()  # of those that ran
        self.told_of: dict[tuple[str, str], Told] = {}
        self.keys: dict[str, str] = {}
        self.acknowledged: dict[str, str] = {}  # job id → the name under which it was submitted
        self.capacities: dict[str, Capacity] = {}  # by node
        self._reports: dict[tuple[str, str], tuple[int, int]] = {}

    # what runs

    def began(self, node_id: str, order: StartRun) -> None:
        key = RunKey.of(order)
        self.history.note(node_id, f"run {key} begins on GPUs {order.gpus}")
        self.history.counts["runs"] += 1
        if key in self.begun:
            self.history.fail(f"started twice: {key}, now on {node_id}")
        for other, alive in self.alive.items():
            if other.job_id == key.job_id and other.epoch != key.epoch:
                self.history.fail(f"overlap: {key} begins on {node_id} while {other} runs on {alive.node_id}")
            shared = set(alive.gpus) & set(order.gpus)
            if alive.node_id == node_id and shared:
                self.history.fail(f"over-packed: GPU {min(shared)} of {node_id} has {other} and now {key}")
        self.begun.add(key)
        self.alive[key] = Alive(node_id, order.gpus)

    def ended(self, node_id: str, key: RunKey, exit_code: int | None, reason: EndReason) -> None:
        self.history.note(node_id, f"run {key} ends with {exit_code}, {reason}")
        self.alive.pop(key, None)
        self.ends[key] = exit_code

    # what is recorded

    def told(self, event: Event) -> None:
        said = _data.decode(event.data)
        told = self.told_of.setdefault((event.topic, event.subject_id), Told())
        if event.version != told.version + 1:
            self.history.fail(f"{event.message_id} follows version {told.version}")
        told.version = event.version
        if event.topic == "jobs":
            self._told_of_job(event, said, told)
        self.history.counts["events"] += 1

    def _told_of_job(self, event: Event, said: _Data, told: Told) -> None:
        job_id = event.subject_id
        if said.epoch < told.epoch:
            self.history.fail(f"{job_id} goes back from epoch {told.epoch} to {said.epoch}")
        told.epoch, told.state = said.epoch, said.state
        self.history.note("store", f"{job_id} {event.event} epoch {said.epoch}")
        if event.event in ("stopping", "requeued", "failed") and said.cause is not None:
            codes = (CauseCode.NODE_STOPPED, CauseCode.NODE_LOST)
            self.history.counts["cut off"] += said.cause.code in codes
        if event.event == "stopping" and said.cause is not None:
            self.history.counts["moves"] += said.cause.code is CauseCode.MOVED
            self.history.counts["pre-emptions"] += said.cause.code is CauseCode.PREEMPTED
        if said.placement is not None:
            told.ranks = len(said.placement.allocations)
            told.allocations = said.placement.allocations
            self._check_nodes(event.message_id, said.placement.allocations)
        if not JobState(said.state).holding:
            told.allocations = ()
        self.history.counts["tunings"] += event.event == "tuned"
        ranks = [RunKey(job_id, said.epoch, rank) for rank in range(told.ranks)]
        if event.event == "started" and not self.begun.issuperset(ranks):
            self.history.fail(f"half placed: {job_id} is said to run, and {_missing(ranks, self.begun)} never began")
        if event.event == "succeeded" and any(self.ends.get(rank, 1) != 0 for rank in ranks):
            self.history.fail(f"{job_id} is said to have succeeded, and not every rank ended with 0")
        if event.event == "succeeded" and not self.told_to_stop.isdisjoint(ranks):
            self.history.fail(f"{job_id} is said to have succeeded, and was interrupted")
        over = said.state in OVER
        for key in self.alive:
            if key.job_id == job_id and (over or key.epoch < said.epoch):
                self.history.fail(f"{job_id} is {said.state} in epoch {said.epoch} while {key} runs")

    def _check_nodes(self, what: str, allocations: tuple[Allocation, ...]) -> None:
        """What all jobs hold of a node together is never more than it has."""
        held = [one for told in self.told_of.values() for one in told.allocations]
        for node_id in sorted({allocation.node_id for allocation in allocations}):
            here = [one for one in held if one.node_id == node_id]
            capacity = self.capacities[node_id]
            cpus, memory = sum(one.cpus for one in here), sum(one.memory for one in here)
            if cpus > capacity.cpus + CPU_DUST or memory > capacity.memory:
                self.history.fail(f"over-given: with {what} jobs hold {cpus:g} CPUs and {memory} bytes of {node_id}")
            if min(one.cpus for one in here) <= 0 or min(one.memory for one in here) <= 0:
                self.history.fail(f"starved: with {what} a rank on {node_id} has nothing")

    def report_taken(self, scheduler: str, node_id: str, number: tuple[int, int]) -> None:
        if number <= self._reports.get((scheduler, node_id), (0, 0)):
            self.history.fail(f"{scheduler} took report {number} of {node_id} after a newer one")
        self._reports[scheduler, node_id] = number

    # what clients are told

    def acknowledge(self, name: str, job_id: str, *, key: str | None) -> None:
        if key is not None and self.keys.setdefault(key, job_id) != job_id:
            self.history.fail(f"key {key} gave {self.keys[key]}, and now {job_id}")
        self.acknowledged[job_id] = name

    # at the end

    def unfinished(self) -> list[str]:
        """Acknowledged jobs that have not reached their end."""
        return [job_id for job_id in self.acknowledged if self.state(job_id) not in OVER]

    def state(self, job_id: str) -> str:
        return self.told_of.get(("jobs", job_id), Told()).state

    def check_end(self, stored: set[str]) -> None:
        """Nothing is lost, nothing is left. `stored`: the ids of all events in the stream."""
        for job_id in sorted(self.acknowledged):
            if ("jobs", job_id) not in self.told_of:
                self.history.fail(f"lost: {job_id} was acknowledged, and nothing is known of it")
        for (_, job_id), told in sorted(self.told_of.items()):
            if _ == "jobs" and told.state not in OVER:
                self.history.fail(f"{job_id} is still {told.state}")
        for key in sorted(self.alive):
            self.history.fail(f"orphan: {key} still runs on {self.alive[key].node_id}")
        for (topic, subject_id), told in sorted(self.told_of.items()):
            missing = [v for v in range(1, told.version + 1) if f"{topic}/{subject_id}/{v}" not in stored]
            if topic == "jobs" and missing:
                self.history.fail(f"the stream lacks {topic}/{subject_id}/{missing}")


def _missing(ranks: list[RunKey], begun: set[RunKey]) -> str:
    return ", ".join(str(rank) for rank in ranks if rank not in begun)
