"""A `Source` that plays recorded GPU samples in a loop; each sample names `replayed` as its provider."""

import time
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from libs.domain.cluster import Gpu
from libs.gpus.recording import Recording, load
from libs.gpus.sample import NO_XIDS, Xids
from libs.gpus.source import Samples
from libs.gpus.topology import Near
from libs.messages.signals import GpuSample

_GROWING: Final = ("energy_joules", "power_capped_seconds", "thermal_seconds")
"""Totals: each further round continues from the end of the round before."""


class ReplayedGpus:
    """A `Source` of the recording in `path`, or RecordingError. Processes are left out: a pid means nothing elsewhere.

    Time starts with the first read; one period after the last sample the first one follows again.
    """

    provider: str = "replayed"

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        recording = load(path)
        self.gpus: tuple[Gpu, ...] = recording.header.gpus
        self.near: Near = {(one, other): share for one, other, share in recording.header.near}
        self.recorded_by = recording.header.provider
        self._recording = recording
        self._clock = clock
        self._times = [moment.at for moment in recording.moments]
        self._seconds = self._times[-1] - self._times[0] + recording.header.period
        self._growth = [_growth(recording, place) for place in range(len(self.gpus))]
        self._begun_at: float | None = None
        self._given: Samples = ()

    def xids(self, uuid: str) -> Xids:
        """The XID errors in the last sample of this GPU."""
        return next(((one.xid_errors, one.last_xid) for one in self._given if one.uuid == uuid), NO_XIDS)

    def open(self) -> None:
        """There is nothing to open: the file was read."""

    def read(self) -> Samples:
        now = self._clock()
        if self._begun_at is None:
            self._begun_at = now
        rounds, within = divmod(now - self._begun_at, self._seconds)
        place = bisect_right(self._times, self._times[0] + within) - 1
        samples = self._recording.moments[max(0, place)].samples
        self._given = tuple(
            _replayed(sample, growth, int(rounds)) for sample, growth in zip(samples, self._growth, strict=True)
        )
        return self._given

    def close(self) -> bool:
        return True


def _growth(recording: Recording, place: int) -> dict[str, float]:
    """How much one round adds to each total of one GPU."""
    first, last = recording.moments[0].samples[place], recording.moments[-1].samples[place]
    found = {}
    for name in _GROWING:
        before, after = getattr(first, name), getattr(last, name)
        if before is not None and after is not None and after > before:
            found[name] = after - before
    return found


def _replayed(sample: GpuSample, growth: dict[str, float], rounds: int) -> GpuSample:
    grown = {name: getattr(sample, name) for name in growth}
    return msgspec.structs.replace(
        sample,
        provider="replayed",
        processes=(),
        **{name: value + rounds * growth[name] for name, value in grown.items() if value is not None},
    )
