"""Adapters (LoRA) of models: loaded on a replica by its engine's own API, before the first request for one goes there.

The engine is vLLM, or speaks its API: `POST /v1/load_lora_adapter` with `lora_name` and `lora_path`. Each replica gets
the adapters that requests for it name, each once: requests that come meanwhile wait for the same answer.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import aiohttp
import msgspec
from msgspec import Struct
from yarl import URL

from weftd.router.thinking.adapters import LOAD_PATH, refusal_of
from weftd.router.thinking.backends import InFlightRequest
from weftd.router.thinking.routes import Refused
from weftd.router.thinking.table import RoutedService

logger = logging.getLogger(__name__)

SECONDS_MAX = 600.0  # for the weights of one adapter
CONNECT_SECONDS_MAX = 2.0
ANSWER_BYTES_MAX = 64 << 10
LOADED_MAX = 65_536  # adapters on replicas that are remembered; one that is forgotten is loaded again

Then = Callable[[Refused | None], None]
_Key = tuple[str, int, int, str]


class _Load(Struct):
    lora_name: str
    lora_path: str


class Adapters:
    """Adapters on replicas: which are there, and which are being loaded."""

    def __init__(self) -> None:
        self._loaded: OrderedDict[_Key, None] = OrderedDict()
        self._loading: dict[_Key, asyncio.Task[Refused | None]] = {}
        self._session: aiohttp.ClientSession | None = None

    def loading(
        self, service: RoutedService, request: InFlightRequest, model: str, *, seconds: float, then: Then
    ) -> asyncio.Task[Refused | None] | None:
        """Load the adapter that the request names on the replica that it was given. `then` gets the reason why the
        request cannot go on, or None. The task ends once it was called; a cancelled task calls it, too. None: nothing
        is to be loaded."""
        source = service.adapters.get(model)
        if source is None:
            return None
        replica = request.backend.replica
        key = (service.job_id, replica.epoch, replica.rank, model)
        if key in self._loaded:
            self._loaded.move_to_end(key)
            return None
        if (load := self._loading.get(key)) is None:
            load = self._loading[key] = asyncio.create_task(self._load(key, replica.address + service.prefix, source))
            load.add_done_callback(partial(self._over, key))
        waits = asyncio.create_task(_within(seconds, load, model))
        waits.add_done_callback(lambda over: then(_outcome(over)))
        return waits

    async def close(self) -> None:
        for load in [*self._loading.values()]:
            load.cancel()
        if self._session is not None:
            await self._session.close()

    def _over(self, key: _Key, load: asyncio.Task[Refused | None]) -> None:
        del self._loading[key]
        if _outcome(load) is None:
            self._loaded[key] = None
            if len(self._loaded) > LOADED_MAX:
                self._loaded.popitem(last=False)

    async def _load(self, key: _Key, address: str, source: str) -> Refused | None:
        name = key[-1]
        if self._session is None:
            bounds = aiohttp.ClientTimeout(total=SECONDS_MAX, sock_connect=CONNECT_SECONDS_MAX)
            self._session = aiohttp.ClientSession(timeout=bounds, connector=aiohttp.TCPConnector(limit=0))
        sent, headers = msgspec.json.encode(_Load(name, source)), {"Content-Type": "application/json"}
        url = URL(f"http://{address}{LOAD_PATH}", encoded=True)
        try:
            async with self._session.post(url, data=sent, headers=headers, allow_redirects=False) as answer:
                body = b""
                async for piece in answer.content.iter_any():
                    body += piece
                    if len(body) > ANSWER_BYTES_MAX:
                        break
                return refusal_of(name, answer.status, body)
        except TimeoutError:
            return Refused(504, f"the engine did not load the adapter {name!r} within {SECONDS_MAX:g} s")
        except (aiohttp.ClientError, OSError):
            return Refused(502, f"the replica broke off while it loaded the adapter {name!r}", 1.0)


async def _within(seconds: float, load: "asyncio.Task[Refused | None]", name: str) -> Refused | None:
    """The outcome, or a refusal after this time. The load goes on for later requests."""
    try:
        async with asyncio.timeout(seconds):
            return await asyncio.shield(load)
    except TimeoutError:
        return Refused(503, f"the adapter {name!r} is still being loaded", 1.0)


def _outcome(task: "asyncio.Task[Refused | None]") -> Refused | None:
    if task.cancelled():
        return Refused(503, "the client has left, or the router ends")
    if (error := task.exception()) is not None:
        logger.error("an adapter was not loaded", exc_info=error)
        return Refused(502, "the router could not load the adapter")
    return task.result()
