"""A real model, which the test makes, behind a real executor: it is served, streams, and drains."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp

from tests.support import onnx_model
from tests.support.control_plane import ControlPlane
from tests.support.executors import executor
from tests.support.nats_server import NatsServer
from tests.support.runs import order, until
from weft.messages.nodes import Serve
from weft.messages.serving import EndpointsSeen

ROOT = Path(__file__).parents[2]


async def test_a_real_model_streams_its_tokens_from_under_an_executor(
    server: NatsServer, control: ControlPlane, tmp_path: Path
) -> None:
    model = tmp_path / "model.onnx"
    onnx_model.make(model)
    endpoints: list[EndpointsSeen] = []

    async def hear(message: EndpointsSeen) -> None:
        endpoints.append(message)

    await control.bus.subscribe(EndpointsSeen, hear)
    command = (sys.executable, "-m", "tests.support.onnx_model", "serve", str(model))
    async with executor(server, tmp_path / "home", EXECUTOR_SYNC_SECONDS="0.5"):
        serve = Serve(port=8080, ready="/healthz", drain=10.0)
        await control.want(order(command=command, serve=serve, workdir=str(ROOT)))
        await until(lambda: endpoints and any(one.ready for one in endpoints[-1].endpoints), seconds_max=60)
        url = f"http://127.0.0.1:{endpoints[-1].endpoints[0].port}/v1/generate"
        async with aiohttp.ClientSession() as session:
            asked: dict[str, Any] = {"prompt": "a gpu that is s", "tokens": 40, "seed": 1}
            async with session.post(url, json=asked) as answer:
                whole = (await answer.json())["text"]
            async with session.post(url, json={**asked, "stream": True}) as answer:
                lines = [line async for line in answer.content if line.startswith(b"data: {")]
            assert "".join(json.loads(line[6:])["token"] for line in lines) == whole
            learnt, said = " ".join(onnx_model.TEXT.split()), asked["prompt"][-3:] + whole
            assert all(said[at : at + 4] in learnt for at in range(len(whole))), f"it says what it learnt: {whole}"
            under_way = asyncio.create_task(session.post(url, json={**asked, "tokens": 2000}))
            await asyncio.sleep(0.1)
            await control.want()
            assert (await under_way).status == 200
