"""Results of benchmarks, GPU by GPU, compared with GPUs of the same conditions. Pure.

One disturbed run must not mark a GPU as slow, and a GPU that turned slow should be known soon: a result far from the
expected one has to be confirmed by another, and until then the faster of the two counts.
"""

from collections.abc import Sequence
from statistics import median, median_low

from msgspec import Struct

from weft.messages.signals import ModelSpeed
from weft.planning.scores import TYPICAL
from weft.samples.benchmark_job import Measured
from weft.samples.benchmark_result import Measurement

RESULTS_KEPT = 3  # of a GPU: the middle one counts
KEPT_SECONDS = 30 * 86400.0  # of a GPU that is gone
MODELS_MAX = 64  # models whose speed nodes are sent
SURPRISE = 0.10  # how far a result may be from the expected one
ALONE = 0.2  # confidence if there are too few GPUs to compare with
UNCONFIRMED = 0.5  # factor on the confidence of an unconfirmed result
REPS_HALF, GROUP_HALF, SPREAD_HALF = 2.0, 0.5, 0.05  # the values that halve the confidence
POWER_ROUND_WATTS = 10.0


class Conditions(Struct, frozen=True, kw_only=True):
    """The conditions that must be the same for two results to be compared."""

    model: str
    driver: str  # its major version
    power: float | None  # limit, in watts, rounded
    emulated: bool

    @classmethod
    def of(cls, *, model: str, driver: str, power: float | None, emulated: bool) -> "Conditions":
        rounded = None if power is None else round(power / POWER_ROUND_WATTS) * POWER_ROUND_WATTS
        return cls(model=model, driver=driver.partition(".")[0], power=rounded, emulated=emulated)

    @classmethod
    def during(cls, result: Measured) -> "Conditions":
        return cls.of(
            model=result.model, driver=result.driver, power=result.power_limit_watts, emulated=result.emulated
        )


class Compared(Struct, frozen=True, kw_only=True):
    """A GPU's time over that of comparable GPUs by class, 1.0 if these are too few; and the confidence."""

    by_class: dict[str, float]
    confidence: dict[str, float]
    at: float
    samples: int


class _Group(Struct, frozen=True):
    """GPUs of the same conditions: their number, and the median times to compute and to move memory."""

    size: int
    compute: float
    memory: float


class Results:
    """The last results of each GPU, by its uuid, all in the conditions of its newest."""

    def __init__(self, *, group_least: int) -> None:
        self._group_least = group_least
        self._results: dict[str, list[Measured]] = {}
        self._conditions: dict[str, Conditions] = {}  # of each GPU's newest
        self._groups: dict[Conditions, _Group] | None = None  # None: to be made anew

    def add(self, result: Measured) -> bool:
        """True if the result is new. Results may come in any order, and more than once."""
        before = self._results.get(result.uuid, [])
        if any(one.job_id == result.job_id for one in before):
            return False
        results = sorted([*before, result], key=lambda one: (one.at, one.job_id))
        conditions = Conditions.during(results[-1])
        results = [one for one in results if Conditions.during(one) == conditions][-RESULTS_KEPT:]
        if results == before:
            return False
        self._results[result.uuid] = results
        self._conditions[result.uuid] = conditions
        self._groups = None
        return True

    def forget(self, *, but: frozenset[str], now: float) -> None:
        """Drop old results of GPUs that are gone."""
        begin = now - KEPT_SECONDS
        old = [uuid for uuid, results in self._results.items() if uuid not in but and results[-1].at < begin]
        for uuid in old:
            del self._results[uuid], self._conditions[uuid]
            self._groups = None

    def newest(self, uuid: str) -> Measured | None:
        results = self._results.get(uuid)
        return results[-1] if results else None

    def conditions(self, uuid: str) -> Conditions | None:
        """The conditions of the newest result."""
        return self._conditions.get(uuid)

    def all_newest(self) -> dict[str, Measured]:
        return {uuid: results[-1] for uuid, results in self._results.items()}

    def lately(self, uuid: str, *, since: float) -> int:
        """How many of the last RESULTS_KEPT are from since then."""
        return sum(one.at >= since for one in self._results.get(uuid, ()))

    def surprising(self, uuid: str) -> bool:
        """Whether the newest result is far from the expected one, by this GPU's earlier results or by comparable GPUs,
        and not yet confirmed."""
        newest, *before = reversed(self._results[uuid])
        if before:
            return all(_far(newest, one.measurement.compute_s) for one in before)
        group = self._group(uuid)
        return group.size >= self._group_least and _far(newest, group.compute)

    def compared(self, uuid: str) -> Compared:
        """The comparison of a GPU that has results."""
        results = self._results[uuid]
        newest = results[-1]
        compute = memory = TYPICAL
        sure_of_compute = sure_of_memory = ALONE
        group = self._group(uuid)
        if group.size >= self._group_least:
            compute, memory = _believed(results)
            compute, memory = compute / group.compute, memory / group.memory
            told = newest.measurement
            sure_of_compute = _confidence(told.reps, told.compute_spread, group.size)
            sure_of_memory = _confidence(told.reps, told.memory_spread, group.size)
            if self.surprising(uuid):
                sure_of_compute, sure_of_memory = sure_of_compute * UNCONFIRMED, sure_of_memory * UNCONFIRMED
                if len(results) == 1:
                    compute, memory = min(compute, TYPICAL), min(memory, TYPICAL)
        return Compared(
            by_class={"compute": compute, "mixed": (compute * memory) ** 0.5, "memory": memory},
            confidence={
                "compute": sure_of_compute,
                "mixed": min(sure_of_compute, sure_of_memory),
                "memory": sure_of_memory,
            },
            at=newest.at,
            samples=len(results),
        )

    def model_speeds(self) -> tuple[ModelSpeed, ...]:
        """How fast GPUs of each model are, where enough were measured."""
        alike: dict[Conditions, list[Measurement]] = {}
        for uuid, results in self._results.items():
            alike.setdefault(self._conditions[uuid], []).append(results[-1].measurement)
        found: dict[tuple[str, bool], ModelSpeed] = {}
        for conditions, measured in alike.items():
            if len(measured) >= self._group_least:
                speed, key = _speed(conditions, measured), (conditions.model, conditions.emulated)
                found[key] = _slower(found[key], speed) if key in found else speed
        return tuple(found[key] for key in sorted(found)[:MODELS_MAX])

    def _group(self, uuid: str) -> _Group:
        if self._groups is None:
            alike: dict[Conditions, list[tuple[float, float]]] = {}
            for other, results in self._results.items():
                alike.setdefault(self._conditions[other], []).append(_believed(results))
            self._groups = {
                conditions: _Group(len(each), median(one[0] for one in each), median(one[1] for one in each))
                for conditions, each in alike.items()
            }
        return self._groups[self._conditions[uuid]]


def _speed(conditions: Conditions, measured: Sequence[Measurement]) -> ModelSpeed:
    ins = [one.copy_in_s for one in measured if one.copy_in_s]
    outs = [one.copy_out_s for one in measured if one.copy_out_s]
    return ModelSpeed(
        model=conditions.model,
        emulated=conditions.emulated,
        gpus=len(measured),
        compute_s=median(one.compute_s for one in measured),
        memory_s=median(one.memory_s for one in measured),
        copy_in_s=median(ins) if ins else None,
        copy_out_s=median(outs) if outs else None,
    )


def _slower(one: ModelSpeed, other: ModelSpeed) -> ModelSpeed:
    return ModelSpeed(
        model=one.model,
        emulated=one.emulated,
        gpus=one.gpus + other.gpus,
        compute_s=max(one.compute_s, other.compute_s),
        memory_s=max(one.memory_s, other.memory_s),
        copy_in_s=max(one.copy_in_s or 0.0, other.copy_in_s or 0.0) or None,
        copy_out_s=max(one.copy_out_s or 0.0, other.copy_out_s or 0.0) or None,
    )


def _believed(results: Sequence[Measured]) -> tuple[float, float]:
    """The times to compute and to move memory: the median result, or the faster of two."""
    return (
        median_low(one.measurement.compute_s for one in results),
        median_low(one.measurement.memory_s for one in results),
    )


def _far(newest: Measured, expected: float) -> bool:
    return abs(newest.measurement.compute_s / expected - 1.0) > SURPRISE


def _confidence(reps: float, spread: float, group: int) -> float:
    """From 0 to 1: more by more repetitions and by more GPUs to compare with, less by a wider spread."""
    return reps / (reps + REPS_HALF) * group / (group + GROUP_HALF) / (1.0 + (spread / SPREAD_HALF) ** 2)
