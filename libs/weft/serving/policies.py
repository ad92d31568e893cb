"""Weft's autoscaler by name: `weft`, and `weft-quick` for a demonstration."""

from collections.abc import Mapping

from weft.serving.autoscaler import PredictiveAutoscaler
from weft.serving.forecast import DAY_SECONDS
from weft.serving.loads import Autoscaler, Goal
from weft.serving.rules import ScalingRules

QUICK = ScalingRules(
    window=6.0,
    variation_samples=20.0,
    bursts=(1.0, 2.0, 4.0),
    reserve=0.0,
    hold_least=4.0,
    hold_most=10.0,
    hold_starts=1.0,
    down_every=1.0,
    regret=3.0,
    alarm_window=3.0,
    remembered=5.0,
    fresh=5.0,
)
"""Forgets within seconds what `weft` remembers for minutes: for a demonstration, whose day lasts half a minute."""
OURS: Mapping[str, ScalingRules] = {"weft": ScalingRules(), "weft-quick": QUICK}


def autoscaler(name: str, goal: Goal, *, at: float, start: float | None = None, day: float = DAY_SECONDS) -> Autoscaler:
    """A new rule of that name for one service; times are seconds on one clock. `start`: known start time of its
    replicas; `day`: seconds after which load repeats. Raises ValueError for an unknown name."""
    if name not in OURS:
        raise ValueError(f"there is no autoscaler {name}, there are {', '.join(OURS)}")
    return PredictiveAutoscaler(goal, at=at, rules=OURS[name], start=start, day=day)
