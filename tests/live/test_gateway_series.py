"""What was sampled and what was held, over a real gateway, a real Postgres and a real NATS."""

import asyncio
import time
from typing import Any

import msgspec
import pytest

from tests.support.builders import GIB
from tests.support.gateway_world import World, error_of
from tests.support.steps import placement
from weft.domain.job import Cause, CauseCode, JobEvent
from weft.messages.nodes import Pace, ProgressSeen, RunProgressed
from weft.messages.series import SeriesView, UsageView
from weft.messages.signals import GpuSample, HostSample, NodeSampled

SAMPLED_SECONDS_MAX = 60.0


async def series(world: World, query: str, *, token: str = "alice") -> SeriesView:
    status, body, _ = await world.ask("GET", f"/v1/samples?{query}", token=token)
    assert status == 200, body
    return msgspec.json.decode(body, type=SeriesView)


async def usage(world: World, query: str = "", *, token: str = "alice") -> UsageView:
    status, body, _ = await world.ask("GET", f"/v1/usage{query}", token=token)
    assert status == 200, body
    return msgspec.json.decode(body, type=UsageView)


def newest(view: SeriesView, name: str) -> Any:
    return next((value for value in reversed(view.series.get(name, ())) if value is not None), None)


def sampled(*gpus: GpuSample) -> NodeSampled:
    host = HostSample(cpus=64, cpus_used=16.0, memory_total=256 * GIB, memory_used=64 * GIB)
    return NodeSampled(node_id="node-1", pool="default", at=time.time(), host=host, gpus=gpus)


def gpu(index: int, part: float) -> GpuSample:
    return GpuSample(index=index, uuid="EMULATED-0", model="Emulated GPU", utilisation=part, memory_used=3 * GIB)


async def test_what_nodes_and_jobs_tell_becomes_a_history(world: World) -> None:
    job = await world.running()
    pace = Pace(window_seconds=10.0, steps=20, steps_rate=2.0, step_seconds=0.5)
    run = RunProgressed(job_id=job.id, epoch=0, rank=0, progress={"step": 120.0}, pace=pace)
    async with world.place.bus("executor-node-1") as executor, world.place.bus("telemetry-node-1") as telemetry:
        async with asyncio.timeout(SAMPLED_SECONDS_MAX):
            while newest(await series(world, f"job={job.id}"), "pace") is None:
                await telemetry.publish(sampled(gpu(0, 0.75), gpu(700, 0.1)))
                await executor.publish(ProgressSeen(node_id="node-1", runs=(run,)))
                await asyncio.sleep(0.2)
    of_job = await series(world, f"job={job.name}")
    assert {name: newest(of_job, name) for name in of_job.series} == {"pace": 2.0, "progress": 120.0, "replicas": 1.0}
    of_node = await series(world, "node=node-1&seconds=86400", token="bob")
    assert (newest(of_node, "cpu"), newest(of_node, "memory")) == (0.25, 0.25)
    assert newest(of_node, "gpu.0.used") == 0.75
    assert newest(of_node, "gpu.0.memory_used") == pytest.approx(3 * GIB, rel=1e-6)
    assert "gpu.700.used" not in of_node.series  # the node has no such GPU
    assert set((await series(world, "node=node-1&gpu=0")).series) == {"gpu.0.used", "gpu.0.memory_used"}
    cluster = await series(world, "cluster=1", token="admin")
    assert {name: newest(cluster, name) for name in cluster.series} == {"held": 1.0, "used": 0.75, "queued": 0.0}
    assert "queued" not in (await series(world, "cluster=1")).series
    assert len(cluster.series["held"]) == 180
    assert cluster.begins <= time.time() < cluster.begins + 181 * cluster.step_seconds


@pytest.mark.parametrize(
    ("path", "status", "field"),
    [
        ("samples", 400, "job"),
        ("samples?cluster=0", 400, "job"),
        ("samples?job=a&node=node-1", 400, "node"),
        ("samples?gpu=0&cluster=1", 400, "gpu"),
        ("samples?node=node-1&gpu=-1", 400, "gpu"),
        ("samples?node=node-1&gpu=1e9", 400, "gpu"),
        ("samples?node=%00", 400, "node"),
        ("samples?node=nobody", 404, "node"),
        ("samples?job=nothing", 404, "job"),
        ("samples?job=../x", 400, "job"),
        ("samples?cluster=1&seconds=nan", 400, "seconds"),
        ("samples?cluster=1&seconds=1e30", 400, "seconds"),
        ("samples?cluster=1&seconds=86401", 400, "seconds"),
        ("samples?cluster=1&step=1", 400, "step"),
        ("usage?seconds=59", 400, "seconds"),
        ("usage?seconds=2678401", 400, "seconds"),
        ("usage?seconds=-0", 400, "seconds"),
        ("usage?tenant=bob", 403, "tenant"),
        ("usage?tenant=A%20B", 400, "tenant"),
        ("usage?tenant=alice&tenant=bob", 400, "tenant"),
        ("usage?by=user", 400, "by"),
        ("usage?by=label", 400, "label"),
        ("usage?by=job&label=team", 400, "label"),
        ("usage?label=team", 400, "label"),
        ("usage?by=label&label=a%20b", 400, "label"),
        ("usage?by=job&until=nan", 400, "until"),
        ("usage?by=job&until=9e9", 400, "until"),
        ("usage?by=job&limit=0", 400, "limit"),
        ("usage?by=job&limit=100001", 400, "limit"),
        ("usage?by=job&tenant=bob", 403, "tenant"),
    ],
)
async def test_what_makes_no_sense_is_refused_by_its_name(world: World, path: str, status: int, field: str) -> None:
    before = await world.stored()
    found, body, _ = await world.ask("GET", f"/v1/{path}")
    assert (found, error_of(body)[0]) == (status, field), body
    assert await world.stored() == before


async def test_anothers_job_has_no_history_for_a_tenant(world: World) -> None:
    job = await world.running()
    assert (await world.ask("GET", f"/v1/samples?job={job.id}", token="bob"))[0] == 404
    assert (await world.ask("GET", f"/v1/samples?job={job.id}", token="admin"))[0] == 200


async def test_what_each_tenant_held_is_told_to_it_alone_and_adds_up_with_what_was_idle(world: World) -> None:
    job = await world.running(role={"gpus": 1}, placement=placement(("node-1", 0), ("node-1", 1)))
    await asyncio.sleep(0.3)
    await world.go(job, JobEvent.SUCCEEDED)
    story = await world.place.stores.gateway.story(job.id)
    at = {event.event: event.at for event in story}
    all_of_it = await usage(world, "?seconds=3600", token="admin")
    (alice,) = [one for one in all_of_it.tenants if one.tenant == "alice"]
    assert alice.gpu_seconds_held == pytest.approx(2 * (at["succeeded"] - at["placed"]), abs=1e-5)
    held = sum(one.gpu_seconds_held for one in all_of_it.tenants)
    assert held + all_of_it.gpu_seconds_idle == pytest.approx(all_of_it.gpu_seconds, abs=1e-6)
    assert sum(alice.held) * all_of_it.step_seconds == pytest.approx(alice.gpu_seconds_held, rel=0.2, abs=0.1)
    assert [one.tenant for one in (await usage(world, "?seconds=3600")).tenants] == ["alice"]
    (bob,) = (await usage(world, "?seconds=3600", token="bob")).tenants
    assert (bob.tenant, bob.gpu_seconds_held, bob.gpu_seconds_used, bob.share_got) == ("bob", 0.0, 0.0, 0.0)
    (asked,) = (await usage(world, "?seconds=3600&tenant=alice", token="admin")).tenants
    assert asked.gpu_seconds_held == alice.gpu_seconds_held


async def test_one_tenant_that_asks_for_much_at_once_holds_up_no_other(world: World) -> None:
    job = await world.running()
    asked = [world.ask("GET", f"/v1/usage?seconds={60 + number}") for number in range(60)]
    crowd = asyncio.gather(*asked)
    await asyncio.sleep(0.05)
    async with asyncio.timeout(15):
        (bob,) = (await usage(world, "?seconds=3600", token="bob")).tenants
    assert bob.tenant == "bob"
    statuses = {status for status, _, _ in await crowd}
    assert 200 in statuses
    assert statuses <= {200, 429}
    assert (await world.ask("GET", f"/v1/samples?job={job.id}"))[0] == 200


async def test_many_dashboards_that_ask_for_the_same_time_share_one_reading(world: World) -> None:
    asked = [world.ask("GET", "/v1/usage?seconds=3600", token=("admin", "alice")[number % 2]) for number in range(100)]
    assert {status for status, _, _ in await asyncio.gather(*asked)} == {200}


async def test_an_account_is_exact_told_to_each_tenant_alone_and_given_as_csv(world: World) -> None:
    job = await world.running(labels={"team": "=1+1"}, placement=placement(("node-1", 0), ("node-1", 1)))
    await world.go(job, JobEvent.STOPPING, cause=Cause(code=CauseCode.PREEMPTED))
    await asyncio.sleep(0.2)
    await world.go(
        await world.place.stores.gateway.job(job.id), JobEvent.REQUEUED, cause=Cause(code=CauseCode.PREEMPTED)
    )
    at = {event.event: event.at for event in await world.place.stores.gateway.story(job.id)}
    held = 2 * (at["requeued"] - at["placed"])
    mine = await usage(world, "?seconds=3600&by=epoch")
    (row,) = mine.rows
    assert (row.key, row.ended, row.cause, row.tenant) == (f"{job.id}/0", "requeued", "preempted", "alice")
    assert row.gpu_seconds_held == pytest.approx(held, abs=1e-5)
    assert (row.lost_preempted, row.lost_basis) == (row.gpu_seconds_held, "all")
    assert mine.capacity == ()
    theirs = await usage(world, "?seconds=3600&by=job", token="bob")
    assert (theirs.rows, theirs.total.gpu_seconds_held if theirs.total else None) == ((), 0.0)
    every = await usage(world, "?seconds=3600&by=tenant", token="admin")
    whole = every.capacity[0]
    parts = whole.held + whole.idle + whole.planned + whole.drained + whole.down
    assert parts == pytest.approx(whole.capacity + whole.gone, abs=1e-6)
    assert whole.planned > 0
    status, body, headers = await world.ask(
        "GET", "/v1/usage?seconds=3600&by=label&label=team", headers={"Accept": "text/csv"}
    )
    assert (status, headers.get("Content-Type")) == (200, "text/csv; charset=utf-8")
    first, second = body.decode().splitlines()
    assert first.startswith("key,gpu_seconds_held,gpu_seconds_used,")
    assert second.startswith(f"'=1+1,{row.gpu_seconds_held:.9f},,")  # no formula; nothing was sampled
