"""Every operation of the HTTP interface, tried by everybody who may not, and with everything that it says it takes."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.builders import spec
from tests.support.gateway import ADMIN_TOKEN, Place, RunningGateway, add_nodes, admitted, executors, place
from tests.support.steps import go, placement
from tests.support.tier import of_tier
from weft.domain.job import JobEvent
from weft.messages.files import JobFile
from weftd.gateway.api.operations import OPERATIONS
from weftd.gateway.http.openapi import document
from weftd.gateway.http.route import Audience, Route
from weftd.gateway.settings import GatewaySettings

schemathesis.serializer.alias("application/zip", "application/octet-stream")
schemathesis.serializer.alias("application/x-tar", "application/octet-stream")
CASES_PER_OPERATION = of_tier(6, 25)
ANSWER_SECONDS_MAX = 20
# A header that the generator made up under one of these names would tell of another body than the one that is sent, so
# that the gateway waits for a rest that never comes.
FRAMING = frozenset({"connection", "content-length", "expect", "transfer-encoding", "upgrade"})
# What the document promises, and what no caller may bring about.
PROMISES = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
SETTINGS = GatewaySettings(refusals_per_second=0, webhooks=False)  # it guesses fast, and posts nothing anywhere
BODIES = {
    "WebhookWanted": {"url": "https://example.org/"},
    "JobSpec": {"name": "a", "command": ["true"]},
    "PriorityWanted": {"priority": 1},
    "SizeWanted": {"size": {"worker": 1}},
    "ShareWanted": {"request": 0.5},
    "QuotaWanted": {"guaranteed": 1},
    "SecretWanted": {"value": "a"},
    "UpdateWanted": {"env": {"A": "b"}},
    "JoinTokenWanted": {"hash": "0" * 64, "sealed": "a"},
    "JoinWanted": {"public_part": "0" * 64},
}


class World(msgspec.Struct):
    """A gateway with one job of alice's that runs, and who may ask."""

    place: Place
    gateway: RunningGateway
    http: aiohttp.ClientSession
    tokens: dict[str, str]
    job: str

    async def stored(self) -> list[int]:
        tables = ("submissions", "asks", "events", "outbox", "tokens", "tenants")
        counts = ", ".join(f"(SELECT count(*) FROM {table})" for table in tables)
        return list((await self.place.stores.owner.fetch(f"SELECT {counts}"))[0])

    async def status(self, route: Route[Any], path: str, token: str | None) -> int:
        headers = {"Authorization": f"Bearer {self.tokens.get(token, token)}"} if token else {}
        body = BODIES.get(
            getattr(route.body, "__name__", ""), {"tenant": "alice", "label": "x"} if route.body else None
        )
        async with self.http.request(
            route.method, f"{self.gateway.url}{path}", headers=headers, json=body, allow_redirects=False
        ) as response:
            return response.status


@pytest.fixture(scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with place(tmp_path_factory.mktemp("operations")) as made:
        lease = await add_nodes(made)
        gateway = RunningGateway(made, settings=SETTINGS)
        await gateway.start()
        async with (
            executors(made, "node-1", "node-2") as nodes,
            aiohttp.ClientSession() as http,
            gateway.client() as admin,
        ):
            tokens = {tenant: (await admin.make_token(tenant, "test")).token for tenant in ("alice", "bob")}
            async with gateway.client(tokens["alice"]) as alice:
                submitted = await alice.submit(spec("theirs"))
            job = await admitted(made, lease, submitted.id)
            at = time.time()
            job = await go(
                made.stores.scheduler, lease, job, JobEvent.PLACED, at=at, placement=placement(("node-1", 0))
            )
            for event in (JobEvent.STARTING, JobEvent.STARTED):
                job = await go(made.stores.scheduler, lease, job, event, at=at)
            await nodes["node-1"].write(job.id, b"a line\n", end=True)
            nodes["node-1"].files[job.id] = JobFile(path="results/zeros", bytes=1000, modified_at=at)
            yield World(made, gateway, http, {"admin": ADMIN_TOKEN, **tokens}, job.id)
        await gateway.stop()


def path_of(route: Route[Any], job: str) -> str:
    path = route.path.replace("{job}", job).replace("{node}", "node-1").replace("{tenant}", "alice")
    return (
        path.replace("{label}", "test")
        .replace("{name}", "alice")
        .replace("{webhook}", "w-none")
        .replace("{schedule}", "none")
        .replace("{array}", "a-none")
        .replace("{digest}", "0" * 64)
        .replace("{session}", "s-000000000000")
        .replace("{person}", "u-000000000000")
    )


async def test_nobody_gets_past_the_door_without_a_token_that_is_known(world: World) -> None:
    before = await world.stored()
    closed = [route for route in OPERATIONS if route.who is not Audience.ANYONE]
    assert len(closed) >= 15
    for route in closed:
        for token in (None, "weft_nobody", "", "alice'--", "x" * 5000):
            found = await world.status(route, path_of(route, world.job), token)
            assert found in (401, 431, 400), (route.method, route.path, token, found)
            assert found == 401 or (token and len(token) > 1000), (route.method, route.path, token, found)
    assert await world.stored() == before


async def test_a_tenant_is_refused_what_is_the_administrators(world: World) -> None:
    before = await world.stored()
    closed = [route for route in OPERATIONS if route.who is Audience.ADMIN]
    assert closed
    for route in closed:
        assert await world.status(route, path_of(route, world.job), "alice") == 403, (route.method, route.path)
    assert await world.stored() == before


async def test_a_tenant_does_not_find_anothers_job_by_any_operation(world: World) -> None:
    before = await world.stored()
    about_a_job = [route for route in OPERATIONS if "{job}" in route.path]
    assert len(about_a_job) >= 7
    for route in about_a_job:
        for name in (world.job, "theirs"):
            assert await world.status(route, path_of(route, name), "bob") == 404, (route.method, route.path)
    assert await world.stored() == before


def promised(schema: Any) -> list[Any]:
    return [found.ok() for found in schema.get_all_operations()]


@pytest.mark.timeout(300)
async def test_whatever_is_sent_the_gateway_keeps_what_its_document_says(world: World) -> None:
    """Made from the document: requests as it allows them, and as it does not."""
    schema = schemathesis.openapi.from_dict(document(OPERATIONS))
    operations = promised(schema)
    assert len(operations) == len(OPERATIONS)
    failures: list[str] = []
    answers: Counter[int] = Counter()

    def try_one(operation: Any, token: str, mode: GenerationMode) -> None:
        @settings(
            max_examples=CASES_PER_OPERATION,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode), real=st.booleans())
        def tried(case: Any, real: bool) -> None:
            if real and isinstance(case.path_parameters, dict):
                known = {"job": world.job, "node": "node-1"}
                case.path_parameters.update({name: known[name] for name in case.path_parameters if name in known})
            if isinstance(case.query, dict):
                case.query.pop("follow", None)  # a stream has no end
            if case.path == "/v1/live":
                case.query = {**(case.query if isinstance(case.query, dict) else {}), "follow": 0}
            made = {name: value for name, value in (case.headers or {}).items() if name.lower() not in FRAMING}
            case.headers = {**made, "Authorization": f"Bearer {token}"}
            if "Accept" in case.headers and "event-stream" in str(case.headers["Accept"]):
                del case.headers["Accept"]
            answer = case.call(base_url=world.gateway.url, timeout=ANSWER_SECONDS_MAX)
            if answer.status_code == 503 and "database is unavailable" in answer.text:  # its disk stood still
                answer = case.call(base_url=world.gateway.url, timeout=ANSWER_SECONDS_MAX)
            answers[answer.status_code] += 1
            case.validate_response(answer, checks=PROMISES)

        try:
            tried()
        except Unsatisfiable:
            assert mode is GenerationMode.NEGATIVE, operation.label  # it takes nothing, so nothing can be wrong with it
        except Exception as error:  # one operation that breaks its word must not hide another
            failures.append(f"{operation.label}: {error}")

    for operation in operations:
        for token in ("admin", "bob"):
            for mode in GenerationMode:
                await asyncio.to_thread(try_one, operation, world.tokens[token], mode)
    assert not failures, "\n\n".join(failures)
    assert {200, 201, 202, 400, 403, 404} <= answers.keys(), answers  # it came to all of these doors
