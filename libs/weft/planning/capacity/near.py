"""How near the GPUs of one node are to each other, as placement reads it: link classes are localities (PAL's L).

A group of GPUs communicates as fast as the slowest link of its best ring, as NCCL's rings do. A locality penalty is
measured across nodes, over a network; communication inside a node takes the network's time divided by how much faster
the link is. With a penalty of 1.7 a group costs 1 + 0.7 × 8 / bandwidth: 1.02 over twelve NVLinks, 1.23 over one PCIe
switch, 1.56 across sockets.
"""

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from itertools import combinations
from math import comb, inf
from typing import Final

from weft.domain.cluster import Capacity
from weft.domain.topology import Topology

NVLINK: Final = 25.0
"""GB/s that one NVLink carries each way."""

BANDWIDTHS: Final = {"PIX": 24.0, "PXB": 22.0, "PHB": 18.0, "NODE": 16.0, "SYS": 10.0}
"""GB/s each way, as peer-to-peer copies over PCIe 4.0 x16 reach them."""

NETWORK: Final = 8.0
"""GB/s of the network across which locality penalties are measured."""

UNBOUNDED: Final = inf
"""Bandwidth of one GPU with itself."""

COMBINATIONS_MAX: Final = 128
"""Groups that are compared one by one; of more only those that grow from one GPU by its nearest."""

REMEMBERED_MAX: Final = 8192  # results kept for one topology
RING_MAX: Final = 8  # GPUs of which the best ring is searched for; of more, links alone are looked at


class Near:
    """The links of one topology. A set of GPUs is an integer: bit `n` is the GPU at place `n` of `gpus`."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.gpus = topology.gpus
        self._place = {gpu: place for place, gpu in enumerate(topology.gpus)}
        self._links = [[UNBOUNDED] * len(self.gpus) for _ in self.gpus]
        for one, other in combinations(range(len(self.gpus)), 2):
            self._links[one][other] = self._links[other][one] = bandwidth_of(topology.link(one, other))
        self.groups = self._groups()
        self._rings: dict[int, float] = {}
        self._best: dict[tuple[int, int], float] = {}

    @property
    def is_flat(self) -> bool:
        """Return True if one group of GPUs is as near as any other."""
        return not self.groups and len({link for row in self._links for link in row if link != UNBOUNDED}) <= 1

    def mask(self, gpus: Iterable[int]) -> int:
        place = self._place
        mask = 0
        for gpu in gpus:
            mask |= 1 << place[gpu]
        return mask

    def bandwidth(self, mask: int) -> float:
        """GB/s over the slowest link of the best ring through these GPUs."""
        found = self._rings.get(mask)
        if found is None:
            if len(self._rings) >= REMEMBERED_MAX:
                self._rings.clear()
            found = self._rings[mask] = self._ring(places_of(mask))
        return found

    def best(self, free: int, size: int) -> float:
        """GB/s of the nearest `size` of the free GPUs."""
        found = self._best.get((free, size))
        if found is None:
            if len(self._best) >= REMEMBERED_MAX:
                self._best.clear()
            found = max((self.bandwidth(mask) for mask in self.candidates(free, size)), default=UNBOUNDED)
            self._best[free, size] = found
        return found

    def candidates(self, free: int, size: int, ranks: Sequence[float] = ()) -> list[int]:
        """Groups of `size` free GPUs: all if they are few, else those that grow from each GPU by its nearest, and of
        equally near ones by the one with the lowest of `ranks`."""
        places = places_of(free)
        if comb(len(places), size) <= COMBINATIONS_MAX:
            bits = [1 << place for place in places]
            return [sum(group) for group in combinations(bits, size)]
        return list(dict.fromkeys(self._grown(place, places, size, ranks) for place in places))

    def broken(self, free: int, taken: int) -> float:
        """The part of the node's GPUs that are free, but in a group of which `taken` takes GPUs. Those of a group that
        was broken before count a quarter."""
        left = 0.0
        for group in self.groups:
            if group & taken:
                remaining = (group & free & ~taken).bit_count()
                left += remaining if group & free == group else remaining / 4
        return left / len(self.gpus)

    def split(self, gpus: Sequence[int], size: int) -> list[tuple[int, ...]]:
        """The GPUs in groups of `size`, each the nearest of what the groups before it left."""
        left, parts = self.mask(gpus), []
        while left:
            group = max(self.candidates(left, size), key=lambda mask: (self.bandwidth(mask), -mask))
            parts.append(self.named(group))
            left &= ~group
        return parts

    def named(self, mask: int) -> tuple[int, ...]:
        """The indices of these GPUs."""
        return tuple([self.gpus[place] for place in places_of(mask)])

    def _grown(self, first: int, places: Sequence[int], size: int, ranks: Sequence[float]) -> int:
        links = self._links
        reach = {place: links[place][first] for place in places if place != first}  # the slowest link to the group
        group = 1 << first
        for _ in range(size - 1):
            most = max(reach.values())
            nearest = [place for place, link in reach.items() if link == most]
            place = min(nearest, key=ranks.__getitem__) if ranks else nearest[0]
            del reach[place]
            group |= 1 << place
            of_place = links[place]
            for other, link in reach.items():
                if of_place[other] < link:
                    reach[other] = of_place[other]
        return group

    def _groups(self) -> tuple[int, ...]:
        """Sets of two GPUs and more, not all, that are nearer to each other than to the rest: those joined by links of
        at least some bandwidth, and those of one NUMA node."""
        everything = (1 << len(self.gpus)) - 1
        found = set()
        for least in {link for row in self._links for link in row}:
            found.update(self._joined(everything, least))
        numa = self.topology.numa
        for node in {node for node in numa if node >= 0}:
            found.add(sum(1 << place for place, of in enumerate(numa) if of == node))
        return tuple(sorted(mask for mask in found if mask.bit_count() > 1 and mask != everything))

    def _joined(self, among: int, least: float) -> list[int]:
        """The parts that are connected by links of at least that bandwidth."""
        parts, left = [], among
        while left:
            part, edge = 0, left & -left
            while edge:
                part |= edge
                nexts = 0
                for place in places_of(edge):
                    nexts |= self._with(place, least)
                edge = nexts & among & ~part
            parts.append(part)
            left &= ~part
        return parts

    def _with(self, place: int, least: float) -> int:
        return sum(1 << other for other, link in enumerate(self._links[place]) if link >= least and other != place)

    def _ring(self, places: Sequence[int]) -> float:
        if len(places) < 2:
            return UNBOUNDED
        links = self._links
        if len(places) <= 3:
            return min(links[one][other] for one, other in combinations(places, 2))
        levels = sorted({links[one][other] for one, other in combinations(places, 2)}, reverse=True)
        return next(least for least in levels if self._is_ring(places, least))

    def _is_ring(self, places: Sequence[int], least: float) -> bool:
        """Return True if a ring through these GPUs has only links of at least that bandwidth."""
        among = sum(1 << place for place in places)
        nexts = {place: self._with(place, least) & among for place in places}
        if any(of.bit_count() < 2 for of in nexts.values()) or len(self._joined(among, least)) > 1:
            return False
        if len(places) > RING_MAX or all(2 * of.bit_count() >= len(places) for of in nexts.values()):
            return True  # Dirac: where each has links to half of the others there is a ring
        first = 1 << places[0]
        ends = {first: first}  # by the GPUs of a path from the first one: those at which such a path can end
        for _ in range(len(places) - 1):
            longer: dict[int, int] = {}
            for path, last in ends.items():
                for place in places_of(last):
                    for following in places_of(nexts[place] & ~path):
                        bit = 1 << following
                        longer[path | bit] = longer.get(path | bit, 0) | bit
            ends = longer
        return bool(ends.get(among, 0) & nexts[places[0]])


@lru_cache(maxsize=256)
def _near_of(topology: Topology) -> Near:
    return Near(topology)


def near_of(capacity: Capacity) -> Near | None:
    """The links of the node's GPUs; None if all of them are equally near, or their topology is not known."""
    topology = capacity.topology
    if topology is None or topology.gpus != tuple(sorted(gpu.index for gpu in capacity.gpus)):
        return None
    near = _near_of(topology)
    return None if near.is_flat else near


def bandwidth_of(link: str) -> float:
    """GB/s each way of a link by its name."""
    return NVLINK * int(link[2:]) if link.startswith("NV") else BANDWIDTHS[link]


def locality_of(bandwidth: float, penalty: float) -> float:
    """The factor by which a gang takes longer that communicates at this bandwidth, if `penalty` is the factor across
    nodes."""
    return 1.0 + (penalty - 1.0) * part_of(bandwidth)


def part_of(bandwidth: float) -> float:
    """The part of the locality penalty that a gang pays which communicates at this bandwidth, 0 to 1."""
    return min(1.0, NETWORK / bandwidth)


def spread_within(near: Near | None, gpus: Collection[int]) -> float:
    """The part of the locality penalty that a gang pays on these GPUs of one node. `near`: the node's links, None if
    they are not known or all alike."""
    return 0.0 if near is None or len(gpus) < 2 else part_of(near.bandwidth(near.mask(gpus)))


def places_of(mask: int) -> list[int]:
    places = []
    while mask:
        low = mask & -mask
        places.append(low.bit_length() - 1)
        mask ^= low
    return places
