"""How much longer a GPU takes for a step of a job while another job uses it in its own share, by pairs of classes.

Compared is the GPU's own time for a step, so that waiting for a turn does not count: what is left are caches that the
other has filled, changes from one to the other, and the ends of turns. It is compared with the same work on the same
GPU while all others there are idle, else with that on other GPUs, by their scores. Each workload counts once in a pair.
"""

from collections import OrderedDict, deque
from collections.abc import Collection, Iterator
from statistics import median
from typing import TypeVar

from msgspec import Struct

from weft.domain.classes import JOB_CLASSES
from weft.messages.signals import GpuPace, PairSlowdown
from weft.planning.scores import GpuKey
from weftd.scorer.thinking.references import Alike
from weftd.scorer.thinking.windows import ScoredRun, Unfit

WINDOWS_REMEMBERED = 15  # of one workload in one pair
WORKLOADS_MOST = 200  # in one pair: the latest
KINDS_MOST = 5_000  # of work whose time alone is remembered: the latest
PLACES_MOST = 64  # of one kind: the latest
ALONE_SECONDS_MAX = 3600.0  # an older time alone is of another phase of the job
OTHERS_LEAST = 2  # other GPUs, if the time alone on this one is not known
RATIO_LEAST, RATIO_MOST = 0.5, 5.0  # beyond that it is not the neighbour's doing
HALF_LIFE_SECONDS = 24 * 3600.0
PRIOR_WORKLOADS = 2.0  # that there is no slowdown is worth this many workloads
WINDOWS_SURE = 3  # windows of one workload that count as one workload

K = TypeVar("K")
V = TypeVar("V")

Pair = tuple[str, str]
"""The class of a job, and that of the others on its GPU."""


class _Alone(Struct, frozen=True):
    """The GPU's time for a step, in seconds, on a typical GPU."""

    typical_seconds: float
    at: float


class _Seen(Struct):
    ratios: deque[float]
    at: float


class Interference:
    def __init__(self) -> None:
        self._alone: OrderedDict[Alike, OrderedDict[GpuKey, _Alone]] = OrderedDict()
        self._pairs: dict[Pair, OrderedDict[str, _Seen]] = {}

    def window(self, run: ScoredRun, unfit: Unfit | None, pace: GpuPace, others: Collection[str], now: float) -> None:
        """Take in one window of a run with a share. `others`: the classes of the jobs that used its GPU meanwhile; an
        unknown job's is empty."""
        seconds = run.device_seconds
        if seconds is None:
            return
        kind, place = (pace.workload, pace.alike), (pace.node_id, pace.gpu_index)
        if unfit is None:
            self.alone(kind, place, seconds, score=pace.score, now=now)
        elif unfit is Unfit.BESIDE and len(set(others)) == 1:
            pair = (pace.job_class, next(iter(others)))
            self.beside(kind, place, seconds, score=pace.score, classes=pair, now=now)

    def alone(self, kind: Alike, place: GpuKey, seconds: float, *, score: float, now: float) -> None:
        """Take in the GPU's time for a step while nobody else used it. `score`: of that GPU."""
        places = self._alone.setdefault(kind, OrderedDict())
        self._alone.move_to_end(kind)
        places[place] = _Alone(seconds / score, now)
        places.move_to_end(place)
        _limit(places, PLACES_MOST)
        _limit(self._alone, KINDS_MOST)

    def beside(
        self, kind: Alike, place: GpuKey, seconds: float, *, score: float, classes: Pair, now: float
    ) -> float | None:
        """Take in the GPU's time for a step beside others. Returns how many times longer that is than alone; None if
        that is not known, or cannot be the others' doing."""
        usual = self._typical(kind, place, now)
        ratio = None if usual is None else seconds / (usual * score)
        if ratio is None or not RATIO_LEAST < ratio < RATIO_MOST or not set(classes) <= set(JOB_CLASSES):
            return None
        workloads = self._pairs.setdefault(classes, OrderedDict())
        seen = workloads.setdefault(kind[0], _Seen(deque(maxlen=WINDOWS_REMEMBERED), now))
        seen.ratios.append(ratio)
        seen.at = now
        workloads.move_to_end(kind[0])
        _limit(workloads, WORKLOADS_MOST)
        return ratio

    def learnt(self, now: float) -> Iterator[PairSlowdown]:
        """The slowdown of each pair that was seen, in order."""
        for (job_class, beside), workloads in sorted(self._pairs.items()):
            weight = sum(
                min(1.0, len(seen.ratios) / WINDOWS_SURE) * 0.5 ** (max(0.0, now - seen.at) / HALF_LIFE_SECONDS)
                for seen in workloads.values()
            )
            yield PairSlowdown(
                job_class=job_class,
                beside=beside,
                slowdown=median(median(seen.ratios) for seen in workloads.values()),
                confidence=weight / (weight + PRIOR_WORKLOADS),
                workloads=len(workloads),
                at=now,
            )

    def _typical(self, kind: Alike, place: GpuKey, now: float) -> float | None:
        """The time of a step alone, on a typical GPU."""
        fresh = {
            where: known.typical_seconds
            for where, known in self._alone.get(kind, {}).items()
            if now - known.at <= ALONE_SECONDS_MAX
        }
        if place in fresh:
            return fresh[place]
        return median(fresh.values()) if len(fresh) >= OTHERS_LEAST else None


def _limit(known: OrderedDict[K, V], most: int) -> None:
    """Forget the oldest ones."""
    while len(known) > most:
        known.popitem(last=False)
