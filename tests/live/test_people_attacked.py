"""Service accounts that try to become people, and connections that begin a session in a job and never go on."""

import asyncio
import hashlib
import secrets
import time

import pytest

from tests.support.builders import spec
from tests.support.gateway_world import World
from weft.client import Refused
from weft.domain.tenants import Role
from weft.store.audit import Actor
from weft.store.people import Person

ADA = Person(
    issuer="https://id.example.org", subject="ada", name="ada@example.org", tenant="alice", role=Role.TENANT_ADMIN
)
HALF_OPEN = 1000
SECONDS_MAX = 60.0


async def code_of_ada(world: World, challenge: str) -> str:
    """A one-time code of a person, as a sign-in with the provider makes it."""
    code, at = f"code_{secrets.token_hex(20)}", time.time()
    digest = hashlib.sha256(code.encode()).digest()
    made = await world.place.stores.gateway.sign_person_in(
        ADA,
        digest,
        challenge=challenge,
        at=at,
        expires_at=at + 60,
        session_ends_at=at + 3600,
        most=10,
        actor=Actor(),
    )
    assert made is not None
    return code


async def test_a_service_account_never_becomes_a_person(world: World) -> None:
    code = await code_of_ada(world, "a" * 43)
    with pytest.raises(Refused) as refused:
        await world.alice.begin_session(code=code)
    assert refused.value.status == 401
    with pytest.raises(Refused) as refused:
        await world.alice.keep_out(ADA.id, disabled=False)
    assert refused.value.status == 403
    with pytest.raises(Refused) as refused:
        await world.admin.make_token("alice", ADA.name)
    assert (refused.value.status, refused.value.field) == (400, "label")
    made = await world.alice.begin_session(code=(await world.alice.make_code()).code)
    (session,) = (await world.alice.sessions()).sessions
    assert (session.id, session.person) == (made.id, "")
    job = await world.alice.submit(spec())
    assert (await world.alice.job(job.id)).submitter == ""
    assert (await world.alice.whoami()).person == ""
    entries = (await world.admin.audit()).entries
    assert {one.person for one in entries if one.tenant == "alice"} == {"", ADA.id}
    assert {one.act for one in entries if one.person} == {"provider"}


async def test_a_thousand_sessions_that_never_begin_keep_nobody_out(world: World) -> None:
    job = await world.running()
    head = (
        f"GET /v1/jobs/{job.id}/attach?kind=shell HTTP/1.1\r\nHost: a\r\n"
        f"Authorization: Bearer {world.tokens['alice']}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    )
    streams: list[asyncio.StreamWriter] = []
    try:
        for _ in range(HALF_OPEN):
            _, writer = await asyncio.open_connection("127.0.0.1", world.gateway.port, local_addr=("127.0.0.2", 0))
            writer.write(head.encode())
            streams.append(writer)
        async with asyncio.timeout(SECONDS_MAX):
            submitted = await world.bob.submit(spec())
            assert (await world.bob.job(submitted.id)).tenant == "bob"
    finally:
        for writer in streams:
            writer.transport.abort()
