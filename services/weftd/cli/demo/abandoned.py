"""Finds and removes what killed demos left behind."""

import asyncio
import os
import shutil
from pathlib import Path

from weft import servers
from weft.sharing.places import root_of
from weftd.cli.local import ClusterHome, LocalError
from weftd.cli.local.leftovers import kill_runs

PREFIX = "weft-demo-"
KEPT_PREFIX = "weft-kept-demo-"


async def clear_abandoned(temporary: Path) -> None:
    for home in await asyncio.to_thread(_abandoned, temporary):
        await asyncio.to_thread(kill_runs, home.nodes)
        for node in await asyncio.to_thread(_nodes, home):
            await asyncio.to_thread(shutil.rmtree, root_of(node), ignore_errors=True)
        await servers.erase(home.root)
        home.release()
        await asyncio.to_thread(shutil.rmtree, home.root, ignore_errors=True)


def _nodes(home: ClusterHome) -> list[Path]:
    return sorted(home.nodes.iterdir()) if home.nodes.is_dir() else []


def _abandoned(temporary: Path) -> list[ClusterHome]:
    """The homes of our own demos that no process runs any more; taken, so that no two demos clear one."""
    found = []
    for lock in sorted(temporary.glob(f"{PREFIX}*/up.lock")):
        home = ClusterHome(lock.parent)
        try:
            if lock.stat().st_uid == os.geteuid():
                home.take()
                found.append(home)
        except (LocalError, OSError):
            continue  # It runs, or has just been cleared.
    return found
