"""The partition planners by name, each with the times at which it plans."""

from libs.planning.partition import Rules
from libs.planning.partition.named import PARTITIONERS
from libs.simulator.sizing import Partitioning


def partitioning_of(name: str, rules: Rules | None = None, *, label: str = "") -> Partitioning:
    """`dorm` plans whenever an application comes or ends and at no other time, and resizes as often as it likes, as
    published; the others keep the defaults of `Partitioning`. Raises ValueError for an unknown name."""
    planner = PARTITIONERS.get(name)
    if planner is None:
        raise ValueError(f"partition: no such planner as {name!r}; there are {', '.join(PARTITIONERS)}")
    made = Partitioning(name=label or name, planner=planner, rules=rules or Rules())
    if name != "dorm":
        return made
    return Partitioning(
        name=made.name,
        planner=planner,
        rules=made.rules,
        every_s=0.0,
        at_most_s=0.0,
        cooldown_s=0.0,
        cooldown_restarts=0.0,
        exact=True,
    )
