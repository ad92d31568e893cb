"""The gateway over a real Postgres and a real NATS: what it takes, what it refuses, what it is asked and survives."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.support.builders import spec
from tests.support.gateway import (
    ADMIN_TOKEN,
    Place,
    RunningGateway,
    submit_on_nats,
    until,
)
from tests.support.gateway_world import SECONDS_MAX, World, error_of
from weft.client import Client, Refused, Unreachable
from weft.domain.decoding.spec_decoder import SPEC_BYTES_MAX
from weft.domain.job import JobEvent, JobState
from weft.messages.asks import AskKind, AskStored, OutboxFilled, SubmitAnswered
from weft.messages.http import EventView, JobView, Submitted
from weftd.gateway.settings import GatewaySettings

HELLO = {"name": "hello", "command": ["true"]}
BOMB = b"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b,*b,*b,*b,*b]\n"


# submitting


async def test_what_is_acknowledged_is_stored_and_told(world: World) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def asked(message: AskStored) -> None:
        await heard.put(message.pool)

    async def filled(_: OutboxFilled) -> None:
        await heard.put("outbox")

    async with world.place.bus("scheduler") as bus:
        await bus.subscribe(AskStored, asked)
        await bus.subscribe(OutboxFilled, filled)
        submitted = await world.alice.submit(spec("train", gpus=2))
        assert submitted.created
        async with asyncio.timeout(SECONDS_MAX):
            assert {await heard.get(), await heard.get()} == {"default", "outbox"}
    job = await world.alice.job(submitted.id)
    assert (job.name, job.tenant, job.state, job.gpus) == ("train", "alice", JobState.QUEUED, 2)
    assert job.spec == spec("train", gpus=2)


async def test_yaml_and_json_are_one_meaning(world: World) -> None:
    by_json = await world.alice.submit(msgspec.json.encode(HELLO))
    by_yaml = await world.alice.submit(b"name: hello\ncommand: ['true']\n", content="yaml")
    first, second = await world.alice.job(by_json.id), await world.alice.job(by_yaml.id)
    assert first.spec == second.spec


async def test_a_large_yaml_is_taken_too(world: World) -> None:
    names = [f"NAME_{number}" for number in range(1000)]
    body = "name: hello\ncommand: ['true']\nenv:\n" + "".join(f"  {name}: '{name}'\n" for name in names)
    submitted = await world.alice.submit(body.encode(), content="yaml")
    job = await world.alice.job(submitted.id)
    assert job.spec is not None
    assert list(job.spec.env) == sorted(names, key=names.index)


async def test_the_same_key_is_the_same_job_also_when_many_send_it_at_once(world: World) -> None:
    async with asyncio.TaskGroup() as tasks:
        sent = [tasks.create_task(world.alice.submit(spec(), key="k-1")) for _ in range(20)]
    answers = [task.result() for task in sent]
    assert len({each.id for each in answers}) == 1
    assert sum(each.created for each in answers) == 1
    assert len((await world.alice.jobs()).jobs) == 1


async def test_a_new_submission_is_201_and_a_repeat_is_200(world: World) -> None:
    options: dict[str, Any] = {"headers": {"Idempotency-Key": "k"}, "json": HELLO}
    first, body, headers = await world.ask("POST", "/v1/jobs", **options)
    job_id = msgspec.json.decode(body, type=Submitted).id
    second, repeated, _ = await world.ask("POST", "/v1/jobs", **options)
    assert (first, second) == (201, 200)
    assert headers["Location"] == f"/v1/jobs/{job_id}"
    assert msgspec.json.decode(repeated, type=Submitted) == Submitted(id=job_id, name="hello", created=False)


async def test_a_key_belongs_to_one_specification_and_one_tenant(world: World) -> None:
    first = await world.alice.submit(spec("one"), key="k")
    with pytest.raises(Refused) as caught:
        await world.alice.submit(spec("two"), key="k")
    assert (caught.value.status, caught.value.field) == (409, "Idempotency-Key")
    other = await world.bob.submit(spec("two"), key="k")
    assert other.created
    assert other.id != first.id


JSON_CASES: dict[str, tuple[bytes, int, str]] = {
    "unknown field": (b'{"name":"a","command":["x"],"gpuz":1}', 400, "gpuz"),
    "unknown field of a role": (b'{"name":"a","command":["x"],"roles":{"w":{"gpu":1}}}', 400, "roles.w.gpu"),
    "wrong type": (b'{"name":"a","command":"x"}', 400, "command"),
    "no name": (b'{"command":["x"]}', 400, "name"),
    "nothing to run": (b'{"name":"a"}', 400, "command"),
    "negative": (b'{"name":"a","command":["x"],"roles":{"w":{"gpus":-1}}}', 400, "roles.w.gpus"),
    "huge": (b'{"name":"a","command":["x"],"priority":1e300}', 400, "priority"),
    "huge integer": (b'{"name":"a","command":["x"],"priority":%s}' % (b"9" * 400), 400, "priority"),
    "huge memory": (b'{"name":"a","command":["x"],"roles":{"w":{"memory":"9999999TiB"}}}', 400, "roles.w"),
    "more than any node has": (b'{"name":"a","command":["x"],"roles":{"w":{"gpus":5}}}', 422, "roles.w.gpus"),
    "more than the pool has": (
        b'{"name":"a","command":["x"],"roles":{"w":{"gpus":4,"replicas":{"want":3}}}}',
        422,
        "roles.w.replicas",
    ),
    "a model that is nowhere": (
        b'{"name":"a","command":["x"],"gpu_model":"H300","roles":{"w":{"gpus":1}}}',
        422,
        "gpu_model",
    ),
    "a pool that is nowhere": (b'{"name":"a","command":["x"],"pool":"mars"}', 422, "pool"),
    "a share": (
        b'{"name":"a","command":["x"],"roles":{"w":{"share":{"request":0.5,"limit":0.2,"memory":"1GiB"}}}}',
        400,
        "roles.w.share",
    ),
    "a name with a dot": (b'{"name":"a.b","command":["x"]}', 400, "name"),
    "a wildcard for a name": (b'{"name":">","command":["x"]}', 400, "name"),
    "a volume outside the allow-list": (
        b'{"name":"a","command":["x"],"volumes":[{"source":"/etc","target":"/x"}]}',
        422,
        "volumes[0].source",
    ),
    "a volume that climbs out": (
        b'{"name":"a","command":["x"],"volumes":[{"source":"/srv/data/../../etc","target":"/x"}]}',
        400,
        "volumes[0]",
    ),
    "a NUL": (b'{"name":"a","command":["x\\u0000"]}', 400, "command[0]"),
    "not JSON": (b"name: a", 400, ""),
    "nothing": (b"", 400, ""),
    "not text": (b"\xff\xfe\x00", 400, ""),
    "deep": (b'{"name":' + b"[" * 100_000, 400, "name"),
}
YAML_CASES: dict[str, tuple[bytes, int, str]] = {
    "bad YAML": (b"name: [", 400, ""),
    "a YAML bomb": (BOMB, 400, "a"),
    "YAML that makes objects": (b"!!python/object/apply:os.system ['true']", 400, ""),
    "YAML of half a surrogate pair": (b'name: a\ncommand: ["\\ud800"]', 400, ""),
    "YAML that is not a number": (b"name: a\ncommand: [x]\nroles: {w: {cpus: .nan}}", 400, "roles.w.cpus"),
    "a command of 200,000 words": (b"name: a\ncommand: [" + b"a," * 200_000 + b"]", 400, ""),
    "a command of 4,000 words": (b"name: a\ncommand: [" + b"a," * 4_000 + b"]", 400, "command"),
    "deep YAML": (b"[" * 50_000, 400, ""),
}
CASES = [
    *(pytest.param(*case, "application/json", id=name) for name, case in JSON_CASES.items()),
    *(pytest.param(*case, "application/yaml", id=name) for name, case in YAML_CASES.items()),
]


@pytest.mark.parametrize(("body", "status", "field", "content"), CASES)
async def test_bad_input_gets_one_error_naming_the_field_and_stores_nothing(
    world: World, body: bytes, status: int, field: str, content: str
) -> None:
    before = await world.stored()
    found, answer, _ = await world.ask("POST", "/v1/jobs", data=body, headers={"Content-Type": content})
    named, reason = error_of(answer)
    assert (found, named) == (status, field), reason
    assert reason
    assert "weft." not in reason
    assert await world.stored() == before


async def test_a_body_of_ten_megabytes_is_refused_without_being_read(world: World) -> None:
    before = await world.stored()

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(160):
            yield b" " * 65536

    with pytest.raises(Refused) as caught:
        await world.alice.submit(b" " * 10_000_000)
    assert (caught.value.status, caught.value.field) == (413, "")
    assert str(SPEC_BYTES_MAX) in caught.value.reason
    # One that does not say how long it is, is read up to the limit.
    with contextlib.suppress(aiohttp.ClientConnectionError):
        found, _, _ = await world.ask("POST", "/v1/jobs", data=chunks())
        assert found == 413
    assert await world.stored() == before


async def test_who_asks_before_sending_is_told_not_to(world: World) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", world.gateway.port)
    writer.write(b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\nExpect: 100-continue\r\n\r\n")
    async with asyncio.timeout(SECONDS_MAX):
        assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
        assert b"larger than" in await reader.read()
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize(
    ("headers", "status", "field"),
    [
        ({"Idempotency-Key": "x" * 256}, 400, "Idempotency-Key"),
        ({"Idempotency-Key": ""}, 400, "Idempotency-Key"),
        ({"Content-Type": "application/xml"}, 415, "Content-Type"),
        ({"Content-Encoding": "gzip"}, 415, "Content-Encoding"),
    ],
)
async def test_a_bad_header_is_named(world: World, headers: dict[str, str], status: int, field: str) -> None:
    before = await world.stored()
    found, answer, _ = await world.ask("POST", "/v1/jobs", data=msgspec.json.encode(HELLO), headers=headers)
    assert (found, error_of(answer)[0]) == (status, field)
    assert await world.stored() == before


@pytest.mark.parametrize(
    ("method", "path", "status", "field"),
    [
        ("GET", "/v1/jobs?limit=0", 400, "limit"),
        ("GET", "/v1/jobs?limit=x", 400, "limit"),
        ("GET", "/v1/jobs?limit=1&limit=2", 400, "limit"),
        ("GET", "/v1/jobs?colour=red", 400, "colour"),
        ("GET", "/v1/jobs?state=asleep", 400, "state"),
        ("GET", "/v1/jobs?before=-1", 400, "before"),
        ("GET", "/v1/jobs?name=a.b", 400, "name"),
        ("GET", "/v1/jobs/a.b", 400, "job"),
        ("GET", "/v1/jobs/%3E", 400, "job"),
        ("GET", "/v1/jobs/no-such-job", 404, "job"),
        ("GET", "/v1/jobs/no-such-job/logs", 404, "job"),
        ("GET", "/v1/events?after=yesterday", 400, "after"),
        ("GET", "/v1/events?follow=maybe", 400, "follow"),
        ("POST", "/v1/jobs/no-such-job/cancel", 404, "job"),
        ("POST", "/v1/jobs/no-such-job/cancel?force=1", 400, "force"),
        ("POST", "/v1/nodes/a.b/drain", 400, "node"),
        ("POST", "/v1/nodes/no-such-node/drain", 404, "node"),
        ("DELETE", "/v1/tokens/alice/no-such-label", 404, "label"),
        ("DELETE", "/v1/tokens/a.b/c", 400, "tenant"),
        ("GET", "/v3/jobs", 404, ""),
        ("PUT", "/v1/jobs", 405, ""),
    ],
)
async def test_a_bad_request_is_told_what_is_wrong_with_it(
    world: World, method: str, path: str, status: int, field: str
) -> None:
    before = await world.stored()
    found, answer, _ = await world.ask(method, path, token="admin")
    assert (found, error_of(answer)[0]) == (status, field), answer
    assert await world.stored() == before


async def test_what_is_not_http_gets_an_error_of_the_same_shape(world: World) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", world.gateway.port)
    writer.write(b"what is this\r\n\r\n")
    async with asyncio.timeout(SECONDS_MAX):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert head.startswith((b"HTTP/1.0 400 ", b"HTTP/1.1 400 "))
    assert error_of(body) == ("", "not a request that can be read")
    writer.close()
    await writer.wait_closed()


async def test_a_request_on_nats_is_a_submission_like_any_other(world: World) -> None:
    async def send(body: bytes, **headers: str) -> SubmitAnswered:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await submit_on_nats(bus, body, named)

    bearer = f"Bearer {world.tokens['alice']}"
    async with world.place.bus("integrator") as bus:
        by_http = await world.alice.submit(msgspec.json.encode(HELLO), key="k")
        repeated = await send(msgspec.json.encode(HELLO), Authorization=bearer, Idempotency_Key="k")
        assert repeated == SubmitAnswered(job_id=by_http.id, created=False)
        as_yaml = await send(b"name: x\ncommand: [x]", Authorization=bearer, Content_Type="application/yaml")
        assert as_yaml.created
        assert (await world.alice.job(as_yaml.job_id)).name == "x"
        before = await world.stored()
        assert (await send(b"{}", Authorization=bearer)).field == "name"
        assert (await send(msgspec.json.encode(HELLO))).field == "Authorization"
        assert (await send(msgspec.json.encode(HELLO), Authorization="Bearer nobody")).field == "Authorization"
        for body, _, field in JSON_CASES.values():
            refused = await send(body, Authorization=bearer)
            assert (refused.field, refused.job_id) == (field, "")
            assert refused.error
        assert await world.stored() == before


# asking


async def test_what_is_asked_is_stored_for_the_scheduler(world: World) -> None:
    job = await world.running()
    await world.alice.cancel(job.id)
    await world.alice.requeue(job.id)
    await world.alice.prioritise(job.id, 7)
    await world.admin.drain("node-1")
    await world.admin.resume("node-1")
    asks = await world.take_asks()
    assert [(ask.kind, ask.subject_id, ask.tenant, ask.priority) for ask in asks] == [
        (AskKind.CANCEL, job.id, "alice", 0),
        (AskKind.REQUEUE, job.id, "alice", 0),
        (AskKind.PRIORITISE, job.id, "alice", 7),
        (AskKind.DRAIN, "node-1", "admin", 0),
        (AskKind.RESUME, "node-1", "admin", 0),
    ]


@pytest.mark.parametrize(
    "body", [b"{}", b'{"priority": 1001}', b'{"priority": "high"}', b'{"priority": 1, "x": 2}', b""]
)
async def test_a_bad_priority_is_refused(world: World, body: bytes) -> None:
    job = await world.submitted()
    found, answer, _ = await world.ask("POST", f"/v1/jobs/{job.id}/priority", data=body)
    assert found == 400
    assert error_of(answer)[1]
    assert not await world.place.stores.scheduler.asks(pool="default", limit=10)


async def test_what_makes_no_sense_for_a_job_as_it_is_conflicts(world: World) -> None:
    queued = await world.submitted()
    found, answer, _ = await world.ask("POST", f"/v1/jobs/{queued.id}/requeue")
    assert (found, error_of(answer)[0]) == (409, "job")
    over = await world.go(queued, JobEvent.CANCELLED)
    for path in ("cancel", "priority"):
        found, answer, _ = await world.ask("POST", f"/v1/jobs/{over.id}/{path}", json={"priority": 1})
        assert (found, error_of(answer)[0]) == (409, "job")


# when things go wrong


async def test_without_its_store_the_gateway_says_when_to_ask_again(world: World) -> None:
    job = await world.alice.submit(spec())
    world.gateway.store.away = True
    for method, path in (("GET", f"/v1/jobs/{job.id}"), ("POST", "/v1/jobs"), ("GET", "/v1/events")):
        found, answer, headers = await world.ask(method, path, json=HELLO if method == "POST" else None)
        assert (found, headers["Retry-After"]) == (503, "1"), answer
        assert "refused" not in error_of(answer)[1]
    async with world.place.bus("integrator") as bus:
        headers = {"Authorization": f"Bearer {world.tokens['alice']}"}
        answer = await submit_on_nats(bus, msgspec.json.encode(HELLO), headers)
    assert "database is unavailable" in answer.error
    world.gateway.store.away = False
    assert (await world.alice.job(job.id)).id == job.id


async def test_a_client_waits_for_a_gateway_that_is_away_and_sends_nothing_twice(world: World) -> None:
    await world.gateway.stop()
    submitting = asyncio.create_task(world.alice.submit(spec()))
    await asyncio.sleep(0.3)
    await world.gateway.start()
    async with asyncio.timeout(SECONDS_MAX):
        assert (await submitting).created
    assert len((await world.alice.jobs()).jobs) == 1


async def test_a_stream_is_cut_and_goes_on_when_the_store_was_away(world: World) -> None:
    job = await world.running()
    heard: list[str] = []

    async def listen() -> None:
        async for event in world.alice.follow_events(job=job.id):
            heard.append(event.data.state)  # noqa: PERF401 - it is looked at while it grows

    listening = asyncio.create_task(listen())
    await until(lambda: len(heard) == 4)
    world.gateway.store.away = True
    job = await world.go(job, JobEvent.STOPPING)
    await asyncio.sleep(1.2)  # Longer than the feed waits between two looks.
    world.gateway.store.away = False
    await world.go(job, JobEvent.CANCELLED)
    async with asyncio.timeout(SECONDS_MAX):
        await listening
    assert heard == ["queued", "placed", "starting", "running", "stopping", "cancelled"]


async def test_more_connections_or_streams_than_it_may_have_are_told_so(servers: Place, world: World) -> None:
    settings = GatewaySettings(connections_max=3, streams_max=2, streams_per_tenant_max=1)
    gateway = RunningGateway(servers, settings=settings)
    await gateway.start()
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.get(f"{gateway.url}/v1/events?follow=1") as stream,
    ):
        assert stream.status == 200
        async with http.get(f"{gateway.url}/v1/events?follow=1") as refused:
            assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
            assert "streams" in error_of(await refused.read())[1]
        held_reader, held_writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        ask = f"GET /v1/nodes HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {ADMIN_TOKEN}\r\n\r\n"
        held_writer.write(ask.encode())  # so that it is known by its token: a stranger would make room
        await asyncio.wait_for(held_reader.readuntil(b"\r\n\r\n"), SECONDS_MAX)
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        async with asyncio.timeout(SECONDS_MAX):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert "connections" in error_of(body)[1]
        for each in (writer, held_writer):
            each.close()
    await gateway.stop()


async def test_a_mistake_of_the_gateway_tells_nothing_of_its_inside(world: World) -> None:
    world.gateway.store.broken = "events"
    found, answer, _ = await world.ask("GET", "/v1/events")
    world.gateway.store.broken = ""
    field, reason = error_of(answer)
    assert (found, field, "division" in reason.lower()) == (500, "", False)
    assert "its log has the details under" in reason


async def test_a_mistake_in_what_is_worked_out_beforehand_ends_no_gateway(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = RunningGateway(world.place)
    gateway.store.broken = "ended_last"  # as where an odd job ended
    await gateway.start()
    await until(lambda: "estimates failed" in caplog.text)
    async with gateway.client() as admin:
        assert len((await admin.nodes()).nodes) == 2
        gateway.store.broken = ""
    await gateway.stop()


async def test_a_client_gives_up_in_time(world: World) -> None:
    async with Client("http://127.0.0.1:9", "x", retry_seconds=0.3) as client:
        async with asyncio.timeout(SECONDS_MAX):
            with pytest.raises(Unreachable):
                await client.nodes()


async def test_a_view_is_what_the_types_say(world: World) -> None:
    """Nothing is sent that the described types do not have."""
    job = await world.running()
    _, body, _ = await world.ask("GET", f"/v1/jobs/{job.id}")
    job_view = msgspec.json.decode(body, type=JobView)
    assert msgspec.json.decode(msgspec.json.encode(job_view)) == msgspec.json.decode(body)
    _, body, _ = await world.ask("GET", "/v1/events?limit=1000", token="admin")
    views = msgspec.json.decode(body, type=list[EventView])
    for view, sent in zip(views, msgspec.json.decode(body), strict=True):
        known = {field.encode_name for field in msgspec.structs.fields(type(view.data))}
        assert set(sent["data"]) <= known
        assert set(sent) == {field.encode_name for field in msgspec.structs.fields(EventView)}
