"""A mistake of the reallocator that shows with one job: it is left out for a while, and all others are served on."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs
from prometheus_client import CollectorRegistry

from tests.support.builders import node
from tests.support.doubles.bus import MemoryBus
from tests.support.doubles.store import MemoryStore
from tests.support.served import bucket
from tests.support.service_loads import seen, served, service_job, told
from tests.support.steps import go
from weft.domain.job import Job, JobEvent, Placement
from weft.domain.lease import Lease
from weft.domain.spec import TuningMode
from weft.serving.autoscaler import PredictiveAutoscaler
from weft.store import StoreUnavailableError
from weftd.reallocator.quarantine import ASIDE_SECONDS, Quarantine
from weftd.reallocator.service import Review
from weftd.reallocator.serving import ServiceReview
from weftd.reallocator.thinking.core import Reallocator
from weftd.reallocator.thinking.serving import ServiceScaler

BAD, GOOD = "j-bad", "j-good"


class World:
    """Two services that run, and a reallocator; time is the test's."""

    def __init__(self, store: MemoryStore, lease: Lease, jobs: list[Job]) -> None:
        self.now, self.seq = 10_000.0, 0
        self.store, self.lease, self.jobs = store, lease, jobs
        self.registry = CollectorRegistry()
        self.quarantine = Quarantine(clock=lambda: self.now, registry=self.registry)
        self.scaler = ServiceScaler()
        self.services = ServiceReview(
            self.scaler,
            pool="default",
            mode=TuningMode.ON,
            bus=MemoryBus(),
            store=store,
            clock=lambda: self.now,
            registry=self.registry,
            quarantine=self.quarantine,
        )
        self.core = Reallocator(tuning=TuningMode.ON)
        self.review = Review(
            self.core, MemoryBus(), store, lambda: self.now, 5.0, registry=self.registry, quarantine=self.quarantine
        )

    @classmethod
    async def begun(cls) -> "World":
        store = MemoryStore()
        lease = await store.take_lease("default", holder="me", seen=None)
        assert lease is not None
        jobs: list[Job] = []
        for place, job_id in enumerate((BAD, GOOD)):
            await store.save_node(lease, node(f"node-{place}"), event="joined", cause="joined")
            wanted = service_job(job_id)
            assert wanted.placement is not None
            held = tuple(structs.replace(one, node_id=f"node-{place}") for one in wanted.placement.allocations)
            await store.submit(wanted.spec, job_id=job_id, tenant="alice", key=None, at=1000.0 + place)
            (job,) = await store.admit(lease, load=0, pool="default", limit=10)
            job = await go(store, lease, job, JobEvent.PLACED, at=1002.0, placement=Placement(allocations=held))
            job = await go(store, lease, job, JobEvent.STARTING, at=1003.0)
            jobs.append(await go(store, lease, job, JobEvent.STARTED, at=1004.0))
        return cls(store, lease, jobs)

    async def seconds(self, seconds: int, *, requests: int = 20) -> set[str]:
        """So many requests arrive at each service in each; returns the services that another size was asked for of."""
        for _ in range(seconds):
            self.now += 1.0
            self.seq += 1
            count = self.seq * requests
            took = {bucket(0.1): count}
            counted = [served(job.id, count, answered=count, services=took, totals=took) for job in self.jobs]
            await self.services.hear_served(told(*counted, seq=self.seq, at=self.now))
            for one in seen(*self.jobs, seq=self.seq, at=self.now):
                await self.services.hear_endpoints(one)
            await self.services.beat()
        return {ask.subject_id for ask in await self.store.asks(pool="default", limit=10)}

    @property
    def mistakes(self) -> float:
        return self.registry.get_sample_value("weft_reallocator_mistakes_total") or 0.0


def mistaken(right: Callable[..., Any], about: Callable[..., str]) -> Callable[..., Any]:
    """The function with a mistake that shows with one job."""

    def wrong(*arguments: Any, **named: Any) -> Any:
        if about(*arguments) == BAD:
            raise ZeroDivisionError("on purpose")
        return right(*arguments, **named)

    return wrong


async def test_a_service_whose_size_cannot_be_decided_is_left_out_and_others_are_scaled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w = await World.begun()
    wrong = mistaken(ServiceScaler._load, lambda scaler, service, *_: service.job.id)
    monkeypatch.setattr(ServiceScaler, "_load", wrong)
    assert await w.seconds(20) == {GOOD}
    assert w.mistakes == 1.0


async def test_without_the_mistake_both_are_scaled() -> None:
    w = await World.begun()
    assert await w.seconds(20) == {BAD, GOOD}
    assert w.mistakes == 0.0


async def test_a_job_that_was_left_out_is_tried_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    w = await World.begun()
    with monkeypatch.context() as patch:
        patch.setattr(ServiceScaler, "_load", mistaken(ServiceScaler._load, lambda _, service, *rest: service.job.id))
        await w.seconds(2, requests=0)
    w.now += ASIDE_SECONDS
    assert await w.seconds(20) == {BAD, GOOD}


async def test_a_job_that_cannot_be_reviewed_is_left_out_and_the_review_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w = await World.begun()
    wrong = mistaken(Reallocator._advance, lambda core, followed, *_: followed.job.id)
    monkeypatch.setattr(Reallocator, "_advance", wrong)
    for _ in range(4):
        w.now += 1.0
        await w.review.beat()
    assert w.mistakes == 1.0
    (finding,) = w.quarantine.findings()
    assert (finding.code, finding.job_id) == ("left-out", BAD)
    assert "ZeroDivisionError in" in finding.sentence
    assert (w.core.state_of(BAD), w.core.state_of(GOOD) is None) == (None, False)


async def test_an_exception_about_no_job_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    w = await World.begun()

    def wrong(scaler: ServiceScaler, now: float, *, length: int) -> Any:
        raise KeyError

    monkeypatch.setattr(ServiceScaler, "slices", wrong)
    with pytest.raises(KeyError):
        await w.seconds(1)


async def test_a_store_that_is_away_leaves_no_job_out(monkeypatch: pytest.MonkeyPatch) -> None:
    w = await World.begun()

    async def away(*_: Any, **named: Any) -> Any:
        raise StoreUnavailableError("on purpose")

    with monkeypatch.context() as patch:
        patch.setattr(w.store, "ask_sizes", away)
        with pytest.raises(StoreUnavailableError):
            await w.seconds(20)
    assert w.mistakes == 0.0
    assert len(w.quarantine.without(w.jobs)) == 2


async def test_a_rule_that_fails_is_blamed_on_its_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """The innermost frame is the rule's, which knows no job: the frame that called it does."""
    w = await World.begun()
    monkeypatch.setattr(PredictiveAutoscaler, "decide", lambda rule, load: 1 // 0)
    await w.seconds(2)
    assert w.mistakes == 2.0
    assert w.quarantine.without(w.jobs) == []
