"""How much memory every process of a local cluster has, servers included."""

import asyncio
import re
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.bench.fairness.aims import Memory
from weft import servers
from weftd.cli.local import LocalCluster

LOOK_SECONDS = 1.0
WITH_CHILDREN = ("gateway", "postgres")  # an executor's children are jobs


class Processes:
    """Watches for as long as `watch` runs: the most that each had, and which ended by themselves."""

    def __init__(self, local: LocalCluster) -> None:
        self._local = local
        self._most: list[dict[str, int]] = []
        self._pids: dict[str, int] = {}
        self.restarts: dict[str, int] = defaultdict(int)

    def begin(self) -> None:
        """Another attack: nothing of earlier ones is counted any more."""
        self._most = []
        self.restarts = defaultdict(int)

    def memory(self, halves_from: int) -> Memory:
        """The looks from that number on, in two halves."""
        looks = self._most[halves_from:]
        middle = len(looks) // 2
        return Memory(first=_most_of(looks[:middle]), second=_most_of(looks[middle:]))

    @property
    def looks(self) -> int:
        return len(self._most)

    async def watch(self) -> None:
        while True:
            pids = await self._all()
            for name, pid in pids.items():
                if self._pids.get(name, pid) != pid:
                    self.restarts[name] += 1
            self._pids |= pids
            self._most.append(await asyncio.to_thread(_memory_of, pids))
            await asyncio.sleep(LOOK_SECONDS)

    async def _all(self) -> dict[str, int]:
        state = await servers.status(self._local.home.root)
        own = {"nats": state.nats, "postgres": state.postgres}
        return {**self._local.pids, **{name: one.pid for name, one in own.items() if one is not None and one.pid}}


def _most_of(looks: list[dict[str, int]]) -> dict[str, int]:
    most: dict[str, int] = {}
    for look in looks:
        for name, count in look.items():
            most[name] = max(most.get(name, 0), count)
    return most


def _memory_of(pids: Mapping[str, int]) -> dict[str, int]:
    children = _children()
    found: dict[str, int] = {}
    for name, pid in pids.items():
        family = [pid]
        if name in WITH_CHILDREN:
            for one in family:  # grows while it is walked
                family += children.get(one, [])
        found[name] = sum(_proportional(one) for one in family)
    return {name: count for name, count in found.items() if count}


def _proportional(pid: int) -> int:
    """What it has alone, and its part of what it shares; 0 for one that has ended."""
    with suppress(OSError):
        if found := re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE):
            return int(found[1]) * 1024
    return 0


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
            found[int(parent)].append(int(path.name))
    return found
