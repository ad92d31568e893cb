"""Sick GPUs in virtual time: each node reports the signs of its GPUs, and each report is judged."""

from msgspec import structs

from weft.domain.cluster import Capacity, Gpu, Node
from weft.domain.health import HealthRecord
from weft.health.pool import PoolBound, judged_node
from weft.health.state import HealthTimes, Reading


def pool(nodes: int, gpus: int) -> list[Node]:
    return [
        Node(
            id=f"node-{number}",
            pool="default",
            address="",
            capacity=Capacity(
                cpus=1,
                memory=1,
                gpus=tuple(Gpu(index=i, uuid=f"{number}-{i}", model="m", memory=1) for i in range(gpus)),
            ),
        )
        for number in range(nodes)
    ]


class SickFleet:
    def __init__(self, nodes: int, gpus: int, times: HealthTimes) -> None:
        self.times = times
        self.nodes = {node.id: node for node in pool(nodes, gpus)}
        self.places = [(node.id, gpu.index) for node in self.nodes.values() for gpu in node.capacity.gpus]
        self.levels: dict[tuple[str, int], set[str]] = {place: set() for place in self.places}
        self.xids: dict[tuple[str, int], dict[str, int]] = {place: {} for place in self.places}
        self.resets = dict.fromkeys(self.places, 0)
        self.now = 0.0
        self.history: list[tuple[HealthRecord, ...]] = []

    def happens(self, place: int, sign: str) -> None:
        where = self.places[place % len(self.places)]
        if sign in ("clear", "reset"):
            self.levels[where].clear()
            self.resets[where] += sign == "reset"
        elif sign.startswith("xid-"):
            counts, number = self.xids[where], sign.removeprefix("xid-")
            counts[number] = counts.get(number, 0) + 1
        elif sign != "driver-hangs":
            self.levels[where].add(sign)

    def report(self, seconds: float) -> None:
        self.now += seconds
        for node in list(self.nodes.values()):
            readings = [
                Reading(
                    node_id=node.id,
                    gpu=gpu.index,
                    uuid=gpu.uuid,
                    xids=dict(self.xids[node.id, gpu.index]),
                    resets=self.resets[node.id, gpu.index],
                    levels=dict.fromkeys(sorted(self.levels[node.id, gpu.index]), 1.0),
                    boot="t",
                    node_boot="b",
                )
                for gpu in node.capacity.gpus
            ]
            bound = PoolBound(self.nodes.values)
            health = judged_node(node.health, readings, self.now, self.times, bound)
            self.nodes[node.id] = structs.replace(node, health=health)
            self.history.append(health)

    @property
    def out(self) -> int:
        return sum(len(node.closed_gpus) for node in self.nodes.values())
