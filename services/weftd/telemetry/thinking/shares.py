"""GPU time that a run got of its share, from the counters of its node's arbiter."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct, structs

from weft.domain.shares import WHOLE
from weft.messages.bounds import WHOLE_MAX
from weft.messages.signals import ShareSample
from weft.sharing.records import SlotSeen, SlotShare
from weftd.telemetry.counters import rounded

RunKey = tuple[str, int, int]
"""A run's job, epoch and rank."""

COUNTED_NS: Final = 1_100_000_000  # the arbiter writes what it counted once in this time, unless nothing changed
SILENT_NS: Final = 2_000_000_000  # of an arbiter that did not beat for this long, nothing is known


class ShareReading(Struct, frozen=True, kw_only=True):
    """One slot folder, read at `at_ns`. `seen`: None before the arbiter wrote anything. `beat_ns`: when it last said
    that it serves the slot. All times in ns of CLOCK_MONOTONIC."""

    share: SlotShare
    seen: SlotSeen | None = None
    beat_ns: int | None = None
    at_ns: int = 0
    on_gpu: Mapping[
        int, int | None
    ] = {}  # the run's processes on the GPU by pid, and their memory as its driver counts


class _Rates(Struct, frozen=True):
    """Parts of the GPU's time, 0–1."""

    used: float
    borrowed: float
    lent: float


class _Known(Struct, frozen=True):
    """The last counters of a run, when they were read last, and the rates that they showed, if any did."""

    seen: SlotSeen
    read_ns: int
    rates: _Rates | None = None


class ShareRates:
    """Remembers the last counters of each run. The arbiter writes them when they change, once a second at most: a
    reading that finds the same counters soon after is no sign that the run stopped."""

    def __init__(self) -> None:
        self._known: dict[RunKey, _Known] = {}
        self._outside: dict[RunKey, frozenset[int]] = {}  # at the last reading

    def sampled(self, readings: Mapping[RunKey, ShareReading]) -> dict[RunKey, ShareSample]:
        """A sample of each reading; what is known of other runs is forgotten."""
        known: dict[RunKey, _Known] = {}
        found: dict[RunKey, ShareSample] = {}
        beside: dict[RunKey, frozenset[int]] = {}
        for key, reading in readings.items():
            now = _counted(self._known.get(key), reading)
            if now is not None:
                known[key] = now
            found[key] = _sample(reading, now)
            if now is not None and 0 not in now.seen.pids:  # the arbiter sees which processes these are
                outside = frozenset(reading.on_gpu).difference(now.seen.pids)
                # A process that has just come may not be among those that the arbiter wrote down last.
                lasting = len(outside & self._outside.get(key, frozenset()))
                found[key] = structs.replace(found[key], outside=lasting, uncounted=_uncounted(reading, now.seen))
                beside[key] = outside
        self._known, self._outside = known, beside
        return found


def _counted(before: _Known | None, reading: ShareReading) -> _Known | None:
    """The counters with their rates; None if the arbiter does not serve the slot now."""
    seen, now = reading.seen, reading.at_ns
    if seen is None or reading.beat_ns is None or not 0 <= now - reading.beat_ns < SILENT_NS:
        return None
    if before is None or not before.seen.at_ns <= seen.at_ns <= now:
        return _Known(seen, now)
    if seen.at_ns == before.seen.at_ns:
        still = now - seen.at_ns > 2 * COUNTED_NS
        return _Known(seen, now, _Rates(0.0, 0.0, 0.0) if still else before.rates)
    # Counters that were the same when they were read last had not changed for some time before.
    since = max(before.seen.at_ns, min(before.read_ns, seen.at_ns) - COUNTED_NS)
    return _Known(seen, now, _rates(before.seen, seen, (seen.at_ns - since) / 1e3))


def _rates(before: SlotSeen, after: SlotSeen, microseconds: float) -> _Rates | None:
    """None if the arbiter began to count anew."""
    if microseconds <= 0 or after.device_us < before.device_us or after.turns < before.turns:
        return None

    def part(more: int) -> float:
        return rounded(min(1.0, max(0.0, more / microseconds)))

    return _Rates(
        used=part(after.device_us - before.device_us),
        borrowed=part(after.borrowed_us - before.borrowed_us),
        lent=part(after.lent_us - before.lent_us),
    )


def _sample(reading: ShareReading, known: _Known | None) -> ShareSample:
    share = reading.share
    sample = ShareSample(
        gpu_uuid=share.gpu,
        request=share.request / WHOLE,
        limit=share.limit / WHOLE,
        memory_limit=share.memory or None,
    )
    if known is None:
        return sample
    seen, rates = known.seen, known.rates
    return ShareSample(
        gpu_uuid=sample.gpu_uuid,
        request=sample.request,
        limit=sample.limit,
        memory_limit=sample.memory_limit,
        used=None if rates is None else rates.used,
        borrowed=None if rates is None else rates.borrowed,
        lent=None if rates is None else rates.lent,
        wait_p99_seconds=_count(seen.wait_p99_us) / 1e6 if seen.turns else None,
        memory_used=_count(seen.memory),
        refused=_count(seen.denied),
        overruns=_count(seen.overruns),
        given_up=_count(seen.given_up),
    )


def _uncounted(reading: ShareReading, seen: SlotSeen) -> int | None:
    """None while no process is seen on the GPU, or the driver does not tell the memory of one."""
    told = list(reading.on_gpu.values())
    if not told or None in told:
        return None
    contexts = len(told) * (reading.share.context_mib << 20)
    return _count(sum(each for each in told if each is not None) - contexts - _count(seen.memory))


def _count(number: int) -> int:
    return min(max(0, number), WHOLE_MAX)
