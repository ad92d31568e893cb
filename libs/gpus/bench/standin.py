"""What stands in for the benchmark where GPUs are emulated: a fixed amount of work of the CPU.

No GPU is measured, and what is told of it is called emulated. Nor is the CPU: a busy machine must not look like a GPU
that varies. So the work is timed by the CPU time that it took, in units of the very same work done in between: what the
machine does to both falls out, and of each only the fastest slices count. A repetition is said to have taken
REP_SECONDS times that ratio, times the slowdown that the emulated GPU has at that moment, and it really lasts as long
as REP_SECONDS times the slowdown: it works, and waits. What is left of the machine's own noise shows as spread.
"""

import time
from collections.abc import Callable

REP_SECONDS = 0.04  # of a repetition at a slowdown of 1, most of it waiting
SLICES = 10  # of the work of a repetition, and as many in between
COUNTED = 3
STEPS = 10_000  # of the arithmetic of a slice
ARRAY_BYTES = 2 << 20  # larger than a core's own cache

Seconds = Callable[[], float]


class CpuStandIn:
    """`slowdown` is asked at each repetition."""

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

    def _rep(self, work: Callable[[], None]) -> float:
        slowdown = self._slowdown()
        until = self._clock() + REP_SECONDS * slowdown
        slices = [self._timed(work) for _ in range(2 * SLICES)]
        self._sleep(max(0.0, until - self._clock()))
        # Of four slices the outer two, so that a machine that grows faster or slower favours neither.
        ours = sum(sorted(took for number, took in enumerate(slices) if number % 4 in (0, 3))[:COUNTED])
        between = sum(sorted(took for number, took in enumerate(slices) if number % 4 in (1, 2))[:COUNTED])
        # Nothing where a kernel counts CPU time in ticks.
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
