"""The sockets of a router. They outlive Caddy and the admission process: requests wait in them while one restarts."""

import asyncio
import os
import socket
import stat
import sys
import tempfile
from pathlib import Path

from weft.service.config import SettingsError

BACKLOG = 4096
TAKE_SECONDS_MAX = 10.0  # wait for the port of a router that has just ended
LOG_BYTES = 8 << 20
SOCKET_PATH_MAX = 107  # bytes, of Linux
ADMIN_SOCKET, ADMISSION_SOCKET = "admin.sock", "admission.sock"
FRONT_SOCKET, INSIDE_SOCKET = "front.sock", "inner.sock"
SHORT_FOLDER = Path("/tmp")  # used if the name of the user's temporary folder is too long


async def port_taken(host: str, port: int) -> socket.socket:
    """Listen on the port. A killed earlier router keeps the port until its Caddy has ended too."""
    until = asyncio.get_running_loop().time() + TAKE_SECONDS_MAX
    while True:
        try:
            return _listening(host, port)
        except OSError as error:
            if asyncio.get_running_loop().time() > until:
                raise SettingsError(f"ROUTER_PORT: cannot listen on {host}:{port}: {error.strerror}") from error
            await asyncio.sleep(0.05)


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise SettingsError(f"ROUTER_HOST: {host} is no address: {error.strerror}") from error
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def folder_of(home: str, port: int) -> Path:
    """The folder of the sockets, accessible only to this user. A folder of an earlier router is reused, as we have its
    port."""
    folder = Path(home) if home else _usual(port)
    if _too_long(folder):
        raise SettingsError(f"ROUTER_HOME: {folder} is too long for the address of a socket")
    try:
        folder.mkdir(mode=0o700, parents=bool(home), exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise SettingsError(f"ROUTER_HOME: cannot make {folder}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise SettingsError(f"ROUTER_HOME: {folder} is not a folder that this user alone may enter")
    return folder


def _usual(port: int) -> Path:
    name = f"weft-router-{os.getuid()}-{port}"
    usual = Path(tempfile.gettempdir()) / name
    return SHORT_FOLDER / name if _too_long(usual) else usual


def _too_long(folder: Path) -> bool:
    return len(os.fsencode(folder / ADMIN_SOCKET)) > SOCKET_PATH_MAX


def asks_at(path: Path) -> socket.socket:
    """Listen for Caddy's questions."""
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(path))
    listening.listen(BACKLOG)
    return listening


def handing() -> tuple[socket.socket, socket.socket]:
    """A socket pair over which the admission process hands requests to the relay."""
    kind = socket.SOCK_SEQPACKET if sys.platform.startswith("linux") else socket.SOCK_DGRAM
    return socket.socketpair(socket.AF_UNIX, kind)


def ends_here() -> socket.socket:
    """A socket that receives Caddy's log, from this host only."""
    receiving = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiving.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LOG_BYTES)
    receiving.bind(("127.0.0.1", 0))
    return receiving
