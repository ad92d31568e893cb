"""What stands in for the benchmark where GPUs are emulated: a fixed amount of work of the CPU.

No GPU is measured, and what is told of it is called emulated. The work is timed by the CPU time that it took, not by
the clock on the wall, because a busy machine must not look like a GPU that varies; that time is multiplied by the
slowdown that the emulated GPU has at that moment. A repetition also lasts so much longer: it works, and then waits.
What is left of the machine's own noise is in the spread, and in how results differ from one benchmark to the next.
"""

import time
from collections.abc import Callable

STEPS = 150_000  # of the arithmetic: some milliseconds
COPIES, ARRAY_BYTES = 12, 4 << 20  # larger than a core's own cache
REP_SECONDS = 0.04  # how long a repetition lasts at a slowdown of 1, most of it waiting

Seconds = Callable[[], float]


class StandIn:
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
        slowdown, until = self._slowdown(), self._clock()
        until += REP_SECONDS * slowdown
        began = self._cpu_time()
        work()
        took = self._cpu_time() - began
        self._sleep(max(0.0, until - self._clock()))
        return took * slowdown

    def _copy(self) -> None:
        for _ in range(COPIES):
            self._to[:] = self._from


def _chain() -> None:
    x = 0.3
    for _ in range(STEPS):
        x = x * x - 1.9
