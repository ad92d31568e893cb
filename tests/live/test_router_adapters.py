"""Adapters (LoRA): a real router has engines load them. The engines are emulated: HTTP servers of the test that answer
as vLLM does; no weights are loaded."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import aiohttp.web
import openai
import pytest

from tests.support.gateway import until
from tests.support.routers import Town
from weft.domain.job import Job

ADAPTERS = {"sql": "/adapters/sql", "gone": "/adapters/gone", "slow": "/adapters/slow"}
HELLO = [{"role": "user", "content": "Hello"}]


class EmulatedVllm:
    """`loads`: each adapter with its source as it came. The adapter `slow` is loaded once `may` is set."""

    def __init__(self) -> None:
        self.loads: list[tuple[str, str]] = []
        self.models = {"base"}
        self.may = asyncio.Event()
        self.answered: list[str] = []

    async def __call__(self, request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
        body = await request.json()
        if request.path == "/v1/load_lora_adapter":
            return await self.load(body["lora_name"], body["lora_path"])
        if body["model"] not in self.models:
            return self.error(404, "NotFoundError", f"The model `{body['model']}` does not exist.")
        self.answered.append(body["model"])
        message = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hi"}}
        answer = {"id": "c", "object": "chat.completion", "created": 0, "model": body["model"]}
        return aiohttp.web.json_response({**answer, "choices": [message]})

    async def load(self, name: str, source: str) -> aiohttp.web.StreamResponse:
        self.loads.append((name, source))
        if name == "slow":
            await self.may.wait()
        if name == "gone":
            return self.error(404, "NotFoundError", f"No adapter found for {source}")
        if name in self.models:
            return self.error(400, "InvalidUserInput", f"The lora adapter '{name}' has already been loaded.")
        self.models.add(name)
        return aiohttp.web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    def error(self, status: int, kind: str, message: str) -> aiohttp.web.StreamResponse:
        error = {"message": message, "type": kind, "param": None, "code": status}
        return aiohttp.web.json_response({"error": error}, status=status)


async def served(there: Town, *engines: EmulatedVllm, **rules: object) -> Job:
    model = {"name": "base", "adapters": ADAPTERS}
    job = await there.service(public=False, model=model, **{"timeout": "2s", "concurrency": 4, **rules})
    replicas = [await there.replica(rank, engine) for rank, engine in enumerate(engines)]
    await there.tell(*(replica.endpoint(job) for replica in replicas))
    await there.known(job, *range(len(engines)))
    return job


@pytest.fixture
async def client(there: Town) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{there.url}/v1", api_key=there.tokens["alice"], max_retries=0) as made:
        yield made


async def said(client: openai.AsyncOpenAI, model: str) -> str | None:
    answer = await client.chat.completions.create(model=model, messages=HELLO)  # type: ignore[arg-type]
    return str(answer.model)


async def test_a_replica_loads_an_adapter_once_before_the_first_request_for_it(
    there: Town, client: openai.AsyncOpenAI
) -> None:
    engine = EmulatedVllm()
    job = await served(there, engine)
    assert [model.id async for model in client.models.list()] == ["base", "gone", "slow", "sql"]
    assert await said(client, "base") == "base"
    assert engine.loads == []
    assert await asyncio.gather(*(said(client, "sql") for _ in range(12))) == ["sql"] * 12
    assert engine.loads == [("sql", "/adapters/sql")]
    boot = there.served[-1].boot
    os.kill(there.children()["gate"], signal.SIGKILL)  # the next one does not know what was loaded
    await until(lambda: there.served[-1].boot != boot)
    await there.tell_again()
    await there.known(job, 0)
    assert await said(client, "sql") == "sql"
    assert engine.loads == [("sql", "/adapters/sql")] * 2


async def test_only_the_replicas_that_get_its_requests_load_an_adapter(there: Town, client: openai.AsyncOpenAI) -> None:
    engines = EmulatedVllm(), EmulatedVllm()
    await served(there, *engines, concurrency=1)
    await said(client, "sql")
    assert sorted(len(engine.loads) for engine in engines) == [0, 1]
    async with asyncio.timeout(30):
        while not all(engine.answered.count("sql") for engine in engines):
            await asyncio.gather(*(said(client, "sql") for _ in range(4)))
    assert [engine.loads for engine in engines] == [[("sql", "/adapters/sql")]] * 2


async def test_an_adapter_that_does_not_exist_is_one_sentence_and_others_are_answered(
    there: Town, client: openai.AsyncOpenAI
) -> None:
    engine = EmulatedVllm()
    job = await served(there, engine, concurrency=1)
    for _ in range(3):
        with pytest.raises(openai.NotFoundError) as refused:
            await said(client, "gone")
        assert refused.value.body == {
            "message": "the adapter 'gone' could not be loaded: No adapter found for /adapters/gone",
            "type": "invalid_request_error",
            "code": "model_not_found",
            "param": "model",
        }
    assert await said(client, "base") == "base"
    with pytest.raises(openai.NotFoundError, match="no service of this tenant serves the model 'never'"):
        await said(client, "never")
    async with openai.AsyncOpenAI(base_url=f"{there.url}/v1", api_key=there.tokens["bob"], max_retries=0) as bob:
        with pytest.raises(openai.NotFoundError, match="no service of this tenant serves the model 'sql'"):
            await said(bob, "sql")
    await there.settled(job)


async def test_a_slow_load_is_refused_in_time_and_goes_on_for_later_requests(
    there: Town, client: openai.AsyncOpenAI
) -> None:
    """It lasts longer than the router waits for requests that Caddy does not know: none is lost meanwhile."""
    engine = EmulatedVllm()
    job = await served(there, engine, timeout="4s", concurrency=2)
    with pytest.raises(openai.InternalServerError, match="the adapter 'slow' is still being loaded") as refused:
        await said(client, "slow")
    assert (refused.value.status_code, refused.value.response.headers["retry-after"]) == (503, "1")
    leaves = asyncio.create_task(said(client, "slow"))
    await there.settled(job, in_flight=1)
    leaves.cancel()
    await there.settled(job)
    waits = asyncio.create_task(said(client, "slow"))
    await there.settled(job, in_flight=1)
    assert await said(client, "base") == "base"
    engine.may.set()
    assert await waits == "slow"
    assert engine.loads == [("slow", "/adapters/slow")]
    await there.settled(job)


async def test_an_engine_that_cannot_load_adapters_says_so(there: Town, client: openai.AsyncOpenAI) -> None:
    async def plain(request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
        return aiohttp.web.json_response({"detail": "Not Found"}, status=404)

    job = await there.service(public=False, model={"name": "base", "adapters": ADAPTERS})
    await there.tell((await there.replica(0, plain)).endpoint(job))
    await there.known(job, 0)
    with pytest.raises(openai.NotFoundError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"):
        await said(client, "sql")
