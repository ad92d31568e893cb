"""The typical time of a step, over all GPUs that do the same work, and how one GPU compares to it.

Paces of our own nodes and of other scorers' count alike. Each is converted to a typical GPU by the score of the GPU on
which it was measured: if a workload runs on slow GPUs only, that does not make them typical.
"""

from collections.abc import Iterable, Mapping
from statistics import median

from msgspec import Struct

from weft.messages.signals import GpuPace
from weft.planning.scores import GpuKey

FRESH_SECONDS = 70.0  # the longest window, and the time until its pace comes
RANKS_LEAST = 3
TOLD_MOST = 64  # paces of one kind that a scorer publishes: enough for their median
GPUS_MOST = 65_536
RATIO_MOST = 10.0  # no GPU is this many times slower, or faster, than the typical: such a sample has another cause

Alike = tuple[str, str]
"""A workload, and the other conditions that must be the same for two paces to compare."""


class _Told(Struct):
    """The time on a typical GPU, in seconds, and when it came, by our clock."""

    typical_seconds: float
    heard_at: float


class Paces:
    """The newest pace on each GPU, by the key of paces that compare. A rank counts as one GPU here."""

    def __init__(self) -> None:
        self._by_kind: dict[Alike, dict[GpuKey, _Told]] = {}
        self._typical: dict[Alike, float | None] = {}
        self.count = 0

    def add(self, pace: GpuPace, now: float) -> None:
        kind = (pace.workload, pace.alike)
        places = self._by_kind.setdefault(kind, {})
        place = (pace.node_id, pace.gpu_index)
        if place not in places:
            if self.count >= GPUS_MOST:
                return
            self.count += 1
        places[place] = _Told(pace.step_seconds / pace.score, now)
        self._typical.pop(kind, None)

    def typical(self, kind: Alike) -> float | None:
        """The typical time in seconds; None if there are too few paces."""
        told = self._by_kind.get(kind)
        if told is None:
            return None
        if kind not in self._typical:
            times = [one.typical_seconds for one in told.values()]
            self._typical[kind] = median(times) if len(times) >= RANKS_LEAST else None
        return self._typical[kind]

    def against_typical(self, kind: Alike, step_seconds: float) -> float | None:
        """How many times slower than typical; None if that is not known, or cannot be the GPU's doing."""
        typical = self.typical(kind)
        if typical is None:
            return None
        ratio = step_seconds / typical
        return ratio if 1.0 / RATIO_MOST < ratio < RATIO_MOST else None

    def forget_old(self, now: float) -> None:
        for kind, places in list(self._by_kind.items()):
            old = [place for place, told in places.items() if now - told.heard_at > FRESH_SECONDS]
            for place in old:
                del places[place]
            self.count -= len(old)
            if old:
                self._typical.pop(kind, None)
            if not places:
                del self._by_kind[kind]
                self._typical.pop(kind, None)


def sound(pace: GpuPace) -> bool:
    """True if another scorer's pace makes sense."""
    return 0 < pace.step_seconds < 1e9 and 1.0 / RATIO_MOST < pace.score < RATIO_MOST


ALL_FINE, BLAMED, ONE_OF_MANY = 0.5, 0.5, 0.15
CLOCK_APART = 0.97


def shares(ratio: float, clocks: Mapping[int, float], gpus: Iterable[int], *, fine: float) -> dict[int, float]:
    """The weight, 0–1, of a rank's ratio for each of its GPUs; its time is that of the slowest of them.

    If the slowest is fine, all are. If it is slow, the sample counts for the GPU with the lowest clock, if clocks are
    known and differ; else a little for each.
    """
    held = tuple(gpus)
    if len(held) == 1:
        return {held[0]: 1.0}
    if ratio <= fine:
        return dict.fromkeys(held, ALL_FINE)
    if len(clocks) == len(held):
        slowest, next_one = sorted(held, key=lambda gpu: clocks[gpu])[:2]
        if clocks[slowest] < CLOCK_APART * clocks[next_one]:
            return {slowest: BLAMED}
    return dict.fromkeys(held, ONE_OF_MANY)
