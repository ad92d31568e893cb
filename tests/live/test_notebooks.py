"""`weft notebook` with a real Jupyter, used as editors and gateway clients use it.

It needs an interpreter that has jupyterlab and ipykernel: WEFT_TEST_JUPYTER names its `jupyter`.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.live.test_cli_services import Typist
from tests.support.cluster import Cluster, embedded_cluster
from tests.support.routers import free_port

JUPYTER = os.environ.get("WEFT_TEST_JUPYTER", "")
pytestmark = pytest.mark.skipif(not JUPYTER, reason="WEFT_TEST_JUPYTER names no jupyter")


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with embedded_cluster(tmp_path_factory.mktemp("cluster"), nodes=1, gpus=1) as made:
        yield made


async def test_a_kernel_is_started_with_a_token_and_a_cookie_still_needs_its_xsrf_token(cluster: Cluster) -> None:
    ada = Typist(cluster, path=f"{Path(JUPYTER).parent}:{os.environ['PATH']}")
    began = await ada.types("notebook", "--json")
    assert began.status == 0, began.err
    told = json.loads(began.out)
    url, token = told["url"].partition("?weft_code=")[0], cluster.local.token
    kernels = f"{url}api/kernels"
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http:
        for address, headers, status in (
            (kernels, {}, 401),
            (kernels, {"Authorization": f"Bearer {token}"}, 201),
            (kernels, {"Authorization": f"token {token}"}, 201),
            (f"{kernels}?a=1&token={token}", {}, 201),
            (kernels, {"Cookie": f"weft_token={token}"}, 403),
            (kernels, {"Cookie": f"weft_token={token}", "Authorization": "token mine"}, 403),
        ):
            async with http.post(address, json={"name": "python3"}, headers=headers) as answer:
                body = await answer.text()
                assert (answer.status, headers) == (status, headers), body
            if status == 403:
                assert "_xsrf" in body
        started = json.loads(await (await http.get(kernels, headers={"Authorization": f"token {token}"})).text())
        socket = f"{kernels}/{started[0]['id']}/channels?token={token}"
        async with http.ws_connect(socket) as channels, asyncio.timeout(30):
            header = {
                "msg_id": "1",
                "msg_type": "kernel_info_request",
                "session": "s",
                "username": "",
                "version": "5.3",
            }
            await channels.send_json(
                {"header": header, "parent_header": {}, "metadata": {}, "content": {}, "channel": "shell"}
            )
            while json.loads((await channels.receive()).data)["header"]["msg_type"] != "kernel_info_reply":
                pass
    (replica,) = (await cluster.client.endpoints(told["id"])).endpoints
    direct = f"http://127.0.0.1:{replica.port}/s/{told['id']}/api/kernels"  # as through `weft port-forward`
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http:
        for headers, status in (({}, 201), ({"Origin": "http://evil.example.org"}, 404), ({"Cookie": "a=b"}, 403)):
            async with http.post(direct, json={"name": "python3"}, headers=headers) as answer:
                assert (answer.status, headers) == (status, headers), await answer.text()
    for scheme in ("Bearer", "token"):
        assert await through_a_gateway_client(url, token, scheme) == 201
    await ada.types("cancel", told["id"])


async def through_a_gateway_client(url: str, token: str, scheme: str) -> int:
    """The status of a start of a kernel at another Jupyter that has its kernels at the notebook."""
    port = free_port()
    server = await asyncio.create_subprocess_exec(
        *(JUPYTER, "server", "--no-browser", "--allow-root", f"--port={port}", f"--gateway-url={url}"),
        *(
            f"--GatewayClient.auth_scheme={scheme}",
            f"--GatewayClient.auth_token={token}",
            "--IdentityProvider.token=own",
        ),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with aiohttp.ClientSession(headers={"Authorization": "token own"}) as http, asyncio.timeout(60):
            while True:
                try:
                    async with http.post(f"http://127.0.0.1:{port}/api/kernels", json={"name": "python3"}) as answer:
                        return answer.status
                except aiohttp.ClientConnectorError:
                    await asyncio.sleep(0.2)
    finally:
        server.terminate()
        await server.wait()
