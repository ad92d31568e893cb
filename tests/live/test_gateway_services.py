"""Services over a real Postgres and a real NATS: updates that are stored or refused, endpoints, and what is shown."""

import asyncio
import io
import json
import time
from typing import Any

import pytest
from msgspec import structs

from tests.support.builders import node
from tests.support.gateway_world import World, error_of
from tests.support.steps import placement
from weft.domain.decoding.spec_decoder import SPEC_BYTES_MAX
from weft.domain.job import Cause, CauseCode, Job, JobEvent, Loan, Placement
from weft.messages.asks import AskKind, Scale, Update
from weft.messages.http.services import ServiceView
from weft.messages.serving import Endpoint, EndpointsSeen, ServiceServed, ServicesServed

SERVES = {"kind": "inference", "service": {"port": 8000, "ready": "/healthz"}, "env": {"MODEL": "small", "OLD": "1"}}
RANGE = {"replicas": {"min": 0, "want": 2, "max": 4}}


def where() -> Placement:
    found = placement(("node-1", 0), ("node-2", 0))
    return structs.replace(found, allocations=tuple(structs.replace(one, extra=True) for one in found.allocations))


def elsewhere() -> Placement:
    found = placement(("node-1", 1))
    return structs.replace(found, allocations=tuple(structs.replace(one, extra=True) for one in found.allocations))


async def service(world: World, **says: Any) -> Job:
    return await world.running(**{"placement": where(), "role": RANGE, **SERVES, **says})


async def shown_service(world: World, job: Job) -> ServiceView:
    found = (await world.alice.job(job.id)).service
    assert found is not None
    return found


async def updates(world: World) -> list[tuple[AskKind, str, str, Update | None]]:
    return [(ask.kind, ask.subject_id, ask.tenant, ask.update) for ask in await world.take_asks()]


async def test_an_update_is_stored_for_the_scheduler(world: World) -> None:
    job = await service(world)
    accepted = await world.alice.update(job.id, command=["serve", "--model", "ü"], env={"MODEL": "big", "OLD": ""})
    assert (accepted.id, accepted.ask, accepted.state) == (job.id, AskKind.UPDATE, "running")
    await world.admin.update(job.id, env={"MODEL": "small"})
    assert await updates(world) == [
        (
            AskKind.UPDATE,
            job.id,
            "alice",
            Update(command=("serve", "--model", "ü"), env={"MODEL": "big", "OLD": ""}),
        ),
        (AskKind.UPDATE, job.id, "admin", Update(env={"MODEL": "small"})),
    ]


async def test_by_its_name_the_newest_service_that_was_ready_is_found(world: World) -> None:
    old = await service(world, name="chat")
    await world.go(old, JobEvent.RESIZED, placement=where(), worked={"worker": 2})
    new = await service(world, name="chat", placement=elsewhere())
    assert (await world.alice.endpoints("chat")).job_id == old.id
    assert (await world.alice.endpoints(new.id)).job_id == new.id
    await world.go(new, JobEvent.RESIZED, placement=elsewhere(), worked={"worker": 2})
    assert (await world.alice.endpoints("chat")).job_id == new.id


BODIES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", ""),
    "no object": (b"[]", ""),
    "nothing set": (b"{}", ""),
    "only nulls": (b'{"image": null, "env": null}', ""),
    "an unknown field": (b'{"image": "a", "replicas": 2}', "replicas"),
    "an image with a blank": (b'{"image": "a b"}', "image"),
    "an image that ends in a line break": (b'{"image": "a\\n"}', "image"),
    "an image of another script": ('{"image": "образ"}'.encode(), "image"),
    "a command that is a text": (b'{"command": "serve it"}', "command"),
    "an empty command": (b'{"command": []}', "command"),
    "a long command": (json.dumps({"command": ["x"] * 1025}).encode(), "command"),
    "a command with a NUL": (b'{"command": ["a\\u0000b"]}', "command[0]"),
    "half a surrogate pair": (b'{"command": ["\\ud800"]}', ""),
    "a variable that begins with a digit": (b'{"env": {"1A": "x"}}', "env"),
    "a variable that is a number": (b'{"env": {"A": 1}}', "env.A"),
    "a variable with a line break in its name": (b'{"env": {"A\\n": "x"}}', "env"),
    "a long variable": (json.dumps({"env": {"A": "x" * 32769}}).encode(), "env.A"),
    "many variables": (json.dumps({"env": {f"A{number}": "x" for number in range(1025)}}).encode(), "env"),
    "more than fit with those there are": (
        json.dumps({"env": {f"A{number}": "x" for number in range(1023)}}).encode(),
        "env",
    ),
    "deep": (b'{"env": ' + b'{"A":' * 100_000, "env"),
}


@pytest.mark.parametrize("name", BODIES)
async def test_a_bad_update_is_one_error_that_names_the_field_and_changes_nothing(world: World, name: str) -> None:
    body, field = BODIES[name]
    job = await service(world)
    await world.refuses(f"/v1/jobs/{job.id}/update", body, field)


async def test_what_a_service_would_have_in_all_is_bounded_as_a_specification_is(world: World) -> None:
    job = await service(world, env={f"A{number}": "x" * 30_000 for number in range(18)})
    status, answer, _ = await world.ask(
        "POST", f"/v1/jobs/{job.id}/update", json={"env": {f"B{number}": "x" * 30_000 for number in range(18)}}
    )
    assert status == 400
    assert "at most 1048576 are read" in error_of(answer)[1]
    assert (await world.alice.update(job.id, env={f"A{number}": "" for number in range(18)})).state == "running"


async def test_a_body_beyond_all_bounds_is_not_read(world: World) -> None:
    job = await service(world)
    status, _, _ = await world.ask("POST", f"/v1/jobs/{job.id}/update", data=io.BytesIO(b" " * (SPEC_BYTES_MAX + 1)))
    assert status == 413


async def test_an_image_is_refused_where_nodes_run_processes_alone(world: World) -> None:
    for name in ("node-1", "node-2"):
        plain = node(name, runtime="process", seen_at=time.time())
        await world.place.stores.scheduler.save_node(world.lease, plain, event="changed", cause="test")
    job = await service(world)
    status, answer, _ = await world.ask("POST", f"/v1/jobs/{job.id}/update", json={"image": "ghcr.io/ada/model:2"})
    assert (status, error_of(answer)[0]) == (422, "image")


async def test_only_a_service_that_is_not_over_is_updated_and_anothers_is_not_there(world: World) -> None:
    training = await world.running(placement=placement(("node-1", 1)))
    over = await service(world, name="over")
    over = await world.go(over, JobEvent.STOPPING)
    for job, token, expected in ((training, "alice", 409), (over, "alice", 409), (training, "bob", 404)):
        status, answer, _ = await world.ask("POST", f"/v1/jobs/{job.id}/update", token=token, json={"env": {}})
        assert (status, error_of(answer)[0]) == (expected, "job"), job.name


async def test_a_service_may_be_scaled_to_nothing_and_nothing_else_may(world: World) -> None:
    job = await service(world)
    await world.alice.scale(job.id, {"worker": 0})
    stored = await world.place.stores.scheduler.asks(pool="default", limit=10)
    assert [ask.scale for ask in stored] == [Scale(size={"worker": 0})]
    other = await world.running(placement=placement(("node-1", 1)), resize={"how": "live"})
    status, answer, _ = await world.ask("POST", f"/v1/jobs/{other.id}/scale", json={"size": {"worker": 0}})
    assert (status, error_of(answer)) == (400, ("size.worker", "0 is outside 1 to 1, the range of role worker"))


async def test_endpoints_are_those_of_the_nodes_that_have_the_replicas(world: World) -> None:
    job = await service(world)
    path = f"/v1/jobs/{job.id}/endpoints"
    status, body, headers = await world.ask("GET", path)
    assert (status, json.loads(body).get("endpoints", [])) == (200, [])
    tag = headers["ETag"]
    assert (await world.ask("GET", path, headers={"If-None-Match": tag}))[0] == 304
    mine = Endpoint(job_id=job.id, epoch=0, rank=0, port=4000, ready=True, ready_at=5.0)
    lie = Endpoint(job_id=job.id, epoch=0, rank=0, port=1, ready=True)
    for node_id, endpoint in (("node-1", mine), ("node-2", lie)):
        async with world.place.bus(f"executor-{node_id}") as bus:
            await bus.publish(EndpointsSeen(node_id=node_id, incarnation=1, seq=1, at=1.0, endpoints=(endpoint,)))

    async with world.place.bus("router") as bus:
        one = ServiceServed(job_id=job.id, arrived=5, queued=1)
        await bus.publish(ServicesServed(router="r-1", boot="a", seq=1, at=1.0, services=(one,)))
    async with asyncio.timeout(20):
        while not (shown := await shown_service(world, job)).ready or shown.requests is None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    status, body, headers = await world.ask("GET", path, headers={"If-None-Match": tag})
    assert status == 200
    assert [(each["rank"], each["port"], each["address"]) for each in json.loads(body)["endpoints"]] == [
        (0, 4000, "127.0.0.1")
    ]
    assert headers["ETag"] != tag
    assert (await world.alice.endpoints(job.id)).token
    assert (shown.ready, shown.granted) == (1, 2)
    listed = (await world.alice.jobs()).jobs[0].service
    assert listed is not None
    assert listed.ready == 1
    status, answer, _ = await world.ask("GET", path, token="bob")
    assert (status, error_of(answer)[0]) == (404, "job")


async def test_a_job_that_serves_nothing_has_no_endpoints(world: World) -> None:
    job = await world.running()
    status, answer, _ = await world.ask("GET", f"/v1/jobs/{job.id}/endpoints")
    assert (status, error_of(answer)[0]) == (409, "job")


async def test_a_loan_shows_its_lender_and_the_size_its_cause(world: World) -> None:
    lender = await world.running(name="mnist", placement=placement(("node-1", 1)))
    job = await service(world, name="chat")
    load = Cause(code=CauseCode.LOAD, sentence="41 requests/s need 3 replicas")
    job = await world.go(job, JobEvent.SCALED, cause=load, size={"worker": 3})
    loan = Loan(lender=lender.id, rank=1, gpus=1, ranks=1, since=5.0)
    await world.go(job, JobEvent.RESIZED, placement=where(), loans=(loan,))
    for view in ((await world.alice.job("chat")).service, (await world.alice.explain("chat")).service):
        assert view is not None
        assert (view.wanted, view.granted, view.sized_for) == (3, 2, load)
        assert [(one.lender, one.name, one.gpus) for one in view.loans] == [(lender.id, "mnist", 1)]


async def test_the_log_of_a_replica_is_read_though_not_every_change_has_a_placement(world: World) -> None:
    """A replica that became ready is told with `resized`, and stays where it is."""
    job = await world.go(await service(world), JobEvent.RESIZED)
    job = await world.go(job, JobEvent.RESIZED, placement=structs.replace(where(), changes=1))
    job = await world.go(job, JobEvent.RESIZED)
    assert [event.data.placement is None for event in await world.alice.story(job.id)][-3:] == [True, False, True]
    await world.nodes["node-2"].write(job.id, b"a line\n", rank=1, end=True)
    assert await world.alice.read_log(job.id, rank=1) == b"a line\n"
