"""The front for models: a real router, engines that are HTTP servers of the test, and OpenAI's own client."""

import asyncio
import io
import json
import os
import signal
from functools import partial

import aiohttp
import aiohttp.web
import openai
import pytest

from tests.support.gateway import until
from tests.support.routers import Replica, Town
from weft.messages.serving import ServiceServed

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
HELLO = [{"role": "user", "content": "Hello"}]
METRICS = 'vllm:num_requests_waiting{model_name="m"} 2.0\nvllm:kv_cache_usage_perc{model_name="m"} 0.5\n'


def part(text: str) -> bytes:
    delta = {"index": 0, "delta": {"content": text}}
    return b"data: " + json.dumps({"id": "c", "object": "chat.completion.chunk", "choices": [delta]}).encode() + b"\n\n"


class Engine:
    """Answers as an engine does, in the form that OpenAI's clients read. Each part of a stream waits for `came`."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, object]] = []
        self.headers: list[dict[str, str]] = []
        self.came = asyncio.Semaphore(0)

    async def __call__(self, request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
        if request.path == "/metrics":
            return aiohttp.web.Response(text=METRICS)
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
        if request.path == "/v1/embeddings":
            data = [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}]
            return aiohttp.web.json_response({"object": "list", "data": data, "model": body["model"], "usage": usage})
        if body.get("temperature") == 9:
            error = {"message": "temperature must be at most 2", "type": "BadRequestError", "code": 400, "param": None}
            return aiohttp.web.json_response({"error": error}, status=400)
        if not body.get("stream"):
            message = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hi there"}}
            answer = {"id": "c", "object": "chat.completion", "created": 0, "model": body["model"]}
            return aiohttp.web.json_response({**answer, "choices": [message], "usage": usage})
        stream = aiohttp.web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        for text in ("Hi", " there", "!"):
            await stream.write(part(text))
            await self.came.acquire()
        await stream.write(b"data: [DONE]\n\n")
        return stream


def told(there: Town) -> ServiceServed:
    """The newest report of the service."""
    return there.served[-1].services[0]


def has_tokens(there: Town, tokens: int) -> bool:
    return told(there).tokens_out == tokens


def client_of(there: Town, tenant: str = "alice") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{there.url}/v1", api_key=there.tokens[tenant], max_retries=0)


@pytest.fixture
async def engine(there: Town) -> Engine:
    """One that serves a model of alice's with two aliases."""
    model = {"name": MODEL, "aliases": ["chat", "sql"]}
    job = await there.service(public=False, model=model, timeout="2s")
    made = Engine()
    await there.tell((await there.replica(0, made)).endpoint(job))
    await there.known(job, 0)
    return made


async def test_openais_client_reaches_the_service_that_serves_the_model(there: Town, engine: Engine) -> None:
    async with client_of(there) as client:
        assert [model.id async for model in client.models.list()] == ["chat", MODEL, "sql"]
        assert (await client.models.retrieve(MODEL)).owned_by == "alice"
        for name in (MODEL, "chat", "sql"):
            answer = await client.chat.completions.create(model=name, messages=HELLO)  # type: ignore[arg-type]
            assert answer.choices[0].message.content == "Hi there"
            assert answer.model == name
        vectors = await client.embeddings.create(model="chat", input="a", encoding_format="float")
        assert vectors.data[0].embedding == [0.5, 0.25]
        with pytest.raises(openai.BadRequestError, match="temperature must be at most 2"):
            await client.chat.completions.create(model="chat", messages=HELLO, temperature=9)  # type: ignore[arg-type]
    headers = {name.lower(): value for name, value in engine.headers[0].items()}
    assert "authorization" not in headers
    assert {name: value for name, value in headers.items() if name.startswith("x-weft")} == {"x-weft-auth": "token"}


async def test_each_part_of_a_stream_passes_at_once(there: Town, engine: Engine) -> None:
    """The engine writes no further part until the client has the one before."""
    texts = []
    async with client_of(there) as client, asyncio.timeout(20):
        stream = await client.chat.completions.create(model="chat", messages=HELLO, stream=True)  # type: ignore[call-overload]
        async for event in stream:
            texts.append(event.choices[0].delta.content)
            engine.came.release()
    assert texts == ["Hi", " there", "!"]


async def test_the_tokens_of_answers_and_the_metrics_of_engines_are_reported(there: Town, engine: Engine) -> None:
    engine.came = asyncio.Semaphore(3)
    async with client_of(there) as client:
        await client.chat.completions.create(model="chat", messages=HELLO)  # type: ignore[call-overload]
        stream = await client.chat.completions.create(model="chat", messages=HELLO, stream=True)  # type: ignore[call-overload]
        assert len([event async for event in stream]) == 3
    await until(lambda: told(there).tokens_out == 6)
    served = told(there)
    assert served.tokens_in == 5, "the client of the stream asked for no usage"
    assert sum(served.first_tokens.values()) == sum(served.token_times.values()) == 1
    await until(lambda: told(there).replicas[0].kv_used == 0.5)
    assert told(there).replicas[0].engine_waiting == 2
    url = f"http://127.0.0.1:{there.admin_port}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        text = await answer.text()
    assert 'weft_router_tokens_out_total{job_id="j-chat",tenant="alice"} 6.0' in text
    assert 'weft_router_kv_cache_used{job_id="j-chat",tenant="alice"} 0.5' in text


async def test_a_conversation_stays_at_its_replica(there: Town) -> None:
    job = await there.service(public=False, model={"name": MODEL})
    engines = [Engine() for _ in range(4)]
    replicas = [await there.replica(rank, made) for rank, made in enumerate(engines)]
    await there.tell(*(one.endpoint(job) for one in replicas))
    await there.known(job, *range(4))
    async with client_of(there) as client:
        for talk in range(8):
            messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": f"question {talk}"}]
            for turn in range(3):
                await client.chat.completions.create(model=MODEL, messages=messages)  # type: ignore[arg-type]
                messages += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": f"more {turn}"}]
    asked = [{str(body["messages"][1]) for body in made.bodies} for made in engines]  # type: ignore[index]
    assert sum(map(len, asked)) == 8, "each of the eight was at one replica"
    assert sum(map(bool, asked)) > 1


async def test_a_token_beyond_its_budget_is_refused_with_the_number(there: Town) -> None:
    job = await there.service(public=False, model={"name": MODEL, "tokens_per_minute": 10})
    await there.tell((await there.replica(0, Engine())).endpoint(job))
    await there.known(job, 0)
    async with client_of(there) as client:
        for tokens in (3, 6):  # the answers have three each, and the prompts five
            await client.chat.completions.create(model=MODEL, messages=HELLO)  # type: ignore[call-overload]
            await until(partial(has_tokens, there, tokens))
        with pytest.raises(openai.RateLimitError, match=r"[456] tokens more than its 10 a minute") as error:
            await client.chat.completions.create(model=MODEL, messages=HELLO)  # type: ignore[call-overload]
    assert error.value.code == "rate_limit_exceeded"
    assert 20 <= int(error.value.response.headers["retry-after"]) <= 36


async def test_a_client_that_leaves_frees_its_place_at_the_engine(there: Town, engine: Engine) -> None:
    async with client_of(there) as client:
        stream = await client.chat.completions.create(model="chat", messages=HELLO, stream=True)  # type: ignore[call-overload]
        await anext(aiter(stream))
        await stream.close()
    await until(lambda: there.replicas[0].gone == 1)


async def test_a_tenant_sees_and_reaches_only_its_own_models(there: Town, engine: Engine) -> None:
    async with client_of(there, "bob") as client:
        assert [model.id async for model in client.models.list()] == []
        with pytest.raises(openai.NotFoundError, match="no service of this tenant serves the model 'chat'") as found:
            await client.chat.completions.create(model="chat", messages=HELLO)  # type: ignore[arg-type]
        assert (found.value.code, found.value.param) == ("model_not_found", "model")
        with pytest.raises(openai.NotFoundError, match=f"serves the model '{MODEL}'"):
            await client.models.retrieve(MODEL)
    assert engine.bodies == []


async def test_bad_requests_get_one_sentence_in_openais_form(
    there: Town, engine: Engine, http: aiohttp.ClientSession
) -> None:
    token = {"Authorization": f"Bearer {there.tokens['alice']}"}
    for body, status, words in (
        (b"", 400, "the body is empty"),
        (b"[]", 400, "the body is no JSON object"),
        (b'{"messages": [{"model": "chat"}], "n": "model"}', 400, "the body names no `model`"),
        (b'{"model": 7}', 400, "`model` must be the name of a model, as text"),
        (b'{"model": "gone"}', 404, "no service of this tenant serves the model 'gone'"),
        (b'{"model": "' + b"x" * 300 + b'"}', 404, "no service of this tenant serves the model 'xxx"),
    ):
        async with http.post(f"{there.url}/v1/chat/completions", data=body, headers=token) as answer:
            error = (await answer.json())["error"]
        assert (answer.status, error["message"][: len(words)]) == (status, words)
        assert set(error) == {"message", "type", "code", "param"}
        assert error["type"] == "invalid_request_error"
    for method, path, headers, status in (
        ("POST", "/v1/chat/completions", {}, 401),
        ("GET", "/v1/models", {"Authorization": "Bearer weft_no"}, 401),
        ("GET", "/v1/models", {"Cookie": f"weft_token={there.tokens['alice']}"}, 401),
        ("GET", "/v1/chat/completions", token, 405),
        ("POST", "/v1/files", token, 404),
    ):
        async with http.request(method, f"{there.url}{path}", headers=headers) as answer:
            assert (answer.status, set((await answer.json())["error"])) == (
                status,
                {"message", "type", "code", "param"},
            )
    assert engine.bodies == []


async def test_a_large_prompt_passes_and_one_beyond_the_bound_is_refused(
    there: Town, engine: Engine, http: aiohttp.ClientSession
) -> None:
    """The name of the model comes last, as OpenAI's client sends it, and in chunks too."""
    prompt = "x\\n" * (10 << 18)
    token = {"Authorization": f"Bearer {there.tokens['alice']}", "Content-Type": "application/json"}
    body = f'{{"messages": [{{"role": "user", "content": "{prompt}"}}], "model": "chat"}}'.encode()
    url = f"{there.url}/v1/chat/completions"

    async def pieces():  # type: ignore[no-untyped-def]
        for at in range(0, len(body), 100_000):
            yield body[at : at + 100_000]

    for data in (io.BytesIO(body), pieces()):
        async with http.post(url, data=data, headers=token) as answer:
            assert answer.status == 200
    assert [len(str(one["messages"][0]["content"])) for one in engine.bodies] == [10 << 19] * 2  # type: ignore[index]
    await there.stop()
    await there.start(ROUTER_MODEL_BODY_BYTES_MAX=str(1 << 20))
    await there.ready()
    await there.tell_again()
    async with http.post(url, data=io.BytesIO(body), headers=token) as answer:
        assert (answer.status, (await answer.json())["error"]["message"]) == (
            413,
            "`model` is not within the first 1048576 bytes of the body: put it first",
        )
    first = b'{"model": "chat", ' + body[1 : body.rindex(b', "model"')] + b"}"
    async with http.post(url, data=io.BytesIO(first), headers=token) as answer:
        assert answer.status == 200


async def test_a_model_at_zero_waits_and_then_says_why(there: Town) -> None:
    job = await there.service("slow", public=False, model={"name": "slow"}, timeout="500ms")
    unready = Replica(0)
    await there.tell(unready.endpoint(job, ready=False, why="it loads its weights"))
    await there.known(job, 0)
    async with client_of(there) as client:
        with pytest.raises(
            openai.InternalServerError, match=r"none is ready: its replica 0 .*loads its weights"
        ) as found:
            await client.chat.completions.create(model="slow", messages=HELLO)  # type: ignore[arg-type]
    assert found.value.status_code == 503
    assert found.value.type == "server_error"


async def test_the_front_is_started_again_and_requests_wait_for_it(there: Town, engine: Engine) -> None:
    os.kill(there.children()["front"], signal.SIGKILL)
    async with client_of(there) as client:
        answer = await client.chat.completions.create(model="chat", messages=HELLO)  # type: ignore[arg-type]
    assert answer.choices[0].message.content == "Hi there"
