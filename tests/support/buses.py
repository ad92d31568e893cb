"""Participants who hear each other, through each kind of bus, and what its stream holds."""

import asyncio
import base64
import json
import random
from contextlib import AsyncExitStack
from typing import Any

from tests.simulation.history import History
from tests.simulation.network import Network, SimBus
from tests.simulation.place import Place
from tests.support.doubles.bus import MemoryBus
from tests.support.virtual_time import Process
from weft.bus.nats import NatsBus
from weft.credentials.permissions import STREAM

SECONDS_MAX = 30.0


AnyBus = MemoryBus | SimBus | NatsBus


class World:
    """Participants who hear each other through one MemoryBus, and what the stream holds."""

    def __init__(self) -> None:
        self._memory = MemoryBus()

    async def join(self, name: str = "test") -> AnyBus:
        return self._memory

    async def leave(self) -> None:
        """Close every participant."""
        await self._memory.close()

    async def stored(self) -> list[tuple[str, str]]:
        """(subject, payload) of each event, in order."""
        return [(event.subject, event.payload.decode()) for event in self._memory.events or []]

    async def lose_stream(self) -> None:
        self._memory.events = None


class SimulatedWorld(World):
    """Through the network of the simulation, while nothing is wrong with it."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._network = Network(loop, random.Random(1), History(loop, trace=False))
        self._joined: list[SimBus] = []

    async def join(self, name: str = "test") -> AnyBus:
        loop = asyncio.get_running_loop()
        self._joined.append(self._network.join(Place(Process(name, loop), loop)))
        return self._joined[-1]

    async def leave(self) -> None:
        for bus in self._joined:
            await bus.close()

    async def stored(self) -> list[tuple[str, str]]:
        return [(event.subject, event.payload.decode()) for event in self._network.stream.stored]

    async def lose_stream(self) -> None:
        self._network.stream.lose()


class NatsWorld(World):
    """Through a NATS server."""

    def __init__(self, url: str, stack: AsyncExitStack) -> None:
        self._url = url
        self._stack = stack

    async def join(self, name: str = "test") -> AnyBus:
        return await self._stack.enter_async_context(NatsBus.connect(self._url, name=name))

    async def leave(self) -> None:
        await self._stack.aclose()

    async def stored(self) -> list[tuple[str, str]]:
        bus = await self.join("reader")
        info = await self._api(bus, "INFO")
        return [await self._event(bus, number) for number in range(1, info["state"]["last_seq"] + 1)]

    async def lose_stream(self) -> None:
        await self._api(await self.join("remover"), "DELETE")

    async def _event(self, bus: AnyBus, number: int) -> tuple[str, str]:
        message = (await self._api(bus, "MSG.GET", json.dumps({"seq": number}).encode()))["message"]
        return message["subject"], base64.b64decode(message["data"]).decode()

    async def _api(self, bus: AnyBus, verb: str, body: bytes = b"") -> dict[str, Any]:
        answer = await bus.request_raw(f"$JS.API.STREAM.{verb}.{STREAM}", body, seconds_max=SECONDS_MAX)
        return json.loads(answer)  # type: ignore[no-any-return]
