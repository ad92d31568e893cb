"""Sees from the outside whether Weft keeps its promises: by what runs on the hosts, and by what clients were told."""

import copy
from collections.abc import Iterable

import msgspec
from msgspec import Struct

from tests.simulation.history import History
from tests.support.sizes import Recorded, Sizes
from weft.domain.cluster import Capacity
from weft.domain.job import Allocation, CauseCode
from weft.domain.shares import WHOLE, Share
from weft.messages.events import Event, JobEventData
from weft.messages.nodes import EndReason, StartRun
from weft.planning.preemption.minimum_run import WITH_CHECKPOINTS
from weftd.executor.runs import RunKey

CPU_DUST = 1e-6
OVER = ("succeeded", "failed", "cancelled")


class Alive(Struct):
    node_id: str
    gpus: tuple[int, ...]
    share: Share | None = None


class Told(Struct):
    """What the events of a job or a node have said so far."""

    version: int = 0
    epoch: int = 0
    state: str = ""


class Memory(Struct, frozen=True):
    """What was recorded at one time, and which runs had begun."""

    told_of: dict[tuple[str, str], Told]
    sizes: Recorded
    begun: frozenset[RunKey]


_data = msgspec.json.Decoder(JobEventData)


class Witness:
    def __init__(self, history: History, *, gpu_memory: int = 1 << 62, preemption_after_seconds: float = 0.0) -> None:
        self.history = history
        # Clocks of two leaders differ, and a job with checkpoints may be stopped sooner than others.
        self._runs_least = preemption_after_seconds * WITH_CHECKPOINTS * 0.9 - 0.5
        self._started_at: dict[str, float] = {}  # the present epoch of each job that has begun to run
        self.gpu_memory = gpu_memory  # bytes that every GPU has
        self.alive: dict[RunKey, Alive] = {}
        self.begun: set[RunKey] = set()
        self.ends: dict[RunKey, int | None] = {}
        self.told_to_stop: set[RunKey] = set()  # of those that ran
        self.told_of: dict[tuple[str, str], Told] = {}
        self.keys: dict[str, str] = {}
        self.acknowledged: dict[str, str] = {}  # job id → the name under which it was submitted
        self.capacities: dict[str, Capacity] = {}  # by node
        self.sizes = Sizes(history.fail, gpu_memory=gpu_memory)
        self._undone: set[str] = set()  # jobs that a restored store does not know
        self._of_lost_time: set[RunKey] = set()  # begun in a time that the store has forgotten
        self._went_back = False  # the store did, at some time
        self._failed: set[RunKey] = set()  # runs that ended badly by themselves
        self._ports: dict[RunKey, int] = {}
        self._reports: dict[tuple[str, str], tuple[int, int]] = {}

    # what runs

    def began(self, node_id: str, order: StartRun) -> None:
        key = RunKey.of(order)
        self.history.note(node_id, f"run {key} begins on GPUs {order.gpus}")
        self.history.counts["runs"] += 1
        if key in self.alive or (key in self.begun and key not in self._of_lost_time):
            self.history.fail(f"started twice: {key}, now on {node_id}")
        again = key in self._of_lost_time
        if again:  # the store gave the number again, as it had forgotten that
            self._of_lost_time.discard(key)
            self._ports.pop(key, None)
            self.told_to_stop.discard(key)
        for other, alive in self.alive.items():
            if other.job_id == key.job_id and other.epoch != key.epoch:
                self.history.fail(f"overlap: {key} begins on {node_id} while {other} runs on {alive.node_id}")
        told = self.told_of.get(("jobs", key.job_id))
        if not again and self._went_back and (told is None or told.epoch < key.epoch or not self._was_given(key)):
            self._of_lost_time.add(key)  # its order was on its way when the store forgot it
        self.begun.add(key)
        self.alive[key] = Alive(node_id, order.gpus, order.share)
        for gpu in order.gpus:
            self._check_gpu(node_id, gpu, key)

    def _was_given(self, key: RunKey) -> bool:
        """Has the job given this rank number in its present epoch, as far as it is recorded?"""
        job = self.sizes.jobs.get(key.job_id)
        return job is not None and (job.epoch != key.epoch or key.rank in job.used)

    def reshared(self, key: RunKey, share: Share | None) -> None:
        """The node holds a run to another share from now on."""
        alive = self.alive[key]
        alive.share = share
        self.history.note(alive.node_id, f"run {key} has another share")
        for gpu in alive.gpus:
            self._check_gpu(alive.node_id, gpu, key)

    def _check_gpu(self, node_id: str, gpu: int, newest: RunKey) -> None:
        """What runs on a GPU has no more than all its time and its memory."""
        here = {key: one for key, one in self.alive.items() if one.node_id == node_id and gpu in one.gpus}
        self.history.counts["shared"] += len(here) > 1
        time = sum(WHOLE if one.share is None else one.share.request for one in here.values())
        memory = sum(one.share.memory for one in here.values() if one.share is not None)
        if time > WHOLE or memory > self.gpu_memory:
            others = ", ".join(str(key) for key in here if key != newest)
            self.history.fail(f"over-packed: GPU {gpu} of {node_id} has {others} and now {newest}")

    def shown(self, order: StartRun) -> None:
        """A run is told who else there is: each by a port of its own, as long as it lives."""
        if order.members is None:
            return
        ranks = order.members.ranks
        if len({(each.address, each.port) for each in ranks}) < len(ranks):
            self.history.fail(f"port shared: {RunKey.of(order)} is told of two members with one port")
        for each in ranks:
            key = RunKey(order.job_id, order.epoch, each.rank)
            port = self._ports.setdefault(key, each.port)
            if port != each.port and key not in self._of_lost_time:
                self.history.fail(f"port changed: {key} had {port}, and now {each.port}")

    def ended(self, node_id: str, key: RunKey, exit_code: int | None, reason: EndReason) -> None:
        self.history.note(node_id, f"run {key} ends with {exit_code}, {reason}")
        self.alive.pop(key, None)
        self.ends[key] = exit_code
        by_itself = reason in (EndReason.EXIT, EndReason.OOM, EndReason.START_FAILED) and exit_code != 0
        if by_itself and key not in self.told_to_stop:
            self._failed.add(key)

    # what is recorded

    def told(self, event: Event) -> None:
        told = self.told_of.setdefault((event.topic, event.subject_id), Told())
        if event.version != told.version + 1:
            self.history.fail(f"{event.message_id} follows version {told.version}")
        told.version = event.version
        if event.topic == "jobs":
            self._told_of_job(event, _data.decode(event.data), told)
        self.history.counts["events"] += 1

    def _told_of_job(self, event: Event, said: JobEventData, told: Told) -> None:
        job_id = event.subject_id
        self._check_progress(event, said)
        if said.epoch < told.epoch:
            self.history.fail(f"{job_id} goes back from epoch {told.epoch} to {said.epoch}")
        told.epoch, told.state = said.epoch, said.state
        self.history.note("store", f"{job_id} {event.event} epoch {said.epoch}")
        if event.event in ("stopping", "requeued", "failed"):
            codes = (CauseCode.NODE_STOPPED, CauseCode.NODE_LOST)
            self.history.counts["cut off"] += said.cause.code in codes
        if event.event == "stopping":
            self.history.counts["moves"] += said.cause.code is CauseCode.MOVED
            self.history.counts["pre-emptions"] += said.cause.code is CauseCode.PREEMPTED
        before = self.sizes.told(said, event.event)
        job = self.sizes.jobs[job_id]
        if said.placement is not None or said.next_placement is not None:
            self._check_nodes(event.message_id, job.allocations)
        self.history.counts["tunings"] += event.event == "tuned"
        self.history.counts["other shares"] += said.cause.code is CauseCode.SHARE_ASKED
        self.history.counts["scalings"] += event.event == "scaled"
        self.history.counts["resizes"] += event.event == "resized"
        self.history.counts["restarts"] += event.event == "restarted"
        if event.event == "resized" and before.placement is not None and job.placement is not None:
            has = {one.rank for one in job.placement.allocations}
            left = {one.rank for one in before.placement.allocations} - has
            self._check_left(said, {RunKey(job_id, said.epoch, rank) for rank in left})
        ranks = [RunKey(job_id, said.epoch, rank) for rank in sorted(job.core)]
        if event.event == "started" and not self.begun.issuperset(ranks):
            self.history.fail(f"half placed: {job_id} is said to run, and {_missing(ranks, self.begun)} never began")
        if event.event == "succeeded" and any(self.ends.get(rank, 1) != 0 for rank in ranks):
            self.history.fail(f"{job_id} is said to have succeeded, and not every rank ended with 0")
        if event.event == "succeeded" and not self.told_to_stop.isdisjoint(ranks):
            self.history.fail(f"{job_id} is said to have succeeded, and was interrupted")
        over = said.state in OVER
        for key in self.alive.keys() - self._of_lost_time:
            if key.job_id == job_id and (over or key.epoch < said.epoch):
                self.history.fail(f"{job_id} is {said.state} in epoch {said.epoch} while {key} runs")

    def _check_progress(self, event: Event, said: JobEventData) -> None:
        """No job is pre-empted that has not run for its minimum since it started: not once without progress."""
        match event.event:
            case "started":
                self._started_at[said.job_id] = event.at
            case "placed" | "restarted":
                self._started_at.pop(said.job_id, None)
            case "stopping" if said.cause.code in (CauseCode.PREEMPTED, CauseCode.QUOTA_RECLAIMED):
                began = self._started_at.get(said.job_id)
                if self._runs_least > 0.0 and (began is None or event.at - began < self._runs_least):
                    self.history.fail(f"no progress: {said.job_id} is pre-empted, and runs since {began}")

    def _check_left(self, said: JobEventData, ranks: set[RunKey]) -> None:
        """Ranks that their job has no longer."""
        if said.cause.code is CauseCode.STOP_TIMEOUT:
            return  # given up: they keep their GPUs as strays
        for key in sorted(ranks - self._of_lost_time):
            if key in self.alive:
                self.history.fail(f"left behind: {key} runs on {self.alive[key].node_id}, and its job no longer has it")
        late = said.cause.code is CauseCode.START_TIMEOUT  # ranks beyond the core that never began leave, too
        if said.size is not None and not late and ranks.isdisjoint(self._failed):
            self.history.fail(
                f"size cut: {said.job_id} should have {said.size}, and none of its ranks failed by itself"
            )

    def _check_nodes(self, what: str, allocations: tuple[Allocation, ...]) -> None:
        """What all jobs hold of a node together is never more than it has."""
        for node_id in sorted({allocation.node_id for allocation in allocations}):
            capacity = self.capacities[node_id]
            cpus, memory = 0.0, 0
            for job in self.sizes.jobs.values():
                here = [[one for one in held if one.node_id == node_id] for held in job.placements]
                # A job that restarts stops first, so it needs the greater of both, not the sum.
                cpus += max((sum(one.cpus for one in ranks) for ranks in here), default=0.0)
                memory += max((sum(one.memory for one in ranks) for ranks in here), default=0)
                if any(one.cpus <= 0 or one.memory <= 0 for ranks in here for one in ranks):
                    self.history.fail(f"starved: with {what} a rank on {node_id} has nothing")
            if cpus > capacity.cpus + CPU_DUST or memory > capacity.memory:
                self.history.fail(f"over-given: with {what} jobs hold {cpus:g} CPUs and {memory} bytes of {node_id}")

    def report_taken(self, scheduler: str, node_id: str, number: tuple[int, int]) -> None:
        if number <= self._reports.get((scheduler, node_id), (0, 0)):
            self.history.fail(f"{scheduler} took report {number} of {node_id} after a newer one")
        self._reports[scheduler, node_id] = number

    # when the store goes back in time

    def remember(self) -> Memory:
        """What is recorded now, for `went_back`."""
        begun = frozenset(self.begun - self._of_lost_time)  # the rest is in no store any more, also in this one
        return copy.deepcopy(Memory(self.told_of, self.sizes.recorded, begun))

    def went_back(self, memory: Memory, *, forgotten: Iterable[str]) -> None:
        """The store is as it was, and knows nothing of the `forgotten` jobs. What began since runs all the same, and an
        acknowledgement of such a job may still be on its way."""
        memory = copy.deepcopy(memory)
        self._went_back = True
        self.told_of = memory.told_of
        self.sizes.recorded = memory.sizes
        self._of_lost_time |= {key for key in self.begun if key not in memory.begun or self._begins(key)}
        self._undone.update(forgotten)
        self._forget_undone()

    def _begins(self, key: RunKey) -> bool:
        """Does the store, as it is now, have a job begin with this run?"""
        told = self.told_of.get(("jobs", key.job_id))
        return told is not None and told.epoch == key.epoch and told.state in ("placed", "starting")

    def _forget_undone(self) -> None:
        self.acknowledged = {one: name for one, name in self.acknowledged.items() if one not in self._undone}
        self.keys = {key: one for key, one in self.keys.items() if one not in self._undone}

    # what clients are told

    def acknowledge(self, name: str, job_id: str, *, key: str | None) -> None:
        if key is not None and self.keys.setdefault(key, job_id) != job_id:
            self.history.fail(f"key {key} gave {self.keys[key]}, and now {job_id}")
        self.acknowledged[job_id] = name
        self._forget_undone()

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
