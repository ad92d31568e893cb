"""The clusters and workloads that are compared on, by name: each process makes them anew, and the same."""

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from random import Random
from statistics import median

from tests.support.data import ROOT
from tests.support.measured_runs import MeasuredRuns, artifact_profile, cluster_profile, read_runs
from weft.profiles import read_profile, scores_for
from weft.simulator import traces
from weft.simulator.model import Cluster
from weft.simulator.workload import Workload
from weftd.cli.study.simulation.inputs import scaled

NODES, GPUS_PER_NODE = 16, 4
PHILLY_GPUS_PER_NODE = 8

SEED_42, MENDED, ONE_SLOW, FLAT = "seed 42", "seed 42, its slow GPU typical", "its slow GPU alone", "no variability"
DRAWS = ("draw 7", "draw 8")
HONEST = ("longhorn 1", "longhorn 2", "frontera 1", "frontera 2")

FILES: Mapping[str, Mapping[str, str]] = {  # as in profiles.json: class C has no file of its own
    "longhorn": {
        "A": "longhorn-v100/resnet-longhorn-agg.csv",
        "B": "longhorn-v100/bert-longhorn-agg.csv",
        "C": "longhorn-v100/bert-longhorn-agg.csv",
        "D": "longhorn-v100/pagerank-longhorn-agg.csv",
    },
    "frontera": {
        "A": "frontera-rtx5000/frontera-resnet-agg.csv",
        "B": "frontera-rtx5000/frontera-bert-agg.csv",
        "C": "frontera-rtx5000/frontera-bert-agg.csv",
        "D": "frontera-rtx5000/frontera-pagerank-agg.csv",
    },
}


def data() -> Path:
    return ROOT / os.environ.get("WEFT_DATA", "../shared/data")


# workloads


def sia(number: str) -> str:
    return f"sia {number}"


def philly(jobs: int, load: float, gpus: int) -> str:
    return f"philly {jobs} {load} {gpus}"


@cache
def workload(name: str) -> Workload:
    kind, *rest = name.split()
    if kind == "sia":
        return traces.read(data() / f"traces/sia-philly/workload-{rest[0]}.csv")
    jobs, load, gpus = rest
    first = traces.read(data() / "traces/philly/philly.csv", jobs=int(jobs))
    return scaled(first, float(load), int(gpus))


# clusters


@cache
def cluster(name: str) -> Cluster:
    """64 GPUs, but for `philly N`: N GPUs, 8 a node, each with the median run of a GPU of Longhorn."""
    kind, _, number = name.rpartition(" ")
    match kind:
        case "draw":
            return _cluster(scores_for(artifact_profile(runs("longhorn"), _GPUS, Random(int(number))), *_SIZE))
        case "longhorn" | "frontera":
            dice = Random(int(number))
            return _cluster(scores_for(cluster_profile(runs(kind), **_SHAPE, dice=dice), *_SIZE))
        case "drifting":
            return _drifting(Random(int(number)))
        case "philly":
            return _of_philly(int(number))
        case _:
            return _cluster(_of_seed_42(name))


_GPUS, _SIZE = NODES * GPUS_PER_NODE, (NODES, GPUS_PER_NODE)
_SHAPE = {"nodes": NODES, "gpus_per_node": GPUS_PER_NODE}


@cache
def runs(machine: str) -> dict[str, MeasuredRuns]:
    return {name: read_runs(data() / "variability" / file) for name, file in FILES[machine].items()}


def _cluster(scores: Mapping[str, tuple[float, ...]]) -> Cluster:
    return Cluster(nodes=NODES, gpus_per_node=GPUS_PER_NODE, scores=scores)


def _of_seed_42(name: str) -> dict[str, tuple[float, ...]]:
    drawn = scores_for(read_profile(data() / "variability/perfvar_256gpu_seed42.csv"), *_SIZE)
    slow = slowest_gpu(drawn["A"])
    match name:
        case "seed 42":
            return drawn
        case "seed 42, its slow GPU typical":
            return drawn | {"A": _with(drawn["A"], slow, 1.0)}
        case "its slow GPU alone":
            typical = dict.fromkeys(drawn, (1.0,) * _GPUS)
            return typical | {"A": _with(typical["A"], slow, drawn["A"][slow])}
        case "no variability":
            return {}
        case _:
            raise ValueError(f"no such cluster: {name}")


def slowest_gpu(scores: tuple[float, ...]) -> int:
    return scores.index(max(scores))


def _with(scores: tuple[float, ...], gpu: int, score: float) -> tuple[float, ...]:
    return (*scores[:gpu], score, *scores[gpu + 1 :])


def _drifting(dice: Random) -> Cluster:
    """Each GPU has all runs of one that was measured at least twice, by class."""
    measured: dict[str, tuple[tuple[float, ...], ...]] = {}
    for name, found in runs("longhorn").items():
        often = [times for times in found.by_gpu.values() if len(times) > 1]
        measured[name] = tuple(dice.choice(often) for _ in range(_GPUS))
    scores = {name: tuple(median(times) for times in gpus) for name, gpus in measured.items()}
    return Cluster(nodes=NODES, gpus_per_node=GPUS_PER_NODE, scores=scores, runs=measured)


def _of_philly(gpus: int) -> Cluster:
    """Two nodes of Longhorn make one; in a cluster larger than Longhorn its nodes are there several times."""
    nodes = gpus // PHILLY_GPUS_PER_NODE
    only_class = {"A": runs("longhorn")["A"]}  # that all jobs of Philly count as
    profile = cluster_profile(only_class, nodes=gpus // GPUS_PER_NODE, gpus_per_node=GPUS_PER_NODE, dice=Random(1))
    return Cluster(
        nodes=nodes,
        gpus_per_node=PHILLY_GPUS_PER_NODE,
        scores=scores_for(profile, nodes, PHILLY_GPUS_PER_NODE),
    )
