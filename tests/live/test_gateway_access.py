"""Tokens that change, end and are revoked; who asks too fast; and what a gateway tells nobody."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest

from tests.support.builders import spec
from tests.support.gateway import ADMIN_TOKEN, Place, RunningGateway, add_nodes, place, submit_on_nats
from tests.support.gateway_process import gateway_process
from weft.client import Client, Refused
from weft.messages.asks import SubmitAnswered
from weft.messages.http import ErrorView
from weftd.gateway import service
from weftd.gateway.http import route
from weftd.gateway.limits import connections
from weftd.gateway.limits.access import REMEMBERED_SECONDS
from weftd.gateway.settings import GatewaySettings

SECONDS_MAX = 60.0
REVOKED_SECONDS_MAX = 5.0  # what is promised of streams
BUSY_SECONDS = 10.0  # a busy machine may add these


@pytest.fixture(scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    async with place(tmp_path_factory.mktemp("gateway")) as made:
        yield made


@asynccontextmanager
async def gateway(servers: Place, settings: GatewaySettings | None = None) -> AsyncIterator[RunningGateway]:
    await servers.stores.clear()
    await add_nodes(servers)
    running = RunningGateway(servers, settings=settings)
    await running.start()
    try:
        yield running
    finally:
        await running.stop()


async def refused(asking: object) -> Refused:
    with pytest.raises(Refused) as caught:
        await asyncio.wait_for(asking, SECONDS_MAX)  # type: ignore[arg-type]
    return caught.value


async def until_refused(client: Client) -> None:
    while await client.jobs():  # noqa: ASYNC110 - it is refused from afar, and has no event
        await asyncio.sleep(0.05)


# tokens


async def test_a_tenant_changes_its_token_without_a_moment_in_which_none_is_good(servers: Place) -> None:
    async with gateway(servers) as running, running.client() as admin:
        old = await admin.make_token("alice", "old")
        async with running.client(old.token) as before:
            job = await before.submit(spec())
            new = await admin.make_token("alice", "new")
            async with running.client(new.token) as after:
                assert (await before.job(job.id)).id == (await after.job(job.id)).id
                assert (await admin.revoke("alice", "old")).revoked == 1
                assert (await refused(before.job(job.id))).status == 401
                assert (await after.job(job.id)).state == "queued"  # the tenant's jobs are not its token's


async def test_a_token_that_expires_is_refused_from_then_on(servers: Place) -> None:
    async with gateway(servers) as running, running.client() as admin:
        made = await admin.make_token("alice", "short", expires_in=4)
        assert made.expires_at is not None
        assert made.expires_at - time.time() < 4
        async with running.client(made.token) as alice:
            await alice.jobs()
            error = await refused(until_refused(alice))
            assert (error.status, "has expired" in error.reason) == (401, True)
        assert time.time() >= made.expires_at
        assert time.time() < made.expires_at + REMEMBERED_SECONDS + BUSY_SECONDS


async def test_tokens_are_listed_without_their_secret_and_tell_when_they_were_used(servers: Place) -> None:
    async with gateway(servers) as running, running.client() as admin:
        used, _, gone = [await admin.make_token("alice", label) for label in ("used", "unused", "gone")]
        await admin.make_token("bob", "used", admin=True, expires_in=3600)
        await admin.revoke("alice", "gone")
        async with running.client(used.token) as alice:
            await alice.jobs()
            assert (await refused(alice.tokens())).status == 403
        found = {token.label: token for token in (await admin.tokens(tenant="alice")).tokens}
        assert set(found) == {"used", "unused"}
        assert found["unused"].used_at is None
        assert abs((found["used"].used_at or 0) - time.time()) < SECONDS_MAX
        every = await admin.tokens(every=True)
        assert [(token.label, token.in_force) for token in every.tokens if token.revoked_at] == [("gone", False)]
        assert {token.tenant for token in every.tokens} == {"alice", "bob", "admin"}
        for secret in (used.token, gone.token, ADMIN_TOKEN):
            assert secret.encode() not in msgspec.json.encode(every)


@pytest.mark.parametrize("path", ["/v1/events", "/v1/jobs/{job}/events", "/v1/jobs/{job}/logs"])
async def test_a_stream_ends_soon_after_its_token_was_revoked_elsewhere(servers: Place, path: str) -> None:
    """Elsewhere: by another gateway, or in the database itself. And nobody else's stream ends with it."""
    async with gateway(servers) as running, running.client() as admin, aiohttp.ClientSession() as http:
        gone, kept = [await admin.make_token("alice", label) for label in ("gone", "kept")]
        async with running.client(gone.token) as alice:
            url = f"{running.url}{path.format(job=(await alice.submit(spec())).id)}?follow=1"
            async with (
                http.get(url, headers={"Authorization": f"Bearer {gone.token}"}) as ending,
                http.get(url, headers={"Authorization": f"Bearer {kept.token}"}) as staying,
            ):
                assert (ending.status, staying.status) == (200, 200)
                await servers.stores.gateway.revoke_tokens(tenant="alice", label="gone", at=time.time())
                revoked = time.monotonic()
                with pytest.raises(aiohttp.ClientPayloadError):  # cut, so that nobody takes it for the end
                    await asyncio.wait_for(ending.read(), SECONDS_MAX)
                assert time.monotonic() - revoked < REVOKED_SECONDS_MAX + BUSY_SECONDS
                assert staying.connection is not None
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(staying.read(), 0.5)
            with pytest.raises(Refused) as caught:
                await asyncio.wait_for(anext(alice.follow_events()), SECONDS_MAX)
            assert caught.value.status == 401
    assert REMEMBERED_SECONDS + service.STREAMS_SECONDS < REVOKED_SECONDS_MAX


# who asks too fast

SLOW = GatewaySettings(
    reads_per_second=2,
    reads_burst=2,
    changes_per_second=2,
    changes_burst=3,
    refusals_per_second=1,
    refusals_burst=3,
)


async def test_who_asks_too_fast_is_told_when_to_ask_again(servers: Place) -> None:
    async with gateway(servers, SLOW) as running, running.client() as admin, aiohttp.ClientSession() as http:
        made = [await admin.make_token(tenant, "x") for tenant in ("alice", "bob")]

        async def look(number: int) -> tuple[int, str, bytes]:
            headers = {"Authorization": f"Bearer {made[number].token}"}
            async with http.get(f"{running.url}/v1/jobs", headers=headers) as response:
                return response.status, response.headers.get("Retry-After", ""), await response.read()

        answers = [await look(0) for _ in range(10)]
        assert [answer[0] for answer in answers[:2]] == [200, 200]
        status, later, body = next(answer for answer in answers if answer[0] != 200)
        assert (status, later) == (429, "1")
        error = msgspec.json.decode(body, type=ErrorView).error
        assert (error.status, error.reason) == (429, "tenant alice may make 2 reads a second here; ask again in 1 s")
        assert (await look(1))[0] == 200


async def test_reads_and_changes_are_counted_apart_and_a_change_that_is_refused_is_not_done(servers: Place) -> None:
    async with gateway(servers, SLOW) as running, running.client() as admin:
        made = await admin.make_token("alice", "x")
        async with running.client(made.token, retry_seconds=0) as alice:
            taken, late = [], []
            for _ in range(10):
                try:
                    taken.append((await alice.submit(spec())).id)
                except Refused as error:
                    late.append(error)
            assert len(taken) >= 3
            assert {error.status for error in late} == {429}
            assert {error.retry_after for error in late} == {1.0}
            assert {job.id for job in (await alice.jobs()).jobs} == set(taken)


async def test_the_client_waits_as_long_as_it_is_told_and_submits_all(servers: Place) -> None:
    async with gateway(servers, SLOW) as running, running.client() as admin:
        made = await admin.make_token("alice", "x")
        async with running.client(made.token) as alice:
            jobs = {(await asyncio.wait_for(alice.submit(spec()), SECONDS_MAX)).id for _ in range(6)}
            assert len(jobs) == 6


async def test_a_request_on_nats_is_counted_with_the_others(servers: Place) -> None:
    async with gateway(servers, SLOW) as running, running.client() as admin, servers.bus("integrator") as bus:
        made = await admin.make_token("alice", "x")

        async def submit() -> SubmitAnswered:
            return await submit_on_nats(bus, msgspec.json.encode(spec()), {"Authorization": f"Bearer {made.token}"})

        answers = [await submit() for _ in range(10)]
        assert all(answer.job_id for answer in answers[:3])
        late = next(answer for answer in answers if not answer.job_id)
        assert 0 < late.retry_after <= 0.5
        assert "may make 2 submissions and changes a second" in late.error
        async with running.client(made.token) as alice:
            assert len((await alice.jobs()).jobs) == sum(bool(answer.job_id) for answer in answers)


async def test_guessing_tokens_is_slow_and_hinders_nobody_who_was_let_in(servers: Place) -> None:
    async with gateway(servers, SLOW) as running, running.client() as admin, aiohttp.ClientSession() as http:
        made = await admin.make_token("alice", "x")
        async with running.client(made.token, retry_seconds=0) as alice:
            await alice.jobs()

            async def guess(number: int) -> int:
                headers = {"Authorization": f"Bearer weft_guess-{number}"}
                async with http.get(f"{running.url}/v1/jobs", headers=headers) as response:
                    assert response.headers.get("Retry-After", "1").isdigit()
                    return response.status

            began = time.monotonic()
            told = [await guess(number) for number in range(60)]
            assert set(told) == {401, 429}
            assert told.count(401) <= 3 + (time.monotonic() - began) + 1
            await alice.jobs()


async def test_one_integrators_guesses_refuse_no_submission_of_another_integrator(servers: Place) -> None:
    """They were counted together: one program with an old token had every new token of all refused."""
    async with gateway(servers, SLOW) as running, running.client() as admin:
        made = await admin.make_token("alice", "x")
        async with servers.bus("integrator") as guesser, servers.bus("integrator") as other:
            headers = [{"Authorization": f"Bearer weft_guess-{number}"} for number in range(20)]
            answers = [await submit_on_nats(guesser, b"{}", each) for each in headers]
            assert answers[-1].retry_after, "the guesses were not limited"
            body = msgspec.json.encode(spec())
            answer = await submit_on_nats(other, body, {"Authorization": f"Bearer {made.token}"})
            assert answer.job_id, answer


# what it tells nobody


async def test_no_answer_says_which_program_serves_it_or_may_be_taken_for_another_type(servers: Place) -> None:
    async with gateway(servers) as running, aiohttp.ClientSession() as http:
        for path in ("/", "/healthz", "/v1/jobs", "/v1/none", "/v1/openapi.json"):
            async with http.get(f"{running.url}{path}") as response:
                assert response.headers["Server"] == "weft"
                assert response.headers["X-Content-Type-Options"] == "nosniff"


async def test_headers_that_have_no_end_are_refused(servers: Place) -> None:
    async with gateway(servers) as running, aiohttp.ClientSession() as http:
        for headers in ({"X-Long": "x" * 20_000}, {f"X-{number}": "x" for number in range(1000)}):
            async with http.get(f"{running.url}/healthz", headers=headers) as response:
                assert response.status == 400
                assert msgspec.json.decode(await response.read(), type=ErrorView).error.status == 400
        async with http.get(f"{running.url}/healthz?{'x' * 20_000}") as response:
            assert response.status in (400, 414)


async def test_a_live_gateway_writes_no_token_into_its_log(servers: Place, tmp_path: Path) -> None:
    """A process of its own, logging all it can, asked with tokens wherever somebody might put one."""
    await servers.stores.clear()
    await add_nodes(servers)
    secret = servers.credentials.admin_token()
    log = tmp_path / "log"
    running = gateway_process(
        log,
        servers.credentials,
        nats_url=servers.nats_url,
        pg_dsn=servers.stores.server.dsn,
        WEFT_LOG_LEVEL="DEBUG",
    )
    async with running as gateway:
        good = {"Authorization": f"Bearer {secret}"}
        async with aiohttp.ClientSession() as http:
            for path, headers in (
                ("/v1/jobs", good),
                (f"/v1/jobs?token={secret}", good),
                (f"/v1/jobs/{secret}", good),
                (f"/v1/{secret}", good),
                ("/v1/jobs", {"Authorization": f"Basic {secret}"}),
                ("/v1/jobs", {"Authorization": secret}),
                ("/v1/jobs", {"X-Token": secret}),
            ):
                async with http.get(f"{gateway.url}{path}", headers=headers) as response:
                    assert response.status < 500
                    assert secret.encode() not in await response.read() or path.endswith(secret)
            owner = servers.stores.owner
            await owner.execute("ALTER ROLE weft_gateway NOLOGIN")
            try:
                await owner.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'weft_gateway'"
                )
                unknown = {"Authorization": "Bearer weft_unknown"}
                async with http.get(f"{gateway.url}/v1/jobs/{secret}", headers=unknown) as response:
                    assert response.status == 503  # which is logged, with its path
            finally:
                await owner.execute("ALTER ROLE weft_gateway LOGIN")
    text = log.read_text()
    assert "the store is away" in text
    assert secret not in text
    assert secret.removeprefix("weft_") not in text
    for role in ("gateway", "scheduler"):
        assert servers.credentials.nats_password(role) not in text
        assert servers.credentials.postgres_password(role) not in text


# who is slow on purpose


async def closed_within(reader: asyncio.StreamReader, seconds: float) -> bytes:
    """What comes until the connection is closed, which must be soon; a reset is as good."""
    async with asyncio.timeout(seconds):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


@pytest.mark.parametrize("first", [b"", b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"], ids=["first", "second"])
async def test_headers_that_never_end_do_not_hold_a_connection(
    servers: Place, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    monkeypatch.setattr(connections, "FIRST_REQUEST_SECONDS_MAX", 0.5)
    monkeypatch.setattr(connections, "IDLE_SECONDS_MAX", 1.0)
    async with gateway(servers) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(first)
        if first:
            await reader.readuntil(b"}")
        dripping = asyncio.create_task(drip(writer, b"GET /v1/jobs HTTP/1.1\r\nHost: a\r\n", b"X-More: x\r\n"))
        await closed_within(reader, SECONDS_MAX)
        dripping.cancel()
        writer.close()


async def test_a_body_that_never_ends_does_not_hold_a_connection(
    servers: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "BODY_SECONDS_MAX", 0.5)
    async with gateway(servers) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        head = (
            f"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {ADMIN_TOKEN}\r\nContent-Length: 9999\r\n\r\n"
        )
        dripping = asyncio.create_task(drip(writer, head.encode(), b"{"))
        told = await closed_within(reader, SECONDS_MAX)
        assert told.startswith(b"HTTP/1.1 408 ") or not told  # what is sent on may hide it
        dripping.cancel()
        writer.close()


async def test_a_reader_who_takes_nothing_does_not_hold_a_connection(
    servers: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "TAKEN_SECONDS_MAX", 0.5)
    async with gateway(servers) as running:
        _, writer = await asyncio.open_connection("127.0.0.1", running.port, limit=1024)
        writer.transport.pause_reading()
        ask = b"GET /v1/openapi.json HTTP/1.1\r\nHost: a\r\n\r\n"
        async with asyncio.timeout(SECONDS_MAX):
            while not writer.is_closing():
                writer.write(ask * 50)
                await drained(writer)
                await asyncio.sleep(0.02)


async def drained(writer: asyncio.StreamWriter) -> None:
    try:
        async with asyncio.timeout(0.05):
            await writer.drain()
    except (TimeoutError, ConnectionError):
        pass


async def drip(writer: asyncio.StreamWriter, first: bytes, more: bytes) -> None:
    writer.write(first)
    while not writer.is_closing():
        writer.write(more)
        await asyncio.sleep(0.05)
