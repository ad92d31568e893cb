"""A router over TLS, beside another one, without its bus, and before a replica that speaks HTTP/2 alone."""

import asyncio
import json
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import aiohttp.web

from tests.support.gateway import Place, until
from tests.support.proxy import Proxy
from tests.support.routers import Replica, Town, town
from tests.support.tls import Authority
from weftd.router.__main__ import caddy_environment, found_caddy

CONCURRENCY = 4
SETTLED_SECONDS = 2.5  # until routers have told each other what they have


async def test_a_router_serves_https_and_takes_a_renewed_certificate_while_a_stream_goes_on(
    servers: Place, tmp_path: Path
) -> None:
    goes_on = asyncio.Event()

    async def streams(request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
        stream = aiohttp.web.StreamResponse()
        await stream.prepare(request)
        await stream.write(b"first")
        await goes_on.wait()
        await stream.write(b"last")
        return stream

    authority = Authority(tmp_path / "tls")
    pair = authority.issue("127.0.0.1", into="router")
    trusted = ssl.create_default_context(cafile=str(authority.ca_file))
    files = {"ROUTER_TLS_CERT_FILE": str(pair.cert), "ROUTER_TLS_KEY_FILE": str(pair.key)}
    async with (
        town(servers, tmp_path, **files) as there,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusted)) as http,
    ):
        job = await there.service(concurrency=2)
        replica = await there.replica(0, streams)
        await there.tell(replica.endpoint(job))
        url = f"{there.url}/s/{job.id}/x"
        assert url.startswith("https://")
        before = await shown(there.port)
        async with http.get(url) as answer:
            assert (answer.status, await answer.content.readexactly(5)) == (200, b"first")
            authority.issue("127.0.0.1", into="router")
            async with asyncio.timeout(30):
                while await shown(there.port) == before:  # noqa: ASYNC110 - comes from afar
                    await asyncio.sleep(0.1)
            async with http.get(f"{there.url}/nothing") as other:
                assert other.status == 404
            goes_on.set()
            assert await answer.content.read() == b"last"
        plain = urlsplit(there.url)._replace(scheme="http").geturl()
        async with http.get(f"{plain}/s/{job.id}/x") as answer:
            assert answer.status == 400, "no request goes in without TLS"
        assert len(replica.asked) == 1


async def shown(port: int) -> bytes:
    """The certificate that a server shows now."""
    pem = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
    return ssl.PEM_cert_to_DER_cert(pem)


async def test_two_routers_share_a_replica_without_giving_it_much_more_than_it_takes(
    servers: Place, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    async def slow(request: aiohttp.web.Request) -> aiohttp.web.Response:
        await asyncio.sleep(0.05)
        return aiohttp.web.Response()

    async with town(servers, tmp_path) as there:
        other = Town(there.place, there.lease, there.node, there.relay, tmp_path)
        await other.start()
        try:
            await other.ready()
            job = await there.service(concurrency=CONCURRENCY, timeout="60s")
            replica = await there.replica(0, slow)
            over = asyncio.Event()
            statuses: dict[str, Counter[int]] = {there.url: Counter(), other.url: Counter()}

            async def client(url: str) -> None:
                while not over.is_set():
                    async with http.get(f"{url}/s/{job.id}/") as answer:
                        statuses[url][answer.status] += 1

            telling = asyncio.create_task(tells(there, replica.endpoint(job)))
            clients = [asyncio.create_task(client(url)) for url in statuses for _ in range(12)]
            await until(lambda: all(counted[200] for counted in statuses.values()))
            await asyncio.sleep(SETTLED_SECONDS)
            before, at_once = {url: counted[200] for url, counted in statuses.items()}, []
            until_then = time.monotonic() + 3
            while time.monotonic() < until_then:
                at_once.append(replica.now)
                await asyncio.sleep(0.01)
            over.set()
            await asyncio.gather(*clients)
            telling.cancel()
        finally:
            await other.stop()
    assert all(set(counted) == {200} for counted in statuses.values()), statuses
    assert replica.most <= 2 * CONCURRENCY, "each router never gives it more than it takes"
    assert sum(at_once) / len(at_once) <= CONCURRENCY + 1, "both together, once they know of each other"
    assert all(statuses[url][200] > before[url] for url in statuses), "each has its part"


async def tells(there: Town, *endpoints: object) -> None:
    """As a node does, once a second and again."""
    there.endpoints = endpoints  # type: ignore[assignment]
    while True:
        await there.tell_again()
        await asyncio.sleep(0.2)


async def test_a_router_serves_on_what_it_knows_while_its_bus_is_away(
    servers: Place, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    async with (
        Proxy(urlsplit(servers.nats_url).port or 0) as link,
        town(servers, tmp_path, WEFT_NATS_URL=f"nats://127.0.0.1:{link.port}") as there,
    ):
        job = await there.service(timeout="20s")
        alive, dead = await there.replica(0), Replica(1)
        await there.tell(alive.endpoint(job))
        await there.known(job, 0)
        link.refuse()
        link.reset()
        for _ in range(50):
            async with http.post(f"{there.url}/s/{job.id}/", data=b"hello") as answer:
                assert answer.status == 200
            await asyncio.sleep(0.1)
        link.mend()
        await there.tell(alive.endpoint(job), dead.endpoint(job))
        async with asyncio.timeout(30):
            while sorted(one.rank for one in there.last(job).replicas) != [0, 1]:
                await there.tell_again()
                await asyncio.sleep(0.2)
        async with http.post(f"{there.url}/s/{job.id}/", data=b"hello") as answer:
            assert answer.status == 200


@asynccontextmanager
async def speaks_http2(folder: Path, port: int) -> AsyncIterator[None]:
    """A Caddy that tells of each request by which HTTP it came, and with which body."""
    echo = {"handler": "static_response", "body": "{http.request.proto} {http.request.method} {http.request.body}"}
    servers = {
        "echo": {
            "listen": [f"127.0.0.1:{port}"],
            "protocols": ["h1", "h2c"],
            "automatic_https": {"disable": True},
            "routes": [{"handle": [echo]}],
        }
    }
    written = folder / "echo.json"
    written.write_text(json.dumps({"admin": {"disabled": True}, "apps": {"http": {"servers": servers}}}))
    process = await asyncio.create_subprocess_exec(
        *(found_caddy(""), "run", "--config", str(written)),
        env=caddy_environment({}, folder),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(30):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await asyncio.sleep(0.05)
                else:
                    writer.close()
                    break
        yield
    finally:
        process.terminate()
        await process.wait()


async def test_a_replica_that_speaks_http2_gets_its_requests_so(
    servers: Place, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    async with town(servers, tmp_path) as there:
        job, plain = await there.service(protocol="h2c"), await there.service("plain")
        replica = Replica(0)
        async with speaks_http2(tmp_path, replica.port):
            await there.tell(replica.endpoint(job), replica.endpoint(plain))
            for asked, proto in ((job, "HTTP/2.0"), (plain, "HTTP/1.1")):
                async with http.post(f"{there.url}/s/{asked.id}/", data=b"hello") as answer:
                    assert (answer.status, await answer.text()) == (200, f"{proto} POST hello")
