"""The links of GPUs: copies from and to the host, one GPU after the other, and an all-reduce between the GPUs."""

import ctypes
import struct
import time
from collections.abc import Sequence
from ctypes import c_float, c_uint, c_uint64
from itertools import pairwise

from weft.gpus.bench.driver import CudaError, Device, Kernel, NotMeasuredError, devices
from weft.gpus.bench.kernels import ENTRIES, MEMORY, LinkWork, ptx
from weft.gpus.bench.protocol import copied
from weft.samples.benchmark_result import LinksMeasured

GPUS_MAX = 64
THREADS, QUAD_BYTES = 256, 16  # a thread adds four float32
SENT = 1.5  # the float32 that copies carry


class HostCopies:
    """Copies between the host and memory of the GPU that is current; both are full of `value`."""

    def __init__(self, gpu: Device, address: c_uint64, value: float, size: int) -> None:
        self._gpu, self._address, self._size = gpu, address, size
        self._text = struct.pack("f", value) * (size // 4)
        self._source, self._target = gpu.host_memory(size), gpu.host_memory(size)
        ctypes.memmove(self._source, self._text, len(self._text))

    def copy_in(self) -> float:
        began = time.perf_counter()
        self._gpu.copy_in(self._address, self._source, self._size)
        return time.perf_counter() - began

    def copy_out(self) -> float:
        began = time.perf_counter()
        self._gpu.copy_out(self._target, self._address, self._size)
        return time.perf_counter() - began

    def check(self) -> None:
        """Check what was copied in and out again. Raises CudaError."""
        if ctypes.string_at(self._target, len(self._text)) != self._text:
            raise CudaError("this GPU copies wrong: the host got other bytes back than it sent")


class Ring:
    """A sum of one array per GPU, which each of them has at the end. In each of 2 · (n - 1) steps each GPU sends one of
    n pieces to the next; in the first half the next adds it to its own."""

    def __init__(self, gpus: Sequence[Device], size: int) -> None:
        self._gpus = gpus
        self._piece = max(QUAD_BYTES, size // len(gpus) // QUAD_BYTES * QUAD_BYTES)
        needed = self._piece * (len(gpus) + 1)
        self._data, self._got, self._add = list[c_uint64](), list[c_uint64](), list[Kernel]()
        for gpu in gpus:
            gpu.use()
            if (free := gpu.free_bytes()) < needed:
                raise NotMeasuredError(f"the all-reduce needs {needed} bytes of GPU memory, and {free} are free")
            self._data.append(gpu.allocate(self._piece * len(gpus)))
            self._got.append(gpu.allocate(self._piece))
            self._add.append(gpu.kernel(ptx(MEMORY), ENTRIES[MEMORY]))
        for one, other in pairwise((*gpus, gpus[0])):
            one.reach(other)

    def all_reduce(self) -> float:
        """The seconds of one. Raises CudaError if the sum is wrong."""
        count = len(self._gpus)
        for number, gpu in enumerate(self._gpus):
            gpu.use()
            gpu.fill(self._data[number], number + 1.0, self._piece * count)
        began = time.perf_counter()
        for step in range(count - 1):
            self._send(self._got, shift=-step)
            for number in range(count):
                self._sum(number, self._at(number, number - 1 - step))
            self._wait()
        for step in range(count - 1):
            self._send([self._at(number, number - step) for number in range(count)], shift=1 - step)
        took = time.perf_counter() - began
        self._check(count * (count + 1) / 2)
        return took

    def _at(self, number: int, piece: int) -> c_uint64:
        return c_uint64(self._data[number].value + piece % len(self._gpus) * self._piece)

    def _send(self, targets: Sequence[c_uint64], *, shift: int) -> None:
        """Each GPU sends the piece of its own number plus `shift` to the target of the next."""
        for number, gpu in enumerate(self._gpus):
            after = (number + 1) % len(self._gpus)
            gpu.send(self._gpus[after], targets[after], self._at(number, number + shift), self._piece)
        self._wait()

    def _sum(self, number: int, piece: c_uint64) -> None:
        quads = self._piece // QUAD_BYTES
        arguments = (piece, piece, self._got[number], c_float(1.0), c_uint(quads))
        blocks = -(-quads // THREADS)
        self._gpus[number].launch(self._add[number], blocks=blocks, threads=THREADS, arguments=arguments)

    def _wait(self) -> None:
        for gpu in self._gpus:
            gpu.wait()

    def _check(self, wanted: float) -> None:
        for number, gpu in enumerate(self._gpus):
            gpu.use()
            for piece in range(len(self._gpus)):
                for index in (0, self._piece // 4 - 1):
                    if (found := gpu.read(self._at(number, piece), index)) != wanted:
                        said = f"{found!r} on {gpu.uuid} and must be {wanted!r}"
                        raise CudaError(f"the all-reduce is wrong: a sum is {said}")


def measured_links(visible: str, work: LinkWork) -> LinksMeasured:
    """The links of the visible GPUs. Raises CudaError."""
    with devices(visible=visible, count_max=GPUS_MAX) as gpus:
        copies = {}
        for gpu in gpus:
            gpu.use()
            to = gpu.allocate(work.copied_bytes)
            both = HostCopies(gpu, to, SENT, work.copied_bytes)
            copies[gpu.uuid] = copied(both.copy_in), copied(both.copy_out)
            both.check()
        ring = Ring(gpus, work.reduced_bytes) if len(gpus) > 1 else None
        return LinksMeasured(copies=copies, all_reduce_s=None if ring is None else copied(ring.all_reduce))
