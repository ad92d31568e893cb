"""The benchmark of a real GPU: our two kernels on it, timed by its own clock, their results checked."""

from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_float, c_uint, c_uint64

from weft.gpus.bench.driver import CudaError, Device, NotMeasuredError, devices
from weft.gpus.bench.kernels import (
    CHAOTIC,
    COMPUTE,
    ENTRIES,
    MEMORY,
    SCALE,
    B,
    C,
    ComputeWork,
    LinkWork,
    MemoryWork,
    ptx,
    sum_of_chains,
)
from weft.gpus.bench.links import HostCopies


class CudaBench:
    emulated = False

    def __init__(self, gpu: Device, compute: ComputeWork, memory: MemoryWork) -> None:
        needed = 3 * memory.array_bytes + 4 * compute.blocks * compute.threads
        if (free := gpu.free_bytes()) < needed:
            raise NotMeasuredError(f"the benchmark needs {needed} bytes of GPU memory, and {free} are free")
        self.gpu = gpu
        self._compute, self._memory = compute, memory
        self._fma = gpu.kernel(ptx(COMPUTE), ENTRIES[COMPUTE])
        self._triad = gpu.kernel(ptx(MEMORY), ENTRIES[MEMORY])
        self._sums = gpu.allocate(4 * compute.blocks * compute.threads)
        self._a, self._b, self._c = (gpu.allocate(memory.array_bytes) for _ in range(3))
        gpu.fill(self._b, B, memory.array_bytes)
        gpu.fill(self._c, C, memory.array_bytes)
        self._copies = HostCopies(gpu, self._b, B, min(LinkWork().copied_bytes, memory.array_bytes))
        self.copy_in, self.copy_out = self._copies.copy_in, self._copies.copy_out

    def compute(self) -> float:
        work = self._compute
        arguments = (self._sums, c_float(CHAOTIC), c_uint(work.rounds))
        return self.gpu.seconds(
            self._fma, blocks=work.blocks, threads=work.threads, launches=work.launches, arguments=arguments
        )

    def memory(self) -> float:
        work = self._memory
        arguments = (self._a, self._b, self._c, c_float(SCALE), c_uint(work.quads))
        return self.gpu.seconds(
            self._triad, blocks=work.blocks, threads=work.threads, launches=work.passes, arguments=arguments
        )

    def check(self) -> None:
        """Check the results: a GPU that computes wrong, or not at all, has no speed. Raises CudaError."""
        last = self._compute.blocks * self._compute.threads - 1
        for number in (0, last):
            self._check(COMPUTE, number, self._sums, sum_of_chains(number, rounds=self._compute.rounds))
        for number in (0, 4 * self._memory.quads - 1):
            self._check(MEMORY, number, self._a, B + SCALE * C)
        self._copies.check()

    def _check(self, kernel: str, number: int, address: c_uint64, wanted: float) -> None:
        if (found := self.gpu.read(address, number)) != wanted:
            raise CudaError(f"this GPU computes wrong: {kernel} {number} is {found!r} and must be {wanted!r}")


@contextmanager
def cuda_bench(*, visible: str, compute: ComputeWork, memory: MemoryWork) -> Iterator[CudaBench]:
    """The benchmark on the visible GPU. Raises CudaError."""
    with devices(visible=visible, count_max=1) as (gpu,):
        yield CudaBench(gpu, compute, memory)
