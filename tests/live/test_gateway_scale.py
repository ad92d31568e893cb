"""Another size for a job, over a real Postgres and a real NATS: what is stored, what is refused, and what is shown."""

import asyncio
import io
import json
from collections import Counter
from typing import Any

import pytest
from msgspec import structs

from tests.support.gateway_world import World, error_of
from tests.support.steps import placement
from weft.client import Refused
from weft.domain.decoding.spec_decoder import SPEC_BYTES_MAX
from weft.domain.job import Cause, CauseCode, JobEvent
from weft.domain.spec import ResizeHow
from weft.messages.asks import AskKind, Scale

RANGE = {"replicas": {"min": 1, "want": 2, "max": 4}}
LIVE = {"role": RANGE, "resize": {"how": "live"}}
TWO = placement(("node-1", 0), ("node-1", 1))


async def asks(world: World) -> list[tuple[AskKind, str, str, Scale | None]]:
    return [(ask.kind, ask.subject_id, ask.tenant, ask.scale) for ask in await world.take_asks()]


async def test_the_size_that_is_asked_for_is_stored_for_the_scheduler(world: World) -> None:
    job = await world.running(placement=TWO, **LIVE)
    accepted = await world.alice.scale(job.id, {"worker": 4})
    assert (accepted.id, accepted.ask, accepted.state) == (job.id, AskKind.SCALE, "running")
    assert (await world.alice.scale(job.id, {"worker": 4})) == accepted
    await world.admin.scale(job.id, {"worker": 1})
    assert await asks(world) == [
        (AskKind.SCALE, job.id, "alice", Scale(size={"worker": 4})),
        (AskKind.SCALE, job.id, "alice", Scale(size={"worker": 4})),
        (AskKind.SCALE, job.id, "admin", Scale(size={"worker": 1})),
    ]


BODIES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", ""),
    "no object": (b"[]", ""),
    "no size": (b"{}", "size"),
    "an empty size": (b'{"size": {}}', "size"),
    "no mapping": (b'{"size": 4}', "size"),
    "an unknown field": (b'{"size": {"worker": 2}, "x": 1}', "x"),
    "an unknown role": (b'{"size": {"ps": 2}}', "size.ps"),
    "beyond its max": (b'{"size": {"worker": 5}}', "size.worker"),
    "nought": (b'{"size": {"worker": 0}}', "size.worker"),
    "negative": (b'{"size": {"worker": -1}}', "size.worker"),
    "a part": (b'{"size": {"worker": 2.5}}', "size.worker"),
    "a text": (b'{"size": {"worker": "2"}}', "size.worker"),
    "null": (b'{"size": {"worker": null}}', "size.worker"),
    "true": (b'{"size": {"worker": true}}', "size.worker"),
    "not a number": (b'{"size": {"worker": NaN}}', ""),
    "infinite": (b'{"size": {"worker": 1e999}}', "size"),
    "beyond all": (b'{"size": {"worker": %s}}' % (b"9" * 400), "size.worker"),
    "a name of another script": ('{"size": {"работник": 2}}'.encode(), "size"),
    "half a surrogate pair": (b'{"size": {"\\ud800": 2}}', ""),
    "no UTF-8": (b'{"size": {"\xff": 2}}', ""),
    "a long name": (b'{"size": {"%s": 2}}' % (b"a" * 100_000), "size"),
    "markup": (b'{"size": {"<script>": 2}}', "size"),
    "thousands of roles": (json.dumps({"size": {f"r{number}": 2 for number in range(5000)}}).encode(), "size"),
    "seventeen roles": (json.dumps({"size": {f"r{number}": 2 for number in range(17)}}).encode(), "size"),
    "deep": (b'{"size": {"worker": ' + b"[" * 100_000, "size"),
    "deep behind a mistake": (b'{"size": {"worker": 0, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}", "size"),
    "a NUL": (b'{"size": {"a\\u0000": 2}}', "size"),
}


@pytest.mark.parametrize("name", BODIES)
async def test_a_bad_size_is_one_error_that_names_the_field_and_changes_nothing(world: World, name: str) -> None:
    body, field = BODIES[name]
    job = await world.running(placement=TWO, **LIVE)
    await world.refuses(f"/v1/jobs/{job.id}/scale", body, field)


async def test_a_body_beyond_all_bounds_is_not_read(world: World) -> None:
    job = await world.running(placement=TWO, **LIVE)
    body = b'{"size": {"worker": 2}}' + b" " * SPEC_BYTES_MAX
    status, _, _ = await world.ask("POST", f"/v1/jobs/{job.id}/scale", data=io.BytesIO(body))
    assert status == 413
    assert not await asks(world)


async def test_another_tenants_job_is_not_there(world: World) -> None:
    job = await world.running(placement=TWO, **LIVE)
    unknown, not_mine = [
        await world.ask("POST", f"/v1/jobs/{wanted}/{act}", token="bob", json=body)
        for act, body in (("scale", {"size": {"worker": 3}}), ("priority", {"priority": 3}))
        for wanted in (job.id,)
    ]
    assert unknown[0] == not_mine[0] == 404
    assert error_of(unknown[1])[0] == error_of(not_mine[1])[0]
    assert not await asks(world)
    with pytest.raises(Refused):
        await world.bob.scale("j-nobody", {"worker": 2})


async def test_what_makes_no_sense_for_a_job_as_it_is_conflicts(world: World) -> None:
    fixed = await world.submitted(role=RANGE)
    await world.alice.scale(fixed.id, {"worker": 4})  # one that waits may have every size
    fixed = await world.go(fixed, JobEvent.PLACED, placement=TWO)
    status, answer, _ = await world.ask("POST", f"/v1/jobs/{fixed.id}/scale", json={"size": {"worker": 4}})
    assert (status, error_of(answer)[0]) == (409, "job")
    assert "resize.how" in error_of(answer)[1]
    assert "checkpoints" in error_of(answer)[1]
    over = await world.go(await world.submitted(**LIVE), JobEvent.CANCELLED)
    status, answer, _ = await world.ask("POST", f"/v1/jobs/{over.id}/scale", json={"size": {"worker": 4}})
    assert (status, error_of(answer)[0]) == (409, "job")
    assert len(await asks(world)) == 1


async def test_a_thousand_sizes_in_a_row_are_stored_or_refused_and_the_newest_is_the_last(world: World) -> None:
    job = await world.running(placement=TWO, **LIVE)

    async def one(number: int) -> int:
        body = {"size": {"worker": number % 4 + 1}}
        return (await world.ask("POST", f"/v1/jobs/{job.id}/scale", json=body))[0]

    async with asyncio.timeout(60):
        found = Counter([await one(number) for number in range(1000)])
    assert set(found) <= {202, 429}
    assert len(await asks(world)) == found[202] > 0


# what is shown


async def test_a_job_that_grew_is_shown_and_explained_now_and_as_it_was(world: World) -> None:
    job = await world.running(placement=placement(("node-1", 0)), **LIVE)
    told = await world.alice.explain(job.id)
    assert (told.size["worker"].granted, told.size["worker"].wanted, told.sized_for) == (1, 2, None)

    asked = Cause(code=CauseCode.SCALE_ASKED, sentence="worker 2 → 3, asked by alice", by="alice")
    scaled = await world.go(job, JobEvent.SCALED, cause=asked, size={"worker": 3})
    grew = Cause(code=CauseCode.GREW, sentence="worker 1 → 2")
    first, second = TWO.allocations
    grown = structs.replace(TWO, allocations=(first, structs.replace(second, extra=True)), ranks_used=2, changes=1)
    await world.go(scaled, JobEvent.RESIZED, cause=grew, placement=grown, worked={"worker": 1})

    view = await world.alice.job(job.id)
    assert (view.resize, view.gpus, [run.extra for run in view.runs]) == (ResizeHow.LIVE, 2, [False, True])
    assert sizes(view) == (2, 3)
    (listed,) = (await world.alice.jobs()).jobs
    assert (listed.size, listed.resize) == (view.size, view.resize)
    told = await world.alice.explain(job.id)
    assert (told.sized_for, told.resized_for, told.size) == (asked, grew, view.size)

    story = await world.alice.story(job.id)
    then = [sizes(await world.alice.job(job.id, at=event.cursor)) for event in story]
    assert then == [(0, 2), (1, 2), (1, 2), (1, 2), (1, 3), (2, 3)]
    held = [(await world.alice.cluster(at=event.cursor)).totals.gpus_held for event in story]
    assert held == [0, 1, 1, 1, 1, 2]


async def test_a_job_that_restarts_holds_what_it_has_and_what_it_will_have(world: World) -> None:
    says: dict[str, Any] = {"role": RANGE, "checkpoints": {"every": "10m"}}
    job = await world.running(placement=placement(("node-1", 0)), **says)
    scaled = await world.go(job, JobEvent.SCALED, size={"worker": 2})
    cause = Cause(code=CauseCode.GREW, sentence="worker 1 → 2: it stops, and starts with that size")
    stopping = await world.go(scaled, JobEvent.STOPPING, cause=cause, next_placement=TWO)
    view = await world.alice.job(job.id)
    assert (view.size["worker"].next, view.gpus, view.resize) == (2, 2, ResizeHow.RESTART)
    node = next(node for node in (await world.admin.nodes()).nodes if node.id == "node-1")
    assert [gpu.held_by is not None for gpu in node.gpus][:3] == [True, True, False]

    placed = await world.go(stopping, JobEvent.RESTARTED, cause=cause, placement=TWO)
    assert placed.epoch == 1
    view = await world.alice.job(job.id)
    assert (sizes(view), view.size["worker"].next, view.gpus) == ((2, 2), None, 2)
    assert (await world.alice.explain(job.id)).resized_for == cause
    story = await world.alice.story(job.id)
    then = await world.alice.job(job.id, at=story[-2].cursor)
    assert (then.state, then.size["worker"].next, then.gpus) == ("stopping", 2, 2)


def sizes(view: Any) -> tuple[int, int]:
    """Replicas that the job has, and should have."""
    return view.size["worker"].granted, view.size["worker"].wanted
