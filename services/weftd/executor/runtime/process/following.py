"""Follows the remaining processes of stopped runs while the executor lives; the guard follows them without it."""

import asyncio
from collections.abc import Callable

from weftd.executor.runs import RunKey
from weftd.executor.runtime.process.remaining import LOOK_SECONDS, ProcessesOfRun, StopOrder, follow


class Remaining:
    """Follows stopped runs from the end of their main process to the end of their last one."""

    def __init__(self, runs_folder: str, over: Callable[[RunKey, bool], None]) -> None:
        """`over` is called by the event loop when a run has no process left, with whether it had one at first."""
        self._runs_folder = runs_folder
        self._over = over
        self._runs: dict[RunKey, tuple[str, ProcessesOfRun]] = {}
        self._orders: dict[RunKey, StopOrder] = {}
        self._lingered: set[RunKey] = set()
        self._task: asyncio.Task[None] | None = None

    def add(self, key: RunKey, folder: str, left: ProcessesOfRun) -> None:
        self._runs[key] = (folder, left)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._follow())

    def drop(self, key: RunKey) -> None:
        self._runs.pop(key, None)
        self._lingered.discard(key)

    async def close(self) -> None:
        self._runs.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        while self._runs:
            wanted = dict(self._runs)
            left = await asyncio.to_thread(follow, self._runs_folder, wanted, self._orders)
            self._lingered |= left & self._runs.keys()
            for key in wanted.keys() - left:
                if key in self._runs:
                    lingered = key in self._lingered
                    self.drop(key)
                    self._over(key, lingered)
            if self._runs:
                await asyncio.sleep(LOOK_SECONDS)
