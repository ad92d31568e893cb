"""The partition planner by name."""

from weft.planning.partition import Rules
from weft.planning.partition.weft import weft
from weft.simulator.sizing import Partitioning

OURS = "weft"


def partitioning_of(name: str, rules: Rules | None = None) -> Partitioning:
    """The planner with the times at which it plans. Raises ValueError for an unknown name."""
    if name != OURS:
        raise ValueError(f"partition: no such planner as {name!r}; there are {OURS}")
    return Partitioning(name=name, planner=weft, rules=rules or Rules())
