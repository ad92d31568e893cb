"""The values of a run's secrets: asked of a gateway as the run starts, put into its environment or into files that
only the run reads, kept nowhere else.

Files lie in memory where there is such a folder, and are removed as soon as their run is over. A plain process runs as
the executor's own user and has them to itself; the user of a container is another, so that its files are open to every
user, in a folder that is mounted in that container and lies in one that other users of the host cannot enter.
"""

import asyncio
import os
import stat
import zlib
from collections.abc import Collection, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path

from msgspec import structs

from weft.bus import Bus, BusError
from weft.domain.spec import OBJECT_STORE_VARIABLE, SECRETS_MAX
from weft.domain.text import listed
from weft.messages.nodes import ReadSecrets, SecretsRead, StartRun
from weftd.executor.files.discards import Discards
from weftd.executor.runs import RunKey, RuntimeUnavailableError

ANSWER_SECONDS_MAX = 3.0
SHARED_MEMORY = "/dev/shm"


class MissingSecretsError(Exception):
    """The run names secrets of which nothing is stored."""


class SecretFiles:
    """The files of the runs of one node. `owner`: the user of all its containers, as numbers; empty: not known."""

    def __init__(self, folder: Path, *, contained: bool = False, owner: str = "") -> None:
        self._folder = folder
        self._contained = contained
        self._owner = owner
        self._discards = Discards(f"{folder}/discarded")
        with suppress(FileNotFoundError):
            self._discards.sweep()

    def write(self, key: RunKey, values: Mapping[str, str]) -> None:
        """Write a file for each variable, in place of those of an earlier try. Raises OSError."""
        folder = f"{self._folder}/{key}"
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self._discards.take(folder):
            raise OSError(f"{folder} cannot be moved aside")
        os.mkdir(folder, 0o700)
        for name, value in values.items():
            self._write(f"{folder}/{name}", value.encode())
        if self._contained:
            os.chmod(folder, 0o755)

    def keep(self, keys: Collection[RunKey]) -> None:
        """Remove the files of all other runs. Never raises."""
        held = {str(key) for key in keys}
        try:
            names = [name for name in os.listdir(self._folder) if name not in held | {"discarded"}]
        except OSError:
            return
        for name in names:
            _empty(f"{self._folder}/{name}")
            self._discards.take(f"{self._folder}/{name}")

    def close(self) -> None:
        """Leave no folder where no run has any secret."""
        self._discards.close()
        for folder in (f"{self._folder}/discarded", self._folder):
            with suppress(OSError):
                os.rmdir(folder)

    def _write(self, path: str, value: bytes) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o400)
        with os.fdopen(fd, "wb") as file:
            file.write(value)
            if self._contained and not self._given(file.fileno()):
                os.fchmod(file.fileno(), 0o444)

    def _given(self, fd: int) -> bool:
        """True if the file belongs to the containers' user now, which then reads it alone."""
        user, _, group = self._owner.partition(":")
        if not user.isdigit() or not (group or "0").isdigit():
            return False
        try:
            os.fchown(fd, int(user), int(group) if group else -1)
        except OSError:
            return False
        return True


def _empty(folder: str) -> None:
    """Remove at most as many files as a run can have; further files of a job are removed later."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in islice(entries, SECRETS_MAX):
            with suppress(OSError):
                os.unlink(entry.path)


def folder_in_memory(home: Path) -> Path | None:
    """A folder of this executor alone in the host's shared memory; None: there is none that is safe."""
    folder = f"{SHARED_MEMORY}/weft-{os.geteuid()}-{zlib.crc32(os.fsencode(home.absolute())):08x}"
    try:
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        found = os.lstat(folder)
    except OSError:
        return None
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
    return Path(folder) if is_own and os.path.ismount(SHARED_MEMORY) else None


async def _read(order: StartRun, bus: Bus, node_id: str) -> SecretsRead:
    asked = ReadSecrets(node_id=node_id, job_id=order.job_id, epoch=order.epoch, rank=order.rank)
    try:
        read = await bus.request(asked, SecretsRead, seconds_max=ANSWER_SECONDS_MAX)
    except BusError as error:
        raise RuntimeUnavailableError(f"no gateway sends its secrets: {error}") from error
    if read.refused:
        raise RuntimeUnavailableError(f"its secrets are refused: {read.refused}")
    return read


async def object_store_of(order: StartRun, bus: Bus, *, node_id: str) -> str:
    """The value of the secret with the keys of the order's object store. Raises as `with_secrets`."""
    read = await _read(order, bus, node_id)
    if OBJECT_STORE_VARIABLE not in read.values:
        raise MissingSecretsError(f"no such secret: {order.object_store}")
    return read.values[OBJECT_STORE_VARIABLE]


async def with_secrets(order: StartRun, bus: Bus, *, node_id: str, files: SecretFiles) -> StartRun:
    """The order with the values in its environment, and files for those that are wanted as such. Raises
    MissingSecretsError; RuntimeUnavailableError if no gateway gives them now, so that the start is tried again."""
    named = {**order.secrets, **order.secret_files}
    read = await _read(order, bus, node_id)
    missing = sorted({*read.missing, *(name for variable, name in named.items() if variable not in read.values)})
    if missing:
        raise MissingSecretsError(f"no such {'secret' if len(missing) == 1 else 'secrets'}: {listed(missing)}")
    if order.secret_files:
        try:
            await asyncio.to_thread(
                files.write, RunKey.of(order), {name: read.values[name] for name in order.secret_files}
            )
        except OSError as error:
            raise RuntimeUnavailableError(f"its secrets cannot be written: {error.strerror or error}") from error
    return structs.replace(order, env={**order.env, **{name: read.values[name] for name in order.secrets}})
