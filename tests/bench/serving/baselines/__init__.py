"""The baselines of Weft's autoscaler: itself without one of its parts, and the rules of others, with their
constants."""

from collections.abc import Callable, Mapping

from tests.bench.serving.baselines.dstack import Dstack
from tests.bench.serving.baselines.dynamo import Dynamo
from tests.bench.serving.baselines.fixed import Fixed
from tests.bench.serving.baselines.hpa import Hpa
from tests.bench.serving.baselines.knative import Knative
from tests.bench.serving.baselines.ray import Ray
from weft.serving.autoscaler import PredictiveAutoscaler
from weft.serving.forecast import DAY_SECONDS
from weft.serving.loads import Autoscaler, Goal
from weft.serving.policies import OURS
from weft.serving.rules import ScalingRules

OTHERS: Mapping[str, Callable[[Goal, float], Autoscaler]] = {
    "knative": Knative,
    "ray": Ray,
    "dynamo": Dynamo,
    "dstack": Dstack,
    "hpa": Hpa,
    "fixed": Fixed,
}
WITHOUT: Mapping[str, ScalingRules] = {
    "weft-without-shares": ScalingRules(shares=False),
    "weft-without-forecast": ScalingRules(forecasts=False),
    "weft-without-bursts": ScalingRules(sees_bursts=False),
    "weft-without-reserve": ScalingRules(reserve=0.0),
    "weft-without-alarm": ScalingRules(alarms=False),
}
WEFTS: Mapping[str, ScalingRules] = {**OURS, **WITHOUT}
NAMES = (*WEFTS, *OTHERS)


def compared(name: str, goal: Goal, *, at: float, start: float | None = None, day: float = DAY_SECONDS) -> Autoscaler:
    """As `weft.serving.policies.autoscaler`, with every name of NAMES."""
    if name in OTHERS:
        return OTHERS[name](goal, at)
    return PredictiveAutoscaler(goal, at=at, rules=WEFTS[name], start=start, day=day)
