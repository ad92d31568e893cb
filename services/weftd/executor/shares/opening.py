"""Which back-end holds this node's runs to their shares of a GPU: the owner's choice, and what the host can do."""

import asyncio
import hashlib
import logging
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from weft.sharing.native import Built, build
from weft.sharing.places import root_of
from weftd.executor.home import Home
from weftd.executor.shares.backend import HOOK, TIME_SLICE, ShareBackend, TimeSlicing
from weftd.executor.shares.hook import DISCARDED, HookBackend
from weftd.executor.shares.watch import ArbiterWatch

logger = logging.getLogger(__name__)


class SharesUnavailableError(Exception):
    """The back-end that the node's owner chose cannot work here."""


@asynccontextmanager
async def opened(choice: str, home: Home) -> AsyncIterator[ShareBackend]:
    """The back-end; AUTO takes the hook where it can be had. Raises SharesUnavailableError, and OSError."""
    built = None if choice == TIME_SLICE else await asyncio.to_thread(build)
    if not isinstance(built, Built):
        if choice == HOOK and built is not None:
            raise SharesUnavailableError(built.reason)
        if built is not None:
            logger.warning("jobs are not held to their shares of a GPU here: %s", built.reason)
        yield TimeSlicing()
        return
    root = root_of(home.root)
    in_use = root.is_dir() and any(path.name != DISCARDED for path in root.iterdir())
    built = await asyncio.to_thread(_placed, built, home.root / "native", in_use=in_use)
    watch = ArbiterWatch(root, log=home.root / "arbiter.log")
    backend = HookBackend(
        root, hook=built.hook, driver=built.driver_folder, devices=home.root / "devices", needed=watch.begin
    )
    keeping = asyncio.create_task(watch.keep(), name="arbiter")
    try:
        yield backend
    finally:
        keeping.cancel()
        backend.close()
        await watch.close()
        if root.parent != home.root:
            for folder in (root / DISCARDED, root):
                with suppress(OSError):  # there are slots left, or there never were any
                    folder.rmdir()


def _placed(built: Built, folder: Path, *, in_use: bool) -> Built:
    """The compiled files, copied to where containers and later runs find them, whatever becomes of the originals. Those
    that were compiled from other sources go once no run has a share. Raises OSError."""
    folder.mkdir(mode=0o755, exist_ok=True)
    digest = hashlib.sha256(built.hook.read_bytes())
    for path in sorted(built.driver_folder.iterdir()):
        digest.update(path.read_bytes())
    wanted = folder / digest.hexdigest()[:16]
    placed = Built(hook=wanted / built.hook.name, driver_folder=wanted / built.driver_folder.name)
    if not wanted.exists():
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder) as unfinished:
            made = Path(unfinished, "made")
            made.mkdir(mode=0o755)
            shutil.copy(built.hook, made / built.hook.name)
            shutil.copytree(built.driver_folder, made / built.driver_folder.name)
            made.rename(wanted)
    if not in_use:
        for other in folder.iterdir():
            if other != wanted:
                shutil.rmtree(other, ignore_errors=True)
    return placed
