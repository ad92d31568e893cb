"""What a gateway shows of jobs, GPUs, nodes and the cluster, over a real Postgres and a real NATS."""

import asyncio
import time
from typing import Any

import pytest
from msgspec import structs

from tests.support.builders import GIB, node, spec
from tests.support.gateway_world import SECONDS_MAX, World
from tests.support.steps import go, placement
from weft.client import Refused
from weft.domain.cluster import Drain
from weft.domain.job import Cause, CauseCode, JobEvent, JobState, Placement
from weft.domain.shares import Share
from weft.messages.eta import Basis, EtaOf, Helps
from weft.messages.http import LimitsView
from weft.messages.nodes import Pace, ProgressSeen, RunProgressed
from weft.messages.signals import (
    Curve,
    CurvePoint,
    Finding,
    GpuProcess,
    GpuSample,
    GpuScore,
    HostSample,
    NodeSampled,
    PoolReviewed,
    RankVerdict,
    RunSample,
    ShareSample,
)
from weftd.gateway.readmodel.snapshots import SECONDS as SNAPSHOT_SECONDS


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
    finding = Finding(code="more-cpu", job_id=job.id, sentence="train: 1 → 2 cores")
    findings = (structs.replace(finding, job_id="j-of-others"), finding)
    reviewed = PoolReviewed(pool="default", at=time.time(), verdicts=(*others, verdict), findings=findings)
    async with (
        world.place.bus("executor-node-1") as executor,
        world.place.bus("reallocator") as reallocator,
        asyncio.timeout(SECONDS_MAX),
    ):
        while not (seen := await world.alice.job(job.id)).verdicts or not seen.progress:
            await executor.publish(ProgressSeen(node_id="node-1", runs=(run,)))
            await reallocator.publish(reviewed)
    assert seen.verdicts == (verdict,)
    assert seen.findings == (finding,)
    assert seen.curve == (point,)
    (shown,) = seen.runs
    assert (shown.pace, shown.disbelieved) == (pace, 3)
    assert (shown.cpus, shown.egress) == (2.5, 2_500_000)
    assert shown.asked == LimitsView(cpus=1.0, memory=GIB)
    (listed,) = (await world.alice.jobs()).jobs
    assert (listed.verdicts, listed.findings, listed.curve, listed.runs) == ((), (), (), ())


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


async def test_a_job_that_waits_is_told_when_it_starts_and_what_helps_and_one_that_runs_when_it_ends(
    world: World,
) -> None:
    whole = {"placement": placement(*(("node-1", gpu) for gpu in range(4))), "gpus": 4}
    runs = await world.running(name="long", time_limit="2h", **whole)
    await world.place.stores.scheduler.save_node(world.lease, node("node-2", drained=True), event="", cause="")
    waits = await world.submitted(name="wants", gpus=2)
    await asyncio.sleep(SNAPSHOT_SECONDS)  # what the gateway knows of nodes is so old at most
    told, ends = await world.alice.explain(waits.id), await world.alice.explain(runs.id)
    assert ends.eta is not None
    assert (ends.eta.of, ends.eta.basis) == (EtaOf.END, Basis.LIMITS)
    assert ends.eta.latest is not None
    assert 7100 < ends.eta.latest - time.time() <= 7200
    assert told.eta is not None
    assert (told.eta.of, told.eta.basis, told.eta.latest) == (EtaOf.START, Basis.LIMITS, ends.eta.latest)
    assert [one.change for one in told.sooner if one.what is Helps.RESUME_NODE] == [{"node": "node-2"}]
    over = await world.go(await world.submitted(name="over"), JobEvent.CANCELLED)
    assert (await world.alice.explain(over.id)).eta is None


async def test_of_a_job_that_was_deleted_and_of_its_time_the_answer_names_for_how_long_jobs_are_kept(
    world: World,
) -> None:
    scheduler, kept = world.place.stores.scheduler, 90 * 86400.0
    status, body, _ = await world.ask("GET", "/v1/jobs/nobody")
    assert (status, b"is kept for" in body) == (404, False)
    began = time.time() - 2 * kept
    job = await go(scheduler, world.lease, await world.submitted(), JobEvent.CANCELLED, at=began)
    await scheduler.sent(await scheduler.unsent(limit=100))
    lease = await scheduler.take_lease("default", holder="test", seen=None)
    assert lease is not None
    assert await scheduler.forget_jobs(lease, before=time.time() - kept, kept_seconds=kept, limit=10) == 1
    for path in (f"/v1/jobs/{job.id}", f"/v1/jobs/{job.id}/events", f"/v1/jobs/{job.id}?at=1"):
        status, body, _ = await world.ask("GET", path)
        assert status == 404
        assert b"a job is kept for 90 days after its end" in body
    status, body, _ = await world.ask("GET", f"/v1/cluster?at={began - 1}", token="admin")
    assert status == 404
    assert b"a job is kept for 90 days after its end" in body
    status, _, _ = await world.ask("GET", f"/v1/cluster?at={time.time()}", token="admin")
    assert status == 200


async def test_failed_jobs_are_listed_with_why_they_failed(world: World) -> None:
    job = await world.running(name="broken")
    cause = Cause(code=CauseCode.EXITED, sentence="rank 1 ended with status 3", numbers={"rank": 1, "exit_code": 3})
    await world.go(job, JobEvent.FAILED, cause=cause, exit_code=3)
    (listed,) = (await world.alice.jobs(name="broken")).jobs
    assert listed.ended_for == cause
    assert (await world.alice.job("broken")).ended_for == cause


async def test_a_job_that_waits_is_shown_with_what_is_free_now(world: World) -> None:
    """The store has the reason of the moment at which it was new: then nothing was held."""
    wants = await world.submitted(name="wants", gpus=4)
    old = Cause(code=CauseCode.NO_ROOM, sentence="wants 4 GPUs on one node; 3 were free once")
    await world.go(wants, JobEvent.WAITING, cause=old)
    for node_id in ("node-1", "node-2"):
        await world.running(placement=placement((node_id, 0), (node_id, 1)))
    waiting = (await world.alice.job("wants")).waiting_for
    assert waiting is not None
    listed = (await world.alice.jobs(name="wants")).jobs[0].waiting_for
    seen = next(job.waiting_for for job in (await world.alice.cluster()).queued if job.name == "wants")
    assert waiting == listed == seen
    assert waiting.sentence == (await world.alice.explain("wants")).sentence
    assert "were free once" not in waiting.sentence


async def test_a_drained_node_with_room_is_explained_with_who_drained_it_and_when(world: World) -> None:
    node_2 = next(node for node in await world.place.stores.gateway.nodes() if node.id == "node-2")
    drained = structs.replace(node_2, drain=Drain())
    await world.place.stores.scheduler.save_node(world.lease, drained, event="drained", cause="drained by ops")
    wants = await world.submitted(name="wants", gpus=3)
    await world.running(placement=placement(("node-1", 0), ("node-1", 1)))
    told = await world.admin.explain(wants.id)
    assert "node-2 has 4 free GPUs, but is drained (`weft resume node-2`)" in told.sentence
    (closed,) = told.closed
    assert (closed.node_id, closed.by) == ("node-2", "ops")
    assert closed.since is not None
    assert (await world.alice.explain(wants.id)).closed[0].by == ""


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"reason": "x" * 201}, "reason"),
        ({"reason": "\x1b[31mred"}, "reason"),
        ({"until": 1.0}, "until"),
        ({"until": 1e300}, "until"),
    ],
)
async def test_a_drain_that_makes_no_sense_is_refused_by_its_field_and_changes_nothing(
    world: World, said: dict[str, Any], field: str
) -> None:
    with pytest.raises(Refused, match=field):
        await world.admin.drain("node-1", **said)
    assert not await world.place.stores.scheduler.asks(pool="default", limit=1)


async def test_a_node_that_does_not_report_is_silent_before_it_is_lost(world: World) -> None:
    node_1 = next(node for node in await world.place.stores.gateway.nodes() if node.id == "node-1")
    silent = structs.replace(node_1, seen_at=time.time() - 45)
    await world.place.stores.scheduler.save_node(world.lease, silent, event="changed", cause="")
    (view,) = [node for node in (await world.admin.nodes()).nodes if node.id == "node-1"]
    assert 40 < view.silent_seconds < 60
    job = await world.running()
    assert "node-1 has been silent for" in (await world.alice.explain(job.id)).sentence


async def test_a_job_that_shares_a_gpu_is_explained_by_what_it_got_and_who_is_beside_it(world: World) -> None:
    def where(request: int) -> Placement:
        made = placement(("node-1", 0))
        share = Share(request=request, memory=4 * GIB, kind="training")
        return structs.replace(made, allocations=tuple(structs.replace(each, share=share) for each in made.allocations))

    mine, friend = [await world.running(placement=where(request)) for request in (300, 500)]
    run = RunSample(
        job_id=mine.id,
        epoch=mine.epoch,
        rank=0,
        source="cgroup2",
        share=ShareSample(gpu_uuid="EMULATED-0", request=0.3, limit=1.0, used=0.45, borrowed=0.15),
    )
    host = HostSample(cpus=64, memory_total=GIB, memory_used=0)
    sample = NodeSampled(node_id="node-1", pool="default", at=time.time(), host=host, runs=(run,))
    async with world.place.bus("telemetry-node-1") as telemetry, asyncio.timeout(SECONDS_MAX):
        while (seen := (await world.alice.explain(mine.id)).shares[0]).got is None:
            await telemetry.publish(sample)
    assert (seen.share.request, seen.share.memory, seen.got, seen.enforced) == (300, 4 * GIB, run.share, True)
    assert [(each.job_id, each.share.request) for each in seen.beside] == [(friend.id, 500)]
    told = {who: (await client.gpus()).gpus[0] for who, client in (("alice", world.alice), ("bob", world.bob))}
    holders = {
        who: [(one.job_id, one.share.request, one.used) for one in gpu.sharing if one.share is not None]
        for who, gpu in told.items()
    }
    assert holders["alice"] == [(friend.id, 500, None), (mine.id, 300, 0.45)]
    assert holders["bob"] == [(friend.id, 500, None), (mine.id, 300, None)]
    (beside,) = (await world.alice.explain(friend.id)).shares[0].beside
    assert (beside.job_id, beside.used) == (mine.id, 0.45)
    assert (await world.alice.explain((await world.alice.submit(spec("waits"))).id)).shares == ()
