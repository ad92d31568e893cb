"""A burst of requests to the demo's service: sent when they are due, whether the ones before are answered or not."""

import asyncio
import time
from collections.abc import Callable

import aiohttp
from msgspec import Struct

ANSWER_SECONDS_MAX = 20.0
CONNECTIONS_MAX = 256


class Burst(Struct, kw_only=True):
    """The outcome of the requests. `seconds`: for answered ones, from their due time to the end of the answer."""

    sent: int = 0
    answered: int = 0
    refused: int = 0  # 429
    failed: int = 0
    seconds: list[float] = []

    def within(self, part: float) -> float:
        """The time in which this part of the answers came; 0 of none."""
        times = sorted(self.seconds)
        return times[min(len(times) - 1, int(part * len(times)))] if times else 0.0


async def send(url: str, token: str, *, rate: float, over: Callable[[float], bool], burst: Burst) -> None:
    """Send `rate` requests per second until `over`, which is given the seconds so far; then wait for their answers."""
    bounds = aiohttp.ClientTimeout(total=ANSWER_SECONDS_MAX)
    headers = {"Authorization": f"Bearer {token}"}
    connector = aiohttp.TCPConnector(limit=CONNECTIONS_MAX)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=bounds, headers=headers) as session,
        asyncio.TaskGroup() as tasks,
    ):
        began = time.monotonic()
        while not over(time.monotonic() - began):
            due = began + burst.sent / rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            burst.sent += 1
            tasks.create_task(_one(session, url, due, burst))


async def _one(session: aiohttp.ClientSession, url: str, due: float, burst: Burst) -> None:
    try:
        async with session.post(url, json={"tokens": 8}) as response:
            await response.read()
    except (aiohttp.ClientError, TimeoutError, OSError):
        burst.failed += 1
        return
    if response.status < 400:
        burst.answered += 1
        burst.seconds.append(time.monotonic() - due)
    elif response.status == 429:
        burst.refused += 1
    else:
        burst.failed += 1
