"""The cost of one request, measured at a gateway of its own over real servers: the CPU time of a command that lists a
few jobs, and the frames between the handler of `POST /v1/jobs` and the SQL of the submission."""

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import asyncpg

from tests.support.builders import spec
from tests.support.gateway import ADMIN_TOKEN, RunningGateway, place
from weft.store.asking import QUERIES
from weft.store.postgres.batching import Batching
from weftd.gateway.api import jobs

PRODUCT = tuple(str(Path(__file__).parents[2] / root) + os.sep for root in ("libs", "services"))
JOBS = 20


class Depth:
    """A profile function: the product's own frames from the handler of a submission to the call of the driver.

    A task of its own sends what several submissions wait for; the frames of the submission that waits count as well.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._waiting: list[str] = []

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or self.names:
            return
        if frame.f_code is Batching.one.__code__:
            self._waiting = _since_handler(frame) or self._waiting
        elif frame.f_code is asyncpg.Connection.fetch.__code__ and frame.f_locals.get("query") == QUERIES["submit"]:
            self.names = _since_handler(frame) or [*self._waiting, *_product(frame)]


async def measured(cpu_ms: Callable[..., float], weft: str) -> tuple[float, list[str]]:
    """The CPU time of `weft ps`, in ms, and the frames of a submission, the handler first."""
    with tempfile.TemporaryDirectory(prefix="weft-house-") as folder:
        async with place(Path(folder)) as servers:
            gateway = RunningGateway(servers)
            await gateway.start()
            try:
                async with gateway.client() as client:
                    for _ in range(JOBS):
                        await client.submit(spec())
                    depth = Depth()
                    sys.setprofile(depth)
                    try:
                        await client.submit(spec())
                    finally:
                        sys.setprofile(None)
                address = ("--url", gateway.url, "--token", ADMIN_TOKEN)
                return await asyncio.to_thread(cpu_ms, weft, "ps", *address), depth.names
            finally:
                await gateway.stop()


def _since_handler(frame: FrameType) -> list[str]:
    """Empty if the handler is not on the stack."""
    names = list(_product(frame))
    handler = jobs.submit.handler.__qualname__
    return names[names.index(handler) :] if handler in names else []


def _product(frame: FrameType) -> list[str]:
    """The functions of the product on the stack, the innermost last."""
    return [each.f_code.co_qualname for each in _stack(frame) if each.f_code.co_filename.startswith(PRODUCT)][::-1]


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
