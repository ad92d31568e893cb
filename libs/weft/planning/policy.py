"""A policy: an order, a placement and a backfill, each by its name.

The names are those of the scheduler's settings, of `weft simulate` and of `weft explain`.
"""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from weft.planning.backfill import Backfill, Conservative, Easy, Ending, NoBackfill
from weft.planning.capacity import Placer
from weft.planning.order import DRF, FAIR, FIFO, LAS, PRIORITY, SRTF, Order
from weft.planning.placement.pal import pal
from weft.planning.placement.pm_first import pm_first
from weft.planning.placement.unscored import at_random, packed, spread
from weft.planning.placement.weft_best import weft_best


class Placing(Struct, frozen=True):
    """`moves`: what each decision does with jobs that run already.

    `never`: they stay. `always`: all give back their GPUs and are placed anew (as the PAL artifact does, most sensitive
    class first where `by_class`). `gainful`: one moves when what it gains is more than what the move costs.
    """

    placer: Placer
    moves: str = "never"
    by_class: bool = False


NEVER, ALWAYS, GAINFUL = "never", "always", "gainful"

_ORDERS = {order.name: order for order in (FIFO, SRTF, LAS, DRF, FAIR, PRIORITY)}
_PLACEMENTS: Mapping[str, Placing] = {
    "packed": Placing(packed, ALWAYS),
    "packed-sticky": Placing(packed),
    "random": Placing(at_random),
    "spread": Placing(spread),
    "pm-first": Placing(pm_first, ALWAYS, by_class=True),
    "pal": Placing(pal, ALWAYS, by_class=True),
    "weft-best": Placing(weft_best, GAINFUL),
}

_BACKFILLS: Mapping[str, Callable[..., Backfill]] = {
    "none": NoBackfill,
    "easy": Easy,
    "conservative": Conservative,
}

ORDERS = tuple(_ORDERS)
PLACEMENTS = tuple(_PLACEMENTS)
BACKFILLS = tuple(_BACKFILLS)


class Policy(Struct, frozen=True):
    """Raises ValueError for an unknown name. The defaults are those of the scheduler and of `weft simulate`."""

    order: str = "priority"
    placement: str = "weft-best"
    backfill: str = "easy"

    def __post_init__(self) -> None:
        for field, name, known in (
            ("order", self.order, ORDERS),
            ("placement", self.placement, PLACEMENTS),
            ("backfill", self.backfill, BACKFILLS),
        ):
            if name not in known:
                raise ValueError(f"{field}: no such {field} as {name!r}; there are {', '.join(known)}")

    def __str__(self) -> str:
        return f"{self.order}+{self.placement}+{self.backfill}"

    @property
    def ordering(self) -> Order:
        return _ORDERS[self.order]

    @property
    def placing(self) -> Placing:
        return _PLACEMENTS[self.placement]

    def filling(self, *, now: float, free: int, endings: Callable[[], Sequence[Ending]]) -> Backfill:
        """The backfill for one walk: `free` GPUs at `now`; `endings()`, the soonest first, called if needed."""
        return _BACKFILLS[self.backfill](now=now, free=free, endings=endings)
