"""What is free in a pool, kept so that finding a place costs little however many nodes there are."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from libs.domain.cluster import Node, Request
from libs.domain.job import Allocation, Cause, CauseCode
from libs.domain.quantity import size_text
from libs.domain.spec import JobSpec, Role

_CPU_GRAIN = 1e-6  # floating-point dust of adding and subtracting cores


class NodeRoom:
    """One node's free GPUs (best first), CPU cores and memory. `occupied` GPUs are held by what no job has there."""

    __slots__ = ("cpus", "free", "memory", "models", "node", "occupied", "ranking")

    def __init__(
        self, node: Node, scores: Mapping[tuple[str, int], float], *, occupied: frozenset[int] = frozenset()
    ) -> None:
        self.node = node
        self.occupied = occupied
        self.cpus = node.capacity.cpus
        self.memory = node.capacity.memory
        self.models = {gpu.index: gpu.model for gpu in node.capacity.gpus}
        best_first = sorted(self.models, key=lambda index: (scores.get((node.id, index), 1.0), index))
        self.ranking = {index: rank for rank, index in enumerate(best_first)}
        self.free = [index for index in best_first if index not in occupied]

    def gpus_for(self, request: Request) -> list[int]:
        """Free GPUs that `request` may take, best first."""
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


Shape = tuple[Want, ...]
"""What a job needs of a pool. Jobs of one shape fit, or do not, alike."""


def shape_of(spec: JobSpec) -> Shape:
    return tuple(
        Want(name, role.replicas.least, role.replicas.want, _request(role, spec.gpu_model))
        for name, role in spec.roles.items()
    )


def gpus_of(shape: Shape) -> int:
    return sum(want.count * want.request.gpus for want in shape)


class Room:
    """The nodes of one pool by how many GPUs are free on them. A node that takes no work is in no bucket."""

    def __init__(self, scores: Mapping[tuple[str, int], float] | None = None) -> None:
        self.nodes: dict[str, NodeRoom] = {}
        self.scores = dict(scores or {})
        self.grown = 0  # counts every moment at which something that did not fit might
        self._buckets: dict[int, list[str]] = {}
        self._open: set[str] = set()
        self._occupied: set[str] = set()  # nodes some of whose GPUs are

    def add(self, node: Node, held: Iterable[Allocation] = (), *, occupied: frozenset[int] = frozenset()) -> None:
        """Put a node in, or in its new form; `held` is what jobs have there, `occupied` GPUs are nobody's to give."""
        self.remove(node.id)
        room = self.nodes[node.id] = NodeRoom(node, self.scores, occupied=occupied)
        for allocation in held:
            self._deduct(room, allocation)
        if occupied:
            self._occupied.add(node.id)
        if node.ready and not node.drained:
            self._open_one(room)

    def remove(self, node_id: str) -> None:
        self.close([node_id])
        self._occupied.discard(node_id)
        self.nodes.pop(node_id, None)

    def close(self, node_ids: Iterable[str]) -> None:
        """Take nodes out of what may be given, until `reopen`."""
        for node_id in node_ids:
            if node_id in self._open:
                self._open.remove(node_id)
                self._unfile(self.nodes[node_id])

    def reopen(self, node_ids: Iterable[str]) -> None:
        for node_id in node_ids:
            if node_id in self.nodes and node_id not in self._open:
                self._open_one(self.nodes[node_id])

    def is_open(self, node_id: str) -> bool:
        return node_id in self._open

    @property
    def open_nodes(self) -> Iterator[NodeRoom]:
        return (self.nodes[node_id] for node_id in sorted(self._open))

    def take(self, allocation: Allocation) -> None:
        room = self.nodes.get(allocation.node_id)
        if room is not None:
            self._refile(room, allocation, self._deduct)

    def give_back(self, allocation: Allocation) -> None:
        room = self.nodes.get(allocation.node_id)
        if room is not None:
            self._refile(room, allocation, self._restore)
            self.grown += 1

    def place(self, shape: Shape) -> tuple[Allocation, ...] | NoRoom:
        """Find a place for the whole gang, or say why there is none; the room stays as it is until `take`.

        A role that fits one node goes to the tightest such node; a larger one to the emptiest nodes, so that it
        touches few. Ranks are numbered role by role, in the order of the shape.
        """
        taken: list[Allocation] = []
        for want in shape:
            placed = self._place_role(want, first_rank=len(taken))
            taken += placed
            if len(placed) < want.least:
                self._put_back(taken)
                return NoRoom(self._why_not(want))
        self._put_back(taken)
        return tuple(taken)

    def _put_back(self, tried: Sequence[Allocation]) -> None:
        for allocation in reversed(tried):
            self._refile(self.nodes[allocation.node_id], allocation, self._restore)

    def _place_role(self, want: Want, *, first_rank: int) -> list[Allocation]:
        taken: list[Allocation] = []
        while len(taken) < want.count:
            left = want.count - len(taken)
            room = self._tightest(want.request, left) or self._roomiest(want.request, left)
            if room is None:
                break
            for _ in range(room.count(want.request, left)):
                allocation = self._allocation(room, want, first_rank + len(taken))
                self._refile(room, allocation, self._deduct)
                taken.append(allocation)
        return taken

    def _tightest(self, request: Request, count: int) -> NodeRoom | None:
        """The node that holds all `count` and has least left over."""
        for free in sorted(self._buckets):
            if free >= request.gpus * count:
                for node_id in self._buckets[free]:
                    room = self.nodes[node_id]
                    if room.count(request, count) == count:
                        return room
        return None

    def _roomiest(self, request: Request, count: int) -> NodeRoom | None:
        """A node that holds the most of `count`, judged by its free GPUs."""
        if count == 1:
            return None  # the tightest would have been found
        for free in sorted(self._buckets, reverse=True):
            if free < request.gpus:
                return None
            for node_id in self._buckets[free]:
                room = self.nodes[node_id]
                if room.count(request, count):
                    return room
        return None

    def _allocation(self, room: NodeRoom, want: Want, rank: int) -> Allocation:
        request = want.request
        return Allocation(
            rank=rank,
            role=want.role,
            node_id=room.node.id,
            gpus=tuple(sorted(room.gpus_for(request)[: request.gpus])),
            cpus=request.cpus,
            memory=request.memory,
        )

    def _why_not(self, want: Want) -> Cause:
        request = want.request
        if not self._open:
            return Cause(code=CauseCode.NO_NODES, sentence="no node of its pool takes work now")
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
        if request.gpus and (occupied := sum(len(self.nodes[node_id].occupied) for node_id in self._occupied)):
            numbers["gpus_occupied"] = float(occupied)
            sentence += f"; {occupied} more are held by runs that should have ended"
        return Cause(code=CauseCode.NO_ROOM, sentence=sentence, numbers=numbers)

    def _open_one(self, room: NodeRoom) -> None:
        self._open.add(room.node.id)
        insort(self._buckets.setdefault(len(room.free), []), room.node.id)
        self.grown += 1

    def _unfile(self, room: NodeRoom) -> None:
        bucket = self._buckets[len(room.free)]
        del bucket[bisect_left(bucket, room.node.id)]
        if not bucket:
            del self._buckets[len(room.free)]

    def _refile(self, room: NodeRoom, allocation: Allocation, change: Callable[[NodeRoom, Allocation], None]) -> None:
        if not allocation.gpus or room.node.id not in self._open:
            change(room, allocation)
            return
        self._unfile(room)
        change(room, allocation)
        insort(self._buckets.setdefault(len(room.free), []), room.node.id)

    @staticmethod
    def _deduct(room: NodeRoom, allocation: Allocation) -> None:
        room.cpus -= allocation.cpus
        room.memory -= allocation.memory
        if allocation.gpus:
            room.free = [index for index in room.free if index not in allocation.gpus]

    @staticmethod
    def _restore(room: NodeRoom, allocation: Allocation) -> None:
        room.cpus += allocation.cpus
        room.memory += allocation.memory
        back = [index for index in allocation.gpus if index in room.ranking and index not in room.occupied]
        if back:
            room.free = sorted({*room.free, *back}, key=room.ranking.__getitem__)


def never_fits(spec: JobSpec, nodes: Sequence[Node]) -> Cause | None:
    """Why `spec` could not start even if every one of `nodes` were empty and open; None if it could."""
    room = Room()
    for node in nodes:
        room.add(_opened(node))
    shape = shape_of(spec)
    placed = room.place(shape)
    if not isinstance(placed, NoRoom):
        return None
    largest = max((len(node.capacity.gpus) for node in nodes), default=0)
    together = sum(len(node.capacity.gpus) for node in nodes)
    asked = sum(want.least * want.request.gpus for want in shape)
    sentence = (
        f"asks for {_needs(shape)}; the largest node of pool {spec.pool} has {largest} GPUs,"
        f" {max((node.capacity.cpus for node in nodes), default=0):g} CPUs and"
        f" {size_text(max((node.capacity.memory for node in nodes), default=0))},"
        f" and all {len(nodes)} together have {together} GPUs"
    )
    numbers = {"gpus_asked": float(asked), "gpus_on_largest_node": float(largest), "gpus_in_pool": float(together)}
    return Cause(code=CauseCode.TOO_BIG, sentence=sentence, numbers=numbers)


def _opened(node: Node) -> Node:
    return Node(id=node.id, pool=node.pool, address=node.address, capacity=node.capacity)


def _needs(shape: Shape) -> str:
    return " and ".join(
        f"{want.least} × ({_gpus(want.request)}, {want.request.cpus:g} CPUs, {size_text(want.request.memory)})"
        for want in shape
    )


def _gpus(request: Request) -> str:
    plural = "" if request.gpus == 1 else "s"
    return f"{request.gpus} GPU{plural}" + (f" of {request.model}" if request.model else "")


def _no_room_sentence(want: Want, numbers: Mapping[str, float], room: Room) -> str:
    request = want.request
    if request.gpus and numbers["gpus_free_max"] < request.gpus:
        return (
            f"wants {_gpus(request)} on one node{_times(want)}; the most free on one node is"
            f" {numbers['gpus_free_max']:g} ({numbers['gpus_free']:g} free in all)"
        )
    if numbers["replicas_that_fit"]:
        return (
            f"wants {want.least} replicas of {_gpus(request)} at once;"
            f" {numbers['replicas_that_fit']:g} would fit now ({numbers['gpus_free']:g} GPUs free in all)"
        )
    cpus = max((node.cpus for node in room.open_nodes), default=0.0)
    memory = max((node.memory for node in room.open_nodes), default=0)
    return (
        f"wants {_gpus(request)} with {request.cpus:g} CPUs and {size_text(request.memory)} on one node{_times(want)};"
        f" no node has all of it (most free: {numbers['gpus_free_max']:g} GPUs, {max(cpus, 0):g} CPUs,"
        f" {size_text(max(memory, 0))})"
    )


def _times(want: Want) -> str:
    return "" if want.least == 1 else f", {want.least} times"


def _request(role: Role, model: str | None) -> Request:
    return Request(gpus=role.gpus, cpus=role.cpus, memory=role.memory_bytes, model=model if role.gpus else None)
