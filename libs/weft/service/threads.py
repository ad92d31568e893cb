"""What suits a process whose threads compute beside an event loop that answers."""

import ctypes
import sys

SWITCH_SECONDS = 0.0005
"""A thread that computes lets the event loop go on after so long, by Python's default ten times as long: what the loop
answers takes several turns of it, and would wait so long for each.
"""
M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8
ARENAS_MAX = 2
MAPPED_BYTES = 512 << 10


def suit_threads() -> None:
    """Short turns; and with glibc few heaps, however many threads there are, of which what is large is given back once
    it is freed. By default each thread that reads megabytes keeps as many for itself."""
    sys.setswitchinterval(SWITCH_SECONDS)
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_ARENA_MAX, ARENAS_MAX)
        libc.mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
