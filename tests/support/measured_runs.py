"""Profiles of clusters drawn from measured runs of single GPUs, as PAL's authors published them."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from random import Random
from statistics import median

from msgspec import Struct

from weft.profiles import Profile, ProfiledGpu, ProfileError, Table

GPUS_PER_NODE = 4  # of the cluster that PAL simulates
UNPLACED = -1  # the node of GPUs without a place in the file


class Seat(Struct, frozen=True, order=True):
    """The place of a GPU: files that name GPUs differently agree on it."""

    cabinet: str
    node: int
    device: int

    @property
    def id(self) -> str:
        return f"{self.cabinet}-{self.node}-{self.device}"


class MeasuredRuns(Struct, frozen=True):
    """Measured runs, each time as a part of the median of all: `normalised` in the order of the file."""

    file: str
    normalised: tuple[float, ...]
    by_gpu: Mapping[Seat, tuple[float, ...]]  # in ascending order of seats

    @property
    def medians(self) -> dict[Seat, float]:
        return {seat: median(runs) for seat, runs in self.by_gpu.items()}

    def nodes(self) -> list[tuple[Seat, ...]]:
        """The GPUs of each node that is known."""
        seats: defaultdict[tuple[str, int], list[Seat]] = defaultdict(list)
        for seat in self.by_gpu:
            if seat.node != UNPLACED:
                seats[seat.cabinet, seat.node].append(seat)
        return [tuple(node) for node in seats.values()]


def cluster_profile(
    runs_by_class: Mapping[str, MeasuredRuns], *, nodes: int, gpus_per_node: int, dice: Random
) -> Profile:
    """A cluster of real nodes, drawn from those in the runs of the first class, each GPU with its median run.

    No node is drawn twice while there are others. A GPU without a run of a class gets the score of any other GPU.
    """
    first = next(iter(runs_by_class.values()))
    candidates = [node[:gpus_per_node] for node in first.nodes() if len(node) >= gpus_per_node]
    if not candidates:
        raise ProfileError(first.file, 0, f"no node in it has {gpus_per_node} GPUs")
    drawn = dice.sample(candidates, min(nodes, len(candidates)))
    drawn += dice.choices(candidates, k=nodes - len(drawn))
    medians = {name: runs.medians for name, runs in runs_by_class.items()}
    others = {name: list(scores.values()) for name, scores in medians.items()}

    def score(name: str, seat: Seat) -> float:
        known = medians[name].get(seat)
        return dice.choice(others[name]) if known is None else known

    profiled = tuple(
        tuple(ProfiledGpu(seat.id, {name: score(name, seat) for name in runs_by_class}) for seat in node)
        for node in drawn
    )
    return Profile(f"{Path(first.file).stem}: medians of {nodes} nodes", profiled)


def artifact_profile(
    runs_by_class: Mapping[str, MeasuredRuns], gpus: int, dice: Random, *, gpus_per_node: int = GPUS_PER_NODE
) -> Profile:
    """The cluster as PAL's published code draws it: every GPU gets any single run of its class, outliers and all."""
    drawn = [
        ProfiledGpu(str(gpu), {name: dice.choice(runs.normalised) for name, runs in runs_by_class.items()})
        for gpu in range(gpus)
    ]
    nodes = tuple(tuple(drawn[begin : begin + gpus_per_node]) for begin in range(0, gpus, gpus_per_node))
    return Profile(f"single runs of {gpus} GPUs", nodes)


def read_runs(path: str | Path) -> MeasuredRuns:
    """A file of single runs with the time of each in its column `perf`, and the seat of the GPU that took it."""
    table = Table(str(path))
    table.either("perf")
    seats = _seats(table)
    times = [table.time(line, "perf", row) for line, row in table.rows]
    typical = median(times)
    normalised = tuple(time / typical for time in times)
    by_gpu: defaultdict[Seat, list[float]] = defaultdict(list)
    for seat, time in zip(seats, normalised, strict=True):
        by_gpu[seat].append(time)
    return MeasuredRuns(table.file, normalised, {seat: tuple(by_gpu[seat]) for seat in sorted(by_gpu)})


def _seats(table: Table) -> list[Seat]:
    for column in ("cabinet", "node"):
        table.either(column)
    if table.either("device", "dev_id") == "dev_id":
        return _seats_by_uuid(table)
    return [
        Seat(row["cabinet"], table.whole(line, "node", row), table.whole(line, "device", row))
        for line, row in table.rows
    ]


def _seats_by_uuid(table: Table) -> list[Seat]:
    """Seats by uuid: `dev_id` is always 0, a job's number for its only GPU, and some rows lack the node."""
    table.either("uuid")
    nodes: dict[str, tuple[str, int]] = {}
    for line, row in table.rows:
        node = (row["cabinet"], table.whole(line, "node", row))
        if nodes.get(row["uuid"], ("", UNPLACED))[1] == UNPLACED:
            nodes[row["uuid"]] = node
    places: Counter[tuple[str, int]] = Counter()
    seats: dict[str, Seat] = {}
    for uuid in sorted(nodes):
        seats[uuid] = Seat(*nodes[uuid], places[nodes[uuid]])
        places[nodes[uuid]] += 1
    return [seats[row["uuid"]] for _, row in table.rows]
