"""Webhooks to real receivers, kind and hostile: over a real gateway, and by its parts."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from ipaddress import ip_network

import pytest

from tests.support import receivers
from tests.support.builders import spec
from tests.support.doubles.store import MemoryStore
from tests.support.gateway_world import World, error_of
from tests.support.receivers import receiving, serving
from tests.support.story import tell_everything
from weft.client import Refused
from weft.domain.job import Cause, CauseCode, JobEvent
from weft.messages.webhooks import WebhookWanted
from weft.store import GatewayStore
from weft.store.webhooks import WebhookKept
from weftd.gateway.notifications.dispatcher import Dispatcher
from weftd.gateway.notifications.posting import NOT_FOUND, Poster, PostError
from weftd.gateway.notifications.tracing import Tracing
from weftd.gateway.thinking.notifications.posts import secret_of

HERE = (ip_network("127.0.0.0/8"),)
SECONDS_MAX = 60.0


async def until(done: Callable[[], bool], step: Callable[[], Awaitable[None]] | None = None) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not done():
            if step is not None:
                await step()
            await asyncio.sleep(0.02)


async def test_a_tenants_events_are_posted_in_order_signed_and_again_until_they_are_taken(world: World) -> None:
    async with receiving(500, 302) as receiver, receiving() as every:
        made = await world.alice.add_webhook(WebhookWanted(url=receiver.url, events=("begin", "fail", "requeue")))
        everything = await world.admin.add_webhook(WebhookWanted(url=every.url, all_tenants=True))
        job = await world.running()
        job = await world.go(job, JobEvent.REQUEUED, cause=Cause(code=CauseCode.NODE_LOST))
        await world.bob.submit(spec())
        await until(lambda: len(receiver.bodies) >= 4 and len(every.bodies) >= 6)
        told = [(one["type"], one["id"]) for one in receiver.events]
        assert told[:3] == [told[0]] * 3  # 500, then a redirect that nobody follows, then taken
        assert [kind for kind, _ in told[2:4]] == ["weft.jobs.started", "weft.jobs.requeued"]
        assert all(receiver.is_signed(place, made.secret) for place in range(4))
        assert not receiver.is_signed(0, everything.secret)
        assert abs(int(receiver.heads[0]["webhook-timestamp"]) - time.time()) < 60
        assert [one["webhook-id"] for one in receiver.heads[2:4]] == [name for _, name in told[2:4]]
        assert receiver.targets[0] == "POST /hook?a=1 HTTP/1.1"
        assert {one["data"].get("tenant") for one in every.events} == {"alice", "bob"}
        assert all(b"whsec_" not in body for body in every.bodies)
        (kept,) = (await world.alice.webhooks()).webhooks
        assert (kept.id, kept.delivered, kept.failures, kept.error, kept.off) == (made.webhook.id, 2, 0, "", "")
        assert len((await world.admin.webhooks()).webhooks) == 2
        assert (await world.bob.webhooks()).webhooks == ()
        status, body, _ = await world.ask("GET", "/v1/webhooks")
        assert b"whsec_" not in body, "the secret is told once"
        assert status == 200
        for act in (world.bob.remove_webhook, world.bob.switch_webhook_on):
            with pytest.raises(Refused) as refused:
                await act(made.webhook.id)
            assert refused.value.status == 404
        await world.gateway.stop()
        await world.go(job, JobEvent.CANCELLED)
        await world.gateway.start()
        await until(lambda: [one["type"] for one in every.events].count("weft.jobs.cancelled") == 1)
        await world.alice.remove_webhook(made.webhook.id)
        assert (await world.alice.webhooks()).webhooks == ()


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ('{"url": "http://10.0.0.1/"}', 400, "url"),
        ('{"url": "http://169.254.169.254/latest/meta-data"}', 400, "url"),
        ('{"url": "http://[::1]:5432/"}', 400, "url"),
        ('{"url": "http://[::ffff:10.0.0.1]/"}', 400, "url"),
        ('{"url": "http://168.63.129.16/"}', 400, "url"),
        ('{"url": "ftp://example.org/"}', 400, "url"),
        ('{"url": "https://user:secret@example.org/"}', 400, "url"),
        ('{"url": "https://example.org/#x"}', 400, "url"),
        ('{"url": "https://example.org:0/"}', 400, "url"),
        ('{"url": "https://example.org:99999/"}', 400, "url"),
        ('{"url": "https://example.org/a b"}', 400, "url"),
        ('{"url": "https://example.org/\\r\\nX: y"}', 400, "url"),
        ('{"url": "https://[::1"}', 400, "url"),
        ('{"url": "https://"}', 400, "url"),
        ('{"url": 7}', 400, "url"),
        ("{}", 400, "url"),
        ('{"url": "https://example.org/", "events": ["start"]}', 400, "events"),
        ('{"url": "https://example.org/", "all_tenants": true}', 403, "all_tenants"),
        ('{"url": "https://example.org/", "secret": "mine"}', 400, "secret"),
    ],
)
async def test_a_webhook_that_makes_no_sense_or_reaches_inside_is_refused(
    world: World, body: str, status: int, field: str
) -> None:
    found, answer, _ = await world.ask("POST", "/v1/webhooks", data=body.encode())
    assert (found, error_of(answer)[0]) == (status, field), answer
    assert (await world.alice.webhooks()).webhooks == ()


# by its parts


@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        (receivers.hang, "no answer within"),
        (receivers.garbage, "not HTTP"),
        (receivers.endless_line, "not HTTP"),
        (receivers.endless_hints, "no answer came"),
        (receivers.close_at_once, "clos|reset|broke|pipe"),
    ],
)
async def test_a_hostile_receiver_is_left_in_time(behaviour: receivers.Behaviour, why: str) -> None:
    poster = Poster(HERE, seconds_max=1.0)
    async with serving(behaviour) as url:
        with pytest.raises(PostError, match=why):
            await poster.post(url, b"{}" * 100_000, {})


async def test_of_a_huge_answer_the_status_alone_is_read() -> None:
    poster = Poster(HERE)
    async with serving(receivers.huge) as url:
        assert await poster.post(url, b"{}", {}) == 200


async def test_a_name_is_looked_up_once_and_no_address_inside_is_ever_connected_to() -> None:
    asked: list[str] = []
    answers = ["203.0.113.1", "127.0.0.1"]

    def find(host: str, port: int) -> list[str]:
        asked.append(host)
        return (
            [answers[min(len(asked), 2) - 1]] if host == "rebinds.example" else ["8.8.8.8", host.removesuffix(".inner")]
        )

    async with receiving() as receiver:
        port = receiver.url.partition(":1/")[0].rpartition(":")[2].partition("/")[0]
        inside = Poster((), find=find)
        for host in ("127.0.0.1.inner", "rebinds.example", "10.0.0.10.inner"):
            before = len(asked)
            with pytest.raises(PostError, match=NOT_FOUND):
                await inside.post(f"http://{host}:{port}/", b"", {})
            assert len(asked) == before + 1
        for host in ("127.0.0.1", "[::ffff:127.0.0.1]", "0.0.0.0"):
            with pytest.raises(PostError):
                await inside.post(f"http://{host}:{port}/", b"", {})
        assert receiver.bodies == []
        checked = Poster(HERE, find=lambda host, port: ["127.0.0.1"])
        assert await checked.post(f"http://named.example:{port}/", b"", {}) == 204
        assert receiver.heads[0]["host"] == f"named.example:{port}"


class Day:
    """A store, a duty and a clock that the test turns."""

    def __init__(self, store: GatewayStore, holder: str = "one") -> None:
        self.now = 1_767_225_600.0
        self.store = store
        self.poster = Poster(HERE, seconds_max=1.0)
        self.telling = Dispatcher(
            self.store,
            poster=self.poster,
            tracing=None,
            holder=holder,
            now=lambda: self.now,
            clock=lambda: self.now,
            off_seconds=86_400.0,
        )

    async def hook(self, name: str, url: str, tenant: str = "alice") -> None:
        kept = WebhookKept(
            id=name,
            tenant=tenant,
            url=url,
            events=(),
            all_tenants=False,
            secret=secret_of("x" * 40),
            created_at=self.now,
            cursor="",
        )
        assert await self.store.add_webhook(kept, most=100)

    async def known(self, name: str) -> WebhookKept:
        return next(one for one in await self.store.webhooks() if one.id == name)


async def test_a_receiver_that_hangs_delays_no_other(store: GatewayStore) -> None:
    day = Day(store)
    async with serving(receivers.hang) as slow, receiving() as quick:
        for number in range(10):
            await day.hook(f"slow-{number}", slow)
        await day.hook("quick", quick.url)
        for number in range(30):
            await day.store.submit(spec(), job_id=f"j-{number}", tenant="alice", key=None, at=day.now)
        await until(lambda: len(quick.bodies) >= 30, day.telling.beat)
        assert [one["subject"] for one in quick.events] == [f"j-{number}" for number in range(30)]
        assert (await day.known("slow-0")).delivered == 0
        await day.telling.close()


async def test_what_takes_nothing_for_a_day_is_switched_off_and_goes_on_when_it_is_switched_on(
    store: GatewayStore,
) -> None:
    day = Day(store)
    async with receiving(*[500] * 200) as receiver:
        await day.hook("w", receiver.url)
        await day.store.submit(spec(), job_id="j-1", tenant="alice", key=None, at=day.now)
        waits: list[float] = []

        async def cycle() -> None:
            known = await day.known("w")
            if known.not_before is not None and known.not_before > day.now:
                waits.append(known.not_before - day.now)
                day.now = known.not_before
            await day.telling.beat()

        off: list[str] = []

        async def look() -> None:
            await cycle()
            off[:] = [one.off for one in await day.store.webhooks() if one.off]

        await until(lambda: bool(off), look)
        assert waits[:4] == [1.0, 2.0, 4.0, 8.0]
        assert max(waits) == 600.0
        assert off == ["the receiver accepted nothing for 24.0 hours"] or off[0].startswith(
            "the receiver accepted nothing for 24."
        )
        tries = len(receiver.bodies)
        assert tries < 200
        day.now += 86_400
        await day.telling.beat()
        await asyncio.sleep(0.1)
        assert len(receiver.bodies) == tries, "nothing is posted any more"
        receiver.statuses.clear()
        await day.store.switch_on("w")
        await until(lambda: len(receiver.bodies) > tries, day.telling.beat)
        await day.telling.close()
        assert (await day.known("w")).delivered == 1
        assert len({one["webhook-id"] for one in receiver.heads}) == 1, "the event that was not taken comes again"


async def test_a_receiver_that_is_gone_is_asked_no_more(store: GatewayStore) -> None:
    day = Day(store)
    async with receiving(410) as receiver:
        await day.hook("w", receiver.url)
        await day.store.submit(spec(), job_id="j-1", tenant="alice", key=None, at=day.now)
        await until(lambda: bool(receiver.bodies), day.telling.beat)
        await until(lambda: not day.telling.busy)
        assert (await day.known("w")).off == "the receiver answered 410: it wants no more"
        await day.telling.close()


async def test_one_gateway_tells_at_a_time_and_another_goes_on_where_it_was(store: GatewayStore) -> None:
    one = Day(store)
    two = Day(store, "two")
    async with receiving() as receiver:
        await one.hook("w", receiver.url)
        await one.store.submit(spec(), job_id="j-1", tenant="alice", key=None, at=one.now)
        await one.telling.beat()
        await two.telling.beat()
        await until(lambda: len(receiver.bodies) == 1, two.telling.beat)
        await one.telling.close()
        await one.store.submit(spec(), job_id="j-2", tenant="alice", key=None, at=one.now)
        two.now += 60
        await until(lambda: len(receiver.bodies) == 2, two.telling.beat)
        assert [event["subject"] for event in receiver.events] == ["j-1", "j-2"]
        await two.telling.close()


async def test_a_tenants_look_ups_that_hang_hold_up_no_other_tenant() -> None:
    ends = threading.Event()
    hung: list[str] = []

    def find(host: str, port: int) -> list[str]:
        if host == "hangs.example":
            hung.append(host)
            ends.wait(SECONDS_MAX)
        return ["127.0.0.1"]

    poster = Poster(HERE, seconds_max=1.0, find=find)
    async with receiving() as receiver:
        port = receiver.url.split(":")[2].partition("/")[0]
        asked = [poster.post(f"http://hangs.example:{port}/", b"", {}, of="eve") for _ in range(40)]
        crowd = asyncio.gather(*asked, return_exceptions=True)
        patient = Poster(HERE, seconds_max=SECONDS_MAX, find=find)
        assert await patient.post(f"http://fine.example:{port}/", b"", {}, of="alice") == 204
        assert {str(error) for error in await crowd} == {"no answer within 1 s"}
        assert len(hung) == 1
    ends.set()


async def test_a_trace_of_each_job_that_is_over_is_sent_once_and_what_cannot_be_sent_is_left_out() -> None:
    store = MemoryStore()
    async with receiving(503) as receiver:
        tracing = Tracing(store, Poster(None), receiver.url.partition("/hook")[0] + "/")
        await tell_everything(store, store)
        await tracing.go_on("0-0")  # from here on
        newest = (await store.events(newest=True, limit=1))[-1].cursor
        for _ in range(2):
            await tracing.go_on(newest)
        over = [
            event for event in await store.events(limit=10_000) if event.event in ("succeeded", "failed", "cancelled")
        ]
        assert (tracing.lost, tracing.sent) == (1, len(over) - 1)
        assert {target.split()[1] for target in receiver.targets} == {"/v1/traces"}
        spans = receiver.events[-1]["resourceSpans"][0]["scopeSpans"][0]["spans"]
        assert spans[0]["name"] == "job"
