"""A person who is kept out loses all that they have open; another person of the tenant goes on."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path

import aiohttp

from tests.bench.figures import Aim
from tests.support.builders import spec
from tests.support.cluster import embedded_cluster
from tests.support.identity_provider import CLIENT_ID, CLIENT_SECRET, identity_provider
from tests.support.openssh import OpenSsh
from tests.support.person import Person
from weft.client import Client, ClientError, Refused
from weft.domain.job import JobState
from weft.messages.sessions import SessionKind

SECONDS_AIM = 5.0
BEGIN_SECONDS_MAX, END_SECONDS_MAX = 60.0, 60.0
SERVER = """
import os, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        while self.path.endswith("on") and not time.sleep(0.1):
            self.wfile.write(b"on\\n")
ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""


async def measure(home: Path, *, quick: bool, seed: int) -> dict[str, Aim]:
    secret = home / "secret"
    secret.write_text(CLIENT_SECRET)
    secret.chmod(0o600)
    async with identity_provider() as provider:
        provider.confirmed = True
        settings = {
            "GATEWAY_OIDC_ISSUER": provider.url,
            "GATEWAY_OIDC_CLIENT_ID": CLIENT_ID,
            "GATEWAY_OIDC_CLIENT_SECRET_FILE": str(secret),
            "GATEWAY_OIDC_GATEWAY_URL": "http://127.0.0.1:1",  # nobody signs in with a browser here
            "GATEWAY_OIDC_GRANTS": "ml=vision:user",
        }
        async with embedded_cluster(home / "cluster", nodes=1, gpus=2, settings=settings) as cluster:
            async with Client(cluster.local.url, "") as nobody:
                device = await nobody.begin_device()
                token = (await nobody.begin_session(device_code=device.device_code)).token
            async with Client(cluster.local.url, token) as ada, aiohttp.ClientSession() as http:
                job = await ada.submit(spec("train", command=["sh", "-c", "while :; do echo on; sleep 0.2; done"]))
                server = await ada.submit(
                    spec("chat", kind="inference", command=[sys.executable, "-c", SERVER], service={"ready": "/"})
                )
                await cluster.state(job.id, JobState.RUNNING)
                await cluster.state(server.id, JobState.RUNNING)
                ssh = OpenSsh(Person(cluster, token), home)
                assert (await ssh.configures()).status == 0
                url = f"{(await ada.endpoints(server.id)).url}on"
                ends = {
                    "shell": lambda began: _shell(ada, job.id, began),
                    "SSH": lambda began: _ssh(ssh, began),
                    "logs": lambda began: _stream(http, f"{ada.url}/v1/jobs/{job.id}/logs?follow=1", token, began),
                    "events": lambda began: _stream(http, f"{ada.url}/v1/events?follow=1", token, began),
                    "router": lambda began: _stream(http, url, token, began),
                }
                (person,) = (await cluster.client.people()).people
                took = await _cut(ends, lambda: cluster.client.keep_out(person.id))
                with suppress(ClientError):
                    await ada.whoami()
                    raise AssertionError("a person who is kept out is let in")
    for name, seconds in took.items():
        print(f"{name} ended after {seconds:.2f} s")
    return {"all of a revoked person has ended, s": Aim(value=round(max(took.values()), 2), aim=SECONDS_AIM)}


async def _cut(
    ends: Mapping[str, Callable[[asyncio.Event], Awaitable[None]]], revoke: Callable[[], Awaitable[object]]
) -> dict[str, float]:
    """Open all, revoke, and the seconds until each has ended."""
    over: dict[str, float] = {}
    begun = {name: asyncio.Event() for name in ends}

    async def one(name: str) -> None:
        await ends[name](begun[name])
        over[name] = time.monotonic()

    async with asyncio.TaskGroup() as tasks:
        for name in ends:
            tasks.create_task(one(name), name=name)
        async with asyncio.timeout(BEGIN_SECONDS_MAX):
            for event in begun.values():
                await event.wait()
        await revoke()
        revoked = time.monotonic()
        assert not over, f"{', '.join(over)} ended by itself"
        tasks.create_task(_within(END_SECONDS_MAX, over, len(ends)))
    return {name: max(0.0, at - revoked) for name, at in over.items()}


async def _within(seconds: float, over: dict[str, float], count: int) -> None:
    async with asyncio.timeout(seconds):
        while len(over) < count:  # noqa: ASYNC110 - tasks of their own
            await asyncio.sleep(0.05)


async def _shell(client: Client, job: str, began: asyncio.Event) -> None:
    with suppress(ClientError, Refused):
        async with client.enter(job, kind=SessionKind.EXEC, command=["sh", "-c", "echo in; sleep 1000"]) as session:
            async for _ in session.output():
                began.set()


async def _ssh(ssh: OpenSsh, began: asyncio.Event) -> None:
    process = await ssh.begins("ssh", *ssh.config, "train.weft", "echo in; exec sleep 1000")
    assert process.stdout is not None
    assert await process.stdout.readline() == b"in\n"
    began.set()
    await process.communicate()


async def _stream(http: aiohttp.ClientSession, url: str, token: str, began: asyncio.Event) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    with suppress(aiohttp.ClientError):
        async with http.get(url, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            async for _ in answer.content.iter_any():
                began.set()
