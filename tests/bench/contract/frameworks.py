"""Virtual environments with packages of others: made once for each list of requirements, in the user's cache."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
PYTHON = (3, 11)
INSTALL_SECONDS_MAX = 1800


class FrameworksMissingError(Exception):
    """They cannot be installed here; says why."""


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weft-frameworks"


def frameworks() -> Path:
    """The folder of the virtual environment with the frameworks. Raises FrameworksMissingError."""
    return environment(REQUIREMENTS)


def environment(requirements: Path) -> Path:
    """The folder of the virtual environment with these packages. Blocks for minutes the first time. Raises
    FrameworksMissingError."""
    if sys.version_info[:2] != PYTHON:
        raise FrameworksMissingError(f"the packages are pinned for Python {PYTHON[0]}.{PYTHON[1]}")
    digest = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:16]
    folder = cache() / digest
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            print(f"installing {requirements.name} into {folder} (minutes, once)", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            _run(sys.executable, "-m", "venv", str(folder))
            _run(str(folder / "bin/python"), "-m", "pip", "install", "-qq", "-r", str(requirements))
            (folder / "complete").touch()
    return folder


def packages(folder: Path) -> Path:
    """Its site-packages, for an interpreter of the same version in a container."""
    return folder / f"lib/python{PYTHON[0]}.{PYTHON[1]}/site-packages"


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, timeout=INSTALL_SECONDS_MAX)
    except (subprocess.SubprocessError, OSError) as error:
        raise FrameworksMissingError(f"{' '.join(command[:4])} failed: {error}") from error
