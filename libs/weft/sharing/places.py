"""Where the slot folders of a node are: the executor makes them, the arbiter serves them, telemetry reads them."""

import hashlib
import os
import stat
import tempfile
from pathlib import Path

from weft.sharing.slots import SOCKET_PATH_BYTES_MAX

SLOT_HEX = 16
ROOT_BYTES_MAX = SOCKET_PATH_BYTES_MAX - SLOT_HEX - len("//job/socket")


def root_of(home: Path) -> Path:
    """The folder of the slots: in the executor's home, or if that is too long a path for a socket, in the host's folder
    for temporary files."""
    home = home.absolute()
    if len(os.fsencode(home / "shares")) <= ROOT_BYTES_MAX:
        return home / "shares"
    digest = hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"weft-{digest}"


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
