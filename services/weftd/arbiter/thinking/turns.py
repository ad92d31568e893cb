"""Turns of processes on a GPU, and what the arbiter says about them."""

from msgspec import Struct

from weftd.arbiter.thinking.slot import SharingSlot


class Grant(Struct, frozen=True):
    """The process may launch device time of `quota` µs, of which `in_flight` µs may be unfinished at a time."""

    client: int
    turn: int
    quota: int
    in_flight: int


class Revoke(Struct, frozen=True):
    """The process is to return its turn at once."""

    client: int
    turn: int


Order = Grant | Revoke


class GpuTurn(Struct):
    """`contended_at`: since when another process waits; `overlap`: how much of the turn before was left to run at its
    beginning. All times in µs.
    """

    number: int
    client: int
    slot: SharingSlot
    granted_at: int
    revoke_at: int
    overlap: int = 0
    contended_at: int | None = None
    revoked_at: int | None = None
