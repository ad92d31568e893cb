"""Signing in with a browser: one-time codes, sessions in a cookie, and what pages of other origins can do with them."""

import asyncio
import hashlib
import time
from http.cookies import Morsel
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.support.gateway_world import World, error_of
from weft.client import Client, Refused
from weft.messages.http.sign_ins import SessionMade
from weftd.gateway import service
from weftd.gateway.limits.access import REMEMBERED_SECONDS
from weftd.gateway.limits.cookies import COOKIE, HOST_COOKIE, PROOF_HEADER

REVOKED_SECONDS_MAX = 5.0
BUSY_SECONDS = 10.0
PAGE = "https://evil.example.org"


class Browser:
    """A session as a browser keeps it."""

    def __init__(self, world: World, made: SessionMade, cookie: "Morsel[str]") -> None:
        self.world, self.made, self.cookie = world, made, cookie
        self.headers = {"Cookie": f"{cookie.key}={cookie.value}", PROOF_HEADER: made.proof}

    async def status(self, path: str = "/v1/jobs", *, method: str = "GET", **headers: str) -> int:
        sent = {name: value for name, value in {**self.headers, **headers}.items() if value}
        url = f"{self.world.gateway.url}{path}"
        async with self.world.http.request(method, url, headers=sent) as answer:
            return answer.status


async def sign_in(world: World, body: Any, *, token: str = "", status: int = 201, **headers: str) -> tuple[bytes, Any]:
    sent = {**({"Authorization": f"Bearer {token}"} if token else {}), **headers}
    async with world.http.post(f"{world.gateway.url}/v1/sessions", json=body, headers=sent) as answer:
        told = await answer.read()
        assert answer.status == status, told
        return told, answer.cookies


async def browser(world: World, client: Client) -> Browser:
    told, cookies = await sign_in(world, {"code": (await client.make_code()).code})
    return Browser(world, msgspec.json.decode(told, type=SessionMade), cookies[COOKIE])


async def test_a_code_is_exchanged_once_for_a_session_that_scripts_cannot_read(world: World) -> None:
    made = await world.alice.make_code()
    assert made.job == ""
    assert 0 < made.expires_at - time.time() <= 600
    told, cookies = await sign_in(world, {"code": made.code})
    session, cookie = msgspec.json.decode(told, type=SessionMade), cookies[COOKIE]
    assert (session.tenant, session.admin) == ("alice", False)
    assert (cookie["httponly"], cookie["samesite"], cookie["path"], cookie["domain"]) == (True, "Strict", "/v1", "")
    assert cookie.value not in told.decode()
    assert await Browser(world, session, cookie).status() == 200
    answer, again = await sign_in(world, {"code": made.code}, status=401)
    assert error_of(answer)[0] == "code"
    assert not again


async def test_of_many_who_bring_one_code_one_gets_a_session(world: World) -> None:
    code = (await world.alice.make_code()).code

    async def bring() -> int:
        async with world.http.post(f"{world.gateway.url}/v1/sessions", json={"code": code}) as answer:
            return answer.status

    found = await asyncio.gather(*(bring() for _ in range(10)))
    assert sorted(found) == [201, *[401] * 9]


async def test_a_code_and_a_session_are_stored_hashed(world: World) -> None:
    code = (await world.alice.make_code()).code
    _, cookies = await sign_in(world, {"code": code})
    rows = await world.place.stores.owner.fetch("SELECT * FROM sign_ins")
    kept = b"".join(str(dict(row)).encode() for row in rows)
    assert len(rows) == 2
    for secret in (code, cookies[COOKIE].value):
        assert secret.encode() not in kept
        assert hashlib.sha256(secret.encode()).digest() in [row["hash"] for row in rows]


async def test_a_code_that_is_too_old_is_worth_nothing(world: World) -> None:
    code = (await world.alice.make_code()).code
    await world.place.stores.owner.execute("UPDATE sign_ins SET expires_at = now() - interval '1 ms'")
    await sign_in(world, {"code": code}, status=401)


async def test_a_code_for_a_service_opens_nothing_at_the_gateway_and_none_for_anothers(world: World) -> None:
    job = await world.running()
    code = await world.alice.make_code(job.id)
    assert code.job == job.id
    await sign_in(world, {"code": code.code}, status=401)
    with pytest.raises(Refused) as refused:
        await world.bob.make_code(job.id)
    assert (refused.value.status, refused.value.field) == (404, "job")
    digest, token = (hashlib.sha256(text.encode()).digest() for text in (code.code, "weft_of-a-service"))
    assert await world.place.stores.router.redeem_code(digest, token, job="j-other", at=time.time(), source="") is None
    assert await world.place.stores.router.redeem_code(digest, token, job=job.id, at=time.time(), source="") is not None
    async with world.gateway.client("weft_of-a-service", retry_seconds=0) as thief:
        with pytest.raises(Refused) as refused:
            await thief.jobs()
    assert refused.value.status == 401


async def test_the_cookie_counts_only_with_its_proof(world: World) -> None:
    mine, other = await browser(world, world.alice), await browser(world, world.bob)
    assert await mine.status() == 200
    for headers in (
        {PROOF_HEADER: ""},
        {PROOF_HEADER: "x"},
        {PROOF_HEADER: other.made.proof},
        {"Cookie": ""},
        {"Cookie": f"a{mine.headers['Cookie']}"},
        {"Authorization": "Bearer weft_x"},
    ):
        assert await mine.status(**headers) == 401, headers
    for headers in (
        {"Cookie": f"a=b; {other.headers['Cookie']}; {mine.headers['Cookie']}"},  # another page planted the first
        {"Cookie": f"{HOST_COOKIE}={mine.cookie.value}"},
    ):
        assert await mine.status(**headers) == 200, headers


async def test_a_page_of_another_origin_signs_nobody_in_and_may_send_nothing(world: World) -> None:
    code = (await world.bob.make_code()).code
    url = f"{world.gateway.url}/v1/sessions"
    body = msgspec.json.encode({"code": code})
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        headers = {"Content-Type": kind, "Origin": PAGE}
        async with world.http.post(url, data=body, headers=headers) as answer:
            assert (answer.status, "Set-Cookie" in answer.headers) == (415, False)
    asks = {"Origin": PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": PROOF_HEADER}
    for path in ("/v1/sessions", "/v1/jobs"):
        async with world.http.options(f"{world.gateway.url}{path}", headers=asks) as answer:
            assert answer.status == 405
            assert not [name for name in answer.headers if name.lower().startswith("access-control-allow")]


async def test_sessions_are_listed_and_ended_by_their_tenant_and_by_administrators(world: World) -> None:
    first, second, other = [await browser(world, client) for client in (world.alice, world.alice, world.bob)]
    assert await first.status() == 200
    listed = (await world.alice.sessions()).sessions
    assert {one.id for one in listed} == {first.made.id, second.made.id}
    assert {(one.tenant, one.label, one.current) for one in listed} == {("alice", "test", False)}
    assert {one.id for one in (await world.admin.sessions()).sessions} == {
        each.made.id for each in (first, second, other)
    }
    with pytest.raises(Refused) as refused:
        await world.bob.end_session(first.made.id)
    assert refused.value.status == 404
    assert await first.status() == 200
    await world.admin.end_session(first.made.id)
    assert await first.status() == 401
    async with world.http.delete(f"{world.gateway.url}/v1/sessions/{second.made.id}", headers=second.headers) as answer:
        assert (answer.status, answer.cookies[COOKIE]["max-age"]) == (200, "0")
    assert await second.status() == 401
    assert [one.id for one in (await world.alice.sessions()).sessions] == []


async def test_a_session_and_its_stream_end_with_the_token_that_they_were_made_with(world: World) -> None:
    mine, other = await browser(world, world.alice), await browser(world, world.bob)
    url = f"{world.gateway.url}/v1/events?follow=1"
    async with (
        world.http.get(url, headers=mine.headers) as ending,
        world.http.get(url, headers=other.headers) as staying,
    ):
        assert (ending.status, staying.status) == (200, 200)
        await world.place.stores.gateway.revoke_tokens(tenant="alice", label="test", at=time.time())
        revoked = time.monotonic()
        with pytest.raises(aiohttp.ClientPayloadError):
            await asyncio.wait_for(ending.read(), 60)
        assert time.monotonic() - revoked < REVOKED_SECONDS_MAX + BUSY_SECONDS
        assert staying.connection is not None
    assert await mine.status() == 401
    assert await other.status() == 200
    assert REMEMBERED_SECONDS + service.STREAMS_SECONDS < REVOKED_SECONDS_MAX


async def test_a_session_makes_no_session_that_outlives_it(world: World) -> None:
    mine = await browser(world, world.alice)
    async with world.http.post(f"{world.gateway.url}/v1/codes", json={}, headers=mine.headers) as answer:
        code = (await answer.json())["code"]
    told, _ = await sign_in(world, {"code": code})
    assert msgspec.json.decode(told, type=SessionMade).expires_at <= mine.made.expires_at
    await sign_in(world, {}, token=mine.cookie.value)


async def test_guessing_codes_is_slow(world: World) -> None:
    found = []
    for number in range(60):
        async with world.http.post(f"{world.gateway.url}/v1/sessions", json={"code": f"code_{number}"}) as answer:
            found.append(answer.status)
    assert found[0] == 401
    assert found[-1] == 429
    await world.alice.jobs()  # a caller who was let in before goes on
