"""Secrets over a real gateway: stored, never shown, and given to the one node that is to start the run."""

import json

import pytest

from tests.support.builders import spec
from tests.support.gateway_world import World, error_of
from tests.support.steps import placement
from weft.client import Refused
from weft.domain.job import JobEvent
from weft.messages.nodes import ReadSecrets, SecretsRead

VALUE = "hf_0a9b8c7d6e5f"


async def ask(world: World, job_id: str, *, node: str = "node-1", epoch: int = 0, rank: int = 0) -> SecretsRead:
    asked = ReadSecrets(node_id=node, job_id=job_id, epoch=epoch, rank=rank)
    async with world.place.bus(f"executor-{node}") as bus:
        return await bus.request(asked, SecretsRead, seconds_max=10)


async def test_a_value_goes_in_and_no_request_shows_it_again(world: World) -> None:
    kept = await world.alice.set_secret("hf-token", VALUE)
    assert kept.name == "hf-token"
    job = await world.submitted(secrets={"HF_TOKEN": "hf-token"})
    shown = []
    for path in ("/v1/secrets", f"/v1/jobs/{job.id}", f"/v1/jobs/{job.id}/explain", "/v1/events", "/v1/jobs"):
        for token in ("alice", "admin"):
            status, body, _ = await world.ask("GET", path, token=token)
            shown.append(body)
            assert status == 200, (path, body)
    assert not any(VALUE.encode() in body for body in shown)
    assert b"hf-token" in shown[0]
    assert (await world.bob.secrets()).secrets == (), "each tenant sees its own"
    assert (await world.admin.secrets()).secrets == ()
    with pytest.raises(Refused, match="tenant bob has no secret hf-token"):
        await world.bob.delete_secret("hf-token")
    again = await world.alice.set_secret("hf-token", "another")
    assert again.created_at == kept.created_at < again.updated_at
    assert (await world.alice.delete_secret("hf-token")).deleted == "hf-token"
    assert (await world.alice.secrets()).secrets == ()


async def test_a_job_names_only_what_its_tenant_has_stored(world: World) -> None:
    await world.bob.set_secret("hf-token", VALUE)
    body = b'{"name": "a", "command": ["true"], "secrets": {"HF_TOKEN": "hf-token"}}'
    await world.refuses("/v1/jobs", body, "secrets.HF_TOKEN")
    await world.alice.set_secret("hf-token", VALUE)
    status, made, _ = await world.ask("POST", "/v1/jobs", data=body, headers={"Idempotency-Key": "k"})
    assert status == 201, made
    await world.alice.delete_secret("hf-token")
    status, same, _ = await world.ask("POST", "/v1/jobs", data=body, headers={"Idempotency-Key": "k"})
    assert (status, json.loads(same)["id"]) == (200, json.loads(made)["id"]), "a repeat of what was accepted"
    for wrong, field in (
        (b'{"name": "a", "command": ["true"], "secrets": {"A": "a"}, "env": {"A": "b"}}', "secrets.A"),
        (b'{"name": "a", "command": ["true"], "secrets": {"A-B": "a"}}', "secrets"),
        (b'{"name": "a", "command": ["true"], "secrets": {"A": "../a"}}', "secrets.A"),
        (b'{"name": "a", "command": ["true"], "secrets": ["a"]}', "secrets"),
        (b'{"name": "a", "command": ["true"], "secret_files": {"A": "none"}}', "secret_files.A"),
        (b'{"name": "a", "command": ["true"], "secret_files": {"../A": "hf-token"}}', "secret_files"),
        (b'{"name": "a", "command": ["true"], "secret_files": {"A": "a"}, "env": {"A": "b"}}', "secret_files.A"),
        (b'{"name": "a", "command": ["true"], "secret_files": {"A": "a"}, "secrets": {"A": "a"}}', "secret_files.A"),
        (
            b'{"name": "a", "command": ["true"], "secret_files": {%s}, "secrets": {"A": "a"}}'
            % b", ".join(b'"B%d": "a"' % number for number in range(32)),
            "secret_files",
        ),
    ):
        await world.refuses("/v1/jobs", wrong, field)


@pytest.mark.parametrize(
    ("value", "status"),
    [("", 400), ("a\0b", 400), ("é" * 16384, 200), ("é" * 16385, 400), ("x" * 32769, 400), (7, 400)],
)
async def test_a_value_is_text_of_a_bounded_size(world: World, value: object, status: int) -> None:
    found, body, _ = await world.ask("PUT", "/v1/secrets/odd", data=json.dumps({"value": value}))
    assert found == status, body
    if status == 400:
        assert error_of(body)[0] == "value"
        assert (await world.alice.secrets()).secrets == ()
    found, body, _ = await world.ask("PUT", "/v1/secrets/NO", data=json.dumps({"value": "a"}))
    assert (found, error_of(body)[0]) == (400, "name")


async def test_a_tenant_can_store_a_bounded_number(world: World) -> None:
    for number in range(256):
        await world.alice.set_secret(f"s-{number}", "a")
    with pytest.raises(Refused, match="tenant alice has 256 secrets"):
        await world.alice.set_secret("one-more", "a")
    await world.alice.set_secret("s-7", "b")
    await world.bob.set_secret("one-more", "a")


async def test_values_are_given_to_the_node_of_the_run_and_to_no_other(world: World) -> None:
    await world.alice.set_secret("hf-token", VALUE)
    await world.bob.set_secret("hf-token", "of bob")
    job = await world.submitted(secrets={"HF_TOKEN": "hf-token"}, secret_files={"SAME": "hf-token"})
    assert (await ask(world, job.id)).refused, "it has no place yet"
    job = await world.go(job, JobEvent.PLACED, placement=placement(("node-1", 0)))
    given = await ask(world, job.id)
    assert given == SecretsRead(values={"HF_TOKEN": VALUE, "SAME": VALUE})
    for wrong in ({"node": "node-2"}, {"epoch": 1}, {"rank": 1}):
        refused = await ask(world, job.id, **wrong)  # type: ignore[arg-type]
        assert refused.values == {}
        assert f"{job.id} has no rank" in refused.refused
    assert (await ask(world, "j-none")).values == {}
    await world.alice.set_secret("hf-token", "replaced")
    assert (await ask(world, job.id)).values["SAME"] == "replaced"
    await world.alice.delete_secret("hf-token")
    assert await ask(world, job.id) == SecretsRead(missing=("hf-token",))
    plain = await world.alice.submit(spec())
    assert (await ask(world, plain.id)).values == {}
