"""The gateway over a real Postgres and a real NATS: what it takes, what it refuses, what it shows, what it survives."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest
from msgspec import structs

from libs.client import Client, Gap, RefusedError, UnreachableError
from libs.domain.job import Job, JobEvent, JobState
from libs.domain.spec import SPEC_BYTES_MAX
from libs.messages.asks import AskKind, AskStored, OutboxFilled, SubmitAnswered
from libs.messages.http import ErrorView, EventView, JobView, LimitsView, Submitted
from libs.messages.nodes import Pace, ProgressSeen, RunProgressed
from libs.messages.signals import (
    Curve,
    CurvePoint,
    GpuProcess,
    GpuSample,
    GpuScore,
    HostSample,
    NodeSampled,
    PoolReviewed,
    RankVerdict,
)
from libs.store import Lease
from services.gateway.access import REMEMBERED_SECONDS
from services.gateway.gateway import Limits
from tests.support.builders import GIB, node, spec
from tests.support.gateway import (
    ADMIN_TOKEN,
    FakeExecutor,
    Place,
    RunningGateway,
    add_nodes,
    admitted,
    executors,
    place,
    until,
)
from tests.support.steps import go, placement

SECONDS_MAX = 20.0
HELLO = {"name": "hello", "command": ["true"]}
BOMB = b"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b,*b,*b,*b,*b]\n"


class World(msgspec.Struct):
    """A gateway, its servers, and the tests' own ways around it."""

    place: Place
    gateway: RunningGateway
    lease: Lease
    nodes: dict[str, FakeExecutor]
    http: aiohttp.ClientSession
    alice: Client
    bob: Client
    admin: Client
    tokens: dict[str, str]

    async def stored(self) -> list[int]:
        """How much there is of all that the gateway writes."""
        rows = await self.place.stores.owner.fetch(
            "SELECT (SELECT count(*) FROM submissions), (SELECT count(*) FROM asks), (SELECT count(*) FROM events),"
            " (SELECT count(*) FROM outbox), (SELECT count(*) FROM tokens), (SELECT count(*) FROM tenants)"
        )
        return list(rows[0])

    async def ask(self, method: str, path: str, *, token: str = "alice", **options: Any) -> tuple[int, bytes, Any]:
        headers = {"Authorization": f"Bearer {self.tokens[token]}", **options.pop("headers", {})}
        url = f"{self.gateway.url}{path}"
        async with self.http.request(method, url, headers=headers, **options) as response:
            return response.status, await response.read(), response.headers

    async def submitted(self, **fields: Any) -> Job:
        """A job of alice's, as the scheduler has it."""
        submitted = await self.alice.submit(spec(**fields))
        return await admitted(self.place, self.lease, submitted.id)

    async def go(self, job: Job, *events: JobEvent, **fields: Any) -> Job:
        for event in events:
            job = await go(self.place.stores.scheduler, self.lease, job, event, at=time.time(), **fields)
            fields = {}
        return job

    async def running(self, **fields: Any) -> Job:
        """A job of alice's that runs on the first GPU of node-1."""
        where = fields.pop("placement", placement(("node-1", 0)))
        job = await self.go(await self.submitted(**fields), JobEvent.PLACED, placement=where)
        return await self.go(job, JobEvent.STARTING, JobEvent.STARTED)


@pytest.fixture(scope="session")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    async with place(tmp_path_factory.mktemp("gateway")) as made:
        yield made


@pytest.fixture
async def world(servers: Place) -> AsyncIterator[World]:
    await servers.stores.clear()
    lease = await add_nodes(servers)
    gateway = RunningGateway(servers, volumes_allowed=("/srv/data",))
    await gateway.start()
    async with (
        executors(servers, "node-1", "node-2") as nodes,
        aiohttp.ClientSession() as http,
        gateway.client() as admin,
    ):
        made = [await admin.make_token(tenant, "test") for tenant in ("alice", "bob")]
        tokens = {"admin": ADMIN_TOKEN, **{each.tenant: each.token for each in made}}
        async with gateway.client(tokens["alice"]) as alice, gateway.client(tokens["bob"]) as bob:
            yield World(servers, gateway, lease, nodes, http, alice, bob, admin, tokens)
    await gateway.stop()


def error_of(body: bytes) -> tuple[str, str]:
    error = msgspec.json.decode(body, type=ErrorView).error
    return error.field, error.reason


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
    with pytest.raises(RefusedError) as caught:
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
        b'{"name":"a","command":["x"],"roles":{"w":{"share":{"request":0.5,"memory":"1GiB"}}}}',
        422,
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
    "a YAML bomb": (BOMB, 400, ""),
    "YAML that makes objects": (b"!!python/object/apply:os.system ['true']", 400, ""),
    "YAML of half a surrogate pair": (b'name: a\ncommand: ["\\ud800"]', 400, ""),
    "YAML that is not a number": (b"name: a\ncommand: [x]\nroles: {w: {cpus: .nan}}", 400, "roles.w.cpus"),
    "a command of 200,000 words": (b"name: a\ncommand: [" + b"a," * 200_000 + b"]", 400, "command"),
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
    assert "libs." not in reason
    assert await world.stored() == before


async def test_a_body_of_ten_megabytes_is_refused_without_being_read(world: World) -> None:
    before = await world.stored()

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(160):
            yield b" " * 65536

    with pytest.raises(RefusedError) as caught:
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
        ("GET", "/v2/jobs", 404, ""),
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
        answer = await bus.request_raw("weft.submit", body, headers=named, seconds_max=SECONDS_MAX)
        return msgspec.json.decode(answer, type=SubmitAnswered)

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


# who may do what


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


async def add_one_gpu_left(world: World) -> None:
    """Of node-2 nothing may be given."""
    await world.place.stores.scheduler.save_node(world.lease, node("node-2", drained=True), event="", cause="")


async def test_only_an_administrator_touches_nodes_and_tokens(world: World) -> None:
    before = await world.stored()
    for method, path, body in (
        ("POST", "/v1/nodes/node-1/drain", None),
        ("POST", "/v1/nodes/node-1/resume", None),
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
        with pytest.raises(RefusedError) as caught:
            await carol.jobs()
    assert caught.value.status == 401
    assert REMEMBERED_SECONDS <= 2.0
    rows = await world.place.stores.owner.fetch("SELECT * FROM tokens")
    assert not any(made.token.encode() in str(dict(row)).encode() for row in rows)


# looking


async def test_a_job_is_found_by_its_id_or_as_the_newest_of_its_name(world: World) -> None:
    first, second = await world.alice.submit(spec("train")), await world.alice.submit(spec("train"))
    assert (await world.alice.job("train")).id == second.id
    assert (await world.alice.job(first.id)).id == first.id


async def test_jobs_are_listed_the_newest_first_by_pages_states_and_name(world: World) -> None:
    ids = [(await world.alice.submit(spec(f"job-{number % 2}"))).id for number in range(5)]
    page = await world.alice.jobs(limit=3)
    assert [job.id for job in page.jobs] == ids[:1:-1]
    assert page.before is not None
    rest = await world.alice.jobs(limit=3, before=page.before)
    assert [job.id for job in rest.jobs] == ids[1::-1]
    assert rest.before is None
    assert len((await world.alice.jobs(name="job-1")).jobs) == 2
    assert len((await world.alice.jobs(states=[JobState.QUEUED, JobState.FAILED])).jobs) == 5
    assert not (await world.alice.jobs(states=[JobState.RUNNING])).jobs


async def test_a_running_job_shows_the_progress_and_the_use_that_are_heard(world: World) -> None:
    job = await world.running()
    sample = NodeSampled(
        node_id="node-1",
        pool="default",
        at=time.time(),
        host=HostSample(cpus=64, cpus_used=3.5, memory_total=256 * GIB, memory_used=GIB),
        gpus=(GpuSample(index=0, uuid="EMULATED-0", model="Emulated GPU", emulated=True, utilisation=0.75),),
    )
    runs = (RunProgressed(job_id=job.id, epoch=0, rank=0, progress={"step": 120.0}),)
    async with world.place.bus("executor-node-1") as executor, world.place.bus("telemetry-node-1") as telemetry:
        async with asyncio.timeout(SECONDS_MAX):
            while (seen := await world.alice.job(job.id)).progress != {"step": 120.0}:
                await executor.publish(ProgressSeen(node_id="node-1", runs=runs))
            while (await world.alice.nodes()).nodes[0].use is None:
                await telemetry.publish(sample)
    assert seen.runs[0].progress == {"step": 120.0}
    shown = (await world.alice.nodes()).nodes[0]
    assert shown.use is not None
    assert shown.use.cpus_used == 3.5
    assert shown.gpus[0].use is not None
    assert shown.gpus[0].use.utilisation == 0.75


def score(gpu: int, value: float, **fields: Any) -> GpuScore:
    return GpuScore(node_id="node-1", gpu_index=gpu, job_class="compute", score=value, source="jobs", **fields)


async def test_gpus_are_shown_with_their_use_their_holder_and_their_scores(world: World) -> None:
    job = await world.running()
    measured = score(0, 1.25, confidence=0.8, samples=40, measured_at=time.time() - 120)
    held = score(1, 3.0, quarantined_until=time.time() + 600)
    await world.place.stores.scorer.save_scores([measured, held], at=time.time())
    processes = (
        GpuProcess(pid=10, job_id=job.id, memory_used=GIB),
        GpuProcess(pid=11, job_id="j-of-others"),
        GpuProcess(pid=12),
    )
    busy = GpuSample(index=0, uuid="EMULATED-0", model="Emulated GPU", utilisation=0.75, processes=processes)
    busy = structs.replace(busy, clock_events=("sw-thermal-slowdown",), provider="emulated")
    sample = NodeSampled(
        node_id="node-1",
        pool="default",
        at=time.time(),
        host=HostSample(cpus=64, memory_total=GIB, memory_used=0),
        gpus=(busy,),
    )
    async with world.place.bus("telemetry-node-1") as telemetry, asyncio.timeout(SECONDS_MAX):
        while (await world.alice.gpus()).gpus[0].use is None:
            await telemetry.publish(sample)
    seen = {
        who: (await client.gpus(node="node-1")).gpus
        for who, client in (("alice", world.alice), ("bob", world.bob), ("admin", world.admin))
    }
    first, second = seen["alice"][:2]
    assert (first.node_id, first.pool, first.index, first.emulated) == ("node-1", "default", 0, True)
    assert first.held_by is not None
    assert first.held_by.name == job.name
    (known,) = first.scores
    assert (known.score, round(known.believed, 6), known.samples, known.source) == (1.25, 1.2, 40, "jobs")
    assert known.age_seconds is not None
    assert 115 < known.age_seconds < 180
    assert second.scores[0].quarantined_until is not None
    pids = {
        who: [process.pid for process in gpus[0].use.processes] if gpus[0].use else None for who, gpus in seen.items()
    }
    assert pids == {"alice": [10], "bob": [], "admin": [10, 11, 12]}
    theirs = seen["bob"][0]
    assert theirs.held_by is not None
    assert (theirs.held_by.job_id, theirs.held_by.name, theirs.held_by.tenant) == (job.id, "", "")
    assert theirs.use is not None
    assert theirs.use.clock_events == ("sw-thermal-slowdown",)
    assert len((await world.alice.gpus()).gpus) == 8
    assert (await world.alice.gpus(node="node-9")).gpus == ()
    assert (await world.alice.gpus(pool="other")).gpus == ()
    slowest = {node.id: node.slowest for node in (await world.alice.nodes()).nodes}
    assert slowest["node-2"] is None
    assert slowest["node-1"] is not None
    assert (slowest["node-1"].gpu_index, slowest["node-1"].believed) == (1, 3.0)


async def test_a_job_shows_its_pace_what_holds_it_back_what_was_tuned_and_its_curve(world: World) -> None:
    job = await world.running()
    assert job.placement is not None
    (allocation,) = job.placement.allocations
    tuned = structs.replace(allocation, cpus=2.5, egress=2_500_000)
    await world.go(job, JobEvent.TUNED, placement=structs.replace(job.placement, allocations=(tuned,)))
    point = CurvePoint(replicas=1, cpus=1.0, speed=64.0, windows=4)
    curve = Curve(subject=f"job:{job.id}", pool="default", points=(point,), at=time.time())
    await world.place.stores.scorer.save_curves([curve])
    pace = Pace(window_seconds=30.0, steps=60, steps_rate=2.0, samples_rate=64.0, step_seconds=0.5)
    run = RunProgressed(job_id=job.id, epoch=0, rank=0, progress={"step": 9.0}, pace=pace, disbelieved=3)
    verdict = RankVerdict(job_id=job.id, epoch=0, rank=0, code="cpu-quota-bound", sentence="held back", since=1.0)
    others = (structs.replace(verdict, job_id="j-of-others"), structs.replace(verdict, epoch=1, rank=-1))
    reviewed = PoolReviewed(pool="default", at=time.time(), verdicts=(*others, verdict))
    async with (
        world.place.bus("executor-node-1") as executor,
        world.place.bus("reallocator") as reallocator,
        asyncio.timeout(SECONDS_MAX),
    ):
        while not (seen := await world.alice.job(job.id)).verdicts or not seen.progress:
            await executor.publish(ProgressSeen(node_id="node-1", runs=(run,)))
            await reallocator.publish(reviewed)
    assert seen.verdicts == (verdict,)
    assert seen.curve == (point,)
    (shown,) = seen.runs
    assert (shown.pace, shown.disbelieved) == (pace, 3)
    assert (shown.cpus, shown.egress) == (2.5, 2_500_000)
    assert shown.asked == LimitsView(cpus=1.0, memory=GIB)
    (listed,) = (await world.alice.jobs()).jobs
    assert (listed.verdicts, listed.curve, listed.runs) == ((), (), ())


async def test_a_job_on_a_gpu_that_turned_slow_is_explained_by_what_is_known_now(world: World) -> None:
    job = await world.running()
    other = await world.go(await world.submitted(name="other"), JobEvent.PLACED, placement=placement(("node-1", 2)))
    await world.place.stores.scorer.save_scores([score(0, 1.21, samples=40)], at=time.time())
    told = (await world.alice.explain(job.id)).sentence
    assert told.endswith("; now gpu-0 of node-1 is 1.21× slower for compute-bound jobs (40 samples, from jobs)")
    assert "slower" not in (await world.alice.explain(other.id)).sentence


async def test_nodes_show_what_is_held_by_whom_and_what_is_emulated(world: World) -> None:
    job = await world.running()
    first, second = (await world.alice.nodes()).nodes
    assert (first.id, first.cpus_allocated, first.memory_allocated) == ("node-1", 1.0, GIB)
    assert first.gpus[0].held_by is not None
    assert (first.gpus[0].held_by.job_id, first.gpus[0].held_by.name) == (job.id, job.name)
    assert all(gpu.held_by is None for gpu in (*first.gpus[1:], *second.gpus))
    assert all(gpu.emulated for gpu in (*first.gpus, *second.gpus))


async def test_the_cluster_at_a_glance_counts_jobs_and_resources(world: World) -> None:
    running = await world.running()
    waiting = await world.submitted(name="waits")
    view = await world.alice.cluster()
    assert (view.totals.nodes, view.totals.gpus, view.totals.gpus_held, view.totals.gpus_emulated) == (2, 8, 1, 8)
    assert view.states == {"running": 1, "queued": 1}
    assert [job.id for job in view.running] == [running.id]
    assert [job.id for job in view.queued] == [waiting.id]


async def test_a_placed_job_is_explained_by_where_it_is(world: World) -> None:
    job = await world.running()
    told = await world.alice.explain(job.id)
    assert told.state is JobState.RUNNING
    assert "node-1" in told.sentence


# asking


async def test_what_is_asked_is_stored_for_the_scheduler(world: World) -> None:
    job = await world.running()
    await world.alice.cancel(job.id)
    await world.alice.requeue(job.id)
    await world.alice.prioritise(job.id, 7)
    await world.admin.drain("node-1")
    await world.admin.resume("node-1")
    asks = await world.place.stores.scheduler.asks(pool="default", limit=10)
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


# events


async def test_a_story_is_the_events_of_a_job_with_their_causes(world: World) -> None:
    job = await world.running()
    story = await world.alice.story(job.id)
    assert [event.type for event in story] == [
        "weft.jobs.submitted",
        "weft.jobs.placed",
        "weft.jobs.starting",
        "weft.jobs.started",
    ]
    assert all(event.data.cause is not None and event.data.job_id == job.id for event in story)
    assert story[1].data.placement == job.placement


async def test_a_jobs_stream_tells_its_whole_story_and_ends_with_it(world: World) -> None:
    job = await world.running()
    heard: list[str] = []

    async def listen() -> None:
        async for event in world.alice.follow_events(job=job.id):
            heard.append(event.type)  # noqa: PERF401 - it is looked at while it grows

    listening = asyncio.create_task(listen())
    async with asyncio.timeout(SECONDS_MAX):
        await until(lambda: len(heard) == 4)
        await world.go(job, JobEvent.SUCCEEDED)
        await listening
    assert heard[-1] == "weft.jobs.succeeded"
    last = (await world.alice.story(job.id))[-1].cursor
    found, _, _ = await world.ask("GET", f"/v1/jobs/{job.id}/events?follow=1", headers={"Last-Event-ID": last})
    assert found == 204


async def test_the_stream_of_a_job_that_ran_again_does_not_end_with_its_first_end(world: World) -> None:
    job = await world.running()
    job = await world.go(job, JobEvent.FAILED, JobEvent.REQUEUED)
    types: list[str] = []

    async def listen() -> None:
        async for event in world.alice.follow_events(job=job.id):
            types.append(event.data.state)  # noqa: PERF401 - it is looked at while it grows

    listening = asyncio.create_task(listen())
    await until(lambda: "failed" in types and types[-1] == "queued")
    await world.go(job, JobEvent.CANCELLED)
    async with asyncio.timeout(SECONDS_MAX):
        await listening
    assert types[-1] == "cancelled"


async def test_streams_of_everything_go_on_behind_the_last_event_without_loss_or_repeat(world: World) -> None:
    """Also over a restart of the gateway, with events in between, and each tenant hears only its own."""
    heard: dict[str, list[str]] = {"alice": [], "bob": [], "admin": []}

    async def listen(name: str, client: Client) -> None:
        async for event in client.follow_events():
            heard[name].append(event.id)

    clients = {"alice": world.alice, "bob": world.bob, "admin": world.admin}
    listening = [asyncio.create_task(listen(name, client)) for name, client in clients.items()]
    async with asyncio.timeout(SECONDS_MAX):
        while not (heard["alice"] and heard["admin"]):  # They hear from when they are connected.
            await world.alice.submit(spec())
            await asyncio.sleep(0.05)
    await world.gateway.stop()
    for number in range(30):
        await world.place.stores.gateway.submit(
            spec(), job_id=f"j-away-{number}", tenant="alice", key=None, at=time.time()
        )
    await world.gateway.start()
    for _ in range(30):
        await world.alice.submit(spec())
    told = [each.id async for each in _stored_events(world)]
    await until(lambda: all(heard[name][-1] == told[-1] for name in ("alice", "admin")))
    for task in listening:
        task.cancel()
    await asyncio.wait(listening)
    for name in ("alice", "admin"):
        assert heard[name] == told[told.index(heard[name][0]) :]
    assert not heard["bob"]


async def _stored_events(world: World) -> AsyncIterator[EventView]:
    """Everything that was told of jobs, in the order of the feed."""
    after = "0-0"
    while page := await world.admin.events(after=after, limit=1000):
        for event in page:
            if event.type.startswith("weft.jobs."):
                yield event
        after = page[-1].cursor


async def test_a_silent_stream_shows_that_it_lives(world: World) -> None:
    headers = {"Authorization": f"Bearer {world.tokens['bob']}", "Accept": "text/event-stream"}
    async with world.http.get(f"{world.gateway.url}/v1/events", headers=headers) as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        async with asyncio.timeout(SECONDS_MAX):
            while await response.content.readline() != b": beat\n":
                pass


async def test_events_are_read_by_pages_of_a_cursor(world: World) -> None:
    for _ in range(5):
        await world.alice.submit(spec())
    every = await world.alice.events(limit=100)
    assert len(every) == 5
    assert (await world.alice.events(limit=2)) == every[-2:]
    assert (await world.alice.events(after=every[1].cursor, limit=2)) == every[2:4]
    types = {event.type for event in await world.admin.events(limit=100)}
    assert types == {"weft.jobs.submitted", "weft.nodes.joined"}


# logs


async def test_a_log_is_read_whole_in_part_and_from_its_end(world: World) -> None:
    job = await world.running()
    text = b"".join(b"line %d\n" % number for number in range(100_000))
    await world.nodes["node-1"].write(job.id, text)
    assert await world.alice.read_log(job.id) == text
    assert await world.alice.read_log(job.id, offset=500_000) == text[500_000:]
    assert await world.alice.read_log(job.id, tail=100) == text[-100:]
    for asked, begin, end in (
        ("bytes=0-0", 0, 1),
        ("bytes=5-300004", 5, 300_005),
        (f"bytes={len(text) - 7}-", len(text) - 7, len(text)),
        ("bytes=-7", len(text) - 7, len(text)),
        ("bytes=-99999999", 0, len(text)),
        ("bytes=1000-99999999", 1000, len(text)),
    ):
        found, body, headers = await world.ask("GET", f"/v1/jobs/{job.id}/logs", headers={"Range": asked})
        assert (found, body) == (206, text[begin:end]), asked
        assert headers["Content-Range"] == f"bytes {begin}-{end - 1}/{len(text)}"
        assert headers["X-Weft-Node"] == "node-1"
    found, answer, headers = await world.ask("GET", f"/v1/jobs/{job.id}/logs", headers={"Range": f"bytes={len(text)}-"})
    assert (found, error_of(answer)[0]) == (416, "Range")
    assert headers["Content-Range"] == f"bytes */{len(text)}"
    for ignored in ("bytes=0-1,3-4", "lines=1-2", "bytes=9-1", "bytes=-"):
        found, body, _ = await world.ask("GET", f"/v1/jobs/{job.id}/logs", headers={"Range": ignored})
        assert (found, body) == (200, text), ignored


async def test_an_empty_log_is_empty_and_has_no_part(world: World) -> None:
    job = await world.running()
    await world.nodes["node-1"].write(job.id, b"")
    assert await world.alice.read_log(job.id) == b""
    assert await world.alice.read_log(job.id, tail=10) == b""
    found, _, headers = await world.ask("GET", f"/v1/jobs/{job.id}/logs", headers={"Range": "bytes=0-"})
    assert (found, headers["Content-Range"]) == (416, "bytes */0")


async def test_each_rank_and_role_has_its_log_on_its_own_node(world: World) -> None:
    job = await world.running(replicas=2, placement=placement(("node-1", 0), ("node-2", 0)))
    await world.nodes["node-1"].write(job.id, b"zero", rank=0)
    await world.nodes["node-2"].write(job.id, b"one", rank=1)
    assert await world.alice.read_log(job.id, rank=1) == b"one"
    assert await world.alice.read_log(job.id, rank=1, role="worker") == b"one"
    for query, field in (("rank=2", "rank"), ("role=ps", "role"), ("epoch=1", "epoch"), ("rank=-1", "rank")):
        found, answer, _ = await world.ask("GET", f"/v1/jobs/{job.id}/logs?{query}")
        assert found in (400, 404)
        assert error_of(answer)[0] == field


async def test_an_earlier_epochs_log_is_found_on_the_node_where_it_ran(world: World) -> None:
    job = await world.running()
    await world.nodes["node-1"].write(job.id, b"first", epoch=0, end=True)
    job = await world.go(job, JobEvent.REQUEUED)
    assert await world.alice.read_log(job.id) == b"first"  # Its newest that was placed.
    job = await world.go(job, JobEvent.PLACED, placement=placement(("node-2", 3)))
    job = await world.go(job, JobEvent.STARTING, JobEvent.STARTED)
    await world.nodes["node-2"].write(job.id, b"second", epoch=1)
    assert await world.alice.read_log(job.id) == b"second"
    assert await world.alice.read_log(job.id, epoch=0) == b"first"
    found, _, headers = await world.ask("GET", f"/v1/jobs/{job.id}/logs?epoch=0")
    assert (found, headers["X-Weft-Epoch"], headers["X-Weft-Node"]) == (200, "0", "node-1")


async def test_a_log_is_followed_from_before_its_job_is_placed_through_every_epoch_to_the_end(world: World) -> None:
    job = await world.submitted()
    heard = b""

    async def listen() -> None:
        nonlocal heard
        async for chunk in world.alice.follow_log(job.id):
            heard += chunk

    listening = asyncio.create_task(listen())
    await asyncio.sleep(0)
    first, second = world.nodes["node-1"], world.nodes["node-2"]
    job = await world.go(job, JobEvent.PLACED, placement=placement(("node-1", 0)))
    job = await world.go(job, JobEvent.STARTING, JobEvent.STARTED)
    await first.write(job.id, b"a\n")
    await until(lambda: heard == b"a\n")
    await first.write(job.id, b"b\n", end=True)
    await until(lambda: heard == b"a\nb\n")
    job = await world.go(job, JobEvent.REQUEUED)
    job = await world.go(job, JobEvent.PLACED, placement=placement(("node-2", 0)))
    job = await world.go(job, JobEvent.STARTING, JobEvent.STARTED)
    await second.write(job.id, b"c\n", epoch=1)
    await until(lambda: heard == b"a\nb\nc\n")
    await second.write(job.id, b"d\n", epoch=1, end=True)
    await world.go(job, JobEvent.SUCCEEDED)
    async with asyncio.timeout(SECONDS_MAX):
        await listening
    assert heard == b"a\nb\nc\nd\n"


async def test_following_a_job_that_is_cancelled_in_the_queue_ends(world: World) -> None:
    job = await world.submitted()

    async def listen() -> list[bytes]:
        return [chunk async for chunk in world.alice.follow_log(job.id)]

    listening = asyncio.create_task(listen())
    async with asyncio.timeout(SECONDS_MAX):
        await asyncio.sleep(0.2)
        await world.go(job, JobEvent.CANCELLED)
        assert await listening == []


async def test_a_followed_log_goes_on_where_it_was_after_the_gateway_restarts(world: World) -> None:
    job = await world.running()
    node_1 = world.nodes["node-1"]
    text = b"".join(b"line %d\n" % number for number in range(200_000))
    heard = b""

    async def listen() -> None:
        nonlocal heard
        async for chunk in world.alice.follow_log(job.id, epoch=0):
            heard += chunk

    listening = asyncio.create_task(listen())
    half = len(text) // 2
    await node_1.write(job.id, text[:half])
    await until(lambda: heard)
    async with asyncio.timeout(SECONDS_MAX):
        await world.gateway.stop()
        await node_1.write(job.id, text[half:], end=True)
        await world.gateway.start()
        await listening
    assert heard == text


async def test_a_node_that_does_not_answer_is_a_503_and_a_lost_log_a_404(world: World) -> None:
    job = await world.running(placement=placement(("node-9", 0)))
    found, answer, headers = await world.ask("GET", f"/v1/jobs/{job.id}/logs")
    assert (found, headers["Retry-After"]) == (503, "1")
    assert "node-9" in error_of(answer)[1]
    other = await world.running()
    over = await world.go(other, JobEvent.SUCCEEDED)
    found, answer, _ = await world.ask("GET", f"/v1/jobs/{over.id}/logs")
    assert (found, error_of(answer)[0]) == (404, "epoch")


async def test_the_dropped_head_of_a_log_is_told_and_never_made_up(world: World) -> None:
    job = await world.running()
    text = b"".join(b"line %d\n" % number for number in range(100_000))
    node_1 = world.nodes["node-1"]
    await node_1.write(job.id, text)
    node_1.begins[job.id, 0, 0] = 300_000
    gaps: list[Gap] = []
    chunks = world.alice.stream_log(job.id, gap=gaps.append)
    assert b"".join([chunk async for chunk in chunks]) == text[300_000:]
    assert [(gap.begins, gap.ends, gap.epoch) for gap in gaps] == [(0, 300_000, 0)]
    assert "node-1" in gaps[0].reason
    assert await world.alice.read_log(job.id, tail=100) == text[-100:]
    assert await world.alice.read_log(job.id, tail=10**7) == text[300_000:]
    found, body, headers = await world.ask("GET", f"/v1/jobs/{job.id}/logs?offset=7")
    assert (found, body, headers["X-Weft-Offset"], headers["X-Weft-Begins"]) == (
        200,
        text[300_000:],
        "300000",
        "300000",
    )
    asked = {"Range": "bytes=299990-300009"}
    found, body, headers = await world.ask("GET", f"/v1/jobs/{job.id}/logs", headers=asked)
    assert (found, body) == (206, text[300_000:300_010])
    assert headers["Content-Range"] == f"bytes 300000-300009/{len(text)}"
    found, _, headers = await world.ask("GET", f"/v1/jobs/{job.id}/logs", headers={"Range": "bytes=0-9"})
    assert (found, headers["Content-Range"]) == (416, f"bytes */{len(text)}")


async def test_a_gap_that_comes_up_under_a_follower_is_told_and_the_rest_follows(world: World) -> None:
    job = await world.running()
    node_1 = world.nodes["node-1"]
    heard, gaps = b"", list[Gap]()

    async def listen() -> None:
        nonlocal heard
        async for chunk in world.alice.follow_log(job.id, epoch=0, gap=gaps.append):
            heard += chunk

    listening = asyncio.create_task(listen())
    await node_1.write(job.id, b"a" * 100)
    await until(lambda: len(heard) == 100)
    node_1.begins[job.id, 0, 0] = 150
    await node_1.write(job.id, b"b" * 100, end=True)
    async with asyncio.timeout(SECONDS_MAX):
        await listening
    assert heard == b"a" * 100 + b"b" * 50
    assert [(gap.begins, gap.ends) for gap in gaps] == [(100, 150)]


async def test_an_executor_of_an_earlier_version_is_understood(world: World) -> None:
    job = await world.running()
    node_1 = world.nodes["node-1"]
    node_1.older = True
    text = b"".join(b"line %d\n" % number for number in range(50_000))
    await node_1.write(job.id, text, end=True)
    assert await world.alice.read_log(job.id) == text
    assert await world.alice.read_log(job.id, tail=100) == text[-100:]
    assert b"".join([chunk async for chunk in world.alice.follow_log(job.id, epoch=0)]) == text
    found, body, _ = await world.ask("GET", f"/v1/jobs/{job.id}/logs", headers={"Range": "bytes=-7"})
    assert (found, body) == (206, text[-7:])


async def test_reading_what_is_there_ends_though_more_is_written_all_the_time(world: World) -> None:
    job = await world.running()
    node_1 = world.nodes["node-1"]
    await node_1.write(job.id, b"x" * 1000)

    async def write_on() -> None:
        while True:
            asked = node_1.asked
            await node_1.write(job.id, b"x" * 300_000)
            await until(lambda: node_1.asked > asked)  # noqa: B023 - it is called at once

    writing = asyncio.create_task(write_on())
    try:
        async with asyncio.timeout(SECONDS_MAX):
            assert len(await world.alice.read_log(job.id)) >= 1000
    finally:
        writing.cancel()
        await asyncio.wait([writing])


async def test_the_log_of_a_lost_node_is_told_to_be_there_not_to_be_asked_for_again(world: World) -> None:
    job = await world.running(placement=placement(("node-9", 0)))
    lost = node("node-9", ready=False)
    await world.place.stores.scheduler.save_node(world.lease, lost, event="lost", cause="it was silent")
    for query in ("", "?follow=1", "?tail=5"):
        found, answer, headers = await world.ask("GET", f"/v1/jobs/{job.id}/logs{query}")
        assert (found, error_of(answer)[0]) == (404, "node")
        assert "Retry-After" not in headers
        assert "node-9" in error_of(answer)[1]


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
        body = msgspec.json.encode(HELLO)
        answer = await bus.request_raw("weft.submit", body, headers=headers, seconds_max=SECONDS_MAX)
    assert "store is away" in msgspec.json.decode(answer, type=SubmitAnswered).error
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
    limits = Limits(connections_max=3, streams_max=2, streams_per_tenant_max=1, heartbeat_seconds=0.2)
    gateway = RunningGateway(servers, limits=limits)
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
        held = [await asyncio.open_connection("127.0.0.1", gateway.port) for _ in range(2)]
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        async with asyncio.timeout(SECONDS_MAX):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert "connections" in error_of(body)[1]
        for each in (writer, *(held_writer for _, held_writer in held)):
            each.close()
    await gateway.stop()


async def test_a_mistake_of_the_gateway_tells_nothing_of_its_inside(world: World) -> None:
    world.gateway.store.broken = True
    found, answer, _ = await world.ask("GET", "/v1/events")
    world.gateway.store.broken = False
    field, reason = error_of(answer)
    assert (found, field, "division" in reason.lower()) == (500, "", False)
    assert "its log has it under" in reason


async def test_a_client_gives_up_in_time(world: World) -> None:
    async with Client("http://127.0.0.1:9", "x", retry_seconds=0.3) as client:
        async with asyncio.timeout(SECONDS_MAX):
            with pytest.raises(UnreachableError):
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
