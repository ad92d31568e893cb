"""The queue by parts, in the current order, over a real Postgres and NATS: every filter, and nothing of others."""

import asyncio
import time
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from tests.support.builders import spec
from tests.support.filled import fill_queued
from tests.support.gateway import admitted
from tests.support.gateway_world import SECONDS_MAX, World, error_of
from tests.support.steps import placement
from weft.client import Refused
from weft.domain.job import CauseCode, Job, JobEvent, JobState
from weft.messages.live import LiveDelta, LiveSnapshot, QueueView


async def of(world: World, tenant: str, **fields: Any) -> Job:
    client = {"alice": world.alice, "bob": world.bob}[tenant]
    submitted = await client.submit(spec(**fields))
    return await admitted(world.place, world.lease, submitted.id)


async def test_jobs_are_in_the_order_in_which_they_are_served(world: World) -> None:
    low = await of(world, "alice", name="low")
    others = await of(world, "bob", name="others", priority=5)
    high = await of(world, "alice", name="high", priority=7)
    queue = await world.alice.queue()
    assert [(row.id, row.place) for row in queue.rows] == [(high.id, 1), (low.id, 3)]
    assert (queue.total, queue.order) == (2, "priority")
    every = await world.admin.queue()
    assert [row.id for row in every.rows] == [high.id, others.id, low.id]
    for row in every.rows:
        assert row.place == (await world.admin.explain(row.id)).ahead + 1
    await world.place.stores.owner.execute("INSERT INTO policies VALUES ('default', 'fifo+packed+easy')")
    async with asyncio.timeout(SECONDS_MAX):
        # An order is at most a second old, and so are the snapshots that it is made from.
        while (queue := await world.admin.queue()).order != "fifo":  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert [row.id for row in queue.rows] == [low.id, others.id, high.id]


async def test_a_tenant_learns_nothing_of_anothers_jobs_but_that_they_are_ahead(world: World) -> None:
    secret = {"name": "secret-name", "labels": {"secret-label": "secret-value"}, "priority": 9}
    waits = await of(world, "alice", **secret)
    runs = await world.running(name="secret-runs")
    over = await world.go(await world.submitted(name="secret-over"), JobEvent.CANCELLED)
    mine = await of(world, "bob", name="mine")
    states = ",".join(JobState)
    for query in ("", f"state={states}", "text=secret", "label=secret-label%3Dsecret-value", f"text={waits.id}"):
        status, body, _ = await world.ask("GET", f"/v1/queue?{query}", token="bob")
        assert status == 200
        for word in (b"secret", b"alice", *(job.id.encode() for job in (waits, runs, over))):
            assert word not in body, (query, word)
    (row,) = (await world.bob.queue()).rows
    assert (row.id, row.place) == (mine.id, 2)
    status, body, _ = await world.ask("GET", "/v1/queue?tenant=alice", token="bob")
    assert (status, error_of(body)[0]) == (403, "tenant")


async def test_each_filter_lets_through_what_it_says(world: World) -> None:
    plain = await of(world, "alice", name="plain")
    served = await of(world, "alice", name="Server".lower(), kind="notebook", labels={"team": "vision", "run": "a=b"})
    bobs = await of(world, "bob", name="plain-of-bob")
    runs = await world.running(name="runs")
    over = await world.go(await world.submitted(name="over"), JobEvent.CANCELLED)

    async def ids(**query: Any) -> list[str]:
        return [row.id for row in (await world.admin.queue(**query)).rows]

    assert await ids() == [plain.id, served.id, bobs.id]
    assert await ids(tenant="bob") == [bobs.id]
    assert await ids(kind="notebook") == [served.id]
    assert await ids(label="team=vision") == await ids(label="run=a=b") == [served.id]
    assert await ids(label="team=") == await ids(label="team=visio") == await ids(pool="elsewhere") == []
    assert await ids(text="PLAIN") == [plain.id, bobs.id]
    assert await ids(text=plain.id) == [plain.id]
    assert await ids(text="plain", tenant="alice", kind="training") == [plain.id]
    assert await ids(states=[JobState.RUNNING]) == [runs.id]
    assert await ids(states=[JobState.CANCELLED, JobState.QUEUED, JobState.RUNNING], tenant="alice") == [
        runs.id,
        plain.id,
        served.id,
        over.id,
    ]
    (row,) = (await world.admin.queue(states=[JobState.CANCELLED])).rows
    assert row.place is None
    assert row.sentence


async def test_parts_of_the_queue_make_it_whole(world: World) -> None:
    jobs = [await of(world, "alice", name=f"j{index}") for index in range(7)]
    found: list[str] = []
    while True:
        part = await world.alice.queue(offset=len(found), limit=3)
        assert part.total == 7
        if not part.rows:
            break
        found += [row.id for row in part.rows]
    assert found == [job.id for job in jobs]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=201", "limit"),
        ("limit=x", "limit"),
        ("offset=-1", "offset"),
        ("offset=99999999999999999999999", "offset"),
        ("state=dreaming", "state"),
        ("kind=dreaming", "kind"),
        ("label=team", "label"),
        ("label=" + "x" * 401, "label"),
        ("text=" + "x" * 201, "text"),
        ("tenant=Not-A-Name", "tenant"),
        ("pool=%00", "pool"),
        ("text=a&text=b", "text"),
        ("sort=name", "sort"),
    ],
)
async def test_a_bad_filter_is_named_in_one_error(world: World, query: str, field: str) -> None:
    status, body, headers = await world.ask("GET", f"/v1/queue?{query}", token="admin")
    assert (status, error_of(body)[0]) == (400, field)
    assert headers["Content-Type"] == "application/problem+json"
    problem = msgspec.json.decode(body)
    assert (problem["type"], problem["title"], problem["status"]) == ("about:blank", "Bad Request", 400)
    assert problem["detail"] == f"{field}: {problem['error']['reason']}"


@pytest.mark.parametrize("text", ["\x00", "💩" * 50, "%", "_%", "'; drop table jobs; --", "\\", "<b>", "\ud800"])
async def test_an_odd_text_is_looked_for_and_does_no_harm(world: World, text: str) -> None:
    job = await of(world, "alice")
    asked = quote(text.encode("utf-8", "surrogatepass"))
    status, body, _ = await world.ask("GET", f"/v1/queue?text={asked}")
    assert status in (200, 400)
    assert status == 400 or not msgspec.json.decode(body, type=QueueView).rows
    assert (await world.alice.queue()).rows[0].id == job.id


async def test_a_reply_is_small_however_large_the_jobs_labels_are(world: World) -> None:
    labels = {f"label-{index:02}": "ü" * 253 for index in range(64)}
    for index in range(40):
        await world.alice.submit(spec(f"j{index}", labels=labels))
    await world.place.stores.scheduler.admit(world.lease, load=0, pool="default", limit=1000)
    status, body, _ = await world.ask("GET", "/v1/queue?limit=200")
    assert status == 200
    assert len(body) <= 200_000
    view = msgspec.json.decode(body, type=QueueView)
    assert view.total == 40
    assert 1 <= len(view.rows) < 40
    rest = await world.alice.queue(offset=len(view.rows), limit=200)
    assert rest.rows[0].place == len(view.rows) + 1


async def test_a_job_that_waits_before_its_next_try_says_so_and_is_ahead_of_none(world: World) -> None:
    tried = await world.go(await of(world, "alice", name="tried"), JobEvent.PLACED, placement=placement(("node-1", 0)))
    await world.go(tried, JobEvent.REQUEUED, not_before=time.time() + 3600, attempts=1)
    behind = await of(world, "alice", name="behind")
    first, second = (await world.alice.queue()).rows
    assert (first.id, first.code, first.place) == (tried.id, CauseCode.BACKOFF, 1)
    assert "before it is tried again (try 2)" in first.sentence
    assert (second.id, second.place) == (behind.id, 1)


async def test_no_reason_contradicts_the_room_as_it_is(world: World) -> None:
    """The reason that is stored is of the time when it was found: by now there may be room."""
    for index in range(2):
        await world.go(await of(world, "alice", name=f"w{index}"), JobEvent.WAITING)
    rows = (await world.alice.queue()).rows
    placed = ("fits", "it fits, and is placed in the next cycle")
    assert [(row.code, row.sentence) for row in rows] == [placed, placed], "there is room for both"


async def test_a_waiting_job_has_an_estimate_of_its_start(world: World) -> None:
    eight = placement(*((f"node-{node}", gpu) for node in (1, 2) for gpu in range(4)))
    runs = await world.running(replicas=8, placement=eight, time_limit="1h")
    await of(world, "alice", name="waits", gpus=4)
    (row,) = (await world.alice.queue()).rows
    assert row.eta is not None
    assert row.eta.latest is not None
    assert runs.started_at is not None
    assert time.time() < row.eta.latest < runs.started_at + 3600 + 600


async def test_twenty_thousand_jobs_are_shown_part_by_part_and_hold_no_other_request_up(world: World) -> None:
    """The bounds are wide: other tests run beside this one."""
    await fill_queued(world.place.stores.owner, 20_000, at=time.time())
    slowest, stop = 0.0, asyncio.Event()

    async def look() -> None:
        nonlocal slowest
        while not stop.is_set():
            began = time.monotonic()
            async with world.http.get(f"{world.gateway.url}/healthz") as answer:
                assert answer.status == 200
            slowest = max(slowest, time.monotonic() - began)
            await asyncio.sleep(0.05)

    looking = asyncio.create_task(look())
    async with aclosing(world.admin.live()) as stream:  # a page is open first, and does not wait for all of them
        shown: LiveSnapshot | LiveDelta | None = None
        while shown is None or not shown.states or shown.states.get("queued") != 20_000:
            shown = await asyncio.wait_for(anext(stream), 60)
    first = await world.admin.queue(limit=200)  # reads all of them
    assert (first.total, len(first.rows)) == (20_000, 200)
    assert [row.place for row in first.rows] == list(range(1, 201))
    began = time.monotonic()
    for offset in range(0, 20_000, 2000):
        part = await world.admin.queue(offset=offset, limit=200)
        assert part.rows[0].place == offset + 1
    assert (await world.admin.queue(text="new-19999")).total == 1
    assert (await world.admin.queue(tenant="beta")).total == 200
    took = time.monotonic() - began
    stop.set()
    await looking
    assert took < 12.0, "a part takes seconds"
    assert slowest < 3.0, "others waited"


async def test_without_the_store_it_says_when_to_ask_again(world: World) -> None:
    world.gateway.store.away = True
    async with world.gateway.client(world.tokens["alice"], retry_seconds=0.0) as impatient:
        with pytest.raises(Refused) as refused:
            await impatient.queue()
    assert refused.value.status == 503
    world.gateway.store.away = False
    assert (await world.alice.queue()).total == 0
