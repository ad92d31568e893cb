"""Where the slot folders of a node are: the executor makes them, the arbiter serves them, telemetry reads them. And
where the pipe folders of MPS daemons are, by the same rule for the paths of sockets."""

import hashlib
import os
import stat
import tempfile
from pathlib import Path

from libs.sharing.slots import SOCKET_PATH_BYTES_MAX

SLOT_HEX = 16
ROOT_BYTES_MAX = SOCKET_PATH_BYTES_MAX - SLOT_HEX - len("//job/socket")
PIPES_BYTES_MAX = SOCKET_PATH_BYTES_MAX - SLOT_HEX - len("//control_privileged")


def root_of(home: Path) -> Path:
    """The folder of the slots: in the executor's home, or if that is too long a path for a socket, in the host's folder
    for temporary files."""
    return _short(home.absolute(), "shares", "weft", bytes_max=ROOT_BYTES_MAX)


def pipes_of(home: Path) -> Path:
    """The folder of the pipe folders of MPS daemons, likewise."""
    return _short(home.absolute(), "pipes", "weft-mps", bytes_max=PIPES_BYTES_MAX)


def _short(home: Path, name: str, otherwise: str, *, bytes_max: int) -> Path:
    if len(os.fsencode(home / name)) <= bytes_max:
        return home / name
    digest = hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"{otherwise}-{digest}"


def slot_of(job_id: str, epoch: int, rank: int) -> str:
    """The name of a run's slot folder."""
    run = f"{job_id.replace('/', '_')}-{epoch}-{rank}"
    return hashlib.sha256(run.encode()).hexdigest()[:SLOT_HEX]


def device_of(devices: Path, uuid: str) -> Path:
    """The folder with the state of an emulated GPU, which all processes with a share of it write."""
    return devices / gpu_name(uuid)


def gpu_name(uuid: str) -> str:
    """The name of a folder of this GPU."""
    return hashlib.sha256(uuid.encode()).hexdigest()[:SLOT_HEX]


def make_own(folder: Path) -> None:
    """Make a folder that only we enter, if it is missing. Raises OSError, also if it belongs to another user."""
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise PermissionError(f"{folder} is not a folder of our own")
