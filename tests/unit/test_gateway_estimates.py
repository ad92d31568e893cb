"""What the gateway keeps for its estimates: durations of ended jobs, and earlier estimates against what came true."""

from collections import Counter
from typing import Any, cast

import pytest
from msgspec import structs

from tests.support import builders
from tests.support.doubles.store import MemoryStore
from tests.support.steps import go, placement
from tests.support.stores import AT, World
from weft.domain.job import Job, JobEvent, JobState
from weft.domain.spec import Role
from weft.messages.eta import Basis, Estimate, EtaOf
from weft.messages.nodes import ProgressSeen, RunProgressed
from weft.planning import in_order
from weft.planning.eta.learnt import kinds_of
from weft.planning.eta.record import Range
from weft.planning.eta.starts import Foreseen
from weft.planning.resource_request import ResourceRequest
from weftd.gateway.readmodel.cluster import LiveCluster
from weftd.gateway.readmodel.estimates import AGAIN_SECONDS, DURATIONS_SECONDS, Estimates
from weftd.gateway.readmodel.snapshots import Snapshots

_E = JobEvent
RANGE = Range(10.0, 20.0, 30.0)
FORESEEN = Foreseen(
    Estimate(of=EtaOf.START, basis=Basis.LEARNT, sentence="starts in about 20s", likely=AT + 20), RANGE, RANGE
)


class Rig:
    """A gateway's foresight over a store in memory, with a clock that the test turns."""

    def __init__(self) -> None:
        store = MemoryStore()
        self.world = World(*(store for _ in World.__struct_fields__))
        self.at = AT
        self.cluster = LiveCluster(clock=lambda: self.at)
        self.foresight = Estimates(self.world.gateway, self.cluster, now=lambda: self.at, clock=lambda: self.at)

    async def later(self, seconds: float = DURATIONS_SECONDS) -> None:
        """So much later, with all that is stored by then looked at."""
        self.at += seconds
        await self.foresight.durations("default")


async def _ran(rig: Rig, *job_ids: str, seconds: float) -> list[Job]:
    lease = await rig.world.lead()
    jobs: list[Job] = []
    for number, job in enumerate(await rig.world.admitted(lease, *job_ids)):
        where = placement(("node-1", number))
        job = await go(rig.world.scheduler, lease, job, _E.PLACED, at=rig.at, placement=where)
        job = await go(rig.world.scheduler, lease, job, _E.STARTING, at=rig.at)
        job = await go(rig.world.scheduler, lease, job, _E.STARTED, at=rig.at)
        jobs.append(await go(rig.world.scheduler, lease, job, _E.SUCCEEDED, at=rig.at + seconds, exit_code=0))
    return jobs


async def test_how_long_jobs_lasted_is_learnt_once_of_each_as_they_end() -> None:
    rig = Rig()
    first = await _ran(rig, "j-1", "j-2", "j-3", seconds=60.0)
    await rig.later()
    assert (await rig.foresight.durations("default")).count == 3
    found = (await rig.foresight.durations("default")).beside([]).left(kinds_of(first[0]), 0.0)
    assert found is not None
    assert found.at(0.5) == 60.0
    await rig.later()
    assert (await rig.foresight.durations("default")).count == 3
    assert (await rig.foresight.durations("other")).count == 0


async def test_what_an_explanation_rests_on_is_there_before_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, read = Rig(), Counter[str]()
    store = cast(MemoryStore, rig.world.gateway)
    resource_request, ended = in_order.resource_request_of_job, store.ended_last

    def counting(job: Job) -> ResourceRequest:
        read[job.id] += 1
        return resource_request(job)

    async def ended_last(**asked: Any) -> list[str]:
        read["ended"] += 1
        return await ended(**asked)

    monkeypatch.setattr(in_order, "resource_request_of_job", counting)
    monkeypatch.setattr(store, "ended_last", ended_last)
    await _ran(rig, "j-1", seconds=60.0)
    await rig.world.admitted(await rig.world.lead(), "j-2", "j-3")
    snapshots = Snapshots(store, clock=lambda: rig.at, default_pool="default", volumes_allowed=(), shares=True)
    await rig.foresight.prepare(snapshots)
    assert read == {"ended": 1, "j-2": 1, "j-3": 1}
    rig.at += 2.0  # what was read of the store is too old by now
    assert (await rig.foresight.durations("default")).count == 1
    places = snapshots.places("default", await store.policy(pool="default"))
    waiting = await snapshots.queued("default")
    assert [job.id for _, job in places.of(waiting, rig.at)] == ["j-2", "j-3"]
    assert read == {"ended": 1, "j-2": 1, "j-3": 1}


async def test_what_takes_long_to_work_out_is_worked_out_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, asked = Rig(), Counter[str]()
    store = cast(MemoryStore, rig.world.gateway)
    queued = store.queued_jobs

    async def slowly(**named: Any) -> list[Job]:
        asked["queued"] += 1
        rig.at += 0.5
        return await queued(**named)

    monkeypatch.setattr(store, "queued_jobs", slowly)
    snapshots = Snapshots(store, clock=lambda: rig.at, default_pool="default", volumes_allowed=(), shares=True)
    for _ in range(40):
        await rig.foresight.prepare(snapshots)
        rig.at += 1.0
    assert asked["queued"] == 3


async def test_an_estimate_is_held_against_what_came_true() -> None:
    rig = Rig()
    lease = await rig.world.lead()
    held, missed, open_still = await rig.world.admitted(lease, "j-1", "j-2", "j-3")
    for job in (held, missed, open_still):
        rig.foresight.told(job, FORESEEN)
    await go(rig.world.scheduler, lease, held, _E.PLACED, at=AT + 15, placement=placement(("node-1", 0)))
    await go(rig.world.scheduler, lease, missed, _E.PLACED, at=AT + 90, placement=placement(("node-1", 1)))
    await rig.later()
    track = rig.foresight.records("default").of(EtaOf.START, Basis.LEARNT)
    assert track.record is not None
    assert (track.record.estimates, track.record.inside) == (2, 1)
    assert [key.id for key in track.pending] == ["j-3"]


async def test_a_job_that_is_cancelled_while_it_waits_judges_no_estimate() -> None:
    rig = Rig()
    lease = await rig.world.lead()
    (job,) = await rig.world.admitted(lease, "j-1")
    rig.foresight.told(job, FORESEEN)
    await go(rig.world.scheduler, lease, job, _E.CANCELLED, at=AT + 5)
    await rig.later()
    track = rig.foresight.records("default").of(EtaOf.START, Basis.LEARNT)
    assert (track.record, track.pending) == (None, [])


async def test_asking_often_makes_no_more_of_the_record() -> None:
    rig = Rig()
    lease = await rig.world.lead()
    (job,) = await rig.world.admitted(lease, "j-1")
    for _ in range(50):
        rig.foresight.told(job, FORESEEN)
        rig.at += 1.0
    assert rig.at - AT < AGAIN_SECONDS
    await go(rig.world.scheduler, lease, job, _E.PLACED, at=rig.at, placement=placement(("node-1", 0)))
    await rig.later()
    track = rig.foresight.records("default").of(EtaOf.START, Basis.LEARNT)
    assert track.record is not None
    assert track.record.estimates == 1


async def test_a_sure_bound_is_not_judged() -> None:
    rig = Rig()
    lease = await rig.world.lead()
    (job,) = await rig.world.admitted(lease, "j-1")
    assert job.state is JobState.QUEUED
    rig.foresight.told(job, Foreseen(FORESEEN.estimate))
    assert rig.foresight.records("default").of(EtaOf.START, Basis.LEARNT).pending == []


async def test_the_steps_of_a_job_are_those_of_the_roles_whose_end_is_its_own() -> None:
    rig = Rig()
    places = placement(("node-1", 0), ("node-1", 1))
    helper, worker = places.allocations
    roles = structs.replace(places, allocations=(structs.replace(helper, role="ps"), worker))
    made = builders.job(spec={"roles": {"ps": Role(), "worker": Role()}, "done_when": "worker"}, placement=roles)
    ranks = [
        RunProgressed(job_id=made.id, epoch=0, rank=rank, progress={"step": step, "steps": 100.0})
        for rank, step in ((0, 1.0), (1, 50.0))
    ]
    await rig.cluster.hear_progress(ProgressSeen(node_id="node-1", runs=tuple(ranks)))
    assert rig.foresight.steps([made])[made.id].step == 50
    either = structs.replace(made, spec=structs.replace(made.spec, done_when=None))
    assert rig.foresight.steps([either])[made.id].step == 1
