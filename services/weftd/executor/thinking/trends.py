"""Signs of sickness of one GPU that a single sample does not show: they last, they grow, or they compare with before.

Each compares with what this executor has seen of the GPU since it started, so a GPU that was never better has no sign.
"""

from collections import deque

from msgspec import Struct, field

from weft.health.catalogue import (
    ECC_CORRECTED,
    HOT,
    LINKS_DOWN,
    MEMORY_HELD,
    PCIE_REPLAYS,
    PCIE_SLOW,
    ROWS_REMAPPED,
    THROTTLED,
)
from weft.messages.signals import GpuSample

MINUTE, HOUR = 60.0, 3600.0
BINS, BINS_BAD = 10, 6  # a GPU is throttled if it was slowed down in 6 of the last 10 minutes
GAP_SECONDS_MAX = 30.0  # after a longer time without a sample nothing counts as lasting
MARGIN_CELSIUS, HOT_SECONDS = 2.0, 300.0  # below the temperature at which the GPU slows down
CORRECTED_PER_HOUR, CORRECTED_MAX = 1_000, 10_000_000
ROWS_MAX = 512
BUSY, PCIE_SECONDS, REPLAYS_PER_MINUTE = 0.5, 120.0, 100
LINK_SECONDS = 60.0
HELD_BYTES, HELD_SECONDS = 512 << 20, 50.0
_SLOWED = frozenset({"hw-slowdown", "hw-thermal-slowdown", "hw-power-brake"})


class _Count(Struct):
    """A count that only grows, as it was at the start of the present and of the last stretch of time."""

    first: int
    began: float
    start: int
    grew: int = 0  # in the last whole stretch

    def growth(self, count: int, now: float, stretch: float) -> int:
        """By how much it grew in this stretch so far, or in the whole one before if that is more."""
        if count < self.start:  # the driver counts again from 0
            self.first, self.start, self.began, self.grew = count, count, now, 0
        if now - self.began >= stretch:
            fresh = now - self.began < 2 * stretch
            self.grew, self.start, self.began = (count - self.start if fresh else 0), count, now
        return max(self.grew, count - self.start)


class GpuTrends(Struct):
    """`see` takes each sample in order. Times are of a clock that does not jump, `at` is the time of day."""

    slowed: deque[int] = field(default_factory=lambda: deque(maxlen=BINS))
    seen_at: float | None = None
    since: dict[str, float] = {}
    corrected: _Count | None = None
    replays: _Count | None = None
    width: int = 0
    generation: int = 0
    links: int = 0
    free_bytes: int | None = None  # its memory in use before a run held it last

    def see(self, gpu: GpuSample, *, at: float, now: float, held: bool) -> dict[str, float]:
        """The signs that are there now, each with its number. `held`: a run has the GPU."""
        if self.seen_at is None or now - self.seen_at > GAP_SECONDS_MAX:
            self.since.clear()
        self.seen_at = now
        found = {
            THROTTLED: float(self._throttled(gpu, at)),
            HOT: self._hot(gpu, now),
            ECC_CORRECTED: self._corrected(gpu, now),
            ROWS_REMAPPED: _beyond(gpu.rows_remapped_uncorrected or 0, ROWS_MAX),
            PCIE_SLOW: self._slow_link(gpu, now),
            PCIE_REPLAYS: self._replays(gpu, now),
            LINKS_DOWN: self._links_down(gpu, now),
            MEMORY_HELD: self._held(gpu, now, held=held),
        }
        return {name: number for name, number in found.items() if number}

    def _lasts(self, name: str, now: float, seconds: float, *, so: bool) -> bool:
        if not so:
            self.since.pop(name, None)
            return False
        return now - self.since.setdefault(name, now) >= seconds

    def _throttled(self, gpu: GpuSample, at: float) -> bool:
        minute = int(at // MINUTE)
        if _SLOWED.intersection(gpu.clock_events) and (not self.slowed or self.slowed[-1] < minute):
            self.slowed.append(minute)
        return sum(minute - BINS < each <= minute for each in self.slowed) >= BINS_BAD

    def _hot(self, gpu: GpuSample, now: float) -> float:
        known = gpu.temperature is not None and gpu.temperature_slowdown is not None
        hot = known and (gpu.temperature or 0.0) >= (gpu.temperature_slowdown or 0.0) - MARGIN_CELSIUS
        return (gpu.temperature or 0.0) if self._lasts(HOT, now, HOT_SECONDS, so=hot) else 0.0

    def _corrected(self, gpu: GpuSample, now: float) -> float:
        count = gpu.ecc_corrected
        if count is None:
            return 0.0
        if self.corrected is None:
            self.corrected = _Count(first=count, began=now, start=count)
        per_hour = self.corrected.growth(count, now, HOUR)
        return _beyond(per_hour, CORRECTED_PER_HOUR) or _beyond(count - self.corrected.first, CORRECTED_MAX)

    def _slow_link(self, gpu: GpuSample, now: float) -> float:
        """An idle link slows down to save power, so only a busy GPU counts."""
        width, generation = gpu.pcie_width or 0, gpu.pcie_generation or 0
        self.width, self.generation = max(self.width, width), max(self.generation, generation)
        known, busy = width > 0 and generation > 0, (gpu.utilisation or 0.0) > BUSY
        slow = known and busy and (width < self.width or generation < self.generation)
        return float(width) if self._lasts(PCIE_SLOW, now, PCIE_SECONDS, so=slow) else 0.0

    def _replays(self, gpu: GpuSample, now: float) -> float:
        count = gpu.pcie_replays
        if count is None:
            return 0.0
        if self.replays is None:
            self.replays = _Count(first=count, began=now, start=count)
        return _beyond(self.replays.growth(count, now, MINUTE), REPLAYS_PER_MINUTE)

    def _links_down(self, gpu: GpuSample, now: float) -> float:
        active = gpu.nvlinks_active
        self.links = max(self.links, active or 0)
        down = active is not None and active < self.links
        return float(self.links - (active or 0)) if self._lasts(LINKS_DOWN, now, LINK_SECONDS, so=down) else 0.0

    def _held(self, gpu: GpuSample, now: float, *, held: bool) -> float:
        """The memory beyond what was in use before a run held the GPU: a screen or another program may use some."""
        used = gpu.memory_used
        if used is None or held:
            self.since.pop(MEMORY_HELD, None)
            return 0.0
        if self.free_bytes is None:
            self.free_bytes = used
        more = used - self.free_bytes
        if more <= HELD_BYTES:
            self.free_bytes = used
        lasts = self._lasts(MEMORY_HELD, now, HELD_SECONDS, so=more > HELD_BYTES)
        return float(more) if lasts else 0.0


def _beyond(number: int, most: int) -> float:
    return float(number) if number > most else 0.0
