"""The events that a gateway tells, page by page and as they come, over a real Postgres and a real NATS."""

import asyncio
import time
from collections.abc import AsyncIterator

import msgspec
import pytest

from tests.support.builders import spec
from tests.support.gateway import (
    until,
)
from tests.support.gateway_world import SECONDS_MAX, World, error_of
from weft.client import Client
from weft.domain.job import Job, JobEvent, Revision
from weft.messages.http import EventView
from weft.store import EVENTS_BYTES_MAX


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


async def large_updates(world: World, count: int, letters: int) -> Job:
    """A job of alice's with large events, as a tenant's updates of a service make them."""
    job = await world.running()
    for number in range(count):
        revisions = (Revision(number=number + 1, image=f"{number:4}" + "x" * letters),)
        job = await world.go(job, JobEvent.UPDATED, revisions=revisions)
    return job


@pytest.mark.parametrize("path", ["/v1/events?limit=1000", "/v1/events?limit=1000&after=0-0", "/v1/jobs/{job}/events"])
async def test_a_list_of_events_is_a_page_of_bounded_bytes_that_leads_to_the_next(world: World, path: str) -> None:
    """Six such lists at once had 80 MB each: one tenant's lists filled the gateway's memory."""
    each = 300_000
    job = await large_updates(world, 20, each)
    link, seen, sizes = path.format(job=job.id), [], []
    while link:
        status, answer, headers = await world.ask("GET", link)
        assert status == 200
        page = msgspec.json.decode(answer, type=list[EventView])
        sizes.append(len(answer))
        seen.append([event.id for event in page])
        link = headers["Link"].partition(">")[0].removeprefix("<") if "Link" in headers else ""
    assert max(sizes) < EVENTS_BYTES_MAX + 2 * each
    assert len(sizes) > 2
    ids = [one for page in (reversed(seen) if "limit" in path and "after" not in path else seen) for one in page]
    assert ids == [event.id for event in await world.alice.story(job.id)]
    assert len(ids) == 24


async def test_clients_follow_the_pages_and_a_stream_tells_a_long_story_to_its_end(world: World) -> None:
    job = await large_updates(world, 12, 300_000)
    every = await world.alice.events(limit=1000)
    assert every == await world.alice.events(after="0-0", limit=1000) == await world.alice.story(job.id)
    assert await world.alice.events(limit=10) == await world.alice.story(job.id, limit=10) == every[-10:]
    assert await world.alice.events(after="0-0", limit=10) == every[:10]
    job = await world.go(job, JobEvent.FAILED, JobEvent.REQUEUED, JobEvent.CANCELLED)
    told = [event.data.version async for event in world.alice.follow_events(job=job.id)]
    assert told == list(range(1, job.version + 1))


async def test_a_cursor_that_leads_back_goes_neither_with_one_that_leads_on_nor_with_a_stream(world: World) -> None:
    for query in ("before=1-1&after=1-1", "before=now&follow=1", "before=x"):
        status, answer, _ = await world.ask("GET", f"/v1/events?{query}")
        assert (status, error_of(answer)[0]) == (400, "before"), query


async def test_events_are_read_by_pages_of_a_cursor(world: World) -> None:
    for _ in range(5):
        await world.alice.submit(spec())
    every = await world.alice.events(limit=100)
    assert len(every) == 5
    assert (await world.alice.events(limit=2)) == every[-2:]
    assert (await world.alice.events(after=every[1].cursor, limit=2)) == every[2:4]
    types = {event.type for event in await world.admin.events(limit=100)}
    assert types == {"weft.jobs.submitted", "weft.nodes.joined"}
