"""How fast the models of GPUs are against each other with one GPU, by class of jobs.

Start values come from the measurements published with Gavel (OSDI '20) and Sia (SOSP '23). Each workload that was
measured on several models adds its own ratios. All of them are fitted together, so that A100 over V100 follows from
A100 over T4 and T4 over V100. Two models that no measurement connects count as equally fast.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, pairwise
from math import exp, log, sqrt

from msgspec import Struct, structs

from weft.messages.signals import Curve

OTHER_CLASS_COUNTS = 0.1  # the weight of a ratio that jobs of another class have, against one of the same class
OWN_COUNTS = 100.0  # the weight of a ratio that jobs of the same workload have, against what is usual for its class
SPEED_LEAST = 0.001
KNOWN_MAX = 4096
RATIOS_MAX = 2000  # the newest workloads that ran on several models
NAME_PARTS = re.compile(r"[a-z0-9]+")
NAME_PARTS_MAX = 3  # of `RTX 2080 Ti`


class ModelRatio(Struct, frozen=True):
    """How many times as fast as `other` a GPU of `model` is for jobs of the class, which is empty if unknown."""

    job_class: str
    model: str
    other: str
    times: float


class WorkloadRatios(Struct, frozen=True, kw_only=True):
    """The ratios between models that the jobs of a workload have shown."""

    workload: str
    ratios: tuple[ModelRatio, ...]


# The medians of ResNet and CycleGAN (compute) and of Transformer and LM (mixed) on K80, P100 and V100; and those of
# cifar10, imagenet and yolov3 (compute) and of bert and deepspeech2 (mixed) on T4, RTX2080Ti and A100. The times of
# Gavel's Recommendation depend on its input more than on the GPU, so memory has no values of its own.
STARTING = (
    ModelRatio("compute", "p100", "k80", 4.6),
    ModelRatio("compute", "v100", "k80", 6.8),
    ModelRatio("mixed", "p100", "k80", 3.1),
    ModelRatio("mixed", "v100", "k80", 3.9),
    ModelRatio("compute", "rtx2080ti", "t4", 2.0),
    ModelRatio("compute", "a100", "t4", 4.4),
    ModelRatio("mixed", "rtx2080ti", "t4", 1.8),
    ModelRatio("mixed", "a100", "t4", 4.4),
)


def relative_speeds(models: Iterable[str], job_class: str, measured: Sequence[ModelRatio] = ()) -> dict[str, float]:
    """The speed of one GPU of each model for jobs of that class, in any unit. `measured`: beside the start values."""
    names = sorted(set(models))
    known = [*_starting(names), *measured]
    return _fitted(names, [(it, 1.0 if it.job_class == job_class else OTHER_CLASS_COUNTS) for it in known])


def _fitted(names: Sequence[str], weighted: Iterable[tuple[ModelRatio, float]]) -> dict[str, float]:
    import numpy as np  # the command line has none

    place = {model: at for at, model in enumerate(names)}
    known = [(it, weight) for it, weight in weighted if it.model in place and it.other in place]
    if not known:
        return dict.fromkeys(names, 1.0)
    equations, values = np.zeros((len(known), len(names))), np.zeros(len(known))
    for row, (it, counts) in enumerate(known):
        weight = sqrt(counts)
        equations[row, place[it.model]], equations[row, place[it.other]] = weight, -weight
        values[row] = weight * log(it.times)
    logarithms = np.linalg.lstsq(equations, values, rcond=None)[0]
    return {model: exp(logarithms[at]) for model, at in place.items()}


class ModelSpeeds:
    """How fast a GPU of each model is for jobs of a class or, where that was measured, of a workload. `classes`: by
    workload."""

    def __init__(self, ratios: Iterable[WorkloadRatios] = (), classes: Mapping[str, str] | None = None) -> None:
        self._own = {one.workload: one.ratios for one in ratios}
        classes = classes or {}
        self._all = [
            structs.replace(it, job_class=classes.get(workload, ""))
            for workload, shown in self._own.items()
            for it in shown
        ]
        self._known: dict[tuple[frozenset[str], str, str], Mapping[str, float]] = {}

    def __getstate__(self) -> dict[str, object]:
        """The state without what is derived from the rest when needed."""
        return {**self.__dict__, "_known": {}}

    def of(self, models: frozenset[str], job_class: str, workload: str) -> Mapping[str, float]:
        """By model, its speed in parts of that of the fastest; empty if all are equally fast."""
        key = (models, job_class, workload if workload in self._own else "")
        if key not in self._known:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[key] = self._found(sorted(models), job_class, self._own.get(workload, ()))
        return self._known[key]

    def _found(self, models: Sequence[str], job_class: str, own: Iterable[ModelRatio]) -> Mapping[str, float]:
        speeds = relative_speeds(models, job_class, self._all)
        usual = [ModelRatio(job_class, one, other, speeds[one] / speeds[other]) for other, one in pairwise(models)]
        speeds = _fitted(models, [*((it, 1.0) for it in usual), *((it, OWN_COUNTS) for it in own)])
        fastest = max(speeds.values(), default=1.0)
        parts = {model: max(SPEED_LEAST, round(speed / fastest, 3)) for model, speed in speeds.items()}
        return parts if min(parts.values(), default=1.0) < 1.0 else {}


def ratios_in(curve: Curve, job_class: str) -> list[ModelRatio]:
    """The ratios that a workload showed: of each two models, with the fewest replicas that ran on both."""
    by_model: dict[str, dict[int, float]] = {}
    for point in curve.points:
        if point.model and point.speed > 0:
            of_model = by_model.setdefault(point.model, {})
            of_model[point.replicas] = max(point.speed, of_model.get(point.replicas, 0.0))
    found: list[ModelRatio] = []
    for other, model in combinations(sorted(by_model), 2):
        if both := by_model[other].keys() & by_model[model].keys():
            times = by_model[model][min(both)] / by_model[other][min(both)]
            found.append(ModelRatio(job_class, model, other, times))
    return found


def ratios_of(curves: Iterable[Curve]) -> list[WorkloadRatios]:
    """The ratios that workloads showed, by their curves; without those that showed none."""
    shown = [(curve.subject.removeprefix("workload:"), tuple(ratios_in(curve, ""))) for curve in curves]
    return [WorkloadRatios(workload=workload, ratios=ratios) for workload, ratios in shown if ratios]


def _starting(names: Iterable[str]) -> list[ModelRatio]:
    """The start values under the names that the pool has for these models."""
    by_key: Mapping[str, list[str]] = {key: [] for it in STARTING for key in (it.model, it.other)}
    for name in names:
        for key in _keys(name) & by_key.keys():
            by_key[key].append(name)
    return [
        ModelRatio(it.job_class, model, other, it.times)
        for it in STARTING
        for model in by_key[it.model]
        for other in by_key[it.other]
    ]


def _keys(name: str) -> set[str]:
    """`nvidia`, `t4`, `nvidiat4` for `NVIDIA T4`: its words, and neighbouring words together."""
    words = NAME_PARTS.findall(name.lower())
    return {"".join(words[at : at + parts]) for at in range(len(words)) for parts in range(1, NAME_PARTS_MAX + 1)}
