"""A client and a real gateway of different versions: what works, and what an error says."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from tests.support.builders import spec
from tests.support.gateway import Place, add_nodes
from tests.support.gateway_process import GatewayProcess, gateway_process
from weft.client import Client, ClientError, Refused
from weft.client.wire import Wire
from weft.messages.http import JobsView
from weft.version import version

OLDER = "0.0.9"
MAJOR, MINOR = version().split(".")[:2]
NEWER = f"{MAJOR}.{int(MINOR) + 1}.0"
SAME = f"{MAJOR}.{MINOR}.99"
WRONG = b'{"name": "hello", "command": ["true"], "of_the_next_version": 1}'


class Elsewhere(msgspec.Struct):
    of_the_next_version: int


@asynccontextmanager
async def gateway_of(of: str, servers: Place, tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    await servers.stores.clear()
    await add_nodes(servers)
    where = {"nats_url": servers.nats_url, "pg_dsn": servers.stores.server.dsn}
    async with gateway_process(tmp_path / "log", servers.credentials, **where, WEFT_VERSION=of) as running:
        yield running


async def mistakes(url: str, token: str) -> list[ClientError]:
    """The errors of a field, a path and an answer that one side does not know."""
    found: list[ClientError] = []
    async with Client(url, token) as client:
        with pytest.raises(Refused) as unknown_field:
            await client.submit(WRONG)
    wire = Wire(url, token, retry_seconds=1, first_seconds=1, clock=asyncio.get_running_loop().time)
    await wire.open()
    try:
        with pytest.raises(Refused) as unknown_path:
            await wire.ask("GET", "/v1/of_the_next_version", JobsView)
        with pytest.raises(ClientError) as unknown_answer:
            await wire.ask("GET", "/v1/jobs", Elsewhere)
    finally:
        await wire.close()
    found += [unknown_field.value, unknown_path.value, unknown_answer.value]
    return found


@pytest.mark.parametrize(
    ("of", "upgrade"), [(OLDER, "the gateway, or use a client of version 0.0"), (NEWER, "the client")]
)
async def test_an_error_says_which_of_two_versions_to_upgrade(
    servers: Place, tmp_path: Path, of: str, upgrade: str
) -> None:
    said = f"this client has version {version()} and the gateway {of}: upgrade {upgrade}"
    async with gateway_of(of, servers, tmp_path) as gateway:
        token = servers.credentials.admin_token()
        for error in await mistakes(gateway.url, token):
            assert error.versions == said
            assert str(error).endswith(f"; {said}")
        async with Client(gateway.url, token) as client:
            submitted = await client.submit(spec("train"))  # one minor version apart must work, and does
            assert (await client.job(submitted.id)).name == "train"
            with pytest.raises(Refused) as not_there:
                await client.job("nothing")
        assert not_there.value.versions == "", "the versions are no reason why a job is not there"
        (tmp_path / "job.json").write_bytes(WRONG)
        weft = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "weftd.cli", "submit", str(tmp_path / "job.json")),
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "WEFT_URL": gateway.url, "WEFT_TOKEN": token},
        )
        _, shown = await weft.communicate()
        assert weft.returncode == 1
        assert shown.decode().splitlines()[-1] == f"  {said}"


async def test_nothing_is_said_of_versions_that_differ_in_fixes_alone(servers: Place, tmp_path: Path) -> None:
    async with gateway_of(SAME, servers, tmp_path) as gateway:
        for error in await mistakes(gateway.url, servers.credentials.admin_token()):
            assert (error.versions, "version" in str(error).replace("next_version", "")) == ("", False)
