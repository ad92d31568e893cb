"""No backfill: no job overtakes one that does not fit."""

from collections.abc import Callable, Sequence

from weft.planning.backfill import Ending


class NoBackfill:
    def __init__(self, *, now: float, free: int, endings: Callable[[], Sequence[Ending]]) -> None:
        del now, free, endings  # not used

    def may_start(self, gpus: float, lasts_s: float | None) -> bool:
        del gpus, lasts_s
        return True

    def started(self, gpus: float, lasts_s: float | None) -> None: ...

    def blocked(self, gpus: float, lasts_s: float | None) -> bool:
        del gpus, lasts_s
        return False
