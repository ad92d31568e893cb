"""The benchmark's stand-in for emulated GPUs: a fixed amount of work on the CPU.

It measures no GPU, and its result is called emulated. It does not measure the CPU either: a busy machine must not look
like a GPU that varies. So the CPU time of the work is divided by that of reference work, which is the same and done in
between: the machine's load cancels out, and only the fastest slices of each count. A repetition reports REP_SECONDS
times this ratio times the emulated GPU's slowdown at that moment, and lasts REP_SECONDS times the slowdown: it works,
then waits. The rest of the machine's noise shows as spread.
"""

import time
from collections.abc import Callable

REP_SECONDS = 0.04  # of a repetition at a slowdown of 1, most of it waiting
SLICES = 10  # of the work of a repetition, and as many of reference work
COUNTED = 3
STEPS = 10_000  # of the arithmetic of a slice
ARRAY_BYTES = 2 << 20  # larger than a core's own cache

Seconds = Callable[[], float]


class CpuStandIn:
    """A `Bench` on the CPU. `slowdown` is called at each repetition."""

    emulated = True

    def __init__(
        self,
        slowdown: Callable[[], float],
        *,
        cpu_time: Seconds = time.process_time,
        clock: Seconds = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._slowdown = slowdown
        self._cpu_time = cpu_time
        self._clock = clock
        self._sleep = sleep
        self._from, self._to = bytes(ARRAY_BYTES), bytearray(ARRAY_BYTES)

    def compute(self) -> float:
        return self._rep(_chain)

    def memory(self) -> float:
        return self._rep(self._copy)

    def copy_in(self) -> float:
        return self._rep(self._copy)

    def copy_out(self) -> float:
        return self._rep(self._copy)

    def _rep(self, work: Callable[[], None]) -> float:
        slowdown = self._slowdown()
        until = self._clock() + REP_SECONDS * slowdown
        slices = [self._timed(work) for _ in range(2 * SLICES)]
        self._sleep(max(0.0, until - self._clock()))
        # The outer two of four slices, so that a machine that becomes faster or slower favours neither kind of work.
        ours = sum(sorted(took for number, took in enumerate(slices) if number % 4 in (0, 3))[:COUNTED])
        between = sum(sorted(took for number, took in enumerate(slices) if number % 4 in (1, 2))[:COUNTED])
        # The reference time may be 0 on a kernel that counts CPU time in ticks.
        return REP_SECONDS * slowdown * (ours / between if between > 0 else 1.0)

    def _timed(self, work: Callable[[], None]) -> float:
        began = self._cpu_time()
        work()
        return max(0.0, self._cpu_time() - began)

    def _copy(self) -> None:
        self._to[:] = self._from


def _chain() -> None:
    x = 0.3
    for _ in range(STEPS):
        x = x * x - 1.9
