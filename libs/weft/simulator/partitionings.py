"""The partition planners by name."""

from weft.planning.partition import Rules
from weft.planning.partition.named import PARTITIONERS
from weft.simulator.sizing import Partitioning


def partitioning_of(name: str, rules: Rules | None = None) -> Partitioning:
    """The planner with the times at which it plans. Raises ValueError for an unknown name."""
    planner = PARTITIONERS.get(name)
    if planner is None:
        raise ValueError(f"partition: no such planner as {name!r}; there are {', '.join(PARTITIONERS)}")
    return Partitioning(name=name, planner=planner, rules=rules or Rules())
