"""What a run with a share of a GPU used of the GPU's time in a window, and what the others on that GPU used."""

from collections.abc import Mapping

from weft.messages.signals import GpuProcess, ShareSample

ALONE_MOST = 0.02  # of the GPU's time: others that used no more left the GPU to the run
USED_LEAST = 0.05  # of the GPU's time: less says little of a step
MEASURED_LEAST = 0.8  # of the samples of a window
FOREIGN_LEAST = 0.01  # of the SMs' time: less is a process that only keeps the GPU open

RunKey = tuple[str, int, int]
"""A job, its epoch, and the rank."""


def is_busy(process: GpuProcess) -> bool:
    return process.sm_utilisation is None or process.sm_utilisation > FOREIGN_LEAST


class SharedUse:
    """Sums over the samples of a window."""

    def __init__(self) -> None:
        self.foreign = False  # a process that the arbiter does not know used the GPU
        self._samples = self._measured = 0
        self._used = 0.0
        self._others: dict[RunKey, float] = {}

    def add(self, own: ShareSample | None, others: Mapping[RunKey, float | None]) -> None:
        """Take in one sample. `others`: what each other run on the GPU used of its time; None: not known."""
        self._samples += 1
        if own is None or own.used is None or None in others.values():
            return
        self._measured += 1
        self._used += own.used
        for key, used in others.items():
            self._others[key] = self._others.get(key, 0.0) + (used or 0.0)

    @property
    def used(self) -> float | None:
        """The part of the GPU's time that the run used; None if it was not measured, or too little."""
        if self.foreign or not self._measured or self._measured < MEASURED_LEAST * self._samples:
            return None
        used = self._used / self._measured
        return used if used >= USED_LEAST else None

    @property
    def others(self) -> dict[RunKey, float]:
        """GPU time that each other run on the GPU used."""
        return {key: used / self._measured for key, used in self._others.items()}

    @property
    def alone(self) -> bool:
        """True if the others left the GPU to the run."""
        return sum(self.others.values()) <= ALONE_MOST
