"""Limits the egress of a network namespace with the kernel's token bucket filter (tbf), over rtnetlink.

It needs only Python, neither `tc` nor `nsenter`, so that its text can also be run in any image that has Python:

    python3 -I -c TEXT 1250000        in the namespace it is in: 1.25 MB/s on every interface that is up, but loopback
    python3 -I -c TEXT -1             no limit
    python3 -I -c TEXT 1250000 probe  on its loopback only: can it be done here?

It prints nothing, or the error, and then exits with 1. linux/pkt_sched.h, linux/rtnetlink.h; needs CAP_NET_ADMIN there.
"""

import errno
import os
import socket
import struct
import sys
from collections.abc import Iterator

NEWLINK, GETLINK, NEWQDISC, DELQDISC, GETQDISC = 16, 18, 36, 37, 38
REQUEST, ACK, REPLACE, DUMP, CREATE = 0x1, 0x4, 0x100, 0x300, 0x400
ERROR, DONE = 2, 3
ROOT = 0xFFFFFFFF
KIND, OPTIONS = 1, 2  # of a qdisc
PARMS, RATE64, BURST = 1, 4, 6  # of tbf
GSO_MAX_SIZE = 41  # of a link: the largest packet that TCP passes to it at once
IS_UP, IS_LOOPBACK = 0x1, 0x8
ETHERNET = 1
BURST_PART = 0.05  # of a second's bytes in one burst: a busy host serves it late, and bytes that overflow are lost
QUEUE_PART = 0.1
QUEUE_PACKETS_MIN = 4  # of the largest packets: a queue that drops a part of each makes TCP crawl
GSO_BYTES = 1 << 16
ANSWER_SECONDS_MAX = 5.0
U32_MAX = 0xFFFFFFFF


def limit(rate: int, *, probe: bool = False) -> None:
    """Limit this thread's network namespace to `rate` bytes per second; below 0: no limit. Raises OSError."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(ANSWER_SECONDS_MAX)
        for index, flags, largest in links(kernel):
            if bool(flags & IS_LOOPBACK) is probe and (probe or flags & IS_UP):
                if rate < 0:
                    _unlimit(kernel, index)
                else:
                    _ask(kernel, NEWQDISC, ACK | CREATE | REPLACE, _traffic(index) + _bucket(rate, largest))


def rates() -> dict[int, int]:
    """Index of a link → bytes per second, of the links that tbf limits in this thread's network namespace."""
    found = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(ANSWER_SECONDS_MAX)
        for body in _ask(kernel, GETQDISC, DUMP, _traffic(0)):
            index, attributes = struct.unpack_from("=i", body, 4)[0], dict(_attributes(body[20:]))
            if attributes.get(KIND, b"").rstrip(b"\0") == b"tbf":
                options = dict(_attributes(attributes[OPTIONS]))
                wide = options.get(RATE64)
                rate = struct.unpack("=Q", wide)[0] if wide else struct.unpack_from("=I", options[PARMS], 8)[0]
                found[index] = rate
    return found


def links(kernel: socket.socket) -> Iterator[tuple[int, int, int]]:
    """Index, flags and the size of the largest packet of every interface."""
    for body in _ask(kernel, GETLINK, DUMP, struct.pack("=BxHiII", 0, 0, 0, 0, 0)):
        index, flags = struct.unpack_from("=iI", body, 4)
        largest = dict(_attributes(body[16:])).get(GSO_MAX_SIZE)
        yield index, flags, max(GSO_BYTES, struct.unpack("=I", largest)[0] if largest else 0)


def _bucket(rate: int, largest: int) -> bytes:
    """The attributes of a tbf. A packet that finds the queue full is dropped, as on a slow link.

    Its bucket holds the largest packet with the headers of all its parts, however low the rate: a packet that was
    queued while the bucket was larger, and no longer fits into it, would stay at the head of the queue for ever.
    """
    burst = max(largest + largest // 4, int(rate * BURST_PART))
    queue = burst + max(QUEUE_PACKETS_MIN * largest, int(rate * QUEUE_PART))
    speed = struct.pack("=BBHhHI", 0, ETHERNET, 0, 0, 0, min(rate, U32_MAX))
    parameters = speed + bytes(12) + struct.pack("=III", min(queue, U32_MAX), 0, 0)
    options = _attribute(PARMS, parameters) + _attribute(BURST, struct.pack("=I", min(burst, U32_MAX)))
    if rate > U32_MAX:
        options += _attribute(RATE64, struct.pack("=Q", rate))
    return _attribute(KIND, b"tbf\0") + _attribute(OPTIONS, options)


def _unlimit(kernel: socket.socket, index: int) -> None:
    try:
        _ask(kernel, DELQDISC, ACK, _traffic(index))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EINVAL):  # The link has none.
            raise


def _traffic(index: int) -> bytes:
    return struct.pack("=BxxxiIII", 0, index, 0, ROOT, 0)


def _attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if length < 4:
            return
        yield kind & 0x3FFF, data[4:length]
        data = data[(length + 3) & ~3 :]


def _ask(kernel: socket.socket, kind: int, flags: int, body: bytes) -> list[bytes]:
    """Send a request; returns the bodies of the answer. Raises OSError with the kernel's error."""
    kernel.send(struct.pack("=IHHII", 16 + len(body), kind, REQUEST | flags, 1, 0) + body)
    bodies: list[bytes] = []
    while True:
        data = kernel.recv(1 << 17)
        while len(data) >= 16:
            length, answered = struct.unpack_from("=IH", data)
            if answered == ERROR:
                number = -struct.unpack_from("=i", data, 16)[0]
                if number:
                    raise OSError(number, os.strerror(number))
                return bodies
            if answered == DONE:
                return bodies
            bodies.append(data[16:length])
            data = data[(length + 3) & ~3 :]


def main(arguments: list[str]) -> int:
    try:
        limit(int(arguments[0]), probe="probe" in arguments[1:])
    except OSError as error:
        print(error.strerror or error)  # noqa: T201 - for the process that started it
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
