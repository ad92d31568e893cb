"""The folders in which jobs keep their checkpoints, one for each job, all in one that only the executor's user enters.

Which user a container runs as, its image says, and an engine may map that user to another of the host. So the folder of
a job in a container is open to every user; but only that container reaches it, by its mount, because the folder above
is closed to all other users of the host. A plain process runs as the executor's user, so its folder is closed as well.
"""

import logging
import os
import stat

logger = logging.getLogger(__name__)

OWN = 0o700
OF_ANY_USER = 0o777
_warned: set[str] = set()


def make_folder(checkpoints: str, job_id: str, *, mode: int) -> None:
    """The job's folder below `checkpoints`. Raises OSError."""
    os.makedirs(checkpoints, mode=OWN, exist_ok=True)
    _set_mode(checkpoints, OWN)
    folder = f"{checkpoints}/{job_id}"
    os.makedirs(folder, exist_ok=True)
    _set_mode(folder, mode)


def _set_mode(folder: str, mode: int) -> None:
    """A folder of another owner, such as one of a shared file system, stays as its owner has it."""
    if stat.S_IMODE(os.stat(folder).st_mode) == mode:
        return
    try:
        os.chmod(folder, mode)
    except PermissionError as error:
        if folder not in _warned:
            _warned.add(folder)
            logger.warning("%s cannot be given the mode %o: %s", folder, mode, error)
