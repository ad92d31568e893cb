"""LangChain at the front for models. Neither the product nor its tests install it: the test is skipped without it. The
engine is emulated: an HTTP server of the test."""

import json

import aiohttp.web
import pytest

from tests.support.routers import Town

pytestmark = pytest.mark.nightly
WORDS = ("one", " two", " three")


async def emulated(request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
    body = await request.json()
    base = {"id": "c", "created": 1, "model": body["model"]}
    usage = {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}
    if request.path == "/v1/embeddings":
        data = [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}]
        return aiohttp.web.json_response({"object": "list", "data": data, "model": body["model"], "usage": usage})
    if not body.get("stream"):
        function = {"name": "add", "arguments": '{"a": 1}'}
        calls = [{"id": "t", "type": "function", "function": function}] if body.get("tools") else None
        message = {"role": "assistant", "content": "".join(WORDS), "tool_calls": calls}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return aiohttp.web.json_response({**base, "object": "chat.completion", "choices": [choice], "usage": usage})
    stream = aiohttp.web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await stream.prepare(request)
    for number, word in enumerate(WORDS):
        choice = {"index": 0, "delta": {"content": word}, "finish_reason": "stop" if number == 2 else None}
        part = {**base, "object": "chat.completion.chunk", "choices": [choice]}
        await stream.write(f"data: {json.dumps(part)}\n\n".encode())
    await stream.write(b"data: [DONE]\n\n")
    return stream


@pytest.fixture
async def url(there: Town) -> str:
    job = await there.service(public=False, model={"name": "chat"}, timeout="5s")
    await there.tell((await there.replica(0, emulated)).endpoint(job))
    await there.known(job, 0)
    return f"{there.url}/v1"


TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


async def test_langchain_completes_streams_calls_tools_and_embeds(there: Town, url: str) -> None:
    langchain = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    there_with = {"base_url": url, "api_key": there.tokens["alice"], "max_retries": 0}
    chat = langchain.ChatOpenAI(model="chat", **there_with)
    assert (await chat.ainvoke("Hello")).content == "one two three"
    assert [part.content async for part in chat.astream("Hello") if part.content] == list(WORDS)
    assert (await chat.bind_tools([TOOL]).ainvoke("Hello")).tool_calls[0]["args"] == {"a": 1}
    embeddings = langchain.OpenAIEmbeddings(model="chat", check_embedding_ctx_length=False, **there_with)
    assert await embeddings.aembed_query("a") == [0.5, 0.25]
    with pytest.raises(Exception, match="no service of this tenant serves the model 'gone'"):
        await langchain.ChatOpenAI(model="gone", **there_with).ainvoke("Hello")
