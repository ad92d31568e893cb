"""Schedules over a real Postgres: one job for each time that is due, whatever dies, and nothing of another tenant."""

import asyncio
from typing import Any, cast

import msgspec
import pytest
from msgspec import structs

from tests.support.builders import spec
from tests.support.doubles.bus import MemoryBus
from tests.support.gateway import Place
from tests.support.gateway_world import World, error_of
from tests.support.steps import go
from weft.client import Refused
from weft.domain.job import Job, JobEvent
from weft.domain.lease import Lease
from weft.domain.tenants import AllowanceChange
from weft.messages.http.schedules import ScheduleKept
from weft.store import GatewayStore
from weft.store.tenants import Access
from weftd.gateway.allowances import Allowances
from weftd.gateway.readmodel.snapshots import Snapshots
from weftd.gateway.schedules import RETRY_SECONDS, Schedules
from weftd.gateway.settings import GatewaySettings
from weftd.gateway.submissions import SCHEDULES_PER_TENANT_MAX, Submissions
from weftd.gateway.wakeup import Wakeups

MIDNIGHT = 1_767_225_600.0  # 2026-01-01
HOUR = 3600.0


class Killed(BaseException):
    """A gateway ends here, without a last word."""


class Dying:
    """A store whose gateway is killed at its call number `at`: before the call, or once it was `done`."""

    def __init__(self, store: GatewayStore, at: int, *, done: bool) -> None:
        self._store, self._at, self._done = store, at, done
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        async def ask(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            if self.calls == self._at and not self._done:
                raise Killed
            answer = await getattr(self._store, name)(*arguments, **named)
            if self.calls == self._at:
                raise Killed
            return answer

        return ask


class Day:
    """A gateway's part for schedules, and a clock that the test turns."""

    def __init__(self, store: object, *, now: float = MIDNIGHT, holder: str = "one") -> None:
        self.now, self._ids = now, 0
        self.store = cast(GatewayStore, store)
        snapshots = Snapshots(
            self.store, clock=lambda: self.now, default_pool="default", volumes_allowed=(), shares=True
        )
        wakeups = Wakeups(MemoryBus())
        self.submissions = Submissions(
            store=self.store,
            snapshots=snapshots,
            allowances=Allowances(GatewaySettings().tenants),
            registry=None,
            bus=MemoryBus(),
            wakeups=wakeups,
            charge=lambda tenant, seconds: None,
            now=lambda: self.now,
            characters=self._characters,
        )
        self.schedules = Schedules(
            self.store, self.submissions, wakeups, holder=holder, now=lambda: self.now, clock=lambda: self.now
        )
        self._holder = holder

    def _characters(self, count: int) -> str:
        self._ids += 1
        return f"{self._holder}{self._ids:0{count - len(self._holder)}}"

    async def add(self, schedule: object = "0 3 * * *", tenant: str = "alice", **fields: Any) -> ScheduleKept:
        body = {"name": "nightly", "kind": "batch", "command": ["true"], "schedule": schedule, **fields}

        (known,) = await self.store.tenants(tenant=tenant)
        who = Access(tenant=tenant, chosen=known.chosen)
        encoded = msgspec.json.encode(body)
        made = await self.submissions.submit(who, encoded, content_type="application/json", key=None)
        return await self.known(made.id)

    async def known(self, name: str = "nightly", tenant: str | None = None) -> ScheduleKept:
        (found,) = await self.store.schedules(tenant=tenant, named=name)
        return found

    async def fire(self) -> None:
        """Submit all that is due now."""
        while waiting := await self.store.schedules_to_try(at=self.now, limit=10):
            for kept in waiting:
                await self.schedules.fire(kept)

    async def jobs(self) -> list[Job]:
        """The runs, the oldest first."""
        return (await self.store.jobs(tenant=None, limit=1000))[::-1]

    async def dues(self) -> list[float]:
        """When the runs were due, in hours."""
        runs = [job.spec.scheduled for job in await self.jobs()]
        return [(run.due_at - MIDNIGHT) / HOUR for run in runs if run is not None]


async def ended(servers: Place, job_id: str) -> None:
    """The job is over."""
    scheduler = servers.stores.scheduler
    lease: Lease | None = await scheduler.lease("default")
    lease = lease or await scheduler.take_lease("default", holder="test", seen=None)
    assert lease is not None
    await scheduler.admit(lease, load=0, pool="default", limit=1000)
    job = await scheduler.job(job_id)
    assert job is not None
    await go(scheduler, lease, job, JobEvent.CANCELLED, at=MIDNIGHT)


async def test_each_time_that_is_due_is_one_job(store: GatewayStore, servers: Place) -> None:
    day = Day(store)
    kept = await day.add()
    assert kept.next_at == MIDNIGHT + 3 * HOUR
    await day.fire()
    assert await day.jobs() == []
    for number in range(3):
        day.now = MIDNIGHT + (24 * number + 3) * HOUR + 0.5
        await day.fire()
        await day.fire()
        await ended(servers, (await day.known()).last_job)
    assert await day.dues() == [3, 27, 51]
    run = (await day.jobs())[-1]
    assert run.spec.recurs is None
    assert run.spec.scheduled is not None
    assert run.spec.scheduled.schedule == kept.id
    assert run.spec.env == {"WEFT_DUE_AT": "2026-01-03T03:00Z"}
    known = await day.known()
    assert (known.next_at, known.last_job, known.last_state, known.note) == (
        MIDNIGHT + 75 * HOUR,
        run.id,
        "cancelled",
        "",
    )
    told = (await store.events(newest=True, limit=100))[0]
    assert b"as the run of schedule nightly that was due at 2026-01-01T03:00Z" in bytes(told.data)


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("overlap", ["skip", "replace"])
async def test_a_gateway_that_is_killed_at_any_call_loses_no_run_and_submits_none_twice(
    store: GatewayStore, servers: Place, overlap: str, done: bool
) -> None:
    for at in range(1, 40):
        await servers.stores.clear()
        await store.add_token(b"alice".ljust(32), tenant="alice", admin=False, label="", at=0.0)
        before = Day(store)
        await before.add({"cron": "0 3 * * *", "overlap": overlap})
        if overlap == "replace":  # an earlier run is open, and is cancelled
            before.now = MIDNIGHT + 3 * HOUR
            await before.fire()
        due = before.now = MIDNIGHT + (27 if overlap == "replace" else 3) * HOUR
        dying = Dying(store, at, done=done)
        killed = Day(dying, now=due, holder="killed")
        try:
            await killed.fire()
            survived = dying.calls < at
        except Killed:
            survived = False
        heir = Day(store, now=due + 60, holder="heir")
        await heir.fire()
        assert await heir.dues() == ([3, 27] if overlap == "replace" else [3]), at
        known, runs = await heir.known(), await heir.jobs()
        assert (known.last_job, known.last_at, known.firing_at) == (runs[-1].id, due, None), at
        if overlap == "replace":
            asks = await servers.stores.scheduler.asks(pool="default", limit=100)
            assert {ask.subject_id for ask in asks} == {runs[0].id}, at
        if survived:
            return
    raise AssertionError("it makes more calls than the test has tried")


async def test_two_gateways_that_both_believe_in_their_duty_submit_one_job(store: GatewayStore) -> None:
    one, other = Day(store), Day(store, holder="two")
    kept = await one.add()
    one.now = other.now = MIDNIGHT + 3 * HOUR
    await asyncio.gather(*(day.schedules.fire(kept) for day in (one, other, one, other)))
    await one.fire()
    assert await one.dues() == [3]


async def test_one_gateway_at_a_time_has_the_duty(store: GatewayStore) -> None:
    one, other = Day(store), Day(store, holder="two")
    await one.add()
    one.now = other.now = MIDNIGHT + 3 * HOUR
    await other.schedules.beat()
    await one.schedules.beat()
    assert not one.schedules.busy
    await other.schedules.close()
    one.now += 10.0
    async with asyncio.timeout(60):
        while not await one.jobs():
            await one.schedules.beat()
            await asyncio.sleep(0.02)
    await one.schedules.close()
    assert await one.dues() == [3]


async def test_missed_times_are_one_run_if_that_may_still_start(store: GatewayStore) -> None:
    day = Day(store)
    await day.add({"cron": "0 * * * *", "start_within": "10m"})
    day.now = MIDNIGHT + 5 * HOUR + 300
    await day.fire()
    assert await day.dues() == [5]
    known = await day.known()
    assert (known.note, known.noted_at) == ("missed: 2026-01-01T05:00Z was due already", MIDNIGHT + HOUR)
    day.now = MIDNIGHT + 9 * HOUR + 601
    await day.fire()
    assert await day.dues() == [5]
    known = await day.known()
    assert known.next_at == MIDNIGHT + 10 * HOUR
    assert known.noted_at == MIDNIGHT + 9 * HOUR
    assert known.note == "missed: it could not be submitted within 10m0s"


@pytest.mark.parametrize(
    ("overlap", "dues"), [("skip", [1, 4]), ("wait", [1, 2, 4]), ("allow", [1, 2, 3, 4]), ("replace", [1, 2, 3, 4])]
)
async def test_runs_that_overlap(store: GatewayStore, servers: Place, overlap: str, dues: list[float]) -> None:
    """The first run is open until after the third time, and so are those after it."""
    day = Day(store)
    await day.add({"cron": "0 * * * *", "overlap": overlap})
    for hour in (1, 2, 3):
        day.now = MIDNIGHT + hour * HOUR
        await day.fire()
    known, runs = await day.known(), await day.jobs()
    if overlap in ("skip", "wait"):
        assert known.note.startswith("skipped: ")
        assert known.noted_at == MIDNIGHT + 3 * HOUR
    if overlap == "replace":
        asked = await servers.stores.scheduler.asks(pool="default", limit=100)
        assert {ask.subject_id for ask in asked} == {job.id for job in runs[:-1]}
        assert {ask.who for ask in asked} == {"schedule nightly"}
    assert {job.spec.singleton for job in runs} == {overlap == "wait"}
    for job in runs:
        await ended(servers, job.id)
    day.now = MIDNIGHT + 4 * HOUR
    await day.fire()
    assert await day.dues() == dues


async def test_a_paused_schedule_has_no_runs_and_makes_up_for_none(store: GatewayStore) -> None:
    day = Day(store)
    kept = await day.add("0 * * * *")
    await store.pause_schedule(kept.id, at=day.now)
    day.now = MIDNIGHT + 3.5 * HOUR
    await day.fire()
    await store.resume_schedule(kept.id, next_at=MIDNIGHT + 4 * HOUR)
    await day.fire()
    assert await day.jobs() == []
    day.now = MIDNIGHT + 4 * HOUR
    await day.fire()
    assert await day.dues() == [4]


async def test_a_run_for_which_its_tenant_has_no_room_waits_for_room(store: GatewayStore, servers: Place) -> None:
    day = Day(store)
    await day.add({"cron": "0 3 * * *", "start_within": "5m"})
    await store.change_tenant("alice", AllowanceChange(jobs_open_max=1))
    await store.submit(spec(), job_id="j-0", tenant="alice", key=None, at=MIDNIGHT)
    day.now = MIDNIGHT + 3 * HOUR
    await day.fire()
    assert len(await day.jobs()) == 1
    assert (await day.known()).firing_at == day.now
    await ended(servers, "j-0")
    day.now += RETRY_SECONDS
    await day.fire()
    assert await day.dues() == [3]


async def test_what_its_tenant_may_not_have_any_more_is_refused_once_and_told(store: GatewayStore) -> None:
    day = Day(store)
    await store.change_tenant("alice", AllowanceChange(priority_max=5))
    await day.add(priority=5)
    await store.change_tenant("alice", AllowanceChange(priority_max=0))
    day.now = MIDNIGHT + 3 * HOUR
    await day.fire()
    assert await day.jobs() == []
    known = await day.known()
    assert known.note.startswith("refused: priority: 5 is more than this tenant's maximum of 0")
    assert (known.firing_at, known.next_at) == (None, MIDNIGHT + 27 * HOUR)


async def test_a_key_of_its_tenant_does_not_stand_for_a_run(store: GatewayStore) -> None:
    day = Day(store)
    kept = await day.add()
    key = f"schedule {kept.id} {int(MIDNIGHT + 3 * HOUR)}"
    await store.submit(spec(), job_id="j-0", tenant="alice", key=key, at=MIDNIGHT)
    day.now = MIDNIGHT + 3 * HOUR
    await day.fire()
    assert (await day.known()).note == "refused: a job of the tenant has the key of this run"
    day.now += 24 * HOUR
    await day.fire()
    assert await day.dues() == [27]


async def test_one_tenants_schedules_delay_no_others(store: GatewayStore) -> None:
    day = Day(store)
    for number in range(30):
        await day.add("0 3 * * *", name=f"many-{number}")
    await day.add("1 3 * * *", tenant="bob", name="one")
    first = await store.schedules_to_try(at=MIDNIGHT + 4 * HOUR, limit=2)
    assert [kept.tenant for kept in first] == ["alice", "bob"]


# over HTTP


def nightly(**fields: Any) -> dict[str, Any]:
    return {"name": "nightly", "kind": "batch", "command": ["true"], "schedule": "0 3 * * *", **fields}


async def test_a_schedule_is_submitted_listed_paused_resumed_and_removed(world: World) -> None:

    made = await world.alice.submit(msgspec.json.encode(nightly()))
    assert made.created
    assert made.next_run_at is not None
    again = await world.alice.submit(msgspec.json.encode(nightly()))
    assert (again.id, again.created) == (made.id, False)
    status, body, headers = await world.ask("POST", "/v1/jobs", json=nightly(name="other"))
    assert (status, headers["Location"].rpartition("/")[0]) == (201, "/v1/schedules"), body
    assert (await world.alice.schedules()).schedules[0].next_run_at == made.next_run_at
    assert (await world.bob.schedules()).schedules == ()
    assert {one.tenant for one in (await world.admin.schedules()).schedules} == {"alice"}
    assert (await world.alice.pause_schedule("nightly")).next_run_at is None
    shown = {one.name: one for one in (await world.alice.schedules()).schedules}
    assert shown["nightly"].paused_at is not None
    assert (await world.alice.resume_schedule(made.id)).next_run_at is not None
    assert (await world.alice.remove_schedule("nightly")).id == made.id
    assert [one.name for one in (await world.alice.schedules()).schedules] == ["other"]
    assert (await world.alice.jobs()).jobs == ()


async def test_another_tenants_schedule_is_not_there(world: World) -> None:

    made = await world.alice.submit(msgspec.json.encode(nightly()))
    for name in (made.id, "nightly"):
        for change in (world.bob.pause_schedule, world.bob.resume_schedule, world.bob.remove_schedule):
            with pytest.raises(Refused) as refused:
                await change(name)
            assert (refused.value.status, refused.value.field) == (404, "schedule")
    await world.bob.submit(msgspec.json.encode(nightly()))  # the same name of another tenant
    assert (await world.admin.pause_schedule(made.id)).tenant == "alice"
    with pytest.raises(Refused, match="give its id"):
        await world.admin.pause_schedule("nightly")


async def test_schedules_are_bounded_and_each_refusal_names_its_field(world: World) -> None:

    for body, status, field in (
        (nightly(schedule="* * * * * *"), 400, "schedule"),
        (nightly(schedule={"cron": "@daily", "timezone": "Mars/Olympus"}), 400, "schedule.timezone"),
        (nightly(env={str(f"A{number}"): "x" * 32_000 for number in range(3)}), 413, "schedule"),
        (nightly(priority=1000), 403, "priority"),
        (nightly(secrets={"A": "none"}), 400, "secrets.A"),
    ):
        found, answer, _ = await world.ask("POST", "/v1/jobs", json=body)
        assert (found, error_of(answer)[0]) == (status, field), answer
    await world.alice.submit(msgspec.json.encode(nightly()))
    found, answer, _ = await world.ask("POST", "/v1/jobs", json=nightly(schedule="0 4 * * *"))
    assert (found, error_of(answer)[0]) == (409, "name"), answer
    for number in range(SCHEDULES_PER_TENANT_MAX - 1):
        await world.alice.submit(msgspec.json.encode(nightly(name=f"more-{number}")))
    found, answer, _ = await world.ask("POST", "/v1/jobs", json=nightly(name="one-more"))
    assert (found, error_of(answer)[0]) == (409, "schedule"), answer
    assert (await world.alice.schedules()).after is None


async def test_an_administrators_schedule_has_the_allowance_of_its_tenant(world: World) -> None:
    found, answer, _ = await world.ask("POST", "/v1/jobs", token="admin", json=nightly(priority=1000))
    assert (found, error_of(answer)[0]) == (403, "priority"), answer


async def test_the_gateway_submits_what_is_due(world: World) -> None:
    """The whole of it: a schedule that is due now, by the clock of the database's row, becomes a job."""

    made = await world.alice.submit(msgspec.json.encode(nightly(schedule="* * * * *")))
    (kept,) = await world.place.stores.gateway.schedules()
    past = structs.replace(kept, next_at=kept.next_at - 60)
    await world.place.stores.owner.execute(
        "UPDATE schedules SET next_at = to_timestamp($1::float8), try_at = to_timestamp($1::float8)", past.next_at
    )
    async with asyncio.timeout(60):
        while not (shown := (await world.alice.schedules()).schedules[0]).last_job:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.05)
    jobs = (await world.alice.jobs()).jobs
    assert (shown.id, shown.last_job, shown.last_state) == (made.id, jobs[0].id, "queued")
    told = await world.alice.explain(jobs[0].id)
    assert told.scheduled is not None
    assert told.scheduled.schedule == made.id
