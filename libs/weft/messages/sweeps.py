"""The table of a sweep: a row for each element, with its values and what came of them."""

from typing import Annotated

from msgspec import Meta, Struct

from weft.domain.job import Cause, JobState
from weft.domain.spec import MetricGoal

CURVE_POINTS = 40


class SweepRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One element. `values`: by the name in the sweep, in lower case. `last`, `best`: of the metric, if the element
    reported it; `curve`: its values over time. `ended_for`: why it failed, was cancelled or was stopped early."""

    index: int
    id: str
    state: JobState
    values: dict[str, str] = {}
    last: float | None = None
    best: float | None = None
    curve: Annotated[tuple[float, ...], Meta(max_length=CURVE_POINTS)] = ()
    ended_for: Cause | None = None


class SweepView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Rows in the order of their indices. `metric`: empty if no element reported any. `next`: the `after` of the next
    page; 0: there is none."""

    id: str
    name: str
    metric: str = ""
    goal: MetricGoal = MetricGoal.MIN
    rows: tuple[SweepRow, ...] = ()
    next: int = 0

    def best(self) -> SweepRow | None:
        """The row with the best value of the metric; None if there is none."""
        known = [(row.best, -row.index, row) for row in self.rows if row.best is not None]
        pick = min if self.goal is MetricGoal.MIN else max
        return pick(known, key=lambda each: each[0])[2] if known else None
