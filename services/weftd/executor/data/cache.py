"""The node's cache of data in object stores: a copy a place, by the names, sizes and times of its objects.

data/copies/<digest>/        the objects, to be read alone; <digest>.json beside it is written before it is there
data/coming/<digest>/        a copy that is being made; <digest>.lock is held by the rclone that makes it
data/runs/<job>-<epoch>-<rank>   the digests that a run was given, until the run is gone: these copies stay
data/discarded/              copies that are being removed

The digest covers the tenant, the store, the place, and of each object its name, size and time of modification. So a
tenant is given only what it copied with its own keys, and an object that changes makes another copy.
"""

import asyncio
import fcntl
import hashlib
import logging
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct, structs

from weft.bus import Bus
from weft.domain.quantity import size_text
from weft.messages.nodes import StartRun
from weftd.executor.data.rclone import NoDataError, Rclone, Store, StoredObject, store_of
from weftd.executor.data.settings import DataSettings
from weftd.executor.files.discards import Discards
from weftd.executor.files.secrets import object_store_of
from weftd.executor.runs import RunKey, RuntimeUnavailableError
from weftd.executor.thinking.caching import Copy, dropped_for
from weftd.executor.turns import StartTurns

logger = logging.getLogger(__name__)

AWAY_SECONDS_MAX = 300.0  # a start waits so long for a store that does not give its data
AWAY_MAX = 1000  # starts that are counted as waiting
COPIES_AT_ONCE = 64  # for all tenants together: the store of one tenant may be slow for hours
FREE_BYTES_MIN = 1 << 30  # that copies leave on the disk


class CopyRecord(Struct, frozen=True, kw_only=True):
    """The node's note on a copy. `files`: the number of its objects."""

    tenant: str
    url: str
    size: int
    files: int


class DataCache:
    """`home`: the executor's folder; its subfolders are made when a run first has mounts. `clock` does not jump."""

    def __init__(
        self, home: Path, bus: Bus, settings: DataSettings, *, node_id: str, clock: Callable[[], float]
    ) -> None:
        self._bus, self._node_id, self._settings, self._clock = bus, node_id, settings, clock
        self._top = home / "data"
        self._copies, self._coming, self._runs = (self._top / name for name in ("copies", "coming", "runs"))
        self._discards = Discards(str(self._top / "discarded"))
        self._rclone = Rclone(settings)
        self._turns = StartTurns(at_once=COPIES_AT_ONCE, per_tenant=settings.data_copies)
        self._locks = WeakValueDictionary[str, asyncio.Lock]()  # by digest, of the copies that starts wait for
        self._room = asyncio.Lock()
        self._reserved: dict[str, int] = {}  # bytes of the copies that are being made
        self.copying: dict[RunKey, tuple[int, int]] = {}  # bytes of the copy that a start waits for, of how many
        self._away: dict[RunKey, float] = {}  # since when the store of a start has given nothing
        with suppress(FileNotFoundError):
            self._discards.sweep()

    async def bring(self, order: StartRun, *, permitted: Callable[[], bool]) -> StartRun:
        """The order with the folders of its mounts. Raises NoDataError, MissingSecretsError; RuntimeUnavailableError if
        they cannot be had now, so that the start is tried again."""
        key = RunKey.of(order)
        try:
            store = store_of(await object_store_of(order, self._bus, node_id=self._node_id), order.object_store or "")
            mounted = {
                path: await self._brought(key, order.tenant, store, url, permitted)
                for path, url in order.mounts.items()
            }
        except OSError as error:
            raise RuntimeUnavailableError(f"its data cannot be kept here now: {error.strerror or error}") from error
        except RuntimeUnavailableError as error:
            since = self._away.pop(key, self._clock())
            if self._clock() - since >= AWAY_SECONDS_MAX:
                raise NoDataError(f"{error}, for {AWAY_SECONDS_MAX:g} s") from error
            if len(self._away) < AWAY_MAX:
                self._away[key] = since
            raise
        finally:
            self.copying.pop(key, None)
        self._away.pop(key, None)
        return structs.replace(order, mounted=mounted)

    def keep(self, keys: Collection[RunKey]) -> None:
        """Forget the copies of all runs but these, so that they may be dropped. Never raises."""
        held = {str(key) for key in keys}
        try:
            names = [name for name in os.listdir(self._runs) if name not in held]
        except OSError:
            return
        for name in names:
            with suppress(OSError):
                os.unlink(self._runs / name)

    def close(self) -> None:
        self._discards.close()

    async def _brought(self, key: RunKey, tenant: str, store: Store, url: str, permitted: Callable[[], bool]) -> str:
        """The folder of the node with the objects of one place."""
        objects = await self._rclone.objects(store, url)
        digest = digest_of(tenant, store.endpoint, url, objects)
        async with self._locks.setdefault(digest, asyncio.Lock()):
            await asyncio.to_thread(self._note_use, key, digest)
            if not await asyncio.to_thread(self._is_whole, digest, objects):
                await self._copy(key, digest, tenant, store, url, objects, permitted)
        return str(self._copies / digest)

    async def _copy(
        self,
        key: RunKey,
        digest: str,
        tenant: str,
        store: Store,
        url: str,
        objects: Sequence[StoredObject],
        permitted: Callable[[], bool],
    ) -> None:
        size = sum(one.size for one in objects)
        if size > self._settings.data_bytes_max:
            most = size_text(self._settings.data_bytes_max)
            raise NoDataError(f"{url} has {size_text(size)}; the cache of this node has {most}")
        async with self._turns.one(tenant):
            async with self._room:
                await asyncio.to_thread(self._make_room, digest, size, url)
                self._reserved[digest] = size
            try:
                with self._locked(digest, url) as lock:
                    coming = str(self._coming / digest)
                    logger.info("copying %s, %d bytes", url, size)
                    began = self._clock()

                    def moved(count: int) -> str:
                        self.copying[key] = (min(count, size), size)
                        return "" if permitted() else "no run needs it any more"

                    await self._rclone.copy(store, url, coming, lock=lock, moved=moved)
                    if await self._rclone.objects(store, url) != tuple(objects):
                        raise RuntimeUnavailableError(f"{url}: its objects changed while they were copied")
                    record = CopyRecord(tenant=tenant, url=url, size=size, files=len(objects))
                    await asyncio.to_thread(self._finish, digest, record, objects)
                    logger.info("copied %s in %.1f s", url, self._clock() - began)
            finally:
                del self._reserved[digest]

    def _make_room(self, digest: str, size: int, url: str) -> None:
        """Drop unused copies until a new one fits. Raises RuntimeUnavailableError, OSError."""
        for folder in (self._top, self._copies, self._coming):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in os.listdir(self._coming):  # copies that were given up
            name = left.removesuffix(".lock")
            if name not in self._reserved and name != digest and not self._is_held(name):
                self._discards.take(str(self._coming / left))
        found = self._found()
        disk = os.statvfs(self._top)
        free = max(0, disk.f_bavail * disk.f_frsize - FREE_BYTES_MIN)
        bytes_max = min(self._settings.data_bytes_max, sum(copy.size for copy in found) + free)
        dropped = dropped_for(size, [*found, *self._half_made()], bytes_max=bytes_max, in_use=self._in_use())
        if dropped is None:
            why = f"the cache of this node has {size_text(bytes_max)}, and runs use too much of it"
            raise RuntimeUnavailableError(f"{url} has {size_text(size)}: {why}")
        for copy in dropped:
            logger.info("dropping the copy %s of %s, %d bytes", copy.digest[:12], copy.tenant, copy.size)
            self._discards.take(str(self._copies / copy.digest))
            with suppress(OSError):
                os.unlink(self._copies / f"{copy.digest}.json")

    def _half_made(self) -> list[Copy]:
        return [Copy(digest=digest, tenant="", size=size, used_at=0.0) for digest, size in self._reserved.items()]

    def _found(self) -> list[Copy]:
        found: list[Copy] = []
        for name in os.listdir(self._copies):
            if not name.endswith(".json"):
                continue
            with suppress(OSError, msgspec.DecodeError):
                path = self._copies / name
                record = msgspec.json.decode(path.read_bytes(), type=CopyRecord)
                digest = name.removesuffix(".json")
                used_at = path.stat().st_mtime
                found.append(Copy(digest=digest, tenant=record.tenant, size=record.size, used_at=used_at))
        return found

    def _in_use(self) -> set[str]:
        used = set(self._reserved)
        with suppress(FileNotFoundError):
            for name in os.listdir(self._runs):
                with suppress(OSError):
                    used.update((self._runs / name).read_text().split())
        return used

    def _note_use(self, key: RunKey, digest: str) -> None:
        """Before the copy is looked at, so that it is not dropped meanwhile."""
        self._runs.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self._runs / str(key), "a") as file:
            file.write(f"{digest}\n")
        with suppress(FileNotFoundError):
            os.utime(self._copies / f"{digest}.json")

    def _is_whole(self, digest: str, objects: Sequence[StoredObject]) -> bool:
        """Return True if the copy is there, each file with its size. A copy that was spoilt is dropped."""
        folder = self._copies / digest
        if not folder.is_dir():
            return False
        for one in objects:
            try:
                size = os.lstat(folder / one.path).st_size
            except OSError:
                size = -1
            if size != one.size:
                logger.warning("the copy %s is damaged at %r and is made again", digest[:12], one.path)
                self._discards.take(str(folder))
                return False
        return True

    def _finish(self, digest: str, record: CopyRecord, objects: Sequence[StoredObject]) -> None:
        """Check the copy, and put it where runs are given it. Raises RuntimeUnavailableError, OSError."""
        coming = self._coming / digest
        folders = {coming}
        for one in objects:
            path = coming / one.path
            if os.lstat(path).st_size != one.size:
                raise RuntimeUnavailableError(f"{record.url}: {one.path!r} was not copied whole")
            os.chmod(path, 0o444)
            folders.update(parent for parent in path.parents if parent.is_relative_to(coming))
        (self._copies / f"{digest}.json").write_bytes(msgspec.json.encode(record))
        os.rename(coming, self._copies / digest)
        for folder in folders:
            os.chmod(self._copies / digest / folder.relative_to(coming), 0o555)
        with suppress(OSError):
            os.unlink(self._coming / f"{digest}.lock")

    @contextmanager
    def _locked(self, digest: str, url: str) -> Iterator[int]:
        """Hold the lock of a copy, which the rclone that an earlier executor left may still hold."""
        fd = os.open(self._coming / f"{digest}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RuntimeUnavailableError(f"{url}: an earlier copy of it still runs on this node") from None
            yield fd
        finally:
            os.close(fd)

    def _is_held(self, digest: str) -> bool:
        try:
            fd = os.open(self._coming / f"{digest}.lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False


def digest_of(tenant: str, endpoint: str, url: str, objects: Sequence[StoredObject]) -> str:
    parts = (tenant, endpoint, url, [(one.path, one.size, one.mod_time) for one in objects])
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()
