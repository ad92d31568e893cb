"""The outputs of runs: written in a folder of the node, uploaded while the run goes on and after its end.

data/outputs/<job>-<epoch>-<rank>/upload.json   what is to be uploaded, written before the run starts
data/outputs/<job>-<epoch>-<rank>/0/, 1/, …     the files of each output
data/outputs/<job>-<epoch>-<rank>/linked/       the same files while they are uploaded and the run goes on
data/outputs/<job>-<epoch>-<rank>/over          the upload after the end is done (empty), or was given up (why)

All that is to be done is on the disk, so an executor that was killed goes on. The end of a run is reported once its
outputs are uploaded: until then its job has not ended, and a gateway gives its node the keys of the store. rclone does
not upload again what the store has.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from weft.bus import Bus
from weft.messages.nodes import StartRun
from weftd.executor.data.linked import link_files
from weftd.executor.data.rclone import NoDataError, Rclone, Store, store_of
from weftd.executor.data.settings import DataSettings
from weftd.executor.files.discards import Discards
from weftd.executor.files.secrets import MissingSecretsError, object_store_of
from weftd.executor.runs import Run, RunKey, RuntimeUnavailableError
from weftd.executor.turns import StartTurns

logger = logging.getLogger(__name__)

AWAY_SECONDS_MAX = 300.0  # the upload of a run that ended is tried again for so long
STOPPING_SECONDS_MAX = 200.0  # the whole upload of a run that was told to stop: the node must report its end in time
AGAIN_SECONDS = 3.0
UPLOADS_AT_ONCE = 64  # for all tenants together: the store of one tenant may be slow for hours
KEPT_SECONDS = 7 * 86400.0  # outputs that were given up


class UploadRecord(Struct, frozen=True, kw_only=True):
    """`order`: with the names of its outputs and of the secret, without a value of any secret."""

    order: StartRun
    urls: dict[str, str]  # name of the folder → place


class Uploads:
    """`clock` does not jump; `now`: seconds since the epoch. `mode`: the mode of folders that runs write in."""

    def __init__(
        self,
        home: Path,
        bus: Bus,
        settings: DataSettings,
        *,
        node_id: str,
        mode: int,
        clock: Callable[[], float],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._bus, self._node_id, self._settings = bus, node_id, settings
        self._mode, self._clock, self._now = mode, clock, now
        self._top = home / "data" / "outputs"
        self._discards = Discards(str(home / "data" / "discarded"))
        self._rclone = Rclone(settings)
        self._turns = StartTurns(at_once=UPLOADS_AT_ONCE, per_tenant=settings.data_copies)
        self._tasks: dict[RunKey, asyncio.Task[None]] = {}
        self._next: dict[RunKey, float] = {}  # when a run that goes on is uploaded again
        self._again: dict[RunKey, float] = {}  # when the last upload of a run is tried again
        self._failing: dict[RunKey, float] = {}  # since when uploads after its end fail
        self._known: dict[RunKey, UploadRecord] | None = None  # None: not read since the executor began
        self._over: set[RunKey] = set()
        self.given_up: dict[RunKey, str] = {}
        self.changed = asyncio.Event()  # an end may be reported

    def begin(self, order: StartRun) -> StartRun:
        """Make the folders of a run's outputs. Raises OSError."""
        if not order.outputs:
            return order
        key = RunKey.of(order)
        folder = self._top / str(key)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        below = f"/rank-{order.rank}" if order.world_size > 1 else ""
        record = UploadRecord(
            order=structs.replace(order, env={}, mounted={}, written={}),
            urls={str(number): url.rstrip("/") + below for number, url in enumerate(order.outputs.values())},
        )
        written = {path: str(folder / str(number)) for number, path in enumerate(order.outputs)}
        for inner in written.values():
            os.makedirs(inner, exist_ok=True)
            os.chmod(inner, self._mode)
        (folder / "upload.new").write_bytes(msgspec.json.encode(record))
        os.rename(folder / "upload.new", folder / "upload.json")
        self._records()[key] = record
        return structs.replace(order, written=written)

    def waits(self, run: Run, stopped: bool) -> bool:
        """Return True if the end of this run must not be reported yet, because its outputs are not uploaded."""
        if run.key not in self._records() or self._is_over(run.key):
            return False
        if stopped and (run.ended_at is None or self._now() - run.ended_at > STOPPING_SECONDS_MAX):
            self._end(run.key, "object-store: its outputs were not uploaded within its time to stop")
            return False
        return True

    def look(self, runs: Iterable[Run]) -> None:
        """Begin the uploads that are due."""
        now = self._clock()
        for run in runs:
            key = run.key
            if key not in self._records() or key in self._tasks or self._is_over(key):
                continue
            if run.live and key not in self._next:
                self._next[key] = now + self._settings.data_upload_seconds
            if now >= (self._next[key] if run.live else self._again.get(key, 0.0)):
                task = asyncio.create_task(self._upload(key, is_last=not run.live))
                task.add_done_callback(partial(self._note_bug, key))
                self._tasks[key] = task

    def keep(self, keys: Collection[RunKey]) -> None:
        """Remove the outputs of other runs than these: at once if they are uploaded, else later."""
        for key in [key for key in self._records() if key not in keys and key not in self._tasks]:
            folder = self._top / str(key)
            with suppress(OSError):
                uploaded = key in self._over and key not in self.given_up
                if uploaded or self._is_empty(key) or self._now() - folder.stat().st_mtime > KEPT_SECONDS:
                    self._discards.take(str(folder))
                    del self._records()[key]
                    self.given_up.pop(key, None)
                    self._next.pop(key, None)
                    self._again.pop(key, None)
                    self._over.discard(key)

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        self._discards.close()

    async def _upload(self, key: RunKey, *, is_last: bool) -> None:
        record = self._records()[key]
        try:
            async with self._turns.one(record.order.tenant):
                name = record.order.object_store or ""
                store = store_of(await object_store_of(record.order, self._bus, node_id=self._node_id), name)
                for folder, url in record.urls.items():
                    written = str(self._top / str(key) / folder)
                    if is_last:
                        await self._rclone.upload(store, written, url)
                    else:
                        await self._upload_links(store, written, str(self._top / str(key) / "linked"), url)
        except (RuntimeUnavailableError, NoDataError, MissingSecretsError, OSError) as error:
            logger.warning("the outputs of %s are not uploaded yet: %s", key, error)
            self._again[key] = self._clock() + AGAIN_SECONDS
            if is_last:
                since = self._failing.setdefault(key, self._clock())
                passes = isinstance(error, RuntimeUnavailableError | OSError)
                if not passes or self._clock() - since >= AWAY_SECONDS_MAX:
                    why = str(error).removeprefix("object-store: ")
                    self._end(key, f"object-store: its outputs are on {self._node_id} and were not uploaded: {why}")
        else:
            if is_last:
                logger.info("the outputs of %s are uploaded", key)
                self._end(key, "")
        finally:
            self._next[key] = self._clock() + self._settings.data_upload_seconds
            self._tasks.pop(key, None)

    async def _upload_links(self, store: Store, written: str, links: str, url: str) -> None:
        """Upload files of a run that goes on. It may change its folders meanwhile, so rclone reads links to them."""
        self._discards.take(links)  # an executor that was killed left them
        try:
            await asyncio.to_thread(link_files, written, links)
            await self._rclone.upload(store, links, url)
        finally:
            self._discards.take(links)

    def _note_bug(self, key: RunKey, task: asyncio.Task[None]) -> None:
        """Note a bug of this program, which must not delay the end of a run for ever."""
        if not task.cancelled() and (bug := task.exception()) is not None:
            logger.error("the outputs of %s", key, exc_info=bug)
            self._end(key, "object-store: its outputs were not uploaded, because of an error in this node")

    def _end(self, key: RunKey, why: str) -> None:
        """Note that the upload is complete, or was given up."""
        if why:
            self.given_up[key] = why
        self._failing.pop(key, None)
        with suppress(OSError):  # A full disk: then it is decided again after a restart.
            (self._top / str(key) / "over").write_text(why)
        self._over.add(key)
        self.changed.set()

    def _is_empty(self, key: RunKey) -> bool:
        """Return True if nothing was written, as by a run that never began."""
        return not any(any((self._top / str(key) / name).iterdir()) for name in self._records()[key].urls)

    def _is_over(self, key: RunKey) -> bool:
        self._records()
        return key in self._over

    def _records(self) -> dict[RunKey, UploadRecord]:
        """The runs with outputs, as they are on the disk when the executor begins."""
        if self._known is None:
            self._known = {}
            for folder in self._top.iterdir() if self._top.is_dir() else ():
                key = RunKey.parse(folder.name)
                with suppress(OSError, msgspec.DecodeError):
                    if key is not None:
                        self._known[key] = msgspec.json.decode((folder / "upload.json").read_bytes(), type=UploadRecord)
                        why = (folder / "over").read_text()
                        self._over.add(key)
                        if why:
                            self.given_up[key] = why
        return self._known
