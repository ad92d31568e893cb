"""The quiet tenant: it submits small jobs and looks at them, at a fixed rate, whatever becomes of what it asked before.

A job starts when the file is there that it makes: nothing that Weft says is believed for that.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from tests.bench.fairness.aims import Window
from weft.messages.http import Submitted

DEADLINE_SECONDS = 10.0  # a request that has not been answered by then has failed
STARTED_SECONDS_MAX = 10.0  # after the last submission
SUBMITS_PER_SECOND, GETS_PER_SECOND = 6.0, 20.0
PATHS = (
    "/v1/jobs/{job}",
    "/v1/jobs?limit=20",
    "/v1/jobs/{job}/events",
    "/v1/cluster",
    "/v1/events?limit=20",
    "/v1/nodes",
)
LOOK_SECONDS = 0.05


class Quiet:
    """`folder` is where its jobs leave their files."""

    def __init__(self, url: str, token: str, folder: Path) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"}
        self._folder = folder
        self._count = 0
        self._job = "none"
        self._kept: aiohttp.ClientSession | None = None

    async def warm(self) -> None:
        """So that there is a job to look at."""
        window = await self.window(1.0)
        assert window.seconds["submit"], "the first submission was not answered"

    async def window(self, seconds: float, stop: asyncio.Event | None = None) -> Window:
        """For so long, or until `stop` is set; both kinds of requests, each at its own pace."""
        took: dict[str, list[float]] = defaultdict(list)
        failed: Counter[str] = Counter()
        asked: dict[str, float] = {}
        stop = stop or asyncio.Event()
        timeout = aiohttp.ClientTimeout(total=DEADLINE_SECONDS)
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=self._headers) as kept,
            aiohttp.ClientSession(
                timeout=timeout, headers=self._headers, connector=aiohttp.TCPConnector(force_close=True)
            ) as fresh,
        ):
            sessions = (kept, fresh)

            async def submit(number: int) -> None:
                name = f"quiet-{self._count}"
                self._count += 1
                asked[name] = time.time()
                body = await self._timed(
                    "submit", sessions[number % 2], "POST", "/v1/jobs", took, failed, self._spec(name)
                )
                if body is None:
                    del asked[name]  # its failure is counted once
                else:
                    self._job = msgspec.json.decode(body, type=Submitted).id

            async def get(number: int) -> None:
                path = PATHS[number % len(PATHS)].format(job=self._job)
                await self._timed("get", sessions[number // len(PATHS) % 2], "GET", path, took, failed)

            async with asyncio.TaskGroup() as tasks:
                for rate, make in ((SUBMITS_PER_SECOND, submit), (GETS_PER_SECOND, get)):
                    tasks.create_task(_at_rate(rate, seconds, stop, make))
        await self._starts(asked, took, failed)
        return Window(seconds=dict(took), failed=dict(failed))

    def _spec(self, name: str) -> bytes:
        role = {"gpus": 0, "cpus": 0.1, "memory": "64MiB"}
        made = {"name": name, "command": ["touch", str(self._folder / name)], "roles": {"worker": role}}
        return msgspec.json.encode(made)

    async def _timed(
        self,
        kind: str,
        session: aiohttp.ClientSession,
        method: str,
        path: str,
        took: dict[str, list[float]],
        failed: Counter[str],
        body: bytes | None = None,
    ) -> bytes | None:
        """The body, or None where it failed: then it counts as if it had waited to the end."""
        began = time.monotonic()
        headers = {"Content-Type": "application/json"} if body else {}
        why = ""
        try:
            async with session.request(method, f"{self._url}{path}", data=body, headers=headers) as response:
                answer = await response.read()
                if response.status < 300:
                    took[kind].append(time.monotonic() - began)
                    return answer
                why = str(response.status)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            why = type(error).__name__
        took[kind].append(max(DEADLINE_SECONDS, time.monotonic() - began))
        failed[f"{kind} {why}"] += 1
        return None

    async def _starts(self, asked: dict[str, float], took: dict[str, list[float]], failed: Counter[str]) -> None:
        """Wait for the files of those that were submitted; a job that made none has waited until now, and failed."""
        left = dict(asked)
        with suppress(TimeoutError):
            async with asyncio.timeout(STARTED_SECONDS_MAX):
                while left:
                    for name in list(left):
                        if (at := await asyncio.to_thread(_made_at, self._folder / name)) is not None:
                            took["start"].append(max(0.0, at - left.pop(name)))
                    await asyncio.sleep(LOOK_SECONDS)
        now = time.time()
        for at in left.values():
            took["start"].append(max(DEADLINE_SECONDS, now - at))
            failed["start"] += 1


async def _at_rate(
    rate: float, seconds: float, stop: asyncio.Event, make: Callable[[int], Coroutine[Any, Any, None]]
) -> None:
    began = time.monotonic()
    asking: set[asyncio.Task[None]] = set()
    number = 0
    while time.monotonic() - began < seconds and not stop.is_set():
        task = asyncio.create_task(make(number))
        asking.add(task)
        task.add_done_callback(asking.discard)
        number += 1
        await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
    if asking:
        await asyncio.wait(asking)


def _made_at(path: Path) -> float | None:
    with suppress(FileNotFoundError):
        return path.stat().st_mtime
    return None
