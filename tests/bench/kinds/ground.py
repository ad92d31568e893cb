"""Sia's cluster (SOSP '23, heterogeneous), its applications, and workloads of its mix: all GPUs are simulated.

How fast an application is on n GPUs of a model was measured by running Sia's public simulator (`sia-kinds.csv`). It
runs on 1, 2, 4 or 8 GPUs in one node, or on whole nodes: between two of these sizes it is no faster than at the smaller
one. A rigid job has the GPUs with which its user submitted it, rounded down to such a size that every model has.
"""

import csv
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random

from msgspec import Struct

from weft.simulator.model import Cluster, NodeGroup
from weft.simulator.workload import Elastic, TraceJob, Workload

CLUSTER = Cluster(
    nodes=11,
    gpus_per_node=8,
    groups=(
        NodeGroup(nodes=6, gpus_per_node=4, model="T4"),
        NodeGroup(nodes=3, gpus_per_node=8, model="RTX2080Ti"),
        NodeGroup(nodes=2, gpus_per_node=8, model="A100"),
    ),
)
SIZE_MOST = 24
RIGID_SIZES = (1, 2, 4, 8, 16)
FIRST_MODEL = "T4"  # the work of a job is measured by the time that it takes alone on one of these
RESTARTS_S = {"cifar10": 50.0, "deepspeech2": 75.0, "bert": 60.0, "yolov3": 80.0, "imagenet": 250.0}
MIX = {"cifar10": 0.80, "deepspeech2": 0.09, "bert": 0.06, "yolov3": 0.02, "imagenet": 0.03}
JOBS, HOURS = 160, 8.0
RATES = (0.6, 0.8, 1.2, 1.6, 1.3, 1.0, 0.8, 0.7)  # arrivals by hour, against the mean

Speeds = Mapping[str, tuple[float, ...]]


class Application(Struct, frozen=True, kw_only=True):
    """`speeds`: by model, with 1, 2, … SIZE_MOST GPUs, in parts of the speed on one T4. `alone_s`: its work there."""

    name: str
    alone_s: float
    speeds: Speeds
    restart_s: float


@cache
def applications(data: Path) -> Mapping[str, Application]:
    hours: dict[str, dict[str, dict[int, float]]] = {}
    with (data / "throughputs/sia-kinds.csv").open() as file:
        for row in csv.DictReader(file):
            of_model = hours.setdefault(row["application"], {}).setdefault(row["gpu_model"], {})
            of_model[int(row["gpus"])] = float(row["hours_alone"])
    return {
        name: Application(
            name=name,
            alone_s=by_model[FIRST_MODEL][1] * 3600,
            speeds={model: _steps(by_model[FIRST_MODEL][1], of_model) for model, of_model in by_model.items()},
            restart_s=RESTARTS_S[name],
        )
        for name, by_model in hours.items()
    }


def _steps(alone: float, hours: Mapping[int, float]) -> tuple[float, ...]:
    sizes = [*sorted(hours), SIZE_MOST + 1]
    return tuple(alone / hours[size] for size, after in pairwise(sizes) for _ in range(size, after))


class _Arrival(Struct, frozen=True):
    """One job as its user submits it."""

    at_s: float
    application: str
    gpus: int


@cache
def _published(data: Path) -> tuple[_Arrival, ...]:
    """The workload of the paper that is published beside its simulator."""
    with (data / "traces/sia-adaptive/philly-1.csv").open() as file:
        rows = [*csv.DictReader(file)]
    return tuple(_Arrival(float(row["time"]), row["application"], int(row["num_replicas"])) for row in rows)


def _generated(data: Path, seed: int) -> tuple[_Arrival, ...]:
    """160 jobs in 8 hours of the paper's mix, with more arrivals in its middle hours; as many GPUs as the published
    jobs of the application have."""
    dice = Random(seed)
    hours = dice.choices(range(len(RATES)), weights=RATES, k=JOBS)
    arrivals = sorted((hour + dice.random()) * HOURS / len(RATES) * 3600 for hour in hours)
    names = dice.choices([*MIX], weights=[*MIX.values()], k=JOBS)
    gpus = {name: [it.gpus for it in _published(data) if it.application == name] for name in MIX}
    return tuple(_Arrival(at, name, dice.choice(gpus[name])) for name, at in zip(names, arrivals, strict=True))


def workload(data: Path, seed: int, *, rigid: bool = False) -> Workload:
    """The published workload with seed 0, else a generated one."""
    apps = applications(data)
    arrivals = _generated(data, seed) if seed else _published(data)
    jobs = tuple(
        _job(apps[it.application], f"{it.application}-{number}", it, rigid=rigid) for number, it in enumerate(arrivals)
    )
    return Workload(name=f"generated-{seed}" if seed else "philly-1", jobs=jobs)


def _job(app: Application, name: str, it: _Arrival, *, rigid: bool) -> TraceJob:
    asked = max(size for size in RIGID_SIZES if size <= it.gpus) if rigid else 1
    least, most = (asked, asked) if rigid else (1, SIZE_MOST)
    by_model = {model: speeds[least - 1 : most] for model, speeds in app.speeds.items()}
    elastic = Elastic(
        asked=asked, least=least, most=most, each=(1.0, 0.0, 0.0), by_model=by_model, resize_s=app.restart_s
    )
    return TraceJob(id=name, arrival_s=it.at_s, gpus=asked, work_s=app.alone_s, model=app.name, elastic=elastic)
