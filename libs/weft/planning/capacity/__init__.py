"""Free capacity of the nodes of one pool, indexed so that finding a place is cheap with many nodes."""

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from msgspec import structs

from weft.domain.cluster import Node, Request
from weft.domain.job import Allocation, Job
from weft.domain.shares import WHOLE, Share
from weft.planning.capacity.fits import Fits, GpuEntry
from weft.planning.capacity.gpus_left import GpusLeft, Shared
from weft.planning.capacity.near import near_of, spread_within
from weft.planning.capacity.node_index import Cost, NodeIndex
from weft.planning.locality import Locality
from weft.planning.resource_request import PlacementRequest, RoleRequest
from weft.planning.scores import TYPICAL, GpuKey, Scores
from weft.variability.models import ModelSpeeds

CHANGES_MAX = 200_000  # names of changed nodes that are kept, before every offer is worked out anew
OFFERS_MAX = 64  # needs whose best node is kept up to date; each holds an entry for every node
NO_SPEEDS: Mapping[str, float] = {}
CPU_GRAIN = 1e-6  # rounding error of adding and subtracting cores

_node_id = attrgetter("node_id")

Chunks = list[tuple[float, tuple[int, ...]]]
"""Free GPUs of one node in groups as large as one replica needs, each with the score of its slowest; fastest first."""

ChunksKey = tuple[str, int, tuple[str, ...], tuple[str, ...], int]
"""The name of scores, and of a replica: how many GPUs it needs, and `Request.gpu_kind`."""

Picks = list[tuple["NodeCapacity", list[tuple[int, ...]]]]
"""Nodes, and the GPUs there of each replica that goes to them."""

Placer = Callable[["FreeCapacity", RoleRequest, int, PlacementRequest], Picks | None]
"""Finds a place for so many replicas of one role, for all of them or for none. It must not change the room."""


class _NodeState(NamedTuple):
    """Free capacity of a node before a supposition changed it."""

    is_open: bool
    cpus: float
    memory: int
    whole: list[int]
    shared: Shared
    chunked: dict[ChunksKey, Chunks]
    costs: dict[Hashable, list[float]]


class NodeCapacity:
    """Free capacity of one node: GPUs, CPU cores, memory.

    `occupied` GPUs are held by runs that belong to no job there; `kept` GPUs are given by name alone.
    """

    __slots__ = (
        "_images",
        "chunked",
        "costs",
        "cpus",
        "gpus",
        "memory",
        "near",
        "node",
        "occupied",
        "rack",
        "ranked",
    )

    def __init__(
        self, node: Node, *, occupied: frozenset[int] = frozenset(), kept: frozenset[int] = frozenset()
    ) -> None:
        self.node = node
        self.rack = node.rack
        self.near = near_of(node.capacity)
        self._images = {image: node.runs(image=image) for image in (None, False, True)}
        self.occupied = occupied
        self.cpus = node.capacity.cpus
        self.memory = node.capacity.memory
        self.gpus = GpusLeft(node.capacity.gpus, occupied | kept | node.closed_gpus, gives_shares=node.gives_shares)
        self.chunked: dict[ChunksKey, Chunks] = {}  # of `chunks`, replaced when GPUs change hands
        self.costs: dict[Hashable, list[float]] = {}  # of `weft_best`, replaced when GPUs change hands
        self.ranked: dict[str, Chunks] = {}  # by the name of scores: every GPU by itself, held or free

    def gpus_for(self, request: Request) -> list[int]:
        """Free GPUs that `request` may take."""
        return self.gpus.suited(request)

    def starts(self, request: Request) -> bool:
        """Return True if the node can start such a replica when it is empty."""
        if request.volumes or request.where or self.node.taints:
            return self.node.starts(request)
        return self._images[request.image]

    def count(self, request: Request, most: int) -> int:
        """How many replicas of `request` fit here now, up to `most`."""
        if not self.starts(request):
            return 0
        if request.gpus:
            most = min(most, len(self.gpus_for(request)) // request.gpus)
        if request.share is not None:
            most = self.gpus.count_shares(request, most)
        by_cpus = int((self.cpus + CPU_GRAIN) / request.cpus)
        return max(0, min(most, by_cpus, self.memory // request.memory))

    def take(self, allocations: Iterable[Allocation]) -> None:
        gpus = self._change(allocations, -1, self.gpus.take_share)
        if gpus:
            self.gpus.take(gpus)

    def give_back(self, allocations: Iterable[Allocation]) -> None:
        gpus = self._change(allocations, 1, self.gpus.give_share_back)
        if gpus:
            self.gpus.give_back(gpus)

    def withhold(self, allocations: Iterable[Allocation]) -> None:
        self.chunked, self.costs = {}, {}
        self.gpus.withhold([gpu for one in allocations for gpu in one.gpus])

    def release(self, allocations: Iterable[Allocation]) -> None:
        self.gpus.release([gpu for one in allocations for gpu in one.gpus])

    def _change(self, allocations: Iterable[Allocation], sign: int, change: Callable[[int, Share], None]) -> list[int]:
        """Change what is left of CPUs, memory and shared GPUs; returns the GPUs that change hands as a whole."""
        gpus: list[int] = []
        for allocation in allocations:
            self.cpus += sign * allocation.cpus
            self.memory += sign * allocation.memory
            if allocation.share is None:
                gpus += allocation.gpus
                continue
            for gpu in allocation.gpus:
                self.chunked, self.costs = {}, {}
                change(gpu, allocation.share)
        if gpus:
            self.chunked, self.costs = {}, {}
        return gpus


class FreeCapacity:
    """The nodes of one pool by how many GPUs are free on them. A node that takes no work is in no bucket.

    `scores`, `locality` and `model_speeds` (None: all models are equally fast) give how fast a job is on which GPUs;
    `placer` chooses among places (none: `packed`).
    """

    def __init__(
        self, scores: Scores | None = None, *, placer: Placer | None = None, locality: Locality | None = None
    ) -> None:
        self.nodes: dict[str, NodeCapacity] = {}
        self.scores = scores or Scores()
        self.locality = locality or Locality()
        self.model_speeds: ModelSpeeds | None = None
        self.placer = placer
        self.grown = 0  # counts the changes after which a job that did not fit might
        self.buckets: dict[int, list[str]] = {}  # by how many GPUs are free: the open nodes, by id
        self.changed: list[str] = []  # ids of nodes, in the order in which the nodes changed
        self.offers: dict[Hashable, NodeIndex[NodeCapacity]] = {}
        self._fits: dict[str, Fits[NodeCapacity]] = {}  # by the name of scores
        self._scored = self.scores.changes  # `scores.changes` when `offers` and `_fits` were begun
        self._open: dict[str, NodeCapacity] = {}
        self._in_order: list[NodeCapacity] | None = None  # the open nodes by id, once they were asked for
        self._occupied: set[str] = set()  # ids of nodes with occupied GPUs
        self._largest: int | None = None
        self._models: frozenset[str] | None = None  # models of all GPUs, once they were asked for
        self._supposed: list[dict[str, _NodeState]] = []  # by scope of `supposing`, the inmost last: nodes as they were

    def __getstate__(self) -> dict[str, object]:
        """The state without what is derived from the rest when needed."""
        return {**self.__dict__, "offers": {}, "changed": [], "_fits": {}, "_in_order": None}

    # nodes

    def add(
        self,
        node: Node,
        held: Iterable[Allocation] = (),
        *,
        occupied: frozenset[int] = frozenset(),
        kept: frozenset[int] = frozenset(),
    ) -> None:
        """Add a node, or replace it by its new form; `held` is what jobs have there; `occupied` and `kept` are those of
        NodeRoom."""
        known = self.nodes.get(node.id)
        self.remove(node.id)
        free_capacity = self.nodes[node.id] = NodeCapacity(node, occupied=occupied, kept=kept)
        if known is None or known.gpus.models.keys() != free_capacity.gpus.models.keys():
            self.scores.forget_bins()
            self._largest = None
        if known is None or known.gpus.models != free_capacity.gpus.models:
            self._models = None
        free_capacity.take(held)
        if occupied:
            self._occupied.add(node.id)
        if node.takes_work:
            self.reopen([node.id])

    def remove(self, node_id: str) -> None:
        assert not self._supposed, "a supposition does not change which nodes there are"
        self.close([node_id])
        self._occupied.discard(node_id)
        if self.nodes.pop(node_id, None) is not None:
            self._largest = self._models = None

    def close(self, node_ids: Iterable[str]) -> None:
        """Give nothing of these nodes until `reopen`."""
        for node_id in node_ids:
            if node_id in self._open:
                node = self.nodes[node_id]
                self._changes(node)
                del self._open[node_id]
                self._in_order = None
                self._unfile(node_id, len(node.gpus.whole))

    def reopen(self, node_ids: Iterable[str]) -> None:
        for node_id in node_ids:
            node = self.nodes.get(node_id)
            if node is not None and node_id not in self._open:
                self._changes(node)
                self._open[node_id] = node
                self._in_order = None
                self._file(node_id, len(node.gpus.whole))
                self.grown += 1

    def is_open(self, node_id: str) -> bool:
        return node_id in self._open

    @property
    def open_nodes(self) -> Sequence[NodeCapacity]:
        """Nodes that take work, sorted by id."""
        if self._in_order is None:
            self._in_order = [self._open[node_id] for node_id in sorted(self._open)]
        return self._in_order

    @property
    def gpus_free(self) -> int:
        """Number of free GPUs on nodes that take work."""
        return sum(free * len(node_ids) for free, node_ids in self.buckets.items())

    @property
    def gpus_left(self) -> float:
        """The same, including the free time of shared GPUs. It looks at every node."""
        parts = sum(node.gpus.time_left for node in self._open.values() if node.gpus.shared)
        return self.gpus_free + parts / WHOLE if parts else self.gpus_free

    @property
    def gpus_occupied(self) -> int:
        return sum(len(self.nodes[node_id].occupied) for node_id in self._occupied)

    @property
    def largest(self) -> int:
        """How many GPUs the largest node has, whichever jobs hold them."""
        if self._largest is None:
            self._largest = max((len(node.gpus.models) for node in self.nodes.values()), default=0)
        return self._largest

    def present(self) -> object:
        """Everything that decides where a place is found, to compare with an earlier value by ==."""
        is_open = self._open
        nodes = [
            (
                node_id in is_open,
                node.node,
                node.cpus,
                node.memory,
                node.gpus.whole,
                node.gpus.shared,
                node.gpus.withheld,
            )
            for node_id, node in self.nodes.items()
        ]
        return (self.scores.changes, self.locality, self.model_speeds, nodes)

    # what jobs hold

    def take(self, allocation: Allocation) -> None:
        self.take_all((allocation,))

    def give_back(self, allocation: Allocation) -> None:
        self.give_back_all((allocation,))

    def take_all(self, allocations: Iterable[Allocation]) -> None:
        self._each_node(allocations, NodeCapacity.take)

    def give_back_all(self, allocations: Iterable[Allocation]) -> None:
        self.grown += self._each_node(allocations, NodeCapacity.give_back)

    def withhold(self, allocations: Iterable[Allocation]) -> None:
        """Keep these GPUs: nobody gets them, whoever holds them now."""
        self._each_node(allocations, NodeCapacity.withhold)

    def release(self, allocations: Iterable[Allocation]) -> None:
        """Keep these GPUs no longer. Those that nobody holds are to be given back."""
        self._each_node(allocations, NodeCapacity.release)

    def _each_node(
        self, allocations: Iterable[Allocation], change: Callable[[NodeCapacity, Iterable[Allocation]], None]
    ) -> int:
        """Change what each node has left by its allocations; returns how many nodes of the pool these are on."""
        count = 0
        for node_id, there in groupby(allocations, key=_node_id):
            node = self.nodes.get(node_id)
            if node is not None:
                self._changes(node)
                free = len(node.gpus.whole)
                change(node, there)
                self._refile(node, free)
                count += 1
        return count

    def resize(self, before: Allocation, after: Allocation) -> None:
        """A rank has other CPUs and memory than before, or another share, on the same GPUs."""
        node = self.nodes.get(before.node_id)
        if node is not None:
            self._changes(node)
            node.cpus += before.cpus - after.cpus
            node.memory += before.memory - after.memory
            self.grown += after.cpus < before.cpus or after.memory < before.memory
            if before.share is not None and after.share is not None and before.share != after.share:
                for gpu in before.gpus:
                    node.gpus.replace_share(gpu, before.share, after.share)
                self.grown += after.share.request < before.share.request or after.share.memory < before.share.memory

    # what-if

    @contextmanager
    def supposing(self, *, given_back: Iterable[Allocation] = (), closed: Iterable[str] = ()) -> Iterator[None]:
        """A scope in which anything may be taken, given back, closed, reopened; `given_back` and `closed` begin it.

        At its end, also by an exception, every node is again as it was, and `grown` too. Scopes may be nested.
        """
        grown = self.grown
        before: dict[str, _NodeState] = {}
        self._supposed.append(before)
        try:
            self.give_back_all(given_back)
            self.close(closed)
            yield
        finally:
            self._supposed.pop()
            for node_id, state in before.items():
                self._restore(self.nodes[node_id], state)
            self.grown = grown

    @contextmanager
    def without(self, node_ids: Iterable[str]) -> Iterator[None]:
        """A scope in which these nodes take no work. Allocations made or ended within it last beyond it."""
        closed = [node_id for node_id in node_ids if node_id in self._open]
        self.close(closed)
        try:
            yield
        finally:
            grown = self.grown
            self.reopen(closed)
            self.grown = grown  # nodes that are open again let nothing fit that did not fit before the scope

    # speed

    def rescore(self, job_class: str, changed: Mapping[GpuKey, float]) -> None:
        """Other scores for some GPUs; places that are found from now on go by them."""
        assert not self._supposed, "a supposition does not change scores"
        self.scores.update(job_class, changed)
        for node in self.nodes.values():  # all of them: another score of one GPU may move it and others to other bins
            node.chunked, node.costs, node.ranked = {}, {}, {}

    def best_node(
        self, need: Hashable, cost: Callable[[NodeCapacity], Cost | None]
    ) -> tuple[Cost, NodeCapacity] | None:
        """The node where `cost` is least, and that cost. `need` identifies the cost: it has all that `cost` reads."""
        self._heed_scores()
        offers = self.offers.pop(need, None) or NodeIndex(cost)
        self.offers[need] = offers  # the last one: the need that was asked for longest ago is forgotten first
        if len(self.offers) > OFFERS_MAX:
            del self.offers[next(iter(self.offers))]
        found = offers.best(self._open, self.changed)
        return None if found is None else (found[0], self.nodes[found[1]])

    def fits(self, name: str, entries: Callable[[NodeCapacity], Sequence[GpuEntry]]) -> Fits[NodeCapacity]:
        """The GPUs of the open nodes by what is left of each. `name` identifies `entries`, by the scores they go by."""
        self._heed_scores()
        if name not in self._fits:
            self._fits[name] = Fits(entries)
        fits = self._fits[name]
        fits.heed(self._open, self.changed)
        return fits

    def slowdown(
        self,
        allocations: Iterable[Allocation],
        asked: PlacementRequest,
        *,
        scores: Mapping[GpuKey, float] | None = None,
        locality: Locality | None = None,
        speeds: Mapping[str, float] | None = None,
    ) -> float:
        """Seconds that a second of work takes there: the score of the slowest GPU, in parts of the speed of its model,
        times the locality (PAL's model).

        `scores` of its class, `locality` and `speeds` of models: instead of the room's own.
        """
        believed = self.scores.of(asked.job_class) if scores is None else scores
        speeds = self.speeds_for(asked) if speeds is None else speeds
        slowest = 0.0
        nodes: set[str] = set()
        gpus: list[int] = []
        for allocation in allocations:
            node_id = allocation.node_id
            nodes.add(node_id)
            gpus += allocation.gpus
            for gpu in allocation.gpus:
                score = believed.get((node_id, gpu), TYPICAL)
                if speeds and node_id in self.nodes:
                    score /= speeds.get(self.nodes[node_id].gpus.models.get(gpu, ""), 1.0)
                if score > slowest:
                    slowest = score
        if len(nodes) == 1:
            return (slowest or TYPICAL) * self.within(next(iter(nodes)), gpus, asked.workload, locality=locality)
        return (slowest or TYPICAL) * self.spread_over(nodes, asked.workload, locality=locality)

    def speeds_for(self, asked: PlacementRequest) -> Mapping[str, float]:
        """By model of GPUs, how fast the job is there, in parts of the fastest; empty if it is equally fast on all."""
        if self.model_speeds is None or asked.is_service:
            return NO_SPEEDS
        if self._models is None:
            self._models = frozenset(model for node in self.nodes.values() for model in node.gpus.models.values())
        if len(self._models) < 2:
            return NO_SPEEDS
        return self.model_speeds.of(self._models, asked.job_class, asked.workload)

    def within(self, node_id: str, gpus: Collection[int], workload: str, *, locality: Locality | None = None) -> float:
        """The factor by which a gang takes longer because of the links between its GPUs, all of them on one node."""
        node = self.nodes.get(node_id)
        if len(gpus) < 2 or node is None or node.near is None:
            return 1.0
        return 1.0 + ((locality or self.locality).across(workload) - 1.0) * spread_within(node.near, gpus)

    def spread_of(self, allocations: Iterable[Allocation]) -> float | None:
        """The part of the locality penalty that a gang pays there: 1 across nodes, on one node by its links. None
        across racks, where it pays more than that."""
        held = [(one.node_id, gpu) for one in allocations for gpu in one.gpus]
        nodes = {node_id for node_id, _ in held}
        if len(nodes) > 1:
            racks = {self.nodes[node_id].rack for node_id in nodes if node_id in self.nodes}
            return None if len(racks) > 1 else 1.0
        return 0.0 if not held else spread_within(self.nodes[held[0][0]].near, [gpu for _, gpu in held])

    def spread_over(self, nodes: Collection[str], workload: str, *, locality: Locality | None = None) -> float:
        """The factor by which a gang takes longer because it is on all of these nodes."""
        if len(nodes) <= 1:
            return 1.0
        racks = len({self.nodes[node_id].rack for node_id in nodes if node_id in self.nodes})
        return (locality or self.locality).factor(workload, nodes=len(nodes), racks=racks)

    # bookkeeping

    def _changes(self, node: NodeCapacity) -> None:
        """Called before every change of a node, with the node as it is."""
        node_id = node.node.id
        if self._supposed and node_id not in self._supposed[-1]:
            gpus, is_open = node.gpus, node_id in self._open
            self._supposed[-1][node_id] = _NodeState(
                is_open, node.cpus, node.memory, gpus.whole, gpus.shared, node.chunked, node.costs
            )
        self._note(node_id)

    def _heed_scores(self) -> None:
        if self._scored != self.scores.changes:
            self._scored = self.scores.changes
            self._forget_offers()

    def _note(self, node_id: str) -> None:
        if len(self.changed) >= CHANGES_MAX:
            self._forget_offers()
        self.changed.append(node_id)

    def _restore(self, node: NodeCapacity, state: _NodeState) -> None:
        node_id = node.node.id
        self._note(node_id)
        if state.is_open != (node_id in self._open):
            self._in_order = None
        if node_id in self._open:
            self._unfile(node_id, len(node.gpus.whole))
            del self._open[node_id]
        node.cpus, node.memory = state.cpus, state.memory
        node.gpus.whole, node.gpus.shared = state.whole, state.shared
        node.chunked, node.costs = state.chunked, state.costs
        if state.is_open:
            self._file(node_id, len(state.whole))
            self._open[node_id] = node

    def _refile(self, node: NodeCapacity, free_before: int) -> None:
        free = len(node.gpus.whole)
        if free != free_before and node.node.id in self._open:
            self._unfile(node.node.id, free_before)
            self._file(node.node.id, free)

    def _file(self, node_id: str, free: int) -> None:
        insort(self.buckets.setdefault(free, []), node_id)

    def _unfile(self, node_id: str, free: int) -> None:
        bucket = self.buckets[free]
        if len(bucket) == 1:
            del self.buckets[free]
        else:
            del bucket[bisect_left(bucket, node_id)]

    def _forget_offers(self) -> None:
        self.offers.clear()
        self._fits.clear()
        self.changed.clear()


def free_capacity_of(nodes: Iterable[Node], holding: Iterable[Job]) -> FreeCapacity:
    """The room that is left, given the jobs that hold a part."""
    free_capacity = FreeCapacity()
    for node in nodes:
        free_capacity.add(node)
    for job in holding:
        free_capacity.take_all(job.placement.allocations if job.placement else ())
    return free_capacity


def empty_capacity(nodes: Iterable[Node]) -> FreeCapacity:
    """The room if all of `nodes` were empty and open."""
    free_capacity = FreeCapacity()
    for node in nodes:
        free_capacity.add(structs.replace(node, ready=True, drain=None, health=()))
    return free_capacity
