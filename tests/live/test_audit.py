"""The audit log: what is written of whom, that nobody changes it, and that no act is done that could not be written."""

import asyncio

import asyncpg
import pytest

from tests.support.gateway import ADMIN_TOKEN
from tests.support.gateway_world import World
from weft.client import Refused
from weft.messages.http.quotas import QuotaWanted
from weft.store.audit import Actor, Outcome

AT = 1_700_000_000.0


async def begun(world: World) -> int:
    return (await world.admin.audit(limit=1)).last


async def test_what_an_administrator_does_is_written_with_who_it_was_and_without_a_secret(world: World) -> None:
    before = await begun(world)
    made = await world.admin.make_token("carol", "ci", expires_in=3600)
    await world.admin.set_quota("carol", QuotaWanted(guaranteed=1))
    await world.admin.drain("node-1")
    await world.admin.revoke("carol", "ci")
    await world.alice.set_secret("key", "a-secret-value")
    found = (await world.admin.audit(after=before)).entries
    assert [(one.outcome, one.act, one.tenant) for one in found] == [
        ("asked", "POST /v1/tokens", "admin"),
        ("asked", "PUT /v1/quotas/carol", "admin"),
        ("asked", "POST /v1/nodes/node-1/drain", "admin"),
        ("asked", "DELETE /v1/tokens/carol/ci", "admin"),
        ("asked", "PUT /v1/secrets/key", "alice"),
    ]
    assert {one.source for one in found} == {"127.0.0.1"}
    assert found[0].who.startswith("file-")
    assert '"label":"ci"' in found[0].detail
    assert found[4].who == "test"
    rows = await world.place.stores.owner.fetch("SELECT * FROM audit")
    kept = str([dict(row) for row in rows])
    for secret in (made.token, "a-secret-value", ADMIN_TOKEN, *world.tokens.values()):
        assert secret not in kept


async def test_a_refusal_is_written_beside_what_was_asked(world: World) -> None:
    before = await begun(world)
    with pytest.raises(Refused):
        await world.admin.revoke("nobody", "none")
    with pytest.raises(Refused):
        await world.alice.make_token("alice", "more", admin=True)
    asked, refused, forbidden = (await world.admin.audit(after=before)).entries
    assert (asked.outcome, refused.outcome, asked.request) == ("asked", "refused", refused.request)
    assert refused.detail.startswith("404 label: tenant nobody has no valid token")
    assert (forbidden.outcome, forbidden.tenant, forbidden.act) == ("refused", "alice", "POST /v1/tokens")
    assert forbidden.detail == "403 Authorization: needs an administrator's token"


async def test_an_act_that_cannot_be_written_is_not_done(world: World) -> None:
    tokens = await world.stored()
    world.gateway.store.broken = "write_audit"
    found, _, _ = await world.ask("POST", "/v1/tokens", token="admin", json={"tenant": "carol", "label": "x"})
    world.gateway.store.broken = ""
    assert found == 500
    assert await world.stored() == tokens


async def test_sign_ins_sign_outs_and_codes_that_are_refused_are_written(world: World) -> None:
    before = await begun(world)
    code = (await world.alice.make_code()).code
    url = f"{world.gateway.url}/v1/sessions"
    async with world.http.post(url, json={"code": code}) as answer:
        session = (await answer.json())["id"]
    async with world.http.post(url, json={"code": code}) as answer:
        assert answer.status == 401
    await world.admin.end_session(session)
    found = (await world.admin.audit(after=before)).entries
    assert [(one.outcome, one.act, one.tenant, one.session) for one in found] == [
        ("done", "code", "alice", ""),
        ("done", "sign-in", "alice", session),
        ("refused", "sign-in", "", ""),
        ("done", "sign-out", "admin", ""),
    ]
    assert found[3].detail == f"{session} of alice"
    assert code not in str(found)


async def test_nobody_changes_or_deletes_an_entry(world: World) -> None:
    """Its owner neither; that no role of a service has the right is in test_postgres_roles.py."""
    for statement in ("UPDATE audit SET who = ''", "DELETE FROM audit", "DELETE FROM audit WHERE false"):
        with pytest.raises(asyncpg.RestrictViolationError):
            await world.place.stores.owner.execute(statement)


async def test_retention_deletes_the_oldest_entries_none_of_the_last_week_and_says_so(world: World) -> None:
    owner, store = world.place.stores.owner, world.place.stores.gateway
    await owner.execute(
        "INSERT INTO audit (seq, at, request, outcome, act, tenant, who, session, source, detail)"
        " OVERRIDING SYSTEM VALUE"
        " SELECT number - 100, to_timestamp($1::float8), '', 'done', 'old', 'alice', '', '', '', ''"
        " FROM generate_series(1, 20) AS number",
        AT,
    )
    await world.alice.set_secret("new", "x")

    async def forget(days: float, entries: int = 0) -> int:
        return await store.forget_audit(kept_seconds=days * 86400.0, entries_max=entries, at_most=5)

    assert await forget(0.0) == 0, "no bound"
    assert await forget(1e5) == 0, "nothing is so old"
    assert [await forget(30.0) for _ in range(5)] == [5, 5, 5, 5, 0]
    found = (await world.admin.audit(limit=1000)).entries
    assert "old" not in [one.act for one in found]
    assert "PUT /v1/secrets/new" in [one.act for one in found]
    told = [one for one in found if one.act == "retention"]
    assert [one.tenant for one in told] == [""] * 4
    assert told[0].detail == "deleted 5 entries, -99 to -95, the last of 2023-11-14T22:13:20Z"
    assert await forget(1e-6, entries=1) == 0, "what is younger than a week stays, whoever asks"
    with pytest.raises(asyncpg.RestrictViolationError):
        await owner.execute("DELETE FROM audit")


async def test_the_newest_entries_are_kept_up_to_their_number(world: World) -> None:
    store = world.place.stores.gateway
    for number in range(10):
        await store.write_audit(Actor(tenant="alice"), f"act-{number}", Outcome.DONE, detail="", at=AT)
    assert await store.forget_audit(kept_seconds=0.0, entries_max=3, at_most=1000) > 0
    acts = [one.act for one in (await world.admin.audit(tenant="alice")).entries]
    assert acts == ["act-7", "act-8", "act-9"]


async def test_what_an_administrator_asks_of_another_tenants_job_is_written(world: World) -> None:
    before = await begun(world)
    job = await world.submitted()
    await world.alice.cancel(job.id)
    assert (await begun(world)) == before
    await world.admin.cancel(job.id)
    (entry,) = (await world.admin.audit(after=before)).entries
    assert (entry.outcome, entry.act, entry.tenant, entry.detail) == ("asked", f"cancel {job.id}", "admin", "of alice")


async def test_a_tenant_sees_its_own_entries_alone(world: World) -> None:
    await world.alice.set_secret("of-alice", "x")
    await world.bob.set_secret("of-bob", "x")
    assert {one.act for one in (await world.alice.audit()).entries} == {"PUT /v1/secrets/of-alice"}
    assert {one.tenant for one in (await world.admin.audit(tenant="bob")).entries} == {"bob"}
    with pytest.raises(Refused) as refused:
        await world.alice.audit(tenant="bob")
    assert (refused.value.status, refused.value.field) == (403, "tenant")


async def test_who_is_refused_without_end_fills_no_disk(world: World) -> None:
    before = await begun(world)
    for _ in range(60):
        found, _, _ = await world.ask("DELETE", "/v1/tokens/alice/test", token="bob")
        assert found == 403
    assert 20 <= len((await world.admin.audit(after=before, limit=1000)).entries) <= 40


async def test_a_reader_that_goes_on_behind_the_last_entry_misses_none(world: World) -> None:
    """Entries of several writers at once are readable in the order of their numbers."""
    before, store = await begun(world), world.place.stores.gateway
    wanted = {f"act-{number}" for number in range(60)}

    async def write(act: str) -> None:
        await store.write_audit(Actor(tenant="alice"), act, Outcome.DONE, detail="", at=AT)

    seen: list[str] = []
    writing = asyncio.gather(*(write(act) for act in wanted))
    async with asyncio.timeout(60):
        while len(seen) < len(wanted):
            entries = (await world.admin.audit(after=before, limit=7)).entries
            seen += [one.act for one in entries]
            before = entries[-1].seq if entries else before
    await writing
    assert (len(seen), set(seen)) == (len(wanted), wanted)
    last = (await world.admin.audit(limit=5)).entries
    earlier = (await world.admin.audit(before=last[0].seq, limit=5)).entries
    assert [one.act for one in [*earlier, *last]] == seen[-10:]
