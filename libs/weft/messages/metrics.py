"""The metrics of a job, as the gateway shows them."""

from typing import Annotated

from msgspec import Meta, Struct

POINTS_MAX = 10_000

Values = Annotated[
    tuple[float | None, ...], Meta(description="A value for each point, oldest first; null: that report had none.")
]


class MetricsView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The numbers that one rank reported. Point `n` of each list was read at `at[n]`, in seconds since 1970; `step` is
    a series like the others.

    `points`: how many the nodes have; fewer may be shown. A node thins the older ones: the last thousand are whole.
    `missing`: epochs whose node does not answer.
    """

    rank: int
    points: int
    at: tuple[float, ...] = ()
    series: dict[str, Values] = {}
    missing: tuple[int, ...] = ()

    def last(self, name: str) -> float | None:
        """The newest value of a series; None if there is none."""
        return next((value for value in reversed(self.series.get(name, ())) if value is not None), None)
