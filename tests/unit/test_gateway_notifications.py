"""Prices, signatures, spans and waits, from what goes in to what comes out."""

import base64
import hashlib
import hmac
import random

import msgspec
import pytest

from tests.support.doubles.store import MemoryStore
from tests.support.held_story import tell_at_random
from tests.support.story import tell_everything
from weft.messages.accounts import JobFacts
from weft.messages.events import Event
from weftd.gateway.notifications.urls import mistake
from weftd.gateway.thinking.accounting.lost import kind_of, lost_since
from weftd.gateway.thinking.accounting.prices import HOUR, PricesError, cost, read_prices
from weftd.gateway.thinking.accounting.stretches import EpochStretch, Part
from weftd.gateway.thinking.accounting.used import Used, UsedLedger, UsedSum
from weftd.gateway.thinking.notifications.addresses import networks_of
from weftd.gateway.thinking.notifications.posts import (
    BODY_BYTES_MAX,
    body_of,
    events_of,
    secret_of,
    signed,
    wait_seconds,
)
from weftd.gateway.thinking.notifications.spans import SPANS_MAX, Trace, trace_id

LIST = 'currency = "EUR"\n[gpu_hour]\n"A" = 0.1\n"B" = 2.499999\n'


def test_costs_are_exact_decimals() -> None:
    prices = read_prices(LIST)
    assert cost({"A": 3 * HOUR}, prices) == "0.300000"
    assert cost({"B": HOUR}, prices) == "2.499999"
    assert cost({"A": HOUR // 3600, "B": 1_000_000 * HOUR}, prices) == "2499999.000028"
    assert cost({"A": HOUR, "C": 1}, prices) is None
    assert cost({"C": 0}, prices) == "0.000000"
    anything = read_prices(LIST + '"*" = 7\n')
    assert cost({"C": HOUR}, anything) == "7.000000"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("currency = 7\n[gpu_hour]\nA = 1\n", "currency"),
        ('currency = "EUR"\n', "gpu_hour"),
        ('currency = "EUR"\ngpu_hour = 3\n', "gpu_hour"),
        ('currency = "EUR"\n[gpu_hour]\nA = "2"\n', "gpu_hour.A"),
        ('currency = "EUR"\n[gpu_hour]\nA = true\n', "gpu_hour.A"),
        ('currency = "EUR"\n[gpu_hour]\nA = -1\n', "gpu_hour.A"),
        ('currency = "EUR"\n[gpu_hour]\nA = nan\n', "gpu_hour.A"),
        ('currency = "EUR"\n[gpu_hour]\nA = 1e999999999\n', "gpu_hour.A"),
        ('currency = "EUR"\n[gpu_hour]\nA = 0.0000001\n', "gpu_hour.A"),
        ('currency = "EUR"\n[gpu_hours]\nA = 1\n', "gpu_hours"),
        ("currency", "TOML"),
        ("a = " + "[" * 100_000, "TOML"),
    ],
)
def test_a_price_list_that_makes_no_sense_is_refused_by_the_field(text: str, field: str) -> None:
    with pytest.raises(PricesError, match=field):
        read_prices(text)


def stretch(code: str = "preempted", **fields: object) -> EpochStretch:
    """Of 100 s on two GPUs, of a job with the specification that `fields` say."""
    job = JobFacts(id="j", tenant="t", pool="p", name="n", kind="training", **fields.pop("job", {}))  # type: ignore[arg-type]
    usual = {"event": "requeued", "code": code, "parts": (Part(0, 100_000_000, (("n", 0, 1000), ("n", 1, 1000))),)}
    return EpochStretch(job=job, epoch=0, began=0, **{**usual, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "seconds", "basis"),
    [
        ({}, 100.0, "all"),
        ({"told": {"step": 200.0, "checkpoint": 150.0}}, 25.0, "told"),
        ({"told": {"step": 200.0, "checkpoint": 150.0}, "saved": 100.0}, 50.0, "told"),
        ({"told": {"step": 200.0, "checkpoint": 500.0}}, 0.0, "told"),
        ({"told": {"step": 200.0, "checkpoint": -5.0}}, 100.0, "told"),
        ({"told": {"step": float("nan"), "checkpoint": 5.0}}, 100.0, "all"),
        ({"told": {"step": 50.0, "checkpoint": 50.0}, "saved": 100.0}, 100.0, "all"),
        ({"job": {"labels": {"weft/checkpoints": "40s"}}}, 20.0, "assumed"),
        ({"job": {"labels": {"weft/checkpoints": "0s"}}, "asked": True}, 0.0, "assumed"),
        ({"job": {"labels": {"weft/checkpoints": "0s"}}}, 100.0, "all"),
        ({"job": {"labels": {"weft/checkpoints": "1h"}}}, 100.0, "assumed"),
        ({"event": "succeeded"}, 0.0, ""),
        ({"event": "cancelled"}, 0.0, ""),
    ],
)
def test_what_was_thrown_away_is_the_end_of_an_epoch(fields: dict[str, object], seconds: float, basis: str) -> None:
    found = stretch(**fields)
    since, why = lost_since(found)
    assert (100.0 - since / 1e6, why) == (pytest.approx(seconds), basis)
    assert kind_of(found) == ("preempted" if basis else "")


def total(held: int, known: Used) -> tuple[int | None, int | None, float | None]:
    found = UsedSum()
    found.add(held, known)
    return found.total


def test_what_is_not_sampled_is_unknown_and_little_is_filled_up() -> None:
    ledger = UsedLedger(most=3)
    of = ("j", 0, "A")
    ledger.put(of, 10, Used(sampled=95, used=19, idle=38, powered=95, joules=9.5))
    assert total(100, ledger.of(of, 0, 100)) == (20, 40, pytest.approx(10.0))
    assert total(106, ledger.of(of, 0, 100)) == (None, None, None)
    assert total(100, ledger.of(("j", 1, "A"), 0, 100)) == (None, None, None)
    assert UsedSum().total == (0, 0, 0.0)
    for hour in range(1, 4):
        ledger.put(of, hour * 3_600_000_000, Used(sampled=1))
    assert ledger.of(of, 0, 3_600_000_000).sampled == 0, "the oldest hour gave way"
    assert ledger.of(of, 0, 4 * 3_600_000_000).sampled == 3


def test_a_post_is_signed_over_its_id_its_time_and_its_body() -> None:
    secret = secret_of("k" * 40)
    headers = signed(secret, "jobs/j-1/1", 1700000000, b"body")
    digest = hmac.new(b"k" * 40, b"jobs/j-1/1.1700000000.body", hashlib.sha256).digest()
    assert headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"


def test_short_names_of_events_are_meant_once_and_unknown_ones_are_refused() -> None:
    assert events_of(("begin", "started", "end")) == ("started", "succeeded", "failed", "cancelled")
    assert events_of(("drained",)) == ("drained",)
    with pytest.raises(ValueError, match="no event start; there is begin"):
        events_of(("start",))


def test_an_event_that_is_too_large_is_posted_without_its_places() -> None:
    data = {"job_id": "j", "placement": {"why": "x" * BODY_BYTES_MAX}, "epoch": 2}
    event = Event(
        id=1,
        topic="jobs",
        event="placed",
        subject_id="j",
        version=2,
        at=0.0,
        data=msgspec.Raw(msgspec.json.encode(data)),
    )
    told = msgspec.json.decode(body_of(event))
    assert (told["data"], told["truncated"]) == ({"job_id": "j", "epoch": 2}, True)


def test_tries_come_later_and_later_but_never_more_than_ten_minutes_apart() -> None:
    assert [wait_seconds(number) for number in (1, 2, 3, 11, 10_000)] == [1.0, 2.0, 4.0, 600.0, 600.0]


async def test_every_job_that_is_over_is_a_trace_whose_spans_lie_in_their_parents() -> None:
    store = MemoryStore()
    await tell_everything(store, store)
    seen = await traces(store)
    assert {"job", "wait", "place", "start", "run", "stop", "epoch 0", "epoch 1"} <= seen


@pytest.mark.parametrize("seed", range(5))
async def test_any_story_is_a_trace(seed: int) -> None:
    store = MemoryStore()
    await tell_at_random(store, store, random.Random(seed), begins=1.7e9, jobs=6, things=200)
    await traces(store)


async def traces(store: MemoryStore) -> set[str]:
    names = set()
    for job in await store.jobs(tenant=None, limit=1000):
        story = await store.story(job.id)
        trace = Trace(story[0])
        for event in story:
            trace.take(event)
        spans = trace.body()["resourceSpans"][0]["scopeSpans"][0]["spans"]
        assert len(spans) <= SPANS_MAX
        by_id = {span["spanId"]: span for span in spans}
        assert {span["traceId"] for span in spans} <= {trace_id(job.id)}
        names |= {span["name"] for span in spans}
        for span in spans:
            assert int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
            if (parent := by_id.get(span.get("parentSpanId", ""))) is not None:
                assert int(parent["startTimeUnixNano"]) <= int(span["startTimeUnixNano"])
        if job.state.final:
            assert [span["name"] for span in spans if "parentSpanId" not in span] == ["job"]
    return names


def test_an_address_that_may_not_be_reached_is_named_with_the_setting_that_allows_it() -> None:
    why = mistake("http://169.254.169.254/latest", networks_of(["10.1.0.0/16"]))
    assert why.startswith("169.254.169.254 is an address that webhooks may not use")
    assert "GATEWAY_WEBHOOKS_NETWORKS" in why
    assert mistake("http://10.1.2.3/hook", networks_of(["10.1.0.0/16"])) == ""
