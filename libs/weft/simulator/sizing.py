"""A partition planner at work in a simulated cluster: when it plans, and how its sizes become replicas on nodes.

The planner gets every job, in the order of service; jobs of fixed size are demand that it cannot change. Where the
sizes change, replicas leave first; then the running jobs grow; then waiting jobs start in the same walk as without a
planner. Each change of a job's size costs that job what it says.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Protocol

from msgspec import Struct, structs

from weft.domain.job import Allocation
from weft.planning.capacity import FreeCapacity
from weft.planning.finding import Place, find
from weft.planning.partition import ElasticJob, Partition, Partitioner, Rules, Server
from weft.planning.partition.seen import amounts_of, models_of, placed, server_of, speeds_on
from weft.planning.policy import Policy
from weft.planning.queue import place_of
from weft.planning.resizing import COOL_DOWN_RESTARTS, COOL_DOWN_SECONDS, grow, is_cool, shrink
from weft.planning.resource_request import RoleRequest
from weft.planning.scores import GpuKey
from weft.simulator.event_queue import EventQueue, What
from weft.simulator.job import SimulatedJob
from weft.simulator.lives import Lives
from weft.simulator.model import Cluster, World
from weft.simulator.outcome import PartitionPlan
from weft.simulator.pool import elastic_shape

OURS = "weft"
AGAIN_S = 60.0  # until the next plan, if a plan gave no job anything
IN_VAIN_MAX = 1000  # plans in a row with which no job runs, before the simulation is given up


class Knowledge(Protocol):
    """The knowledge of a planner about the jobs of one simulation, where it differs from the truth."""

    def speeds(self, job: SimulatedJob) -> Mapping[str, tuple[float, ...]]:
        """By model, the job's believed speed at each of its sizes; models that it may not have now are left out."""
        ...

    def left_s(self, job: SimulatedJob, now: float) -> float:
        """For how long the job is expected to run on as it runs now."""
        ...

    def sees(self, job: SimulatedJob, now: float) -> None:
        """Note that the job has run until now with its present allocation."""
        ...


class Partitioning(Struct, frozen=True, kw_only=True):
    """Which planner decides the sizes, and when. Times in seconds.

    It plans when a job came or ended, but not sooner than `every_s` after the plan before, and no later than
    `at_most_s` after it (0: never without a reason). A job cools for `cooldown_s`, and for as long as
    `cooldown_restarts` of its restarts take, after each change (`ElasticJob.cools`). `exact`: replicas go to the very
    servers that the planner says, else to where the placement finds room for them. `moves_freely`: a job that keeps its
    size and its model moves at no cost. `knowledge`: made for each simulation; None: the planner knows all speeds.
    """

    name: str
    planner: Partitioner
    rules: Rules = Rules()
    every_s: float = 60.0
    at_most_s: float = 60.0
    cooldown_s: float = COOL_DOWN_SECONDS
    cooldown_restarts: float = COOL_DOWN_RESTARTS
    exact: bool = False
    moves_freely: bool = False
    knowledge: Callable[[], Knowledge] | None = None

    def __post_init__(self) -> None:
        for name in ("every_s", "at_most_s", "cooldown_s", "cooldown_restarts"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be below 0: {getattr(self, name):g}")


def partitioning_of(name: str, rules: Rules | None = None) -> Partitioning:
    """The planner of this name with the times at which it plans. Raises ValueError for an unknown name."""
    from weft.planning.partition.weft import weft  # its solver takes long to import

    if name != OURS:
        raise ValueError(f"partition: no such planner as {name!r}; there are {OURS}")
    return Partitioning(name=name, planner=weft, rules=rules or Rules())


class SizesOverTime:
    """`next_at`: when it is to plan next, whatever happens. It is `due` once that time came."""

    def __init__(
        self,
        lives: Lives,
        jobs: Mapping[str, SimulatedJob],
        *,
        partitioning: Partitioning,
        cluster: Cluster,
        policy: Policy,
        world: World,
        event_queue: EventQueue,
    ) -> None:
        self.planned: list[PartitionPlan] = []
        self.next_at = inf
        self.sizes: Mapping[str, int] = {}
        self._of_models: Mapping[str, str] = {}
        self._on: Mapping[str, Mapping[str, int]] = {}
        self._lives, self._free_capacity = lives, lives.free_capacity
        self._jobs = jobs
        self._how = partitioning
        self._cluster = cluster
        self._order = policy.ordering
        self._world = world
        self._event_queue = event_queue
        self._planned_at = -inf
        self._in_vain = 0
        self._models: Mapping[str, str] = models_of(node.node for node in lives.free_capacity.nodes.values())
        self._knowledge = None if partitioning.knowledge is None else partitioning.knowledge()
        self.serving: Callable[[float], Mapping[str, int]] = lambda _: {}  # GPUs by node that services keep from jobs

    def needed(self, now: float) -> None:
        """A job came or ended, or a node."""
        self._plan_at(max(now, self._planned_at + self._how.every_s))

    def due(self, now: float) -> bool:
        return now >= self.next_at

    def plan(self, now: float) -> None:
        """Plan, and give the running jobs their sizes; the waiting ones are to start with `sizes`."""
        self._planned_at = now
        self.next_at = inf
        if self._how.at_most_s:
            self._plan_at(now + self._how.at_most_s)
        jobs = self._in_order(now)
        if self._knowledge is not None:
            for job in jobs:
                self._knowledge.sees(job, now)
        binned = self._binned()
        elastic = [self._elastic(job, now, binned) for job in jobs]
        found = self._how.planner(elastic, self._servers(self.serving(now), binned), self._how.rules)
        self.sizes, self._on, self._of_models = found.sizes, found.on, found.models
        running = [job for job in jobs if job.allocations]
        changed = self._resize(running, found, now)
        self.planned.append(PartitionPlan(at_s=now, running=len(running), changed=changed, kept=found.kept))
        self._in_vain = 0 if running else self._in_vain + 1
        if not any(self.sizes.values()):
            self._plan_at(now + max(self._how.every_s, AGAIN_S))
        if self._in_vain > IN_VAIN_MAX:
            raise RuntimeError(
                f"{self._how.name} gives no job a size, and no job runs: {found.kept or 'for no reason'}"
            )

    def _plan_at(self, at: float) -> None:
        if at < self.next_at:
            self.next_at = at
            self._event_queue.add(at, What.PARTITIONS)

    # what the planner is told

    def _in_order(self, now: float) -> list[SimulatedJob]:
        known = self._world.durations_known
        present = [job for job_id, job in self._jobs.items() if job.allocations or job_id in self._lives.queue]
        return sorted(present, key=lambda job: place_of(self._order, job.standing(now, known=known)))

    def _servers(self, serving: Mapping[str, int], binned: Mapping[GpuKey, float]) -> list[Server]:
        """The nodes that have not failed, without the parts held by services. All other holders are among the jobs."""
        servers: list[Server] = []
        for free_capacity in self._free_capacity.open_nodes:
            gpus, cpus, memory = amounts_of(free_capacity.node)
            left = max(0.0, gpus - serving.get(free_capacity.node.id, 0))
            servers.append(server_of(free_capacity.node, (left, cpus, memory), free_capacity.gpus.models, binned))
        return servers

    def _binned(self) -> Mapping[GpuKey, float]:
        """The bin of each GPU for the most sensitive class; empty if all are typical."""
        if not self._free_capacity.scores.classes:
            return {}
        gpus = (
            (node_id, gpu) for node_id, node in sorted(self._free_capacity.nodes.items()) for gpu in node.gpus.models
        )
        return self._free_capacity.scores.binned(self._free_capacity.scores.classes[0], gpus)

    def _elastic(self, job: SimulatedJob, now: float, binned: Mapping[GpuKey, float]) -> ElasticJob:
        elastic = job.trace.elastic
        waited_s = 0.0 if job.allocations else now - job.waits_since
        if elastic is None:
            request = job.resource_request[0].request
            rigid = ElasticJob(
                job_id=job.trace.id,
                each=(float(request.gpus), request.cpus, float(request.memory)),
                least=job.size,
                most=job.size,
                speeds=speeds_on(self._models.values(), (float(request.gpus), 0.0, 0.0), (1.0,)),
                fixed=bool(job.allocations),
                waited_s=waited_s,
            )
            return placed(rigid, job.allocations, {}, self._models)
        sized = ElasticJob(
            job_id=job.trace.id,
            each=elastic.each,
            least=elastic.least,
            most=elastic.most,
            speeds=self._speeds(job),
            weight=elastic.weight,
            restart_s=0.0 if elastic.live else elastic.resize_s,
            left_s=inf if self._knowledge is None else self._knowledge.left_s(job, now),
            fixed=bool(job.allocations) and now < job.paused_until,
            cools=bool(job.allocations) and not self._is_cool(job, now),
            waited_s=waited_s,
        )
        return placed(sized, job.allocations, binned, self._models)

    def _is_cool(self, job: SimulatedJob, now: float) -> bool:
        assert job.trace.elastic is not None
        restart_s = 0.0 if job.trace.elastic.live else job.trace.elastic.resize_s
        how = self._how
        return is_cool(job.resized_at, now, restart_s=restart_s, seconds=how.cooldown_s, restarts=how.cooldown_restarts)

    def _speeds(self, job: SimulatedJob) -> Mapping[str, tuple[float, ...]]:
        elastic = job.trace.elastic
        assert elastic is not None
        if self._knowledge is not None:
            return self._knowledge.speeds(job)
        if elastic.by_model:
            return elastic.by_model
        sizes = range(elastic.least, elastic.most + 1)
        speeds = tuple(elastic.speed(size) / self._locality(job, size) for size in sizes)
        return speeds_on(self._models.values(), elastic.each, speeds)

    def _locality(self, job: SimulatedJob, size: int) -> float:
        """The factor by which that number of replicas takes longer if no node holds them all."""
        assert job.trace.elastic is not None
        if job.trace.elastic.by_model:
            return 1.0  # it is in the measured speeds
        per_node = self._cluster.gpus_per_node
        nodes = 1 if size * job.trace.elastic.each[0] <= per_node else 2
        return self._free_capacity.locality.factor(job.trace.model, nodes=nodes)

    # what becomes of it

    def _resize(self, running: Sequence[SimulatedJob], found: Partition, now: float) -> int:
        """Replicas leave, then others come; returns how many jobs changed."""
        before = {job.trace.id: job.allocations for job in running}
        stay = {job.trace.id: self._staying(job, found) for job in running}
        for job in running:
            if not found.sizes.get(job.trace.id, job.size):
                self._lives.evict(job, now)
        held = [job for job in running if job.allocations]
        for job in held:
            self._free_capacity.give_back_all(_without(job.allocations, stay[job.trace.id]))
        after = {job.trace.id: self._grown(job, stay[job.trace.id], found) for job in held}
        for job in held:
            if after[job.trace.id] != before[job.trace.id]:
                self._take(job, now, after[job.trace.id])
        return sum(after.get(job_id, ()) != allocations for job_id, allocations in before.items())

    def _staying(self, job: SimulatedJob, found: Partition) -> Place:
        elastic, size = job.trace.elastic, found.sizes.get(job.trace.id, job.size)
        on = found.on.get(job.trace.id)
        if elastic is None or not size:
            return job.allocations
        if self._how.exact and on is not None:
            return _as_many_there(job.allocations, on)
        if size >= job.size:
            return job.allocations
        least = elastic.least if elastic.live else 1  # a job that restarts may lose any of its replicas
        return shrink(job.allocations, job.resource_request[0].role, job.size - size, least=least, lonely_first=True)[0]

    def _grown(self, job: SimulatedJob, stay: Place, found: Partition) -> Place:
        """The job's replicas after the growth, for which there is room; the room has them then."""
        more = found.sizes.get(job.trace.id, job.size) - len(stay)
        if more <= 0:
            return stay
        first_rank = 1 + max(allocation.rank for allocation in job.allocations)
        place: Place | None = None
        if self._how.exact:
            place = exactly(
                self._free_capacity,
                stay,
                self._want(job),
                found.on.get(job.trace.id, {}),
                first_rank=first_rank,
            )
        if place is None:
            place = grow(
                self._free_capacity,
                stay,
                self._want(job),
                more,
                first_rank=first_rank,
                least=1,
                asked=job.asked,
            )
            if place is not None and len(place) < more:
                place = self._worth_it(job, stay, place, first_rank)
        self._free_capacity.take_all(place or ())
        return (*stay, *(place or ()))

    def _worth_it(self, job: SimulatedJob, stay: Place, place: Place, first_rank: int) -> Place | None:
        """Where only some of the replicas fit: as many of them as make the job faster, if any do."""
        elastic = job.trace.elastic
        assert elastic is not None
        more = self._fastest(job, len(stay) + len(place)) - len(stay)
        if more <= 0 and len(stay) >= elastic.least:
            return None
        more = max(more, elastic.least - len(stay))
        return grow(self._free_capacity, stay, self._want(job), more, first_rank=first_rank, asked=job.asked)

    def _fastest(self, job: SimulatedJob, most: int) -> int:
        """The size up to `most` at which the job is fastest; of equals the smallest."""
        assert job.trace.elastic is not None
        speeds, model = job.trace.elastic.speed, self._model_for(job)
        return max(
            range(job.trace.elastic.least, most + 1),
            key=lambda size: (speeds(size, model) / self._locality(job, size), -size),
        )

    def _take(self, job: SimulatedJob, now: float, allocations: Place) -> None:
        elastic = job.trace.elastic
        assert elastic is not None
        moves = len(allocations) == job.size and self._model(allocations) == self._model(job.allocations)
        if moves and self._how.moves_freely:
            self._lives.resize(job, now, allocations, cost_s=0.0)
            return
        self._lives.resize(job, now, allocations, cost_s=elastic.resize_s)
        if not elastic.live:
            job.settled_at = now  # while it restarts it can as well be moved

    def _want(self, job: SimulatedJob) -> RoleRequest:
        assert job.trace.elastic is not None
        return elastic_shape(job.trace.elastic, job.size, self._model_for(job))[0]

    def _model_for(self, job: SimulatedJob) -> str:
        """The model of the GPUs that the plan gives it; empty if it runs as fast on all."""
        return self._of_models.get(job.trace.id, "") if job.trace.elastic and job.trace.elastic.by_model else ""

    def _model(self, allocations: Sequence[Allocation]) -> str:
        """The model of the GPUs of a job; empty without any."""
        return next((self._models[one.node_id] for one in allocations if one.gpus), "")

    def place_for(self, job: SimulatedJob) -> Place | None:
        """The place of a waiting job with the size that it was given, or with fewer replicas if they do not all fit."""
        size = self.sizes[job.trace.id]
        if job.trace.elastic is None:
            return find(self._free_capacity, job.resource_request, job.asked)
        want = elastic_shape(job.trace.elastic, size, self._model_for(job))[0]
        if self._how.exact:
            place = exactly(self._free_capacity, (), want, self._on.get(job.trace.id, {}), first_rank=0)
            if place is not None:
                return place
        found = find(self._free_capacity, (structs.replace(want, least=job.trace.elastic.least),), job.asked)
        if found is None or len(found) == size:
            return found
        return find(
            self._free_capacity,
            elastic_shape(job.trace.elastic, self._fastest(job, len(found)), self._model_for(job)),
            job.asked,
        )


def exactly(
    free_capacity: FreeCapacity,
    stay: Sequence[Allocation],
    want: RoleRequest,
    on: Mapping[str, int],
    *,
    first_rank: int,
) -> Place | None:
    """The replicas that are missing for so many on each node; None if they do not fit. The room stays as it is."""
    there = Counter(allocation.node_id for allocation in stay)
    place: list[Allocation] = []
    for node_id, count in sorted(on.items()):
        more = count - there[node_id]
        if more <= 0:
            continue
        request = structs.replace(want.request, node=node_id)
        found = find(free_capacity, (RoleRequest(want.role, more, more, request),))
        if found is None:
            return None
        place += found
    return tuple(structs.replace(new, rank=rank) for rank, new in enumerate(place, first_rank))


def _as_many_there(allocations: Sequence[Allocation], on: Mapping[str, int]) -> Place:
    """The oldest replicas on each node, as many as the planner leaves there."""
    left = Counter(on)
    stay: list[Allocation] = []
    for allocation in allocations:
        if left[allocation.node_id] > 0:
            left[allocation.node_id] -= 1
            stay.append(allocation)
    return tuple(stay)


def _without(allocations: Iterable[Allocation], stay: Iterable[Allocation]) -> list[Allocation]:
    ranks = {allocation.rank for allocation in stay}
    return [allocation for allocation in allocations if allocation.rank not in ranks]
