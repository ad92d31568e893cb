"""Removes leftovers of ended runs: control groups with dying processes, and processes outside their group."""

import asyncio
from collections.abc import Mapping

from weftd.executor.runs import RunKey
from weftd.executor.runtime.limits import cgroup
from weftd.executor.runtime.process.stragglers import kill_stragglers

SOON_SECONDS = 0.05
SWEEP_SECONDS = 1.0
LAST_TRIES = 10


class Sweeper:
    """Sweeps once for all runs that ended within a second, because finding strays reads every process of the host."""

    def __init__(self, cgroups: cgroup.Cgroups, runs: str) -> None:
        self._cgroups = cgroups
        self._runs = runs  # the folder that identifies a run's processes
        self._leftovers: list[dict[str, str]] = []
        self._strayed: set[RunKey] = set()
        self._sweeping: set[RunKey] = set()  # whose processes are being looked for now
        self._wanted = False
        self._task: asyncio.Task[None] | None = None

    def drop(self, groups: Mapping[str, str]) -> None:
        """Remove these groups, now or as soon as their processes have died."""
        if groups and not cgroup.remove(groups):
            self._cgroups.kill(groups)
            self._leftovers.append(dict(groups))
            self._soon()

    def find_strays(self, *ended: RunKey) -> None:
        """Kill the remaining processes of ended runs."""
        if ended:
            self._strayed.update(ended)
            self._soon()

    async def finish(self, key: RunKey) -> None:
        """Kill the remaining processes of a run before it starts again: a later sweep would take the new processes for
        the old."""
        if key in self._strayed or key in self._sweeping:
            self._strayed.discard(key)
            self._sweeping.discard(key)
            await asyncio.to_thread(kill_stragglers, self._runs, lambda found: found == key)

    async def close(self) -> None:
        """Sweep a last time; the next executor removes the rest."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for _ in range(LAST_TRIES):
            self._leftovers = [groups for groups in self._leftovers if not cgroup.remove(groups)]
            if not self._leftovers:
                break
            await asyncio.sleep(SOON_SECONDS)

    def _soon(self) -> None:
        self._wanted = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._sweep())

    async def _sweep(self) -> None:
        pause = SOON_SECONDS
        while self._wanted:
            await asyncio.sleep(pause)
            self._wanted = False
            kept = [groups for groups in self._leftovers if not cgroup.remove(groups)]
            for groups in kept:
                self._cgroups.kill(groups)
            self._leftovers = kept
            self._sweeping, self._strayed = self._strayed, set()
            if self._sweeping:
                await asyncio.to_thread(kill_stragglers, self._runs, self._sweeping.__contains__)
            self._sweeping = set()
            self._wanted = self._wanted or bool(self._leftovers)
            pause = SWEEP_SECONDS
