"""What one tenant may take, over HTTP and NATS; and that its costliest requests cost another next to nothing."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest
from msgspec import Struct

from tests.support.builders import spec
from tests.support.gateway import Place, RunningGateway, add_nodes, admitted, place, submit_on_nats, until
from tests.support.steps import go
from tests.unit.test_job_spec import COSTLY_PATTERNS, COSTLY_YAML
from weft.client import Client, Refused
from weft.domain.job import JobEvent
from weft.messages.asks import SubmitAnswered
from weft.messages.http.tenants import TenantWanted
from weftd.gateway.settings import GatewaySettings

SECONDS_MAX = 60.0
OTHERS_SECONDS_MAX = 1.0  # for another tenant's GET while one attacks; it was 28 s
SMALL = GatewaySettings(tenant_jobs_open_max=2, tenant_priority_max=50)


@pytest.fixture(scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    async with place(tmp_path_factory.mktemp("tenants")) as made:
        yield made


class World(Struct):
    place: Place
    gateway: RunningGateway
    admin: Client
    alice: Client
    bob: Client
    tokens: dict[str, str]
    http: aiohttp.ClientSession

    async def stored(self) -> list[int]:
        counts = ", ".join(f"(SELECT count(*) FROM {table})" for table in ("submissions", "asks", "events", "outbox"))
        return list((await self.place.stores.owner.fetch(f"SELECT {counts}"))[0])

    async def ask(self, method: str, path: str, *, tenant: str = "alice", **options: Any) -> tuple[int, Any, Any]:
        headers = {"Authorization": f"Bearer {self.tokens[tenant]}", **options.pop("headers", {})}
        async with self.http.request(method, f"{self.gateway.url}{path}", headers=headers, **options) as response:
            return response.status, msgspec.json.decode(await response.read()), response.headers

    async def submit(self, **fields: Any) -> tuple[int, Any, Any]:
        return await self.ask("POST", "/v1/jobs", json=msgspec.to_builtins(spec(**fields)))


@asynccontextmanager
async def opened(servers: Place, settings: GatewaySettings | None = None) -> AsyncIterator[World]:
    await servers.stores.clear()
    await add_nodes(servers)
    gateway = RunningGateway(servers, settings=settings)
    await gateway.start()
    try:
        async with gateway.client() as admin, aiohttp.ClientSession() as http:
            tokens = {name: (await admin.make_token(name, "x")).token for name in ("alice", "bob")}
            async with (
                gateway.client(tokens["alice"], retry_seconds=0) as alice,
                gateway.client(tokens["bob"]) as bob,
            ):
                yield World(servers, gateway, admin, alice, bob, tokens, http)
    finally:
        await gateway.stop()


# limits


async def test_a_tenant_with_as_much_open_as_it_may_is_told_so_and_another_is_not(servers: Place) -> None:
    async with opened(servers, SMALL) as world:
        for _ in range(2):
            await world.alice.submit(spec())
        before = await world.stored()
        status, body, headers = await world.submit()
        assert status == 429
        assert body["error"]["reason"] == "jobs_open_max: 2 jobs of this tenant wait or run, of at most 2"
        assert int(headers["Retry-After"]) >= 1
        assert await world.stored() == before
        await world.bob.submit(spec())
        for _ in range(3):
            await world.admin.submit(spec())


async def test_a_request_on_nats_meets_the_same_limits(servers: Place) -> None:
    async with opened(servers, SMALL) as world, servers.bus("integrator") as bus:

        async def submit(**fields: Any) -> SubmitAnswered:
            headers = {"Authorization": f"Bearer {world.tokens['alice']}"}
            return await submit_on_nats(bus, msgspec.json.encode(spec(**fields)), headers)

        assert (await submit(priority=51)).field == "priority"
        assert [bool((await submit()).job_id) for _ in range(2)] == [True, True]
        full = await submit()
        assert ("jobs_open_max" in full.error, full.retry_after >= 1) == (True, True)


async def test_what_a_tenant_has_open_is_given_back_as_its_jobs_end_and_taken_again_by_a_requeue(
    servers: Place,
) -> None:
    async with opened(servers, SMALL) as world:
        store = servers.stores.scheduler
        lease = await store.take_lease("again", holder="test", seen=None)
        assert lease is not None
        first, _ = [await world.alice.submit(spec()) for _ in range(2)]
        job = await admitted(servers, lease, first.id)
        await go(store, lease, job, JobEvent.CANCELLED, at=time.time())
        await world.alice.submit(spec())
        before = await world.stored()
        status, body, _ = await world.ask("POST", f"/v1/jobs/{first.id}/requeue")
        assert (status, "jobs_open_max" in body["error"]["reason"]) == (429, True)
        assert await world.stored() == before
        assert (await world.admin.requeue(first.id)).ask == "requeue"


async def test_updates_count_against_the_bytes_of_a_tenant_and_beyond_them_nothing_is_stored(servers: Place) -> None:
    """They counted by nothing, and 600 of them stopped a pool for good."""
    async with opened(servers, GatewaySettings(tenant_spec_bytes_max=150_000)) as world:
        role = {"server": {"replicas": {"min": 0, "want": 1, "max": 2}}}
        service = spec("chat", kind="inference", service={"ready": "/"}, roles=role)
        job = await world.alice.submit(service)
        taken: list[int] = []
        for number in range(2):
            body = {"env": {f"A{number}": "x" * 30_000, f"B{number}": "y" * 30_000}}
            assert (await world.ask("POST", f"/v1/jobs/{job.id}/update", json=body))[0] == 202
            (tenant,) = [one for one in (await world.admin.tenants()).tenants if one.id == "alice"]
            taken.append(tenant.spec_bytes)
        assert 60_000 < taken[0] < taken[1] - 60_000
        before = await world.stored()
        status, answer, _ = await world.ask("POST", f"/v1/jobs/{job.id}/update", json=body)
        reason = answer["error"]["reason"]
        assert (status, answer["error"]["field"]) == (429, "env")
        assert f"have {taken[1]} bytes, this request would add 60" in reason
        assert "together they may have 150000" in reason
        assert (await world.submit(env={"A": "x" * 30_000}))[0] == 429
        large = {"env": dict.fromkeys("CDE", "x" * 30_000)}
        assert (await world.ask("POST", f"/v1/jobs/{job.id}/update", json=large))[0] == 429
        status, answer, _ = await world.ask("POST", f"/v1/jobs/{job.id}/update", json="x" * 100_000)
        assert (status, answer["error"]["field"]) == (429, "env"), "it was read, though one of its size had no room"
        assert (await world.ask("POST", f"/v1/jobs/{job.id}/update", json="x" * 80_000))[0] == 400
        assert await world.stored() == before
        assert (await world.ask("POST", f"/v1/jobs/{job.id}/cancel"))[0] == 202
        assert (await world.ask("POST", f"/v1/jobs/{job.id}/update", json={"env": {"A": "1"}}))[0] == 202


async def test_a_priority_above_the_tenants_is_refused_by_every_way_in(servers: Place) -> None:
    async with opened(servers, SMALL) as world:
        status, body, _ = await world.submit(priority=51)
        assert (status, body["error"]["field"]) == (403, "priority")
        job = await world.alice.submit(spec(priority=50))
        before = await world.stored()
        status, body, _ = await world.ask("POST", f"/v1/jobs/{job.id}/priority", json={"priority": 51})
        assert (status, body["error"]["field"]) == (403, "priority")
        assert await world.stored() == before
        await world.alice.prioritise(job.id, -5)
        await world.admin.prioritise(job.id, 1000)
        assert (await world.admin.submit(spec(priority=1000))).created


async def test_jobs_that_cannot_be_preempted_are_for_tenants_that_may(servers: Place) -> None:
    async with opened(servers, SMALL) as world:
        status, body, _ = await world.submit(preemptible=False)
        assert (status, body["error"]["field"]) == (403, "preemptible")
        await world.admin.change_tenant("alice", TenantWanted(may_be_unpreemptible=True))
        assert (await world.submit(preemptible=False))[0] == 201


async def test_an_administrator_sees_and_changes_what_a_tenant_may_take(servers: Place) -> None:
    async with opened(servers, SMALL) as world:
        for _ in range(2):
            await world.alice.submit(spec())
        changed = await world.admin.change_tenant("alice", TenantWanted(jobs_open_max=3, priority_max=None))
        assert (changed.jobs_open, changed.jobs_open_max, changed.chosen) == (2, 3, ("jobs_open_max",))
        assert changed.spec_bytes == 2 * len(msgspec.json.encode(spec()))
        await world.alice.submit(spec())
        assert (await world.submit())[0] == 429
        listed = {tenant.id: tenant for tenant in (await world.admin.tenants()).tenants}
        assert (listed["alice"].jobs_open, listed["bob"].jobs_open, listed["bob"].chosen) == (3, 0, ())
        assert (await world.ask("GET", "/v1/tenants"))[0] == 403
        assert (await world.ask("PATCH", "/v1/tenants/alice", json={"priority_max": 900}))[0] == 403
        for body, field in (({"jobs_open_max": -1}, "jobs_open_max"), ({"gpus": 1}, "gpus")):
            with pytest.raises(Refused) as caught:
                await world.admin._wire.ask("PATCH", "/v1/tenants/alice", dict, body=msgspec.json.encode(body))
            assert (caught.value.status, caught.value.field) == (400, field)
        with pytest.raises(Refused) as caught:
            await world.admin.change_tenant("nobody", TenantWanted(priority_max=1))
        assert caught.value.status == 404


async def test_a_second_token_of_one_label_is_refused_until_the_first_is_revoked(servers: Place) -> None:
    async with opened(servers) as world:
        with pytest.raises(Refused) as caught:
            await world.admin.make_token("alice", "x")
        assert (caught.value.status, caught.value.field) == (409, "label")
        assert (await world.admin.revoke("alice", "x")).revoked == 1
        assert (await world.admin.make_token("alice", "x")).label == "x"


async def test_who_submits_a_notebook_is_told_that_it_can_be_stopped(servers: Place) -> None:
    async with opened(servers) as world:
        notebook = await world.alice.submit(spec(kind="notebook"))
        assert "to make room" in notebook.notes[0]
        assert (await world.alice.submit(spec(kind="batch"))).notes == ()


async def test_all_mistakes_of_a_specification_come_with_the_first(servers: Place) -> None:
    async with opened(servers) as world:
        status, body, _ = await world.ask(
            "POST", "/v1/jobs", json={"name": "a", "command": "true", "retries": 3, "gpus": 1}
        )
        error = body["error"]
        assert (status, error["field"]) == (400, "command")
        assert [each["field"] for each in error["errors"]] == ["command", "retries", "gpus"]


# attacks


@pytest.mark.parametrize("shape", COSTLY_YAML)
@pytest.mark.alone
async def test_no_yaml_of_one_tenant_makes_another_wait(servers: Place, shape: str) -> None:
    async with opened(servers) as world:
        await refused_beside_another(world, COSTLY_YAML[shape], "application/yaml")


@pytest.mark.alone
async def test_no_json_of_one_tenant_makes_another_wait(servers: Place) -> None:
    """The costliest that is read: very many names, of which the last stands there twice."""
    names = ",".join(f'"A{number}":""' for number in (*range(80_000), 79_999))
    body = f'{{"name":"a","command":["true"],"env":{{{names}}}}}'.encode()
    async with opened(servers) as world:
        await refused_beside_another(world, body, "application/json")


async def refused_beside_another(world: World, body: str | bytes, kind: str) -> None:
    """Ten submissions of this body at once are refused, and bob's lists are answered in time meanwhile."""

    async def attack() -> int:
        return (await world.ask("POST", "/v1/jobs", data=body, headers={"Content-Type": kind}))[0]

    attacks = [asyncio.create_task(attack()) for _ in range(10)]
    slowest = 0.0
    while not all(task.done() for task in attacks):
        begun = time.monotonic()
        await world.bob.jobs()
        slowest = max(slowest, time.monotonic() - begun)
    assert {await task for task in attacks} == {400}
    assert slowest < OTHERS_SECONDS_MAX, slowest


@pytest.mark.alone
async def test_no_pattern_of_one_tenant_makes_another_wait(servers: Place) -> None:
    async with opened(servers) as world:
        slowest = 0.0
        for pattern in COSTLY_PATTERNS.values():
            begun = time.monotonic()
            asked = {"name": "a", "command": ["true"], "progress": {"pattern": pattern}}
            (status, body, _), _ = await asyncio.gather(world.ask("POST", "/v1/jobs", json=asked), world.bob.jobs())
            slowest = max(slowest, time.monotonic() - begun)
            assert (status, body["error"]["field"]) == (400, "progress.pattern")
        assert slowest < OTHERS_SECONDS_MAX


class Slow:
    """A read of the store that takes as long as a test likes. `named`: only with this argument; other reads of the
    gateway itself are answered at once."""

    def __init__(self, answer: Any, *, named: str = "") -> None:
        self.at_once = self.at_once_most = self.count = 0
        self.go = asyncio.Event()
        self._answer = answer
        self._named = named

    async def __call__(self, *_: Any, **arguments: Any) -> Any:
        if self._named and self._named not in arguments:
            return self._answer
        self.count += 1
        self.at_once += 1
        self.at_once_most = max(self.at_once_most, self.at_once)
        await self.go.wait()
        self.at_once -= 1
        return self._answer


@pytest.mark.alone
async def test_forty_slow_reads_of_events_take_two_connections_and_none_of_anothers(servers: Place) -> None:
    async with opened(servers) as world:
        slow = world.gateway.store.events = Slow([], named="tenant")  # type: ignore[attr-defined]
        reads = [asyncio.create_task(world.ask("GET", "/v1/events")) for _ in range(40)]
        await until(lambda: slow.at_once == 2)
        begun = time.monotonic()
        assert (await world.bob.jobs()).jobs == ()
        assert (await world.bob.submit(spec())).created
        assert time.monotonic() - begun < OTHERS_SECONDS_MAX
        slow.go.set()
        assert {(await task)[0] for task in reads} == {200}
        assert slow.at_once_most == 2


@pytest.mark.alone
async def test_requests_of_one_tenant_beyond_its_turns_leave_another_its_own(servers: Place) -> None:
    """However many requests one tenant has under way, of whatever kind, the others go on beside it."""
    async with opened(servers) as world:
        slow = world.gateway.store.job = Slow(None)  # type: ignore[attr-defined]
        asked = [asyncio.create_task(world.ask("POST", "/v1/jobs/j-none/cancel")) for _ in range(60)]
        await until(lambda: slow.at_once == 8)
        begun = time.monotonic()
        assert (await world.bob.submit(spec())).created
        assert time.monotonic() - begun < OTHERS_SECONDS_MAX
        slow.go.set()
        assert {(await task)[0] for task in asked} == {404}
        assert slow.at_once_most == 8


async def test_twenty_looks_back_of_one_tenant_delay_another_by_one_of_them(servers: Place) -> None:
    async with opened(servers) as world:
        slow = world.gateway.store.told_until = Slow([])  # type: ignore[attr-defined]
        looks = [asyncio.create_task(world.ask("GET", "/v1/cluster?at=1")) for _ in range(20)]
        await until(lambda: sum(task.done() for task in looks) == 20 - 1 - 4)
        refused = [task.result() for task in looks if task.done()]
        assert {status for status, _, _ in refused} == {429}
        assert "requests with `at`" in refused[0][1]["error"]["reason"]
        bobs = asyncio.create_task(world.ask("GET", "/v1/cluster?at=1", tenant="bob"))
        assert slow.count == 1
        slow.go.set()
        assert (await bobs)[0] == 200
        assert [(await task)[0] for task in looks].count(200) == 5
        assert slow.at_once_most == 1
