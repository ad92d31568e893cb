"""The two records of a slot folder: what a run holds of a GPU, and what the arbiter counted of it."""

from typing import Annotated

from msgspec import Meta, Struct

BYTES_MAX = 1 << 60

Part = Annotated[int, Meta(ge=0, le=1000)]
Bytes = Annotated[int, Meta(ge=0, le=BYTES_MAX)]


class SlotShare(Struct, frozen=True, kw_only=True):
    """What a run holds of a GPU. `request` and `limit` in thousandths of its time, `memory` in bytes (0: not capped).

    latency         its launches come ahead of those of others, within its request
    hold            it launches nothing for now
    closed          without an arbiter it launches nothing; otherwise it goes on freely
    device_memory   bytes of the whole GPU, 0 if not known
    context_mib     what each of its processes takes of the GPU's memory by being there, in MiB
    """

    gpu: Annotated[str, Meta(min_length=1, max_length=128)]
    job: Annotated[str, Meta(max_length=256)] = ""
    epoch: Annotated[int, Meta(ge=0, le=1 << 53)] = 0
    rank: Annotated[int, Meta(ge=0, le=1 << 31)] = 0
    request: Part
    limit: Part = 1000
    memory: Bytes = 0
    latency: bool = False
    hold: bool = False
    closed: bool = False
    emulated: bool = False
    device_memory: Bytes = 0
    context_mib: Annotated[int, Meta(ge=0, le=1 << 20)] = 0


class SlotSeen(Struct, frozen=True, kw_only=True):
    """What the arbiter counted of a slot since the arbiter began, and what the slot's processes say now.

    device_us     device time charged, in µs
    borrowed_us   of that, beyond the request, second by second; `lent_us`: left to others that went beyond theirs
    wait_p50_us   from a WANT to its GRANT, of the latest waits, in µs; `wait_p99_us` likewise
    overruns      turns that were taken from a process that did not return them
    connections   processes connected now; `pids`: theirs, as the node sees them
    refused       connections that were refused or dropped
    memory        bytes that the processes hold; `denied`: allocations refused; `given_up`: waits given up by the hook
    longest_kernel_us   the longest kernel that a process measured, in µs
    at_ns         CLOCK_MONOTONIC, in ns
    """

    at_ns: int
    device_us: int = 0
    borrowed_us: int = 0
    lent_us: int = 0
    turns: int = 0
    wait_p50_us: int = 0
    wait_p99_us: int = 0
    overruns: int = 0
    connections: int = 0
    pids: tuple[int, ...] = ()
    refused: int = 0
    memory: int = 0
    denied: int = 0
    given_up: int = 0
    launches: int = 0
    blocked_ns: int = 0
    longest_kernel_us: int = 0
