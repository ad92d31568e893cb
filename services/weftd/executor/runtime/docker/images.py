"""The images that this node fetched for jobs, and their removal once no job has used them for long.

images/<name's hash>   in the home: the image's name and id; the file's own time is when a job used the image last

Weft does not remove an image that was there before or was replaced since. The engine itself keeps an image that a
container uses.
"""

import asyncio
import hashlib
import logging
import os
from collections.abc import Callable
from contextlib import suppress

import msgspec
from msgspec import Struct, structs

from weftd.executor.files.regular import read_small
from weftd.executor.runs import RuntimeUnavailableError
from weftd.executor.runtime.docker.engine import DockerEngine, EngineRefusedError, MissingError

logger = logging.getLogger(__name__)

NOTE_BYTES_MAX = 8192
TENANTS_MAX = 100  # tenants in a note, so that it fits into its bytes; the others pull the image again


class Fetched(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`tenants`: those whose own login pulled it; empty: everybody may use it."""

    name: str
    id: str
    tenants: tuple[str, ...] = ()


class Images:
    """An image is removed `kept_seconds` after its last use; 0: never."""

    def __init__(self, engine: DockerEngine, folder: str, *, kept_seconds: float) -> None:
        self._engine = engine
        self._folder = folder
        self._kept_seconds = kept_seconds

    async def fetched(self, name: str, *, tenant: str = "") -> None:
        """Note an image that was just fetched, with the login of a tenant or with none. If the note fails, the image is
        kept for ever; one that was fetched with a login is then removed. Raises RuntimeUnavailableError."""
        try:
            image = await self._id(name)
            before = self._read(self._path(name))
            others: tuple[str, ...] = ()
            if before is not None and before.tenants:
                if before.id != image:  # its tag moved, and by its digest the engine still has it
                    self._write(structs.replace(before, name=before.id))
                elif tenant:
                    others = tuple(one for one in before.tenants if one != tenant)[1 - TENANTS_MAX :]
            self._write(Fetched(name=name, id=image, tenants=(*others, tenant) if tenant else ()))
        except (RuntimeUnavailableError, OSError) as error:
            if tenant:
                await self._engine.call(self._engine.client.remove_image, name, noprune=True)
                raise RuntimeUnavailableError(f"{name} cannot be kept to its tenant: {error}") from error
            logger.warning("the image %s is never removed: %s", name, error)

    async def may_use(self, name: str, *, tenant: str) -> bool:
        """False for an image that only logins of other tenants have pulled. Raises MissingError, and others of the
        engine."""
        image = await self._id(name)
        return await asyncio.to_thread(self._is_for, image, tenant)

    def _is_for(self, image: str, tenant: str) -> bool:
        """By its id: the same image may have several names."""
        notes = [note for note in map(self._read, (path for path, _ in self._notes())) if note and note.id == image]
        return not notes or any(not note.tenants or tenant in note.tenants for note in notes)

    def used(self, name: str) -> None:
        """Note that a job starts in this image."""
        with suppress(OSError):
            os.utime(self._path(name))

    async def sweep(self, *, now: float) -> None:
        """Remove images that no job has used for long. `now` in seconds since the epoch."""
        if not self._kept_seconds:
            return
        for path, used_at in await asyncio.to_thread(self._notes):
            if now - used_at > self._kept_seconds:
                await self._remove(path)

    async def _remove(self, path: str) -> None:
        fetched = self._read(path)
        try:
            if fetched is not None and await self._id(fetched.name) == fetched.id:
                await self._engine.call(self._engine.client.remove_image, fetched.name, noprune=True)
                logger.info("removed the image %s, which no job has used for a long time", fetched.name)
        except MissingError:
            pass  # It was removed by others.
        except EngineRefusedError as error:  # It is in use.
            logger.debug("%s stays: %s", path, error)
            return
        with suppress(FileNotFoundError):
            os.unlink(path)

    async def _id(self, name: str) -> str:
        inspect: Callable[[str], dict[str, str]] = self._engine.client.inspect_image
        return await self._engine.call(lambda: str(inspect(name)["Id"]))

    def _read(self, path: str) -> Fetched | None:
        note = read_small(path, bytes_max=NOTE_BYTES_MAX)
        with suppress(msgspec.DecodeError):
            return None if note is None else msgspec.json.decode(note.data, type=Fetched)
        return None

    def _notes(self) -> list[tuple[str, float]]:
        found: list[tuple[str, float]] = []
        with suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            found.extend((entry.path, entry.stat(follow_symlinks=False).st_mtime) for entry in entries)
        return found

    def _write(self, fetched: Fetched) -> None:
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        fd = os.open(self._path(fetched.name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, msgspec.json.encode(fetched))
        finally:
            os.close(fd)

    def _path(self, name: str) -> str:
        return f"{self._folder}/{hashlib.sha256(name.encode()).hexdigest()}"
