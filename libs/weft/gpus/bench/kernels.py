"""Our two kernels: their text, the work of one repetition, and their right results.

The amount of work is the same for every chip, so that a slower one takes longer; it fills the largest many times over.
"""

import struct
from importlib.resources import files

from msgspec import Struct

COMPUTE, MEMORY = "compute", "memory"
ENTRIES = {COMPUTE: "weft_fma", MEMORY: "weft_triad"}

CHAINS, STEPS = 8, 8  # as written out in compute.ptx: chains of each thread, and steps of each chain in a round
CHAOTIC = -1.9  # `c` of x·x + c
SCALE, B, C = 3.0, 1.0, 2.0  # of the triad: its factor, and the values that fill b and c


class ComputeWork(Struct, frozen=True, kw_only=True):
    """2^44 floating-point operations in a repetition, in launches short enough for a GPU that also drives a screen."""

    launches: int = 8
    blocks: int = 16384  # sixty times what the largest chip runs at once
    threads: int = 256
    rounds: int = 4096

    @property
    def operations(self) -> int:
        return 2 * self.launches * self.blocks * self.threads * self.rounds * CHAINS * STEPS


class MemoryWork(Struct, frozen=True, kw_only=True):
    """Three arrays, each larger than any cache; a pass reads two and writes one."""

    passes: int = 256
    threads: int = 256
    array_bytes: int = 256 << 20

    @property
    def quads(self) -> int:
        return self.array_bytes // 16

    @property
    def blocks(self) -> int:
        return -(-self.quads // self.threads)

    @property
    def moved_bytes(self) -> int:
        return 3 * self.array_bytes * self.passes


class LinkWork(Struct, frozen=True, kw_only=True):
    """Bytes of a copy between host and GPU, and those that each GPU has of an all-reduce."""

    copied_bytes: int = 64 << 20
    reduced_bytes: int = 512 << 20


def ptx(kernel: str) -> bytes:
    """The text of the kernel, ended by a zero, as the driver takes it."""
    return files(__package__).joinpath(f"{kernel}.ptx").read_bytes() + b"\0"


def sum_of_chains(number: int, *, rounds: int, c: float = CHAOTIC) -> float:
    """The value that thread `number` of the compute kernel must store, bit for bit.

    A product of two float32 is exact in a double. Rounding the sum twice, to double and to float32, differs from
    rounding it once in one of 2^29 steps: too rarely to be met.
    """
    c = _single(c)
    total = 0.0
    for chain in range(CHAINS):
        x = _single(number * 2.0**-25 + (chain + 1) / 16)
        for _ in range(rounds * STEPS):
            x = _single(x * x + c)
        total = _single(total + x)
    return total


def _single(value: float) -> float:
    rounded: float = _FLOAT.unpack(_FLOAT.pack(value))[0]
    return rounded


_FLOAT = struct.Struct("<f")
