"""The queue and the history of a real cluster as a trace."""

import csv
import io
import time

import pytest

from tests.support.builders import spec
from tests.support.gateway_world import World
from weft.client import Refused
from weft.domain.job import JobEvent


async def rows(world: World, seconds: int | None = None) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((await world.admin.trace(seconds=seconds)).decode())))


async def test_a_trace_has_what_ended_what_runs_and_what_waits_each_once(world: World) -> None:
    over = await world.running(name="over")
    await world.go(over, JobEvent.SUCCEEDED)
    holds = await world.running(name="holds")
    waits = await world.submitted(name="waits", gpus=2)
    found = {row["id"]: row for row in await rows(world)}
    assert set(found) == {over.id, holds.id, waits.id}
    assert (found[over.id]["state"], found[over.id]["basis"]) == ("succeeded", "ended")
    assert (found[holds.id]["state"], found[waits.id]["gpus"]) == ("running", "2")
    assert float(found[waits.id]["remaining_s"]) > 0
    assert float(found[over.id]["ended_s"]) >= float(found[over.id]["started_s"]) >= 0


async def test_a_trace_goes_back_as_far_as_it_is_asked_to_and_has_all_that_is_open(world: World) -> None:
    over = await world.running(name="over")
    await world.go(over, JobEvent.SUCCEEDED)
    waits = await world.submitted(name="waits")
    time.sleep(1.1)  # noqa: ASYNC251 - nothing else runs here; seconds are the least that may be asked for
    assert [row["id"] for row in await rows(world, seconds=1)] == [waits.id]


async def test_only_an_administrator_gets_a_trace_and_a_wrong_query_is_named(world: World) -> None:
    await world.alice.submit(spec("theirs"))
    with pytest.raises(Refused) as refused:
        await world.alice.trace()
    assert refused.value.status == 403
    for query, field in (("pool=nowhere", "pool"), ("seconds=0", "seconds"), ("seconds=1e99", "seconds"), ("x=1", "x")):
        status, body, _ = await world.ask("GET", f"/v1/trace?{query}", token="admin")
        assert status in (400, 404), query
        assert f'"field":"{field}"'.encode() in body, (query, body)
