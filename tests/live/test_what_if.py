"""What would happen if something were different, asked of a gateway over a real Postgres."""

import asyncio
import time
from typing import Any

import msgspec
import pytest

from tests.support.builders import spec
from tests.support.gateway_world import World
from tests.support.steps import placement
from weft.client import Refused
from weft.messages.whatif import WhatIfWanted
from weft.planning.policy import Policy

ALL = placement(*((node, gpu) for node in ("node-1", "node-2") for gpu in range(4)))


async def full(world: World) -> str:
    """A job holds every GPU, for an hour at most."""
    return (await world.running(name="holds", gpus=1, replicas=8, time_limit="1h", placement=ALL)).id


async def leads(world: World, *, preemption_after: float) -> None:
    """A scheduler begins to lead the pool."""
    store = world.place.stores.scheduler
    lease = await store.take_lease("default", holder="test", seen=None)
    assert lease is not None
    await store.lead_by(lease, str(Policy()), preemption_after=preemption_after)


async def test_more_nodes_start_what_waits_and_nothing_is_changed(world: World) -> None:
    await full(world)
    waits = await world.submitted(name="waits", gpus=4)
    before = await world.stored()
    found = await world.alice.what_if(WhatIfWanted(add_nodes=1))
    assert await world.stored() == before
    (job,) = [job for job in found.jobs if job.id == waits.id]
    assert (job.name, job.tenant) == ("waits", "alice")
    assert job.starts_base == pytest.approx(time.time() + 3600, abs=60)
    assert job.starts_other == pytest.approx(time.time(), abs=60)
    assert job.gains_seconds == pytest.approx(3600, abs=60)
    assert (found.gained, found.lost, found.waiting) == (1, 0, 1)
    assert "1 more node of 4 GPUs: 1 job sooner, 0 later" in found.sentence


async def test_a_job_that_is_not_there_is_told_when_it_starts_and_delays_all_others(world: World) -> None:
    await full(world)
    first = await world.submitted(name="first", gpus=4, replicas=2, time_limit="2h")
    await leads(world, preemption_after=300.0)
    urgent = msgspec.to_builtins(spec("urgent", gpus=4, replicas=2, priority=10, time_limit="30m"))
    found = await world.admin.what_if(WhatIfWanted(submit=(urgent,)))
    new = next(job for job in found.jobs if job.name == "urgent")
    assert new.starts_base is None
    assert new.starts_other is not None
    assert 200 < new.starts_other - found.at <= 300, "it pre-empts what holds the GPUs, which has just begun"
    (later,) = [job for job in found.jobs if job.id == first.id]
    assert later.gains_seconds == pytest.approx(-1800 - 300, abs=120), "what is pre-empted begins again, and is older"
    assert found.lost == 2


async def test_of_another_tenants_job_only_the_id_is_told(world: World) -> None:
    holds = await full(world)
    theirs = await world.submitted(name="secret-name", gpus=4)
    body, found = await raw(world, {"add_nodes": 1}, token="bob")
    assert found["gained"] == 1
    assert theirs.id in body
    for secret in ("secret-name", "alice", "holds"):
        assert secret not in body, secret
    assert holds not in [job["id"] for job in found["jobs"] if "name" in job]


async def test_what_cannot_be_supposed_is_refused_with_the_name_of_the_field(world: World) -> None:
    wrong: list[tuple[Any, str]] = [
        ({"order": "no-such"}, "order"),
        ({"placement": "x" * 5000}, "placement"),
        ({"backfill": 3}, "backfill"),
        ({"add_nodes": -1}, "add_nodes"),
        ({"add_nodes": 10**9}, "add_nodes"),
        ({"drain": ["node-77"]}, "drain"),
        ({"drain": "node-1"}, "drain"),
        ({"submit": [{"name": "a"}]}, "submit[0].command"),
        ({"submit": [{"name": "a", "command": ["true"], "gpus": {}}]}, "submit[0].gpus"),
        ({"submit": [{}] * 21}, "submit"),
        ({"submit": [msgspec.to_builtins(spec("urgent", priority=1000))]}, "submit[0].priority"),
        ({"submit": [msgspec.to_builtins(spec("other", pool="elsewhere"))]}, "submit[0].pool"),
        ({"submit": [3]}, "submit[0]"),
        ({"submit": ["name: a\n]}\nadd_nodes: 9"]}, "submit[0]"),
        ({"submit": ["name: a\ncommand: [a]\nroles: {worker: {gpus: 99}}"]}, "submit[0].roles.worker.gpus"),
        ({"submit": ["name: a\ncommand: &a [*a]"]}, "submit[0].command"),
        ({"submit": ["[" * 5000]}, "submit[0]"),
        ({"submit": ["a" * 100_000]}, "submit[0]"),
        ({"seconds_max": 1}, "seconds_max"),
        ({"pool": "nowhere"}, "pool"),
        ({"ordre": "las"}, "ordre"),
        ([], ""),
    ]
    before = await world.stored()
    for body, field in wrong:
        status, answered, _ = await world.ask("POST", "/v1/what-if", json=body)
        assert 400 <= status < 500, body
        assert msgspec.json.decode(answered)["error"]["field"] == field, (body, answered)
    assert await world.stored() == before


async def test_one_tenants_what_ifs_wait_for_each_other_and_not_for_ever(world: World) -> None:
    await full(world)
    asked = (world.ask("POST", "/v1/what-if", json={"add_nodes": number}) for number in range(1, 13))
    answers = await asyncio.gather(*asked)
    statuses = [status for status, *_ in answers]
    assert statuses.count(200) >= 1
    assert set(statuses) <= {200, 429}, statuses
    assert 429 in statuses, "more than may wait were asked at once"


async def test_a_job_may_be_a_text_in_yaml_or_json(world: World) -> None:
    for text in ("name: pasted\ncommand:\n- sh\n- |\n  one\n\n  two\n", '{"name": "pasted", "command": ["a"]}'):
        _, found = await raw(world, {"submit": [text]}, token="alice")
        assert "pasted" in [job["name"] for job in found["jobs"]]


async def test_a_tenant_may_not_suppose_a_job_that_it_may_not_submit(world: World) -> None:
    unpreemptible = msgspec.to_builtins(spec("mine", preemptible=False))
    with pytest.raises(Refused) as refused:
        await world.alice.what_if(WhatIfWanted(submit=(unpreemptible,)))
    assert refused.value.field.startswith("submit[0]")


async def raw(world: World, asked: dict[str, Any], *, token: str) -> tuple[str, Any]:
    status, body, _ = await world.ask("POST", "/v1/what-if", token=token, json=asked)
    assert status == 200, body
    return body.decode(), msgspec.json.decode(body)
