"""Jobs by how their ids begin, and by conditions, over a real Postgres; a tenant never meets another's."""

import pytest

from tests.support.builders import spec
from tests.support.gateway_world import World
from weft.client import Refused
from weft.domain.job import JobState
from weft.messages.asks import AskKind
from weft.messages.http import JobsView


async def test_a_job_is_found_by_how_its_id_begins_by_those_who_may_see_it(world: World) -> None:
    mine = (await world.alice.submit(spec("mine"))).id
    assert (await world.alice.job(mine[:-1])).id == mine
    assert (await world.alice.cancel(mine[:-2])).id == mine
    for prefix in (mine[:3], f"{mine}0", f"x{mine}"):  # too short to be meant, or no beginning
        with pytest.raises(Refused) as refused:
            await world.alice.job(prefix)
        assert refused.value.status == 404
    with pytest.raises(Refused) as refused:
        await world.bob.job(mine[:-1])
    assert (refused.value.status, mine in refused.value.reason) == (404, False)


async def test_a_beginning_of_several_ids_hits_none_and_names_them(world: World) -> None:
    found: dict[str, list[str]] = {}
    while max((len(ids) for ids in found.values()), default=0) < 2:  # two characters after `j-`: at most 37**2 + 1 jobs
        mine = (await world.alice.submit(spec())).id
        found.setdefault(mine[:4], []).append(mine)
    prefix, ids = next((prefix, ids) for prefix, ids in found.items() if len(ids) > 1)
    with pytest.raises(Refused) as refused:
        await world.alice.cancel(prefix)
    assert refused.value.status == 400
    assert all(job_id in refused.value.reason for job_id in ids)


async def test_conditions_select_what_a_tenant_may_see(world: World) -> None:
    urgent = (await world.alice.submit(spec("mlp-1", labels={"team": "a, b", "urgent": ""}))).id
    await world.alice.submit(spec("mlp-2", labels={"team": "c"}, kind="batch"))
    await world.bob.submit(spec("mlp-3", labels={"urgent": ""}))

    def names(view: JobsView) -> list[str]:
        return [job.name for job in view.jobs]

    assert names(await world.alice.jobs(name="mlp-*")) == ["mlp-2", "mlp-1"]
    assert names(await world.alice.jobs(labels=["urgent"], name="*")) == ["mlp-1"]
    assert names(await world.alice.jobs(kinds=["batch", "notebook"], labels=["team=c"])) == ["mlp-2"]
    assert names(await world.alice.jobs(id_begins=urgent[:8])) == ["mlp-1"]
    assert names(await world.alice.jobs(node="node-1")) == []
    assert names(await world.alice.jobs(since=2.0**39)) == []
    for wrong in ({"name": "A*"}, {"id_begins": "J"}, {"kinds": ["x"]}, {"labels": ["="]}, {"since": float("nan")}):
        with pytest.raises(Refused) as refused:
            await world.alice.jobs(**wrong)
        assert refused.value.status == 400
        assert "regex" not in refused.value.reason


async def test_one_request_cancels_all_open_jobs_of_a_selection_and_no_others(world: World) -> None:
    ids = [
        (await world.alice.submit(spec(f"mlp-{number}", labels={"part": str(number % 2)}))).id for number in range(6)
    ]
    await world.alice.submit(spec("other"))
    await world.bob.submit(spec("mlp-7"))
    asked = await world.alice.cancel_selected(name="mlp-*", labels=["part=0"])
    assert (asked.ask, asked.jobs, asked.more) == (AskKind.CANCEL, 3, False)
    assert (await world.alice.cancel_selected(name="mlp-*", states=[JobState.QUEUED])).jobs == 3
    assert (await world.alice.cancel_selected(name="mlp-*")).jobs == 0
    stored = await world.place.stores.owner.fetch("SELECT subject_id, tenant, who FROM asks WHERE kind = 'cancel'")
    assert sorted(row["subject_id"] for row in stored) == sorted(ids)
    assert {row["tenant"] for row in stored} == {"alice"}
    for wrong, field in (({}, "all"), ({"states": [JobState.FAILED]}, "state"), ({"tenant": "bob"}, "tenant")):
        with pytest.raises(Refused) as refused:
            await world.alice.cancel_selected(**wrong)
        assert (refused.value.field, refused.value.status in (400, 403)) == (field, True)
    assert (await world.alice.cancel_selected(every=True)).jobs == 1


async def test_the_audit_log_has_what_an_administrator_cancels_of_others(world: World) -> None:
    await world.bob.submit(spec("mlp-1"))
    before = (await world.admin.audit(limit=1)).last
    await world.bob.cancel_selected(name="mlp-*")
    await world.admin.cancel_selected(tenant="bob", every=True)
    await world.admin.cancel_selected(every=True)
    entries = (await world.admin.audit(after=before)).entries
    assert [(one.act, one.detail) for one in entries] == [("cancel jobs", "of bob"), ("cancel jobs", "of all tenants")]
