"""What every store promises, whether it is in one process or in a Postgres, each role with its own rights there."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from msgspec import structs

from tests.support.builders import node, spec
from tests.support.steps import go, placement, step
from tests.support.stores import AT, World, names, told
from weft.domain.decoding.elements import elements_of
from weft.domain.health import HealthRecord, HealthState
from weft.domain.job import Cause, CauseCode, Job, JobEvent, JobState
from weft.domain.labels import Marking
from weft.domain.selection import Selection
from weft.domain.spec import Kind
from weft.domain.tenants import Allowance
from weft.messages.asks import AskKind
from weft.store import DoubleAllocationError, KeyReusedError, UnlawfulError

_E, _S = JobEvent, JobState

# submissions


async def test_a_submission_is_queued_and_told_before_any_scheduler_saw_it(world: World) -> None:
    asked = spec(priority=7, roles={"ps": {}, "worker": {"gpus": 2}})
    submitted = await world.gateway.submit(asked, job_id="j-1", tenant="alice", key=None, at=AT)
    assert (submitted.job_id, submitted.created) == ("j-1", True)
    job = await world.known("j-1")
    assert job == Job(
        id="j-1", tenant="alice", spec=asked, seq=job.seq, submitted_at=AT, since=AT, priority=7, version=1
    )
    assert await world.gateway.jobs(tenant="alice", states=[_S.QUEUED]) == [job]
    assert await world.scheduler.open_jobs(pool="default") == []  # admitting it is how a scheduler gets it
    (event,) = await world.gateway.story("j-1")
    assert (event.subject, event.version, event.tenant, event.at) == ("weft.events.jobs.submitted", 1, "alice", AT)
    assert told(event)["cause"] == {"code": "submitted", "sentence": "submitted by alice", "by": "alice"}
    assert [unsent.event for unsent in await world.relay.unsent(limit=10)] == [event]


async def test_a_submission_and_what_is_asked_of_it_name_the_person(world: World) -> None:
    ada = "ada@example.org"
    elements = elements_of(spec(name="sweep", array="0-1"), "a-1")
    given = spec(name="sweep", array="0-1")
    await world.gateway.submit(spec(), job_id="j-1", tenant="alice", key=None, at=AT, submitter=ada)
    await world.gateway.submit_array(elements, given=given, array="a-1", tenant="alice", key=None, at=AT, submitter=ada)
    for job_id in ("j-1", elements[1][0]):
        assert (await world.known(job_id)).submitter == ada
        (event,) = await world.gateway.story(job_id)
        assert told(event)["cause"]["by"] == "ada@example.org of alice"
        assert told(event)["cause"]["sentence"] == "submitted by ada@example.org of alice"
    (array,) = await world.gateway.arrays(ids=["a-1"])
    assert array.submitter == ada
    await world.gateway.ask_elements(AskKind.CANCEL, array="a-1", states=[_S.QUEUED], tenant="alice", at=AT, who=ada)
    await world.gateway.ask_requeue(job_id="j-1", pool="default", tenant="alice", at=AT, allowance=Allowance(), who=ada)
    asks = await world.scheduler.asks(pool="default", limit=10)
    assert {ask.by for ask in asks} == {"ada@example.org of alice"}
    assert len(asks) == 3


async def test_the_order_of_roles_is_the_users(world: World) -> None:
    asked = spec(roles={"worker": {}, "ps": {}, "chief": {}}, env={"ZZ": "1", "A": "2"})
    await world.gateway.submit(asked, job_id="j-1", tenant="alice", key=None, at=AT)
    stored = (await world.known("j-1")).spec
    assert list(stored.roles) == ["worker", "ps", "chief"]
    assert list(stored.env) == ["ZZ", "A"]


async def test_one_key_submitted_by_twenty_at_once_makes_one_job(world: World) -> None:
    found = await asyncio.gather(
        *(world.gateway.submit(spec(), job_id=f"j-{number}", tenant="alice", key="same", at=AT) for number in range(20))
    )
    assert len({submitted.job_id for submitted in found}) == 1
    assert [submitted.created for submitted in found].count(True) == 1
    assert len(await world.gateway.jobs(tenant=None)) == 1
    assert len(await world.gateway.events()) == 1
    assert len(await world.scheduler.admit(await world.lead(), load=0, pool="default", limit=100)) == 1


async def test_a_key_belongs_to_its_tenant_and_to_one_specification(world: World) -> None:
    async def submit(job_id: str, tenant: str, name: str) -> str:
        submitted = await world.gateway.submit(spec(name), job_id=job_id, tenant=tenant, key="k", at=AT)
        return submitted.job_id

    assert await submit("j-1", "alice", "train") == "j-1"
    assert await submit("j-2", "bob", "other") == "j-2"
    assert await submit("j-3", "alice", "train") == "j-1"
    with pytest.raises(KeyReusedError, match="j-1"):
        await submit("j-4", "alice", "other")
    assert {job.id for job in await world.gateway.jobs(tenant=None)} == {"j-1", "j-2"}


async def test_the_order_in_which_env_is_written_makes_no_other_specification(world: World) -> None:
    for number, env in enumerate(({"A": "1", "B": "2"}, {"B": "2", "A": "1"})):
        submitted = await world.gateway.submit(spec(env=env), job_id=f"j-{number}", tenant="alice", key="k", at=AT)
        assert submitted.job_id == "j-0"


async def test_without_a_key_every_submission_is_a_job(world: World) -> None:
    for number in range(3):
        await world.gateway.submit(spec(), job_id=f"j-{number}", tenant="alice", key=None, at=AT)
    assert [job.id for job in await world.gateway.jobs(tenant="alice")] == ["j-2", "j-1", "j-0"]


async def test_admitting_takes_the_tenants_in_turn_and_the_oldest_of_each(world: World) -> None:
    lease = await world.scheduler.take_lease("default", holder="me", seen=None)
    assert lease is not None
    for number, tenant in enumerate(("alice", "alice", "alice", "bob", "alice", "carol", "bob")):
        await world.gateway.submit(spec(), job_id=f"j-{number}", tenant=tenant, key=None, at=AT)
    taken = [await world.scheduler.admit(lease, load=0, pool="default", limit=limit) for limit in (2, 3, 9)]
    assert [[job.id for job in jobs] for jobs in taken] == [["j-0", "j-3"], ["j-1", "j-5", "j-6"], ["j-2", "j-4"]]


async def test_asks_come_of_the_tenants_in_turn_and_the_oldest_of_each(world: World) -> None:
    lease = await world.scheduler.take_lease("default", holder="me", seen=None)
    assert lease is not None
    for number in range(5):
        await world.gateway.ask(AskKind.CANCEL, subject_id=f"j-{number}", pool="default", tenant="alice", at=AT)
    await world.gateway.ask(AskKind.CANCEL, subject_id="j-of-bob", pool="default", tenant="bob", at=AT)
    await world.gateway.ask(AskKind.CANCEL, subject_id="j-elsewhere", pool="other", tenant="bob", at=AT)
    asks = await world.scheduler.asks(pool="default", limit=3)
    assert [ask.subject_id for ask in asks] == ["j-0", "j-of-bob", "j-1"]
    await world.scheduler.drop_asks(lease, [ask.id for ask in asks])
    assert [ask.subject_id for ask in await world.scheduler.asks(pool="default", limit=9)] == ["j-2", "j-3", "j-4"]


async def test_what_another_tenant_asked_before_about_a_job_comes_first(world: World) -> None:
    """An administrator's cancel after the tenant's requeue ends the job, however much the tenant asked before."""
    lease = await world.scheduler.take_lease("default", holder="me", seen=None)
    assert lease is not None
    for subject in ("j-1", "j-2", "j-2"):
        await world.gateway.ask(AskKind.REQUEUE, subject_id=subject, pool="default", tenant="alice", at=AT)
    await world.gateway.ask(AskKind.CANCEL, subject_id="j-2", pool="default", tenant="admin", at=AT)
    asks = await world.scheduler.asks(pool="default", limit=9)
    assert [(ask.subject_id, ask.kind) for ask in asks] == [("j-1", "requeue"), ("j-2", "requeue"), ("j-2", "requeue")]
    await world.scheduler.drop_asks(lease, [ask.id for ask in asks])
    assert [ask.tenant for ask in await world.scheduler.asks(pool="default", limit=9)] == ["admin"]


async def test_admitting_takes_the_oldest_of_its_pool_each_once(world: World) -> None:
    for number in range(5):
        asked = spec(pool="other" if number == 1 else "default", priority=number)
        await world.gateway.submit(asked, job_id=f"j-{number}", tenant="alice", key=None, at=AT + number)
    lease = await world.lead()
    first = await world.scheduler.admit(lease, load=0, pool="default", limit=2)
    second = await world.scheduler.admit(lease, load=0, pool="default", limit=10)
    assert [job.id for job in first + second] == ["j-0", "j-2", "j-3", "j-4"]
    assert await world.scheduler.admit(lease, load=0, pool="default", limit=10) == []
    assert [(job.priority, job.since, job.version) for job in first] == [(0, AT, 1), (2, AT + 2, 1)]
    assert await world.scheduler.open_jobs(pool="default") == first + second
    assert await world.gateway.queued_jobs(pool="default") == first + second
    assert await world.reallocator.holding_jobs(pool="default") == []
    assert await world.scheduler.job("j-1") == await world.known("j-1")
    assert len(await world.gateway.events()) == 5  # admitting is no event: it was told as submitted


# jobs


async def test_jobs_are_listed_newest_first_by_tenant_state_and_name_in_pages(world: World) -> None:
    lease = await world.lead()
    for number in range(6):
        asked = spec("even" if number % 2 == 0 else "odd")
        tenant = "alice" if number < 4 else "bob"
        await world.gateway.submit(asked, job_id=f"j-{number}", tenant=tenant, key=None, at=AT)
    born = await world.scheduler.admit(lease, load=0, pool="default", limit=5)  # j-5 is not admitted
    await go(world.scheduler, lease, born[0], _E.CANCELLED, at=AT)
    where = placement(("node-1", 0))
    await go(world.scheduler, lease, born[1], _E.PLACED, at=AT, placement=where)

    async def listed(tenant: str | None = None, **filters: Any) -> list[int]:
        return [int(job.id[2:]) for job in await world.gateway.jobs(tenant=tenant, **filters)]

    assert await listed() == [5, 4, 3, 2, 1, 0]
    assert await listed("alice") == [3, 2, 1, 0]
    assert await listed("bob") == [5, 4]
    assert await listed("carol") == []
    assert await listed(name="odd") == [5, 3, 1]
    assert await listed("alice", name="even") == [2, 0]
    assert await listed(states=[_S.QUEUED]) == [5, 4, 3, 2]
    assert await listed(states=[_S.QUEUED, _S.PLACED], name="odd") == [5, 3, 1]
    assert await listed(states=[_S.CANCELLED]) == [0]
    assert await listed("alice", states=[_S.CANCELLED, _S.QUEUED]) == [3, 2, 0]
    assert await listed(limit=0) == []

    seen: list[int] = []
    before = 0
    while page := await world.gateway.jobs(tenant=None, limit=4, before=before):
        seen += [int(job.id[2:]) for job in page]
        before = page[-1].seq
    assert seen == [5, 4, 3, 2, 1, 0]
    opened = await world.gateway.jobs(tenant=None, states=[_S.QUEUED], limit=2)
    assert await listed(states=[_S.QUEUED], before=opened[-1].seq) == [3, 2]


async def test_jobs_are_selected_as_the_selection_itself_says(world: World) -> None:
    """Every condition, alone and with others, finds in each store the jobs for which `holds` is true."""
    lease = await world.lead()
    labels = ({}, {"team": "vision"}, {"team": "vision", "urgent": ""}, {"weft/benchmark": "1"}, {"team": "a_b%c"}, {})
    names = ("mlp-1", "mlp-22", "mlp", "bench-1", "a-mlp-1", "m")
    kinds = (Kind.TRAINING, Kind.BATCH, Kind.TRAINING, Kind.BATCH, Kind.NOTEBOOK, Kind.INFERENCE)
    for number, (name, tags, kind) in enumerate(zip(names, labels, kinds, strict=True)):
        asked = spec(name, labels=tags, kind=kind)
        job_id = f"j-{'ab' if number % 2 else 'aa'}{number}"
        await world.gateway.submit(asked, job_id=job_id, tenant="alice", key=None, at=AT + number)
    born = await world.scheduler.admit(lease, load=0, pool="default", limit=5)  # the last is not admitted
    await go(world.scheduler, lease, born[0], _E.PLACED, at=AT, placement=placement(("node-1", 0), ("node-2", 0)))
    await go(world.scheduler, lease, born[1], _E.PLACED, at=AT, placement=placement(("node-11", 0)))
    await go(world.scheduler, lease, born[2], _E.CANCELLED, at=AT)
    every = await world.gateway.jobs(tenant=None)

    wanted = [
        *(Selection(names=names) for names in ("*", "mlp*", "mlp-?", "?", "*-1", "**m**1", "mlp", "*_*", "nothing*")),
        *(Selection(id_prefix=prefix) for prefix in ("j-", "j-aa", "j-ab3", "j-%", "j-ab_")),
        *(Selection(labels=(pair,)) for pair in (("team", None), ("team", "vision"), ("urgent", ""), ("none", None))),
        Selection(labels=(("team", "vision"), ("urgent", None))),
        Selection(labels=(("team", "a_b%c"),)),
        *(Selection(kinds=kinds) for kinds in ((Kind.TRAINING,), (Kind.BATCH, Kind.NOTEBOOK))),
        *(Selection(node=node) for node in ("node-1", "node-2", "node-11", "node-3")),
        *(Selection(since=since) for since in (AT, AT + 3, AT + 99)),
        Selection(benchmarks=False),
        Selection(names="mlp*", kinds=(Kind.TRAINING,), node="node-1", since=AT, benchmarks=False),
    ]
    for selection in wanted:
        held = [job.id for job in every if selection.holds(job)]
        assert [job.id for job in await world.gateway.jobs_selected(selection, tenant=None)] == held
        assert [job.id for job in await world.gateway.jobs_selected(selection, tenant="alice", limit=2)] == held[:2]
        assert await world.gateway.jobs_selected(selection, tenant="bob") == []
        still = [job.id for job in every if selection.holds(job) and not job.state.final]
        states = [state for state in _S if not state.final]
        assert [job.id for job in await world.gateway.jobs_selected(selection, tenant=None, states=states)] == still
        first = await world.gateway.jobs_selected(selection, tenant=None, limit=1)
        rest = await world.gateway.jobs_selected(selection, tenant=None, before=first[0].seq) if first else []
        assert [job.id for job in (*first, *rest)] == held
    found = [len([job for job in every if selection.holds(job)]) for selection in wanted]
    assert found == [6, 3, 1, 1, 3, 2, 1, 0, 0, 6, 3, 1, 0, 0, 3, 2, 1, 0, 1, 1, 2, 3, 1, 1, 1, 0, 6, 3, 0, 5, 1]
    assert await world.gateway.ids_beginning("j-ab", tenant="alice", limit=2) == ["j-ab5", "j-ab3"]
    assert await world.gateway.ids_beginning("j-ab", tenant="bob", limit=2) == []
    assert await world.gateway.ids_beginning("j-%", tenant=None, limit=2) == []


async def test_of_the_jobs_that_wait_only_what_changed_need_be_read_again(world: World) -> None:
    lease = await world.lead()
    same, explained, placed = await world.admitted(lease, "j-1", "j-2", "j-3")
    known = {job.id: job for job in await world.gateway.queued_jobs(pool="default")}
    explained = await go(world.scheduler, lease, explained, _E.WAITING, at=AT)
    await go(world.scheduler, lease, placed, _E.PLACED, at=AT, placement=placement(("n", 0)))
    (new,) = await world.admitted(lease, "j-4")
    assert await world.gateway.queued_jobs(pool="default", known=known) == [same, explained, new]
    assert await world.reallocator.queued_jobs(pool="default", known=known, limit=2) == [same, explained]


async def test_jobs_are_found_by_what_they_do_in_their_pool(world: World) -> None:
    lease, other = await world.lead(), await world.lead("other")
    waits, holds, ended = await world.admitted(lease, "j-1", "j-2", "j-3")
    (elsewhere,) = await world.admitted(other, "j-4", pool="other")
    holds = await go(world.scheduler, lease, holds, _E.PLACED, at=AT, placement=placement(("n", 0)))
    await go(world.scheduler, lease, ended, _E.CANCELLED, at=AT)
    assert await world.gateway.queued_jobs(pool="default") == [waits]
    assert await world.gateway.holding_jobs(pool="default") == [holds]
    assert await world.scheduler.open_jobs(pool="default") == [waits, holds]
    assert await world.scheduler.open_jobs(pool="other") == [elsewhere]
    assert await world.gateway.job("j-5") is None


async def test_jobs_are_found_by_their_ids_in_the_order_of_submission(world: World) -> None:
    for job_id in ("j-2", "j-1", "j-3"):
        await world.gateway.submit(spec(), job_id=job_id, tenant="alice", key=None, at=AT)
    assert [job.id for job in await world.gateway.jobs_of(["j-3", "j-2", "j-9"])] == ["j-2", "j-3"]
    assert await world.gateway.jobs_of([]) == []


# steps


async def test_a_job_goes_from_step_to_step_and_its_story_says_so(world: World) -> None:
    lease = await world.lead()
    (job,) = await world.admitted(lease, "j-1", gpus=1)
    where = placement(("node-1", 0), why="there was room")
    cause = Cause(code=CauseCode.NO_ROOM, sentence="no room", by="x", numbers={"free": 0.5})
    job = await go(world.scheduler, lease, job, _E.WAITING, at=AT + 1, cause=cause)
    assert (job.state, job.version, job.since, job.waiting_for) == (_S.QUEUED, 2, AT, cause)
    job = await go(world.scheduler, lease, job, _E.REPRIORITISED, at=AT + 2, priority=-5)
    assert (job.priority, job.waiting_for, job.since) == (-5, cause, AT)
    job = await go(world.scheduler, lease, job, _E.PLACED, at=AT + 3, placement=where)
    assert (job.state, job.placement, job.since, job.waiting_for) == (_S.PLACED, where, AT + 3, None)
    job = await go(world.scheduler, lease, job, _E.STARTING, at=AT + 4)
    job = await go(world.scheduler, lease, job, _E.STARTED, at=AT + 5.123456)
    assert (job.state, job.started_at) == (_S.RUNNING, AT + 5.123456)
    job = await go(world.scheduler, lease, job, _E.STOPPING, at=AT + 6, cause=cause)
    assert (job.state, job.stopping_for, job.placement) == (_S.STOPPING, cause, where)
    done = {"exit_code": 1, "progress": {"step": 12.5}, "attempts": 1, "not_before": AT + 60}
    job = await go(world.scheduler, lease, job, _E.REQUEUED, at=AT + 7, **done)
    assert (job.epoch, job.placement, job.stopping_for, job.started_at) == (1, None, None, None)
    assert (job.attempts, job.not_before, job.exit_code, job.progress) == (1, AT + 60, 1, {"step": 12.5})
    job = await go(world.scheduler, lease, job, _E.PLACED, at=AT + 8, placement=where)
    assert job.exit_code is None
    job = await go(world.scheduler, lease, job, _E.STARTING, at=AT + 9)
    job = await go(world.scheduler, lease, job, _E.STARTED, at=AT + 10)
    job = await go(world.scheduler, lease, job, _E.SUCCEEDED, at=AT + 11, exit_code=0)
    assert (job.state, job.ended_at, job.exit_code, job.placement) == (_S.SUCCEEDED, AT + 11, 0, where)
    assert job.progress == {"step": 12.5}

    story = await world.gateway.story("j-1")
    assert [event.version for event in story] == list(range(1, 13))
    assert story == await world.gateway.events() == [unsent.event for unsent in await world.relay.unsent(limit=100)]
    assert await world.gateway.story("j-1", after=story[9].cursor) == story[10:]
    assert await world.gateway.story("j-2") == []
    requeued = told(story[7])
    assert requeued == {
        "job_id": "j-1",
        "name": "train",
        "tenant": "alice",
        "pool": "default",
        "state": "queued",
        "epoch": 1,
        "version": 8,
        "priority": -5,
        "cause": {"code": "preempted", "sentence": "because of requeued"},
        "exit_code": 1,
        "progress": {"step": 12.5},
        "attempts": 1,
        "not_before": AT + 60,
    }
    assert told(story[3])["placement"] == json.loads(msgspec.json.encode(where))


async def test_of_twenty_movers_at_once_one_moves_the_job(world: World) -> None:
    lease = await world.lead()
    (job,) = await world.admitted(lease, "j-1")
    moves = [step(job, _E.PLACED, at=AT, placement=placement(("n", gpu))) for gpu in range(20)]
    found = await asyncio.gather(*(world.take(lease, move) for move in moves))
    assert sorted(found) == [[False]] * 19 + [[True]]
    job = await world.known("j-1")
    assert job.version == 2
    assert job.placement == moves[found.index([True])].placement
    assert names(await world.gateway.story("j-1")) == ["submitted", "placed"]


async def test_a_job_takes_several_steps_in_one_call_and_stale_ones_are_left_out(world: World) -> None:
    lease = await world.lead()
    one, two = await world.admitted(lease, "j-1", "j-2")
    placed = step(one, _E.PLACED, at=AT, placement=placement(("n", 0)))
    stale = step(two, _E.WAITING, at=AT, version=7)
    unknown = structs.replace(stale, job_id="j-9")
    at_two = structs.replace(one, state=_S.PLACED, version=2)
    starting = step(at_two, _E.STARTING, at=AT)
    again = step(at_two, _E.STARTING, at=AT)
    started = step(structs.replace(at_two, state=_S.STARTING, version=3), _E.STARTED, at=AT)
    taken = await world.take(lease, placed, stale, starting, unknown, started, again)
    assert taken == [True, False, True, False, True, False]
    assert (await world.known("j-1")).state is _S.RUNNING
    assert await world.known("j-2") == two
    assert names(await world.gateway.events()) == ["submitted", "submitted", "placed", "starting", "started"]
    assert await world.take(lease) == []


async def test_a_step_on_top_of_one_that_is_left_out_is_left_out_too(world: World) -> None:
    lease = await world.lead()
    (one,) = await world.admitted(lease, "j-1")
    late = step(one, _E.PLACED, at=AT, placement=placement(("n", 0)))
    placed = step(one, _E.PLACED, at=AT + 1.0, placement=placement(("m", 0)))
    at_two = structs.replace(one, state=_S.PLACED, version=2, placement=placement(("m", 0)))
    assert await world.take(lease, late) == [True]
    assert await world.take(lease, placed, step(at_two, _E.STARTING, at=AT + 1.0)) == [False, False]
    job = await world.known("j-1")
    assert (job.state, job.version, job.placement) == (_S.PLACED, 2, late.placement)


async def test_a_gpu_given_back_in_a_call_can_be_given_again_in_it(world: World) -> None:
    lease = await world.lead()
    one, two = await world.admitted(lease, "j-1", "j-2")
    one = await go(world.scheduler, lease, one, _E.PLACED, at=AT, placement=placement(("n", 0)))
    leaves = step(one, _E.REQUEUED, at=AT)
    comes = step(two, _E.PLACED, at=AT, placement=placement(("n", 0)))
    assert await world.take(lease, leaves, comes) == [True, True]


@pytest.mark.parametrize("second", [(("n", 0),), (("m", 0), ("n", 0)), (("m", 1), ("m", 1))])
async def test_a_gpu_given_twice_is_refused_and_the_whole_call_with_it(world: World, second: Any) -> None:
    lease = await world.lead()
    one, two, three = await world.admitted(lease, "j-1", "j-2", "j-3")
    await go(world.scheduler, lease, one, _E.PLACED, at=AT, placement=placement(("n", 0)))
    before = await world.gateway.events()
    waits = step(three, _E.WAITING, at=AT)
    double = step(two, _E.PLACED, at=AT, placement=placement(*second))
    with pytest.raises(DoubleAllocationError):
        await world.take(lease, waits, double)
    assert await world.known("j-2") == two
    assert await world.known("j-3") == three
    assert await world.gateway.events() == before
    assert await world.take(lease, step(two, _E.PLACED, at=AT, placement=placement(("m", 0), ("m", 1)))) == [True]


@pytest.mark.parametrize("end", [_E.REQUEUED, _E.FAILED])
async def test_gpus_are_free_once_a_job_holds_them_no_longer_and_not_before(world: World, end: JobEvent) -> None:
    lease = await world.lead()
    one, two = await world.admitted(lease, "j-1", "j-2")
    one = await go(world.scheduler, lease, one, _E.PLACED, at=AT, placement=placement(("n", 0)))
    for event in (_E.STARTING, _E.STARTED, _E.STOPPING):
        one = await go(world.scheduler, lease, one, event, at=AT)
        with pytest.raises(DoubleAllocationError):
            await world.take(lease, step(two, _E.PLACED, at=AT, placement=placement(("n", 0))))
    one = await go(world.scheduler, lease, one, end, at=AT)
    await go(world.scheduler, lease, two, _E.PLACED, at=AT, placement=placement(("n", 0)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"event": _E.STARTED, "to": _S.RUNNING},
        {"event": _E.WAITING, "to": _S.SUCCEEDED},
        {"event": _E.WAITING, "to": _S.QUEUED, "epoch": 1},
        {"event": _E.PLACED, "to": _S.PLACED},  # nowhere
    ],
)
async def test_a_step_that_is_not_legal_is_refused_and_the_whole_call_with_it(
    world: World, wrong: dict[str, Any]
) -> None:
    lease = await world.lead()
    one, two = await world.admitted(lease, "j-1", "j-2")
    illegal = structs.replace(step(one, _E.WAITING, at=AT), **wrong)
    with pytest.raises(UnlawfulError):
        await world.take(lease, step(two, _E.WAITING, at=AT), illegal)
    assert await world.scheduler.open_jobs(pool="default") == [one, two]
    assert names(await world.gateway.events()) == ["submitted", "submitted"]


async def test_a_zero_byte_in_what_a_node_says_stops_nobody(world: World) -> None:
    lease = await world.lead()
    (job,) = await world.admitted(lease, "j-1")
    cause = Cause(code=CauseCode.START_FAILED, sentence="could not start: \0 and \\u0000 and \\\0")
    job = await go(world.scheduler, lease, job, _E.WAITING, at=AT, cause=cause)
    assert job.waiting_for is not None
    assert "and \\u0000 and" in job.waiting_for.sentence
    await world.scheduler.save_node(lease, node(not_enforced=("a\0b",)), event="joined", cause="\0")
    assert len(await world.scheduler.nodes()) == 1


async def test_how_long_a_job_held_its_gpus_is_counted_over_all_its_epochs(world: World) -> None:
    lease = await world.lead()
    (job,) = await world.admitted(lease, "j-1")
    assert (job.placed_at, job.attained_seconds) == (None, 0.0)
    job = await go(world.scheduler, lease, job, _E.PLACED, at=AT + 10.25, placement=placement(("node-1", 0)))
    job = await go(world.scheduler, lease, job, _E.STARTING, at=AT + 20)
    job = await go(world.scheduler, lease, job, _E.STARTED, at=AT + 30)
    assert (job.placed_at, job.attained_seconds) == (AT + 10.25, 0.0)
    job = await go(world.scheduler, lease, job, _E.STOPPING, at=AT + 40)
    job = await go(world.scheduler, lease, job, _E.REQUEUED, at=AT + 50.123456)
    assert (job.placed_at, job.attained_seconds) == (None, 39.873456)
    job = await go(world.scheduler, lease, job, _E.PLACED, at=AT + 100.1, placement=placement(("node-1", 0)))
    job = await go(world.scheduler, lease, job, _E.FAILED, at=AT + 100.4)
    assert (job.placed_at, job.attained_seconds) == (None, 40.173456)


async def test_how_much_a_job_has_had_counts_every_gpu_that_it_held(world: World) -> None:
    lease = await world.lead()
    (job,) = await world.admitted(lease, "j-1")
    two = placement(("node-1", 0), ("node-1", 1))
    job = await go(world.scheduler, lease, job, _E.PLACED, at=AT + 10, placement=two)
    job = await go(world.scheduler, lease, job, _E.REQUEUED, at=AT + 20.25)
    assert job.attained_gpu_seconds == 20.5
    job = await go(world.scheduler, lease, job, _E.PLACED, at=AT + 30, placement=placement(("node-1", 0)))
    job = await go(world.scheduler, lease, job, _E.FAILED, at=AT + 40)
    assert (job.attained_seconds, job.attained_gpu_seconds) == (20.25, 30.5)


async def test_the_nodes_that_a_job_was_ever_placed_on_are_kept_over_its_epochs(world: World) -> None:
    lease = await world.lead()
    (job,) = await world.admitted(lease, "j-1")
    assert job.nodes == ()
    job = await go(world.scheduler, lease, job, _E.PLACED, at=AT, placement=placement(("node-b", 0), ("node-a", 1)))
    assert job.nodes == ("node-a", "node-b")
    job = await go(world.scheduler, lease, job, _E.REQUEUED, at=AT)
    job = await go(world.scheduler, lease, job, _E.PLACED, at=AT, placement=placement(("node-B", 0), ("node-b", 1)))
    job = await go(world.scheduler, lease, job, _E.FAILED, at=AT)
    assert job.nodes == ("node-B", "node-a", "node-b")


# asks


async def test_an_ask_stays_until_its_step_is_taken(world: World) -> None:
    lease = await world.lead()
    (job,) = await world.admitted(lease, "j-1")
    gateway = world.gateway
    await gateway.ask(AskKind.PRIORITISE, subject_id="j-1", pool="default", tenant="bob", at=AT, priority=9)
    await gateway.ask(AskKind.CANCEL, subject_id="j-1", pool="default", tenant="bob", at=AT + 1)
    await gateway.ask(AskKind.CANCEL, subject_id="j-2", pool="other", tenant="bob", at=AT)
    first, second = await world.scheduler.asks(pool="default", limit=10)
    assert (first.kind, first.subject_id, first.tenant, first.priority, first.at) == ("prioritise", "j-1", "bob", 9, AT)
    assert (second.kind, second.priority) == (AskKind.CANCEL, 0)
    assert await world.scheduler.asks(pool="default", limit=1) == [first]

    stale = step(job, _E.REPRIORITISED, at=AT, priority=9, ask=first.id, version=5)
    assert await world.take(lease, stale) == [False]
    assert await world.scheduler.asks(pool="default", limit=10) == [first, second]
    await go(world.scheduler, lease, job, _E.REPRIORITISED, at=AT, priority=9, ask=first.id)
    assert await world.scheduler.asks(pool="default", limit=10) == [second]
    await world.scheduler.drop_asks(lease, [second.id])
    assert await world.scheduler.asks(pool="default", limit=10) == []
    assert len(await world.scheduler.asks(pool="other", limit=10)) == 1


async def test_a_submission_is_no_ask_to_be_done(world: World) -> None:
    await world.gateway.submit(spec(), job_id="j-1", tenant="alice", key=None, at=AT)
    assert await world.scheduler.asks(pool="default", limit=10) == []


# nodes


async def test_a_node_is_kept_as_it_was_saved_and_told_when_there_is_an_event(world: World) -> None:
    lease = await world.lead()
    first = node("node-2", seen_at=AT, not_enforced=("memory",))
    await world.scheduler.save_node(lease, first, event="joined", cause="joined with 4 emulated GPUs")
    await world.scheduler.save_node(lease, node("node-1", seen_at=AT + 1), event="", cause="")
    changed = structs.replace(first, address="10.0.0.9", rack="rack-1", ready=False, seen_at=AT + 2)
    await world.scheduler.save_node(lease, changed, event="lost", cause="silent")
    other = structs.replace(node("node-3"), pool="other")
    await world.scheduler.save_node(await world.lead("other"), other, event="", cause="")
    expected = [node("node-1", seen_at=AT + 1), changed]
    for store in (world.scheduler, world.gateway, world.scorer, world.reallocator):
        assert await store.nodes(pool="default") == expected
        assert await store.nodes() == [*expected, other]
    joined, lost = await world.gateway.events()
    assert (joined.subject, joined.subject_id, joined.version, joined.tenant) == (
        "weft.events.nodes.joined",
        "node-2",
        1,
        "",
    )
    assert (lost.version, lost.at, told(lost)["sentence"], told(lost)["ready"]) == (2, AT + 2, "silent", False)
    assert told(lost)["capacity"] == json.loads(msgspec.json.encode(changed.capacity))
    assert [unsent.event for unsent in await world.relay.unsent(limit=10)] == [joined, lost]


async def test_a_node_is_drained_with_the_ask_for_it(world: World) -> None:
    lease = await world.lead()
    await world.scheduler.save_node(lease, node(), event="joined", cause="")
    await world.gateway.ask(AskKind.DRAIN, subject_id="node-1", pool="default", tenant="admin", at=AT)
    (ask,) = await world.scheduler.asks(pool="default", limit=10)
    assert (ask.kind, ask.subject_id) == (AskKind.DRAIN, "node-1")
    await world.scheduler.save_node(lease, node(drained=True), event="drained", cause="by admin", ask=ask.id)
    assert await world.scheduler.asks(pool="default", limit=10) == []
    assert (await world.gateway.nodes())[0].drained


async def test_the_labels_of_a_node_are_stored_with_the_ask_for_them(world: World) -> None:
    lease = await world.lead()
    await world.scheduler.save_node(lease, node(), event="joined", cause="")
    marking = Marking(labels={"zone": "a", "old": None}, taints={"dedicated": "vision"})
    await world.gateway.ask(AskKind.MARK, subject_id="node-1", pool="default", tenant="admin", at=AT, marking=marking)
    (ask,) = await world.scheduler.asks(pool="default", limit=10)
    assert (ask.kind, ask.subject_id, ask.marking) == (AskKind.MARK, "node-1", marking)
    marked = node(labels={"rack": "7", "zone": "a"}, taints={"dedicated": "vision"}, marking=marking)
    await world.scheduler.save_node(lease, marked, event="changed", cause="by admin", ask=ask.id)
    assert await world.scheduler.asks(pool="default", limit=10) == []
    for store in (world.scheduler, world.gateway, world.scorer, world.reallocator):
        assert await store.nodes() == [marked]


async def test_the_health_of_a_node_is_stored_and_a_person_returns_a_gpu(world: World) -> None:
    lease = await world.lead()
    sick = HealthRecord(
        gpu=1,
        uuid="u",
        state=HealthState.QUARANTINED,
        code="xid-79",
        sentence="it fell off the bus",
        numbers={"xid-79": 1.0},
        since=AT,
        offences=(AT,),
        xids={"79": 1},
    )
    await world.scheduler.save_node(lease, node(health=(sick,)), event="health", cause=sick.sentence)
    assert (await world.scheduler.nodes(pool="default"))[0].health == (sick,)
    for gpu in (1, None):
        await world.gateway.ask(AskKind.RETURN, subject_id="node-1", pool="default", tenant="admin", at=AT, gpu=gpu)
    asks = await world.scheduler.asks(pool="default", limit=10)
    assert [(ask.kind, ask.subject_id, ask.gpu) for ask in asks] == [
        (AskKind.RETURN, "node-1", 1),
        (AskKind.RETURN, "node-1", None),
    ]


async def test_touching_a_node_changes_when_it_was_seen_and_nothing_else(world: World) -> None:
    lease = await world.lead()
    for node_id in ("node-1", "node-2"):
        await world.scheduler.save_node(lease, node(node_id, seen_at=AT), event="", cause="")
    await world.scheduler.touch_nodes(lease, ["node-2", "node-9"], at=AT + 5)
    assert await world.gateway.nodes() == [node("node-1", seen_at=AT), node("node-2", seen_at=AT + 5)]
    assert await world.gateway.events() == []


@pytest.mark.parametrize("opened", [False, True])
async def test_a_page_of_jobs_ends_where_its_bytes_do_and_the_next_goes_on(world: World, opened: bool) -> None:
    large = {"A": "x" * 1000}
    for number in range(6):
        await world.gateway.submit(spec(env=large), job_id=f"j-{number}", tenant="alice", key=None, at=AT)
    states = [JobState.QUEUED] if opened else []
    every = Selection(benchmarks=True, elements=True)
    before = after = 0
    listed: list[str] = []
    selected: list[str] = []
    for _ in range(2):
        page = await world.gateway.jobs(tenant="alice", states=states, before=before, bytes_max=3000)
        again = await world.gateway.jobs_selected(every, tenant="alice", states=states, before=after, bytes_max=3000)
        assert len(page) == len(again) == 3
        listed, selected = [*listed, *(job.id for job in page)], [*selected, *(job.id for job in again)]
        before, after = page[-1].seq, again[-1].seq
    assert listed == selected == [f"j-{number}" for number in reversed(range(6))]
    (only,) = await world.gateway.jobs(tenant="alice", states=states, elements=False, bytes_max=1)
    assert only.id == "j-5"
