"""Chooses the back-end that holds this node's runs to their shares of a GPU, by the owner's choice and the host's
abilities."""

import asyncio
import hashlib
import logging
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from weft.sharing.native import HOOK as HOOK_LIBRARY
from weft.sharing.native import Library, NotBuilt, build
from weft.sharing.places import root_of
from weftd.executor.files.home import Home
from weftd.executor.shares.backend import HOOK, TIME_SLICE, ShareBackend, TimeSlicing
from weftd.executor.shares.hook import DISCARDED, HookBackend, OwnDriver, PlacedDriver
from weftd.executor.shares.watch import ArbiterWatch

logger = logging.getLogger(__name__)


class SharesUnavailableError(Exception):
    """The back-end that the node's owner chose cannot work here."""


@asynccontextmanager
async def opened(choice: str, home: Home, *, driver: OwnDriver | None = None) -> AsyncIterator[ShareBackend]:
    """The back-end; AUTO takes the hook where it can be had. `driver`: that of the node's GPUs, if they have one of
    their own. Raises SharesUnavailableError, and OSError."""
    libraries = (HOOK_LIBRARY,) if driver is None else (HOOK_LIBRARY, driver.library)
    built = None if choice == TIME_SLICE else await asyncio.to_thread(_built, libraries)
    if built is None or isinstance(built, NotBuilt):
        if choice == HOOK and built is not None:
            raise SharesUnavailableError(built.reason)
        if built is not None:
            logger.warning("shares of a GPU are not enforced here: %s", built.reason)
        yield TimeSlicing()
        return
    root = root_of(home.root)
    in_use = root.is_dir() and any(path.name != DISCARDED for path in root.iterdir())
    hook, *others = await asyncio.to_thread(_placed, built, home.root / "native", in_use=in_use)
    own = PlacedDriver(driver, others[0].parent, home.root / "devices") if driver is not None else None
    watch = ArbiterWatch(root, log=home.root / "arbiter.log")
    backend = HookBackend(root, hook=hook, own=own, needed=watch.begin)
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


def _built(libraries: Iterable[Library]) -> dict[str, Path] | NotBuilt:
    """Each compiled library by its place in a folder of such."""
    found: dict[str, Path] = {}
    for library in libraries:
        built = build(library)
        if isinstance(built, NotBuilt):
            return built
        found[library.path] = built
    return found


def _placed(built: Mapping[str, Path], folder: Path, *, in_use: bool) -> list[Path]:
    """Copies of the compiled files, where containers and later runs find them, whatever becomes of the originals. Those
    that were compiled from other sources go once no run has a share. Raises OSError."""
    folder.mkdir(mode=0o755, exist_ok=True)
    digest = hashlib.sha256()
    for path in built.values():
        digest.update(path.read_bytes())
    wanted = folder / digest.hexdigest()[:16]
    if not wanted.exists():
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder) as unfinished:
            made = Path(unfinished, "made")
            made.mkdir(mode=0o755)
            for place, path in built.items():
                (made / place).parent.mkdir(mode=0o755, exist_ok=True)
                shutil.copy(path, made / place)
            made.rename(wanted)
    if not in_use:
        for other in folder.iterdir():
            if other != wanted:
                shutil.rmtree(other, ignore_errors=True)
    return [wanted / place for place in built]
