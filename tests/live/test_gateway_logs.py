"""Logs by way of a gateway, from the nodes that have them, over a real Postgres and a real NATS."""

import asyncio

from msgspec import structs

from tests.support.builders import node
from tests.support.gateway import (
    until,
)
from tests.support.gateway_world import SECONDS_MAX, World, error_of
from tests.support.steps import placement
from weft.client import Gap
from weft.domain.job import Cause, CauseCode, JobEvent, Placement


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


async def test_the_log_of_a_rank_that_left_is_read_by_its_number(world: World) -> None:
    job = await world.running(
        role={"replicas": {"want": 1, "max": 4}}, resize={"how": "live"}, placement=placement(("node-1", 0))
    )
    first, second = placement(("node-1", 0), ("node-2", 0)).allocations
    for number, rank in enumerate((1, 2), 1):
        joined = structs.replace(second, rank=rank, extra=True)
        grown = Placement(allocations=(first, joined), ranks_used=rank + 1, changes=2 * number - 1)
        shrunk = Placement(allocations=(first,), ranks_used=rank + 1, changes=2 * number)
        job = await world.go(job, JobEvent.RESIZED, placement=grown)
        await world.nodes["node-2"].write(job.id, b"of rank %d" % rank, rank=rank, end=True)
        if rank == 1:
            job = await world.go(job, JobEvent.RESIZED, placement=shrunk)
    assert await world.alice.read_log(job.id, rank=1) == b"of rank 1"
    assert await world.alice.read_log(job.id, rank=2) == b"of rank 2"
    assert await world.alice.read_log(job.id, rank=2, role="worker") == b"of rank 2"
    job = await world.go(job, JobEvent.RESIZED, placement=Placement(allocations=(first,), ranks_used=3, changes=4))
    assert await world.alice.read_log(job.id, rank=2) == b"of rank 2"
    found, answer, _ = await world.ask("GET", f"/v1/jobs/{job.id}/logs?rank=3")
    assert (found, error_of(answer)) == (404, ("rank", f"epoch 0 of {job.id} has the ranks 0 to 2"))
    job = await world.go(job, JobEvent.SUCCEEDED, exit_code=0)
    assert await world.alice.read_log(job.id, rank=1) == b"of rank 1"


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


async def test_the_log_of_a_job_that_never_started_is_refused_with_the_reason(world: World) -> None:
    placed = await world.go(await world.submitted(name="typo"), JobEvent.PLACED, placement=placement(("node-1", 0)))
    cause = Cause(code=CauseCode.START_FAILED, sentence="could not start: command not found: pyhton")
    failed = await world.go(placed, JobEvent.FAILED, cause=cause)
    found, answer, _ = await world.ask("GET", f"/v1/jobs/{failed.id}/logs")
    assert found == 404
    assert error_of(answer) == ("epoch", "typo never started in epoch 0: command not found: pyhton")
    again = await world.go(failed, JobEvent.REQUEUED, cause=Cause(code=CauseCode.REQUEUE_ASKED))
    found, answer, _ = await world.ask("GET", f"/v1/jobs/{again.id}/logs?epoch=0")
    assert error_of(answer)[1] == "typo never started in epoch 0: command not found: pyhton"


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
