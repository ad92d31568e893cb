"""Who may do what: without a token nothing, a tenant what is its own, an administrator the rest."""

import pytest

from tests.support.builders import node, spec
from tests.support.gateway import admitted
from tests.support.gateway_world import World, error_of
from weft.client import Refused
from weftd.gateway.limits.access import REMEMBERED_SECONDS


async def test_without_a_known_token_nothing_is_told(world: World) -> None:
    for path in ("/v1/jobs", "/v1/nodes", "/v1/events", "/v1/cluster"):
        for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": "Basic eDp5"}):
            async with world.http.get(f"{world.gateway.url}{path}", headers=headers) as response:
                assert response.status == 401
                assert response.headers["WWW-Authenticate"] == "Bearer"
                assert error_of(await response.read())[0] == "Authorization"


async def test_what_says_what_the_gateway_is_needs_no_token(world: World) -> None:
    for path in ("/", "/healthz", "/readyz", "/v1/openapi.json"):
        async with world.http.get(f"{world.gateway.url}{path}") as response:
            assert response.status == 200


async def test_a_tenant_sees_and_touches_only_its_own_jobs(world: World) -> None:
    theirs = await world.running(name="secret-name")
    for path in ("", "/events", "/explain", "/logs"):
        for job in (theirs.id, "secret-name"):
            found, _, _ = await world.ask("GET", f"/v1/jobs/{job}{path}", token="bob")
            assert found == 404, path
    before = await world.stored()
    for path in ("/cancel", "/requeue"):
        found, _, _ = await world.ask("POST", f"/v1/jobs/{theirs.id}{path}", token="bob")
        assert found == 404
    found, _, _ = await world.ask("POST", f"/v1/jobs/{theirs.id}/priority", token="bob", json={"priority": 1})
    assert found == 404
    assert await world.stored() == before
    assert not (await world.bob.jobs()).jobs
    assert not await world.bob.events()
    for path in ("/v1/nodes", "/v1/cluster", "/v1/jobs"):
        _, body, _ = await world.ask("GET", path, token="bob")
        assert b"secret-name" not in body
        assert b"alice" not in body
    found, answer, _ = await world.ask("GET", "/v1/jobs?tenant=alice", token="bob")
    assert (found, error_of(answer)[0]) == (403, "tenant")
    assert [job.id for job in (await world.admin.jobs()).jobs] == [theirs.id]


async def add_one_gpu_left(world: World) -> None:
    """Of node-2 nothing may be given."""
    await world.place.stores.scheduler.save_node(world.lease, node("node-2", drained=True), event="", cause="")


async def test_of_who_holds_what_is_needed_another_tenant_is_told_the_id_alone(world: World) -> None:
    await add_one_gpu_left(world)
    holder = await world.running(name="secret-name", gpus=4)
    wanted = await world.bob.submit(spec("mine", gpus=4))
    await admitted(world.place, world.lease, wanted.id)
    told = await world.bob.explain(wanted.id)
    assert told.code == "no-room"
    assert [(each.job_id, each.name, each.tenant) for each in told.holders] == [(holder.id, "", "")]
    full = await world.admin.explain(wanted.id)
    assert [(each.job_id, each.name, each.tenant) for each in full.holders] == [(holder.id, "secret-name", "alice")]


async def test_only_an_administrator_touches_nodes_and_tokens(world: World) -> None:
    before = await world.stored()
    for method, path, body in (
        ("POST", "/v1/nodes/node-1/drain", None),
        ("POST", "/v1/nodes/node-1/resume", None),
        ("POST", "/v1/nodes/node-1/return?gpu=0", None),
        ("PATCH", "/v1/nodes/node-1", {"labels": {"zone": "a"}}),
        ("POST", "/v1/tokens", {"tenant": "alice", "label": "x", "admin": True}),
        ("DELETE", "/v1/tokens/bob/test", None),
    ):
        found, answer, _ = await world.ask(method, path, json=body)
        assert (found, error_of(answer)[0]) == (403, "Authorization")
    assert await world.stored() == before


async def test_a_token_is_stored_hashed_and_a_revoked_one_is_refused(world: World) -> None:
    made = await world.admin.make_token("carol", "laptop")
    async with world.gateway.client(made.token) as carol:
        assert not (await carol.jobs()).jobs
        assert (await world.admin.revoke("carol", "laptop")).revoked == 1
        with pytest.raises(Refused) as caught:
            await carol.jobs()
    assert caught.value.status == 401
    assert REMEMBERED_SECONDS <= 2.0
    rows = await world.place.stores.owner.fetch("SELECT * FROM tokens")
    assert not any(made.token.encode() in str(dict(row)).encode() for row in rows)
