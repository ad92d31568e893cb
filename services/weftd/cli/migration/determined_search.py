"""A search of Determined as a sweep: the values it searches, how many of them it tries, and when it stops early."""

import math
import re
from collections.abc import Mapping
from typing import Any, TypeGuard

from weft.domain.arrays import ELEMENTS_MAX
from weft.domain.sweeps import SWEEP_NAME_PATTERN
from weftd.cli.migration.written import Remark

_ASHA = ("adaptive_asha", "async_halving", "sync_halving")
_SEARCHES = ("grid", "random", *_ASHA)
_DIVISOR, _RUNGS = 4, 5  # Determined's defaults for `divisor` and `max_rungs`
_POWER_MAX = 300  # of ten


class _NoValueError(ValueError):
    """The expected form of a hyperparameter, as a sentence."""


def searched(
    parameters: Mapping[str, Mapping[str, Any]], searcher: object, seed: object, remarks: list[Remark]
) -> dict[str, Any]:
    """Fields of the job: `sweep`, `sample`, `array`, `early_stop`. `parameters`: those that are searched for."""
    given = searcher if isinstance(searcher, Mapping) else {}
    name = given.get("name")
    if name not in _SEARCHES or not parameters:
        remarks += [
            _remark(one, "is searched for: a sweep gives each job a value, docs/arrays.md") for one in parameters
        ]
        if name not in (None, "single"):
            remarks.append(Remark("searcher", f"{str(name)[:60]} is a sweep here: docs/arrays.md"))
        elif "max_length" in given:
            remarks.append(Remark("searcher.max_length", "give the command how long it trains"))
        return {}
    sweep: dict[str, Any] = {}
    for one, wanted in parameters.items():
        try:
            sweep[_named(one)] = _grid(wanted) if name == "grid" else _span(wanted)
        except _NoValueError as error:
            remarks.append(_remark(one, str(error)))
    if not sweep:
        return {}
    spec: dict[str, Any] = {"sweep": sweep}
    if name != "grid":
        spec["sample"] = {"count": _count(given, remarks)} | ({"seed": seed} if _whole(seed, 0, 2**53 - 1) else {})
    if _whole(at_once := given.get("max_concurrent_trials"), 1, 999_999):
        spec["array"] = f"%{at_once}"
    if name in _ASHA:
        spec |= _early_stop(given, remarks)
    text = "each job has its values in WEFT_SWEEP_… and for {name} in the command: give them to the program"
    remarks.append(Remark("hyperparameters", text))
    return spec


def _named(name: str) -> str:
    if not re.match(SWEEP_NAME_PATTERN, name):
        raise _NoValueError("is no name of a variable: name it in sweep")
    return name


def _count(given: Mapping[str, Any], remarks: list[Remark]) -> int:
    count = given.get("max_trials")
    if _whole(count, 1, ELEMENTS_MAX):
        return count
    remarks.append(Remark("searcher.max_trials", f"expected a whole number from 1 to {ELEMENTS_MAX}: sample has 1"))
    return 1


def _early_stop(given: Mapping[str, Any], remarks: list[Remark]) -> dict[str, Any]:
    """The first comparison comes after the same part of the longest training as there."""
    metric, length = given.get("metric"), given.get("max_length", given.get("max_time"))
    if isinstance(length, Mapping) and len(length) == 1:
        length = next(iter(length.values()))
    if not (isinstance(metric, str) and 1 <= len(metric) <= 64 and _whole(length, 1, 2**53)):
        sentence = "say early_stop, with its metric and the step of its first comparison: docs/arrays.md"
        remarks.append(Remark("searcher", sentence))
        return {}
    divisor, max_rungs = given.get("divisor"), given.get("max_rungs")
    factor = divisor if _whole(divisor, 2, 100) else _DIVISOR
    rungs = max_rungs if _whole(max_rungs, 1, 50) else _RUNGS
    remarks.append(Remark("searcher", "early_stop counts the steps that the program reports: docs/arrays.md"))
    found: dict[str, Any] = {"metric": metric, "after": max(1, length // factor ** (rungs - 1)), "factor": factor}
    if given.get("smaller_is_better") is False:
        found["goal"] = "max"
    return {"early_stop": found}


def _span(wanted: Mapping[str, Any]) -> Any:
    """The range that values are drawn from."""
    kind = wanted.get("type")
    if kind == "categorical":
        return _listed(wanted)
    least, most = _ends(wanted)
    if least == most:
        return [least]
    if kind == "int":
        if math.ceil(least) > math.floor(most):
            raise _NoValueError("has no whole number between its minval and maxval")
        return f"{math.ceil(least)}..{math.floor(most)}"
    if kind == "log":
        low, high = sorted(_powers(wanted, least, most))  # a base below 1 turns them round
        return {"min": low, "max": high, "log": True}
    return {"min": least, "max": most}


def _grid(wanted: Mapping[str, Any]) -> Any:
    """All values, as many as `count` says and as far from each other."""
    kind = wanted.get("type")
    if kind == "categorical":
        return _listed(wanted)
    least, most = _ends(wanted)
    count = wanted.get("count")
    if count is None and kind == "int":
        return _span(wanted)
    if not _whole(count, 1, ELEMENTS_MAX):
        raise _NoValueError(f"expected a count from 1 to {ELEMENTS_MAX}")
    steps = [least + (most - least) * place / max(1, count - 1) for place in range(count)]
    if kind == "int":
        return list(dict.fromkeys(round(step) for step in steps))
    if kind == "log":
        low, _ = _powers(wanted, least, most)
        return [low * _base(wanted) ** (step - least) for step in steps]
    return steps


def _listed(wanted: Mapping[str, Any]) -> list[Any]:
    values = wanted.get("vals")
    if (
        not isinstance(values, list)
        or not values
        or not all(isinstance(value, bool | int | float | str) for value in values)
    ):
        raise _NoValueError("expected vals, a list of numbers and texts")
    return values


def _ends(wanted: Mapping[str, Any]) -> tuple[float, float]:
    least, most = wanted.get("minval"), wanted.get("maxval")
    known = wanted.get("type") in ("int", "double", "log")
    if not (known and _number(least) and _number(most) and least <= most):
        raise _NoValueError("expected a type of Determined, with minval and maxval or vals")
    return least, most


def _powers(wanted: Mapping[str, Any], least: float, most: float) -> tuple[float, float]:
    base = _base(wanted)
    if max(abs(least), abs(most)) * abs(math.log10(base)) > _POWER_MAX:
        raise _NoValueError("its powers are too large")
    return base**least, base**most


def _base(wanted: Mapping[str, Any]) -> float:
    base = wanted.get("base", 10)
    if not _number(base) or not 0 < base < 1e6:
        raise _NoValueError("expected a base above 0")
    return float(base)


def _number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15


def _whole(value: object, least: int, most: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _remark(name: str, sentence: str) -> Remark:
    return Remark(f"hyperparameters.{name}"[:200], sentence)
