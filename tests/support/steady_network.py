"""A program that is not told when this machine's networks change: `python steady_network.py PROGRAM ARGUMENTS…`.

Chromium ends all its requests when an address comes or goes, and other tests start containers with networks. Here
it may open no netlink socket, by which the kernel tells of addresses; it then takes the network for steady. A filter of
the kernel's refuses that (seccomp), also in the program's children.
"""

import ctypes
import errno
import os
import platform
import struct
import sys

NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2
AF_NETLINK = 16
SOCKET = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}  # the architecture, and the call's number there
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.EAFNOSUPPORT


class Program(ctypes.Structure):
    """A `struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


def refuse_netlink() -> None:
    """Raises OSError; does nothing on an architecture that is not known."""
    if platform.machine() not in SOCKET:
        return
    architecture, call = SOCKET[platform.machine()]
    steps = [
        (LOAD, 0, 0, 4),
        (EQUAL, 0, 5, architecture),
        (LOAD, 0, 0, 0),
        (EQUAL, 0, 3, call),
        (LOAD, 0, 0, 16),
        (EQUAL, 0, 1, AF_NETLINK),
        (RETURN, 0, 0, REFUSE),
        (RETURN, 0, 0, ALLOW),
    ]
    program = Program(len(steps), b"".join(struct.pack("=HBBI", *step) for step in steps))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((NO_NEW_PRIVILEGES, 1, 0, 0, 0), (SECCOMP, FILTER, ctypes.byref(program), 0, 0)):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    refuse_netlink()
    os.execv(sys.argv[1], sys.argv[1:])
