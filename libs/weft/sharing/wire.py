"""The messages between the hook in a job's process and the arbiter: 32 bytes each, little endian, over SOCK_SEQPACKET.

A process that gives its turn back while a launch waits sends WANT and then RETURN, so that the arbiter chooses the next
turn with both known. The other order is understood, too.

Numbers from a job are bounded here, where they are read; nothing beyond this module sees an unbounded one.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

BYTES = 32
_FORM = struct.Struct("<IIQQQ")
_SIGNED = struct.Struct("<q")

MICROSECONDS_MAX = 60_000_000
"""More device time than one message can report or correct: a minute."""


class Op(IntEnum):
    HELLO = 1  # a: the index of the entry of the use page; b: its generation
    WANT = 2  # a: device time of the launch that waits, in µs, as far as known
    RETURN = 3  # turn; a: device time of the turn in µs; b: still in flight, in µs
    CHARGE = 4  # a: device time to add, in µs, signed
    GRANT = 17  # turn; a: device time of the turn in µs; b: bound of what is in flight, in µs
    REVOKE = 18  # turn


FROM_JOB = frozenset({Op.HELLO, Op.WANT, Op.RETURN, Op.CHARGE})


class MalformedError(ValueError):
    """What was received is no message that the hook sends."""


class ShareMessage(NamedTuple):
    op: int
    pid: int = 0
    turn: int = 0
    a: int = 0
    b: int = 0


def encode(message: ShareMessage) -> bytes:
    """The message as it is sent. A negative `a`, as CHARGE may have, is in two's complement."""
    return _FORM.pack(message.op, message.pid, message.turn, message.a & 0xFFFF_FFFF_FFFF_FFFF, message.b)


def decode(data: bytes) -> ShareMessage:
    """Any message, with the numbers as they came. Raises MalformedError unless there are exactly 32 bytes."""
    if len(data) != BYTES:
        raise MalformedError(f"expected {BYTES} bytes, got {len(data)}")
    return ShareMessage(*_FORM.unpack(data))


def from_job(data: bytes) -> ShareMessage:
    """A message of a job, with times from 0 to MICROSECONDS_MAX (the `a` of CHARGE from minus that).

    Raises MalformedError for another length and for an operation that jobs do not send.
    """
    op, pid, turn, a, b = decode(data)
    if op == Op.CHARGE:
        signed = _SIGNED.unpack_from(data, 16)[0]
        return ShareMessage(op, pid, turn, max(-MICROSECONDS_MAX, min(MICROSECONDS_MAX, signed)))
    if op not in FROM_JOB:
        raise MalformedError(f"jobs send no operation {op}")
    return ShareMessage(op, pid, turn, min(a, MICROSECONDS_MAX), min(b, MICROSECONDS_MAX))
