"""How things were is folded from what was told: it is what is stored, and at any moment what was stored then."""

import math

import pytest

from tests.support.doubles.store import MemoryStore
from tests.support.lives import Life
from tests.support.story import tell_everything
from tests.support.tier import some
from weft.domain.cluster import Node
from weft.domain.job import Job
from weft.store.accounts import Moment
from weftd.gateway.errors import RejectedError
from weftd.gateway.readmodel.event_history import job_at
from weftd.gateway.readmodel.past import Past, job_then, moment_of, past_of

NOW = 1_800_000_000.0


async def everything(life: Life) -> tuple[list[Job], list[Node]]:
    return await life.store.jobs(tenant=None, limit=100_000), await life.store.nodes()


async def looked_back(life: Life, moment: Moment) -> Past:
    told = await life.store.told_until(moment)
    ids = dict.fromkeys(event.subject_id for event in told if event.topic == "jobs")
    return past_of(told, await life.store.jobs_of(list(ids)), moment)


async def then(store: MemoryStore, job: Job, moment: Moment) -> Job:
    found = await job_at(store, job, moment)
    assert found is not None
    return found[0]


def facts(node: Node) -> tuple[object, ...]:
    """What events tell of a node; when it was heard of last they do not."""
    return node.id, node.pool, node.address, node.capacity, node.runtime, node.ready, node.drain


@pytest.mark.parametrize("seed", some(4, range(20)))
async def test_all_events_of_a_job_together_are_the_job_as_it_is(seed: int) -> None:
    life = Life(seed)
    await life.live(150)
    jobs, _ = await everything(life)
    assert jobs
    for job in jobs:
        assert job_then(job, await life.store.story(job.id)) == job


@pytest.mark.parametrize("seed", some(2, range(8)))
async def test_what_was_at_a_moment_is_what_was_stored_then(seed: int) -> None:
    life = Life(100 + seed)
    seen: list[tuple[Moment, list[Job], list[Node]]] = []
    for _ in range(12):
        await life.live(12)
        jobs, nodes = await everything(life)
        newest = await life.store.events(newest=True, limit=1)
        if newest:
            seen += [
                (moment, jobs, nodes) for moment in (Moment(at=life.now + 0.001), Moment(cursor=newest[-1].cursor))
            ]
        life.now += 1.0
    assert len(seen) > 10
    for moment, jobs, nodes in seen:
        past = await looked_back(life, moment)
        assert list(past.jobs) == [job for job in reversed(jobs) if not job.state.final]
        assert [facts(node) for node in past.nodes] == [facts(node) for node in nodes]
        for job in jobs:
            assert await then(life.store, job, moment) == job


async def test_a_job_that_changed_its_size_is_then_what_it_was_after_each_event() -> None:
    store = MemoryStore()
    events = await tell_everything(store, store)
    seen: dict[str, list[tuple[str, int, dict[str, int], bool, int]]] = {}
    for job_id in ("j-2e6n", "j-8h1r"):
        job = await store.job(job_id)
        assert job is not None
        story = await store.story(job_id)
        assert job_then(job, story) == job
        for event in story:
            was = await then(store, job, Moment(cursor=event.cursor))
            known = was.state, sum(was.granted.values()), was.size, was.next_placement is not None, was.gpus_held
            seen.setdefault(job_id, []).append(known)
    assert seen["j-2e6n"][3:] == [
        ("running", 1, {}, False, 1),
        ("running", 1, {"worker": 2}, False, 1),
        ("running", 2, {"worker": 2}, False, 2),
        ("succeeded", 2, {"worker": 2}, False, 2),
    ]
    assert seen["j-8h1r"][4:7] == [
        ("running", 1, {"worker": 2}, False, 1),
        ("stopping", 1, {"worker": 2}, True, 2),
        ("placed", 2, {"worker": 2}, False, 2),
    ]
    assert events


async def test_before_anything_was_told_there_was_nothing() -> None:
    life = Life(1)
    await life.live(30)
    assert await looked_back(life, Moment(at=1.0)) == Past(at=1.0, nodes=(), jobs=())


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("1700000000.5", Moment(at=1_700_000_000.5)),
        ("2023-11-14T22:13:20Z", Moment(at=1_700_000_000.0)),
        ("2023-11-14T23:13:20+01:00", Moment(at=1_700_000_000.0)),
        ("2023-11-14 22:13:20", Moment(at=1_700_000_000.0)),
        ("12-34", Moment(cursor="12-34")),
    ],
)
def test_a_moment_is_a_time_or_a_cursor(text: str, moment: Moment) -> None:
    assert moment_of(text, now=NOW) == moment


@pytest.mark.parametrize("text", ["yesterday", "", "nan", "inf", "-5", "1e30", f"{NOW + 3600}", "9999-12-31", "1-"])
def test_what_is_no_moment_or_has_not_come_is_refused(text: str) -> None:
    with pytest.raises(RejectedError) as refused:
        moment_of(text, now=NOW)
    assert (refused.value.status, refused.value.field) == (400, "at")


def test_a_cursor_has_no_time_of_its_own() -> None:
    assert moment_of("1-2", now=NOW).at == math.inf
