"""A service behind its router, used by the openai package.

It needs an interpreter that has the package: WEFT_TEST_OPENAI names it.
"""

import asyncio
import json
import os

import aiohttp.web
import pytest

from tests.support.routers import Town

PYTHON = os.environ.get("WEFT_TEST_OPENAI", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="WEFT_TEST_OPENAI names no interpreter")
PROGRAM = """
import sys
from openai import APIStatusError, OpenAI
client = OpenAI(base_url=sys.argv[1], api_key=sys.argv[2], max_retries=0)
asked = dict(model="m", messages=[{"role": "user", "content": "Hello"}])
try:
    print(client.chat.completions.create(**asked).choices[0].message.content)
    for part in client.chat.completions.create(**asked, stream=True):
        print(part.choices[0].delta.content)
except APIStatusError as error:
    print(error)
"""


async def completes(request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
    asked = await request.json()
    base = {"id": "c", "created": 1, "model": asked["model"]}
    if not asked.get("stream"):
        message = {"role": "assistant", "content": f"{request.path} {request.headers.get('Authorization')}"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return aiohttp.web.json_response({**base, "object": "chat.completion", "choices": [choice]})
    stream = aiohttp.web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await stream.prepare(request)
    for word in ("one", "two"):
        choice = {"index": 0, "delta": {"content": word}}
        part = {**base, "object": "chat.completion.chunk", "choices": [choice]}
        await stream.write(f"data: {json.dumps(part)}\n\n".encode())
    await stream.write(b"data: [DONE]\n\n")
    return stream


async def said(url: str, token: str) -> str:
    process = await asyncio.create_subprocess_exec(
        PYTHON, "-c", PROGRAM, url, token, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(60):
        out, _ = await process.communicate()
    return out.decode()


async def test_the_openai_package_uses_a_service_with_a_weft_token_and_shows_the_routers_sentence(there: Town) -> None:
    job = await there.service(public=False, timeout="500ms")
    url = f"{there.url}/s/{job.id}/v1"
    assert "Error code: 503 - this request has waited 0.5 s" in await said(url, there.tokens["alice"])
    assert "Error code: 401 - this token is not known" in await said(url, "weft_nothing")
    replica = await there.replica(0, completes)
    await there.tell(replica.endpoint(job))
    assert await said(url, there.tokens["alice"]) == "/v1/chat/completions None\none\ntwo\n"
