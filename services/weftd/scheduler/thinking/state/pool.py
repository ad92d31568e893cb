"""The nodes of one pool: their reports, the jobs that have GPUs on them, and the free capacity."""

from collections.abc import Iterable

from msgspec import Struct

from weft.domain.cluster import Node
from weft.domain.job import Allocation, Job
from weft.domain.shares import WHOLE, Share
from weft.messages.nodes import NodeReported
from weft.planning.capacity import FreeCapacity
from weftd.scheduler.thinking.state.openjobs import OpenJobs
from weftd.scheduler.thinking.state.orphans import Orphans
from weftd.scheduler.thinking.state.runs import Runs

CPU_DUST = 1e-3  # rounding error of adding and subtracting cores very often


class NodeChange(Struct, frozen=True):
    """A node to store in its new form, and the event to publish."""

    node: Node
    event: str
    sentence: str
    at: float
    ask: int = 0


class Pool:
    """`heard`: when each node last reported; `unheard`: ready nodes without a sure report since the load; `leaving`:
    nodes that reported that they leave. `changes` counts the changes of nodes and their capacity, not of jobs."""

    def __init__(self, jobs: OpenJobs, free_capacity: FreeCapacity) -> None:
        self.free_capacity = free_capacity
        self.runs = Runs()
        self.nodes: dict[str, Node] = {}
        self.heard: dict[str, float] = {}
        self.unheard: set[str] = set()
        self.leaving: set[str] = set()
        self.orphans = Orphans(jobs, self.nodes, self.runs)
        self.changes = 0
        self.kept: dict[str, tuple[Allocation, ...]] = {}  # by job that moves, the GPUs kept for it
        self._jobs = jobs
        self._node_changes: list[NodeChange] = []

    def load(self, nodes: Iterable[Node], now: float) -> None:
        """Every node counts as heard now; none gets new jobs before it reports, because its runs are unknown."""
        for node in nodes:
            self.nodes[node.id] = node
            self.heard[node.id] = now
            self.free_capacity.add(node)
            if node.ready:
                self.unheard.add(node.id)
                self.free_capacity.close([node.id])
        self.changes += 1

    def see(self, report: NodeReported, now: float, *, sure: bool) -> None:
        """Take in an accepted report of a known node; `sure`: it was sent under this leader."""
        node_id = report.node_id
        self.heard[node_id] = now
        if sure:
            self.unheard.discard(node_id)
        if report.leaving:
            self.leaving.add(node_id)
            self.free_capacity.close([node_id])
        else:
            self.leaving.discard(node_id)
            self._reopen(self.nodes[node_id])
        self.runs.see(report, sure=sure)
        self._look_for_strays(node_id)

    def excuse(self, seconds: float, now: float) -> None:
        """Ignore the nodes' silence in the last `seconds`, in which this scheduler did not listen."""
        for node_id, at in self.heard.items():
            self.heard[node_id] = min(now, at + seconds)

    def forget(self, node_id: str) -> None:
        """Forget the state of a lost node: its last report is outdated."""
        self.unheard.discard(node_id)
        self.leaving.discard(node_id)
        self.orphans.forget(node_id)

    def change(self, node: Node, event: str, sentence: str, *, at: float, ask: int = 0) -> None:
        """Take in a new node, or a known node in its new form."""
        self.nodes[node.id] = node
        self._put_in_room(node)
        self.changes += 1
        self._node_changes.append(NodeChange(node, event, sentence, at, ask))

    def remove(self, node: Node, sentence: str, *, at: float) -> None:
        """Remove a lost node, on which no job has a run, from the pool."""
        del self.nodes[node.id], self.heard[node.id]
        self.free_capacity.remove(node.id)
        self.free_capacity.grown += 1
        self.orphans.forget(node.id)
        self.runs.forget(node.id)
        self.changes += 1
        self._node_changes.append(NodeChange(node, "removed", sentence, at))

    @property
    def unstored(self) -> int:
        """How many changes of nodes are not stored yet."""
        return len(self._node_changes)

    def take_changes(self) -> list[NodeChange]:
        changes, self._node_changes = self._node_changes, []
        return changes

    def hold(self, job: Job, *, loaded: bool) -> None:
        """A job begins to hold its placement."""
        self.runs.hold(job, loaded=loaded)
        self.free_capacity.take_all(job.held)

    def resize(self, before: Job, job: Job) -> None:
        """A job has other limits, or holds more or less in the same epoch; a rank that it no longer has and that is
        still alive becomes an orphan."""
        had, has = _by_place(before), _by_place(job)
        for place in had.keys() & has.keys():
            if _amounts(had[place]) != _amounts(has[place]):
                self.free_capacity.resize(had[place], has[place])
        if had.keys() == has.keys():
            return
        gone = [had[place] for place in sorted(had.keys() - has.keys())]
        self.runs.change(before, job)
        self.free_capacity.give_back_all(gone)
        self.free_capacity.take_all([has[place] for place in sorted(has.keys() - had.keys())])
        for allocation in gone:
            if self.runs.alive(job, allocation):
                self._look_for_strays(allocation.node_id)

    def let_go(self, job: Job) -> None:
        """A job gives its placement back; a run of it that is still alive becomes an orphan."""
        assert job.placement is not None
        self.runs.let_go(job)
        self.free_capacity.give_back_all(job.held)
        for allocation in job.placement.allocations:
            if self.runs.alive(job, allocation):
                self._look_for_strays(allocation.node_id)

    def not_stopped(self, job: Job) -> list[Allocation]:
        """The ranks that their nodes report as alive; empty as long as any rank is neither gone nor reported."""
        assert job.placement is not None
        left = [allocation for allocation in job.placement.allocations if not self.gone(job, allocation)]
        return left if all(self.runs.alive(job, allocation) for allocation in left) else []

    def all_gone(self, job: Job) -> bool:
        assert job.placement is not None
        return all(self.gone(job, allocation) for allocation in job.placement.allocations)

    def keep_place(self, job_id: str, allocations: tuple[Allocation, ...]) -> None:
        """Keep these GPUs for this job: no other job gets them, whichever holds them now."""
        self.kept[job_id] = allocations
        self._keep_or_not(allocations)

    def let_place_go(self, job_id: str) -> None:
        self._keep_or_not(self.kept.pop(job_id))

    def _keep_or_not(self, allocations: Iterable[Allocation]) -> None:
        for node_id in sorted({allocation.node_id for allocation in allocations} & self.nodes.keys()):
            self._put_in_room(self.nodes[node_id])

    def gone(self, job: Job, allocation: Allocation) -> bool:
        """Return True if this rank certainly does not run."""
        node = self.nodes.get(allocation.node_id)
        return node is None or not node.ready or self.runs.gone(job, allocation)

    def _reopen(self, node: Node) -> None:
        """Open the node for new jobs again, unless it is drained or lost."""
        if node.takes_work and not self.free_capacity.is_open(node.id):
            self.free_capacity.reopen([node.id])

    def _look_for_strays(self, node_id: str) -> None:
        """Find the orphans of a node: they keep their GPUs from other jobs."""
        if self.orphans.look(node_id):
            self._put_in_room(self.nodes[node_id])

    def _put_in_room(self, node: Node) -> None:
        occupied, kept = self.orphans.occupied(node.id), frozenset(self._kept_on(node.id))
        self.free_capacity.add(node, self._held_on(node.id), occupied=occupied, kept=kept)
        if node.id in self.unheard or node.id in self.leaving:
            self.free_capacity.close([node.id])
        self.free_capacity.grown += 1

    def _held_on(self, node_id: str) -> list[Allocation]:
        return [
            allocation
            for job in (self._jobs[job_id] for job_id in sorted(self.runs.jobs_on(node_id)))
            for allocation in job.held
            if allocation.node_id == node_id
        ]

    def _kept_on(self, node_id: str) -> list[int]:
        return [gpu for of_job in self.kept.values() for one in of_job if one.node_id == node_id for gpu in one.gpus]

    def check(self) -> None:
        """Assert that free capacity is neither held by a job, occupied by an orphan, nor kept for a move."""
        for node_id, free_capacity in self.free_capacity.nodes.items():
            here = self._held_on(node_id)
            held: dict[int, int] = {}  # thousandths, by GPU
            for allocation in here:
                part = WHOLE if allocation.share is None else allocation.share.request
                held.update({gpu: held.get(gpu, 0) + part for gpu in allocation.gpus})
            full = sorted(gpu for gpu, part in held.items() if part > WHOLE)
            kept = self._kept_on(node_id)
            assert not full, f"jobs have more than there is of GPUs {full} of {node_id}"
            assert len(kept) == len(set(kept)), f"a GPU of {node_id} is kept for two: {sorted(kept)}"
            taken = {*held, *kept, *self.orphans.occupied(node_id), *free_capacity.node.closed_gpus}
            wrong = sorted(taken.intersection(free_capacity.gpus.whole))
            assert not wrong, f"GPUs {wrong} of {node_id} are free, and held, occupied, kept or out of use"
            cpus = free_capacity.node.capacity.cpus - sum(allocation.cpus for allocation in here)
            assert abs(free_capacity.cpus - cpus) < CPU_DUST, (
                f"{node_id}: {free_capacity.cpus} CPUs free, which are {cpus}"
            )
            memory = free_capacity.node.capacity.memory - sum(allocation.memory for allocation in here)
            assert free_capacity.memory == memory, f"{node_id}: {free_capacity.memory} bytes free, which are {memory}"


def _by_place(job: Job) -> dict[tuple[bool, str, int, tuple[int, ...]], Allocation]:
    """All that a job holds: its ranks, and what is held for its next epoch, by where it is."""
    assert job.placement is not None
    ranks = len(job.placement.allocations)
    return {
        (place >= ranks, allocation.node_id, allocation.rank, allocation.gpus): allocation
        for place, allocation in enumerate(job.held)
    }


def _amounts(allocation: Allocation) -> tuple[float, int, int | None, Share | None]:
    return (allocation.cpus, allocation.memory, allocation.egress, allocation.share)
