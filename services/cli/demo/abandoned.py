"""Finds and removes what killed demos left behind."""

import asyncio
import os
import shutil
from pathlib import Path

from libs import servers
from services.cli.local import ClusterHome, LocalError
from services.cli.local.leftovers import kill_runs

PREFIX = "weft-demo-"
KEPT_PREFIX = "weft-kept-demo-"


async def clear_abandoned(temporary: Path) -> None:
    for home in await asyncio.to_thread(_abandoned, temporary):
        await asyncio.to_thread(kill_runs, home.nodes)
        await servers.erase(home.root)
        home.release()
        await asyncio.to_thread(shutil.rmtree, home.root, ignore_errors=True)


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
