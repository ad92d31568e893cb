"""What is free in a pool, kept so that finding a place costs little however many nodes there are."""

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from msgspec import Struct, structs

from libs.domain.cluster import Node, Request
from libs.domain.job import Allocation, Cause, CauseCode
from libs.domain.quantity import count_text, size_text
from libs.domain.spec import JobSpec, Role
from libs.planning import pins
from libs.planning.closed import closed_text, closed_with_room
from libs.planning.limits import cpus_text, each_asks, gpus_text, short_in_all
from libs.planning.locality import Locality
from libs.planning.placement.offers import Cost, Offers
from libs.planning.placement.packed import packed
from libs.planning.scores import TYPICAL, GpuKey, Scores

CHANGES_MAX = 200_000  # of nodes that are written down, before all nodes are looked at anew
OFFERS_MAX = 64  # needs whose best node is kept up to date; each holds an entry for every node
_CPU_GRAIN = 1e-6  # floating-point dust of adding and subtracting cores


class NodeRoom:
    """One node's free GPUs (by index), CPU cores and memory.

    `occupied` GPUs are held by what no job has there; those that are `kept` are given by name alone.
    """

    __slots__ = ("chunked", "cpus", "free", "kept", "memory", "models", "node", "occupied", "rack")

    def __init__(
        self, node: Node, *, occupied: frozenset[int] = frozenset(), kept: frozenset[int] = frozenset()
    ) -> None:
        self.node = node
        self.rack = node.rack
        self.occupied = occupied
        self.kept = kept
        self.cpus = node.capacity.cpus
        self.memory = node.capacity.memory
        self.models = {gpu.index: gpu.model for gpu in node.capacity.gpus}
        self.free = sorted(index for index in self.models if index not in occupied and index not in kept)
        self.chunked: dict[tuple[str, int, str | None], Chunks] = {}  # what `chunks` found; empty again on any change

    def gpus_for(self, request: Request) -> list[int]:
        """Free GPUs that `request` may take."""
        if request.model is None:
            return self.free
        return [index for index in self.free if self.models[index] == request.model]

    def count(self, request: Request, most: int) -> int:
        """How many replicas of `request` fit here now, up to `most`."""
        if request.gpus:
            most = min(most, len(self.gpus_for(request)) // request.gpus)
        by_cpus = int((self.cpus + _CPU_GRAIN) / request.cpus)
        return max(0, min(most, by_cpus, self.memory // request.memory))


class NoRoom(Struct, frozen=True):
    """Why it does not fit now; the numbers are those of the moment."""

    cause: Cause


class Want(Struct, frozen=True):
    """`count` replicas of one role (at least `least`), each needing `request`."""

    role: str
    least: int
    count: int
    request: Request


Chunks = list[tuple[float, tuple[int, ...]]]
"""Free GPUs of one node in groups as large as one replica needs, each with the score of its slowest; fastest first."""

Picks = list[tuple["NodeRoom", list[tuple[int, ...]]]]
"""Nodes, and the GPUs there of each replica that goes to them."""

Placer = Callable[["Room", "Want", int, "PlacementRequest"], Picks | None]
"""Finds a place for so many replicas of one role, all of them or none. It must not change the room."""


class PlacementRequest(Struct, frozen=True):
    """Who a place is for, as far as a placement may care. `key` stands in for dice where some are thrown."""

    job_class: str = ""
    key: str = ""


NOBODY = PlacementRequest()

Shape = tuple[Want, ...]
"""What a job needs of a pool. Jobs of one shape fit, or do not, alike."""


def shape_of(spec: JobSpec) -> Shape:
    """Of a job that is pinned to GPUs, each role begins behind the GPUs of the role before."""
    wants: list[Want] = []
    node, gpu = (None, None) if spec.pin is None else (spec.pin.node, spec.pin.gpu)
    for name, role in spec.roles.items():
        wants.append(Want(name, role.replicas.least, role.replicas.want, _request(role, spec.gpu_model, node, gpu)))
        gpu = None if gpu is None else gpu + role.gpus * role.replicas.want
    return tuple(wants)


def gpus_of(shape: Shape) -> int:
    return sum(want.count * want.request.gpus for want in shape)


def gpus_least(shape: Shape) -> int:
    """How many GPUs start a job of this shape."""
    return sum(want.least * want.request.gpus for want in shape)


def smallest(shape: Shape) -> Shape:
    """The shape with as few replicas as start the job."""
    return tuple(structs.replace(want, count=want.least) for want in shape)


def _with_more(shape: Shape, index: int, more: int) -> Shape:
    grown = structs.replace(shape[index], count=shape[index].count + more)
    return (*shape[:index], grown, *shape[index + 1 :])


def _between(shape: Shape, part: int, parts: int) -> Shape:
    """The shape with `part` of `parts` of what each role wants beyond its least."""
    return tuple(structs.replace(want, count=want.least + (want.count - want.least) * part // parts) for want in shape)


class Room:
    """The nodes of one pool by how many GPUs are free on them. A node that takes no work is in no bucket."""

    def __init__(
        self, scores: Scores | None = None, *, placer: Placer | None = None, locality: Locality | None = None
    ) -> None:
        self.nodes: dict[str, NodeRoom] = {}
        self.scores = scores or Scores()
        self.locality = locality or Locality()
        self.placer = placer or packed
        self.grown = 0  # counts every moment at which something that did not fit might
        self.buckets: dict[int, list[str]] = {}  # by how many GPUs are free: the open nodes, by id
        self.changed: list[str] = []  # nodes, in the order in which something of them did
        self.offers: dict[Hashable, Offers] = {}
        self._scored = self.scores.changes  # when `offers` were begun
        self._open: set[str] = set()
        self._occupied: set[str] = set()  # nodes some of whose GPUs are
        self._largest: int | None = None

    def __getstate__(self) -> dict[str, object]:
        """What was worked out of the rest is worked out again."""
        return {**self.__dict__, "offers": {}, "changed": []}

    def add(
        self,
        node: Node,
        held: Iterable[Allocation] = (),
        *,
        occupied: frozenset[int] = frozenset(),
        kept: frozenset[int] = frozenset(),
    ) -> None:
        """Put a node in, or in its new form; `held` is what jobs have there, `occupied` GPUs are nobody's to give."""
        known = self.nodes.get(node.id)
        self.remove(node.id)
        room = self.nodes[node.id] = NodeRoom(node, occupied=occupied, kept=kept)
        if known is None or known.models.keys() != room.models.keys():
            self.scores.forget_bins()
            self._largest = None
        for allocation in held:
            self._deduct(room, allocation)
        if occupied:
            self._occupied.add(node.id)
        if node.ready and not node.drained:
            self._open_one(room)

    def remove(self, node_id: str) -> None:
        self.close([node_id])
        self._occupied.discard(node_id)
        if self.nodes.pop(node_id, None) is not None:
            self._largest = None

    @property
    def largest(self) -> int:
        """How many GPUs the largest node has, whoever holds them."""
        if self._largest is None:
            self._largest = max((len(node.models) for node in self.nodes.values()), default=0)
        return self._largest

    def close(self, node_ids: Iterable[str]) -> None:
        """Take nodes out of what may be given, until `reopen`."""
        for node_id in node_ids:
            if node_id in self._open:
                self._open.remove(node_id)
                self._unfile(self.nodes[node_id])
                self._changes(node_id)

    def reopen(self, node_ids: Iterable[str]) -> None:
        for node_id in node_ids:
            if node_id in self.nodes and node_id not in self._open:
                self._open_one(self.nodes[node_id])

    def is_open(self, node_id: str) -> bool:
        return node_id in self._open

    @property
    def gpus_free(self) -> int:
        """On nodes that take work."""
        return sum(free * len(node_ids) for free, node_ids in self.buckets.items())

    def best_node(self, need: Hashable, cost: Cost) -> tuple[tuple[float, ...], NodeRoom] | None:
        """Where `cost` is least, and how much; `need` is by what it is known again, and says all that `cost` reads."""
        if self._scored != self.scores.changes:
            self._scored = self.scores.changes
            self._forget_offers()
        offers = self.offers.pop(need, None) or Offers(self, cost)
        self.offers[need] = offers  # the last one: the need that was asked for longest ago is forgotten first
        if len(self.offers) > OFFERS_MAX:
            del self.offers[next(iter(self.offers))]
        found = offers.best(self)
        return None if found is None else (found[0], self.nodes[found[1]])

    def _changes(self, node_id: str) -> None:
        if len(self.changed) >= CHANGES_MAX:
            self._forget_offers()
        self.changed.append(node_id)

    def _forget_offers(self) -> None:
        self.offers.clear()
        self.changed.clear()

    @property
    def open_nodes(self) -> Iterator[NodeRoom]:
        return (self.nodes[node_id] for node_id in sorted(self._open))

    def rescore(self, job_class: str, changed: Mapping[GpuKey, float]) -> None:
        """Other scores for some GPUs; what is found from now on goes by them."""
        self.scores.update(job_class, changed)
        for room in self.nodes.values():  # all of them: another score of one GPU may move it and others to other bins
            room.chunked.clear()

    def take(self, allocation: Allocation) -> None:
        room = self.nodes.get(allocation.node_id)
        if room is not None:
            self._refile(room, allocation, self._deduct)

    def give_back(self, allocation: Allocation) -> None:
        room = self.nodes.get(allocation.node_id)
        if room is not None:
            self._refile(room, allocation, self._restore)
            self.grown += 1

    def resize(self, before: Allocation, after: Allocation) -> None:
        """A rank has other CPUs and memory than before, on the same GPUs."""
        room = self.nodes.get(before.node_id)
        if room is not None:
            room.cpus += before.cpus - after.cpus
            room.memory += before.memory - after.memory
            self._changes(before.node_id)
            self.grown += after.cpus < before.cpus or after.memory < before.memory

    def take_all(self, allocations: Iterable[Allocation]) -> None:
        for allocation in allocations:
            self.take(allocation)

    def give_back_all(self, allocations: Iterable[Allocation]) -> None:
        for allocation in allocations:
            self.give_back(allocation)

    def place(self, shape: Shape, asked: PlacementRequest = NOBODY) -> tuple[Allocation, ...] | NoRoom:
        """Find a place for the whole gang, or say why there is none; the room stays as it is until `take`.

        Roles are placed one after the other, in the order of the shape, and ranks numbered so. Where not all the
        replicas fit that a job wants, it gets as many as do, and of each role `least` at least.
        """
        return self.find(shape, asked) or NoRoom(self._why_none(smallest(shape), asked))

    def find(self, shape: Shape, asked: PlacementRequest = NOBODY) -> tuple[Allocation, ...] | None:
        """As `place`, for a caller that does not ask why there is none: that costs more than to look."""
        found = self._find(shape, asked)
        if found or all(want.least == want.count for want in shape):
            return found
        return self._find_fewer(shape, asked)

    def _find_fewer(self, shape: Shape, asked: PlacementRequest) -> tuple[Allocation, ...] | None:
        """A place for fewer replicas than wanted: the same part of what each role wants beyond its least, then more of
        one role after the other."""
        counts = smallest(shape)
        best = self._find(counts, asked)
        if best is None:
            return None
        parts = max(want.count - want.least for want in shape)
        most = self._most(lambda part: _between(shape, part, parts), parts - 1, asked)
        counts, best = most or (counts, best)
        for index, want in enumerate(shape):
            grown = partial(_with_more, counts, index)
            most = self._most(grown, want.count - counts[index].count, asked) if len(shape) > 1 else None
            counts, best = most or (counts, best)
        return best

    def _most(
        self, shape_of_size: Callable[[int], Shape], largest: int, asked: PlacementRequest
    ) -> tuple[Shape, tuple[Allocation, ...]] | None:
        """The largest of the sizes 1 … `largest` that fits, with its place; found by halving."""
        best: tuple[Shape, tuple[Allocation, ...]] | None = None
        low, high = 0, largest
        while low < high:
            middle = (low + high + 1) // 2
            found = self._find(shape_of_size(middle), asked)
            if found:
                best, low = (shape_of_size(middle), found), middle
            else:
                high = middle - 1
        return best

    def _find(self, shape: Shape, asked: PlacementRequest) -> tuple[Allocation, ...] | None:
        """The place of exactly so many replicas, or None."""
        if len(shape) == 1:
            return self._place_role(shape[0], 0, asked) or None
        taken: list[Allocation] = []
        for want in shape:
            placed = self._place_role(want, len(taken), asked)
            if not placed:
                self._put_back(taken)
                return None
            self._try_out(placed)
            taken += placed
        self._put_back(taken)
        return tuple(taken)

    def _why_none(self, shape: Shape, asked: PlacementRequest) -> Cause:
        """Why there is no place for a shape that does not fit: of the first role for which there is none."""
        taken: list[Allocation] = []
        for want in shape:
            placed = self._place_role(want, len(taken), asked)
            if not placed:
                cause = self._why_not(want)
                self._put_back(taken)
                return cause
            self._try_out(placed)
            taken += placed
        raise AssertionError("it did not fit a moment ago")

    def _try_out(self, placed: Sequence[Allocation]) -> None:
        for allocation in placed:
            self._refile(self.nodes[allocation.node_id], allocation, self._deduct)

    def _put_back(self, tried: Sequence[Allocation]) -> None:
        for allocation in reversed(tried):
            self._refile(self.nodes[allocation.node_id], allocation, self._restore)

    def _place_role(self, want: Want, first_rank: int, asked: PlacementRequest) -> tuple[Allocation, ...]:
        if want.request.gpus > max(self.buckets, default=0):
            return ()  # no node has so many free
        if want.request.node is not None:
            picks = pins.pinned(self, want, want.count, asked)
        else:
            placer = self.placer if want.request.gpus else packed
            picks = placer(self, want, want.count, asked)
        return allocations_of(picks, want, first_rank) if picks else ()

    def slowdown(
        self, allocations: Iterable[Allocation], job_class: str, *, scores: Mapping[GpuKey, float] | None = None
    ) -> float:
        """How many seconds a second of work takes there: the slowest GPU, times the locality (PAL's model).

        `scores`: what to go by for this class, if not by what is believed.
        """
        believed = self.scores.of(job_class) if scores is None else scores
        slowest = 0.0
        nodes: set[str] = set()
        for allocation in allocations:
            nodes.add(allocation.node_id)
            for gpu in allocation.gpus:
                slowest = max(slowest, believed.get((allocation.node_id, gpu), TYPICAL))
        return (slowest or TYPICAL) * self.spread_over(nodes, job_class)

    def spread_over(self, nodes: Collection[str], job_class: str) -> float:
        """By how much a gang takes longer for being on all of these."""
        if len(nodes) <= 1:
            return 1.0
        racks = len({self.nodes[node_id].rack for node_id in nodes if node_id in self.nodes})
        return self.locality.factor(job_class, nodes=len(nodes), racks=racks)

    def _why_not(self, want: Want) -> Cause:
        request = want.request
        if request.node is not None:
            return pins.why_not_there(self, want)
        closed = closed_text(self, request)
        if not self._open:
            sentence = "no node of its pool takes work now"
            return Cause(code=CauseCode.NO_NODES, sentence=f"{sentence}: {closed}" if closed else sentence)
        fitting = [room for room in self.open_nodes if room.count(request, 1)]
        free = [len(room.gpus_for(request)) for room in self.open_nodes]
        numbers = {
            "replicas_wanted": float(want.least),
            "gpus_wanted": float(request.gpus),
            "gpus_free": float(sum(free)),
            "gpus_free_max": float(max(free, default=0)),
            "replicas_that_fit": float(sum(room.count(request, want.least) for room in fitting)),
        }
        sentence = _no_room_sentence(want, numbers, self)
        if closed:
            numbers["nodes_closed"] = float(len(closed_with_room(self, request)))
            sentence += f"; {closed}"
        if request.gpus and (occupied := sum(len(self.nodes[node_id].occupied) for node_id in self._occupied)):
            numbers["gpus_occupied"] = float(occupied)
            sentence += f"; {occupied} more are held by runs that should have ended"
        return Cause(code=CauseCode.NO_ROOM, sentence=sentence, numbers=numbers)

    def _open_one(self, room: NodeRoom) -> None:
        self._open.add(room.node.id)
        self._changes(room.node.id)
        insort(self.buckets.setdefault(len(room.free), []), room.node.id)
        self.grown += 1

    def _unfile(self, room: NodeRoom) -> None:
        bucket = self.buckets[len(room.free)]
        del bucket[bisect_left(bucket, room.node.id)]
        if not bucket:
            del self.buckets[len(room.free)]

    def _refile(self, room: NodeRoom, allocation: Allocation, change: Callable[[NodeRoom, Allocation], None]) -> None:
        self._changes(room.node.id)
        if not allocation.gpus or room.node.id not in self._open:
            change(room, allocation)
            return
        self._unfile(room)
        change(room, allocation)
        insort(self.buckets.setdefault(len(room.free), []), room.node.id)

    @staticmethod
    def _deduct(room: NodeRoom, allocation: Allocation) -> None:
        room.cpus -= allocation.cpus
        room.memory -= allocation.memory
        if allocation.gpus:
            room.chunked.clear()
            room.free = [index for index in room.free if index not in allocation.gpus]

    @staticmethod
    def _restore(room: NodeRoom, allocation: Allocation) -> None:
        room.cpus += allocation.cpus
        room.memory += allocation.memory
        withheld = room.occupied | room.kept
        back = [index for index in allocation.gpus if index in room.models and index not in withheld]
        if back:
            room.chunked.clear()
            room.free = sorted({*room.free, *back})


def allocations_of(picks: Picks, want: Want, first_rank: int = 0) -> tuple[Allocation, ...]:
    """The picks as ranks, in their order."""
    found: list[Allocation] = []
    for room, replicas in picks:
        for gpus in replicas:
            found.append(
                Allocation(
                    rank=first_rank + len(found),
                    role=want.role,
                    node_id=room.node.id,
                    gpus=tuple(sorted(gpus)),
                    cpus=want.request.cpus,
                    memory=want.request.memory,
                    egress=want.request.egress,
                )
            )
    return tuple(found)


def empty_room(nodes: Iterable[Node]) -> Room:
    """As if every one of `nodes` were empty and open."""
    room = Room()
    for node in nodes:
        room.add(_opened(node))
    return room


def never_fits(spec: JobSpec, nodes: Sequence[Node]) -> Cause | None:
    """Why `spec` could not start even if every one of `nodes` were empty and open; None if it could."""
    room = empty_room(nodes)
    shape = smallest(shape_of(spec))
    placed = room.place(shape)
    if not isinstance(placed, NoRoom):
        return None
    if spec.pin is not None:
        return structs.replace(placed.cause, code=CauseCode.TOO_BIG)
    largest = max((len(node.capacity.gpus) for node in nodes), default=0)
    together = sum(len(node.capacity.gpus) for node in nodes)
    sentence = (
        f"asks for {_needs(shape)}; the largest node of pool {spec.pool} has {count_text(largest, 'GPU')},"
        f" {cpus_text(max((node.capacity.cpus for node in nodes), default=0))} and"
        f" {size_text(max((node.capacity.memory for node in nodes), default=0))},"
        f" and all {len(nodes)} together have {count_text(together, 'GPU')}"
    )
    numbers = {
        "gpus_asked": float(gpus_least(shape)),
        "gpus_on_largest_node": float(largest),
        "gpus_in_pool": float(together),
    }
    return Cause(code=CauseCode.TOO_BIG, sentence=sentence, numbers=numbers)


def _opened(node: Node) -> Node:
    return Node(id=node.id, pool=node.pool, address=node.address, capacity=node.capacity)


def _needs(shape: Shape) -> str:
    return " and ".join(
        f"{want.least} × ({gpus_text(want.request)}, {cpus_text(want.request.cpus)}, {size_text(want.request.memory)})"
        for want in shape
    )


def _no_room_sentence(want: Want, numbers: Mapping[str, float], room: Room) -> str:
    request, free = want.request, f"{numbers['gpus_free']:g}"
    if request.gpus and numbers["gpus_free_max"] < request.gpus:
        most = f"the most free on one node is {numbers['gpus_free_max']:g} ({free} free in all)"
        found = most if numbers["gpus_free"] else "none is free"
        return f"wants {gpus_text(request)} on one node{_times(want)}; {found}"
    if numbers["replicas_that_fit"]:
        short = short_in_all(room.open_nodes, request, want.least)
        lacking = f", for want of {short} ({each_asks(request, short)})" if short else ""
        in_all = f" ({free} GPUs free in all)" if request.gpus else ""
        what = gpus_text(request) if request.gpus else f"{cpus_text(request.cpus)} and {size_text(request.memory)}"
        return (
            f"wants {want.least} replicas of {what} at once;"
            f" {numbers['replicas_that_fit']:g} would fit now{lacking}{in_all}"
        )
    cpus = max((node.cpus for node in room.open_nodes), default=0.0)
    memory = max((node.memory for node in room.open_nodes), default=0)
    gpus = (f"{gpus_text(request)} with ", f"{count_text(int(numbers['gpus_free_max']), 'GPU')}, ")
    wanted, most = gpus if request.gpus else ("", "")
    return (
        f"wants {wanted}{cpus_text(request.cpus)} and {size_text(request.memory)} on one node{_times(want)};"
        f" no node has all of it (most free: {most}{cpus_text(round(max(cpus, 0), 3))}, {size_text(max(memory, 0))})"
    )


def _times(want: Want) -> str:
    return "" if want.least == 1 else f", {want.least} times"


def _request(role: Role, model: str | None, node: str | None, gpu: int | None) -> Request:
    return Request(
        gpus=role.gpus,
        cpus=role.cpus,
        memory=role.memory_bytes,
        model=model if role.gpus else None,
        egress=role.egress_bytes,
        node=node,
        gpu=gpu if role.gpus else None,
    )
