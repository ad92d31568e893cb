"""Early stopping: who goes on beyond a rung, whatever the order in which elements come there."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from prometheus_client import CollectorRegistry

from tests.support.builders import spec
from tests.support.doubles.bus import MemoryBus
from tests.support.doubles.store import MemoryStore
from tests.support.scheduler import world
from tests.support.service_lives import rounds
from tests.support.tier import examples
from tests.support.virtual_time import run_virtually
from weft.domain.decoding.elements import elements_of
from weft.domain.decoding.spec_decoder import SpecError
from weft.domain.job import CauseCode, Job, JobState
from weft.messages.asks import Ask, AskKind
from weft.messages.nodes import ProgressSeen, RunProgressed
from weft.store import StoreUnavailableError
from weftd.reallocator.service import EarlyStops
from weftd.reallocator.thinking.asha import Asha, AtRung

RULE = {"metric": "loss", "after": 10, "factor": 4}


def elements(count: int, **rule: object) -> list[Job]:
    swept = spec("tune", array=f"0-{count - 1}", early_stop={**RULE, **rule})
    return [
        Job(id=job_id, spec=one, tenant="alice", seq=number, submitted_at=0.0, priority=0, state=JobState.RUNNING)
        for number, (job_id, one) in enumerate(elements_of(swept, "a-1"))
    ]


def fresh() -> Asha:
    asha = Asha()
    asha.learn(["a-1"], [])
    return asha


def came(asha: Asha, jobs: Sequence[Job], values: Sequence[float], step: float = 10) -> list[AtRung]:
    """One after the other."""
    return [
        judged
        for job, value in zip(jobs, values, strict=True)
        for judged in asha.judge([job], {job.id: {"step": step, "loss": value}})
    ]


def stopped(judged: Sequence[AtRung]) -> list[bool]:
    return [one.why is not None for one in judged]


def test_the_first_go_on_and_then_the_best_quarter() -> None:
    judged = came(fresh(), elements(9), [5, 6, 7, 8, 1, 4, 0.5, 3, 0.7])
    assert stopped(judged) == [False, False, False, True, False, False, False, True, False]
    why = judged[3].why
    assert why is not None
    assert (why.code, why.numbers["better"], why.numbers["of"]) == (CauseCode.STOPPED_EARLY, 3.0, 4.0)
    assert why.sentence == (
        "loss 8 at step 10: 3 of the 4 elements that reached it are better, and the best 1 continue"
    )


def test_more_may_be_better() -> None:
    assert stopped(came(fresh(), elements(5, goal="max"), [5, 6, 7, 8, 1])) == [False, False, False, False, True]


def test_equal_values_all_go_on() -> None:
    assert not any(stopped(came(fresh(), elements(12), [3.0] * 12)))


def test_an_element_that_comes_to_several_rungs_at_once_is_compared_at_each_until_it_is_stopped() -> None:
    asha, jobs = fresh(), elements(5)
    for job, value in zip(jobs[:4], (1, 2, 3, 0.5), strict=True):
        asha.judge([job], {job.id: {"step": 10, "loss": value}})
    last = asha.judge(jobs[4:], {jobs[4].id: {"step": 700, "loss": 0.1}})
    assert [(one.reached.rung, one.why) for one in last] == [(0, None), (1, None), (2, None), (3, None)]
    worse = elements(6)[5]
    assert [one.reached.rung for one in asha.judge([worse], {worse.id: {"step": 700, "loss": 9}})] == [0]


@pytest.mark.parametrize(
    "progress", [{}, {"loss": 1.0}, {"step": 9.0, "loss": 1.0}, {"step": 50.0}, {"step": 50.0, "other": 1.0}]
)
def test_what_has_not_come_to_a_rung_or_reports_nothing_is_not_compared(progress: dict[str, float]) -> None:
    [job] = elements(1)
    assert fresh().judge([job], {job.id: progress}) == []


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.integers(2, 6), st.integers(0, 39))
@settings(max_examples=examples(200), deadline=None)
def test_the_best_so_far_always_goes_on_and_a_reallocator_that_begins_anew_decides_the_same(
    values: list[float], factor: int, cut: int
) -> None:
    jobs = elements(len(values), factor=factor)
    judged = came(fresh(), jobs, values)
    for number, one in enumerate(judged):
        before = sorted(values[: number + 1])
        if values[number] == before[0] or number + 1 < factor:
            assert one.why is None
        else:
            on = math.ceil((number + 1) / factor)
            assert (one.why is not None) == (sum(other < values[number] for other in before) >= on)
    anew = Asha()
    anew.learn(["a-1"], [one.reached for one in judged[:cut]])
    assert came(anew, jobs, values) == judged[cut:]


def test_a_rule_is_for_arrays_and_has_bounds() -> None:
    with pytest.raises(SpecError, match="early_stop"):
        spec(early_stop=RULE)
    for wrong in ({"after": 0}, {"factor": 1}, {"metric": ""}, {"goal": "most"}, {"more": 1}, {"after": 2.5}):
        with pytest.raises(SpecError, match="early_stop"):
            spec(array="0-3", early_stop={**RULE, **wrong})


def test_an_element_that_is_stopped_early_is_cancelled_and_says_why() -> None:
    [judged] = [one for one in came(fresh(), elements(4), [1, 2, 3, 4]) if one.why is not None]
    w = world(gpus=1)
    w.submit("j-1", gpus=1)
    rounds(w)
    ask = Ask(id=1, kind=AskKind.CANCEL, subject_id="j-1", tenant="weft", at=w.now, why=judged.why)
    w.keep(w.core.ask(ask, w.now))
    assert w.state("j-1") is JobState.STOPPING
    w.nodes["node-1"].end(("j-1", 0, 0), 0)
    rounds(w)
    assert w.state("j-1") is JobState.CANCELLED
    assert w.steps[-1].cause == judged.why
    w.submit("j-2", gpus=9)
    w.keep(w.core.ask(structs.replace(ask, subject_id="j-2"), w.now))
    assert w.state("j-2") is JobState.CANCELLED, "it waits, as after a pre-emption"


async def seen(early: EarlyStops, jobs: Sequence[Job], values: Sequence[float], *, rank: int = 0) -> None:
    for job, value in zip(jobs, values, strict=True):
        run = RunProgressed(job_id=job.id, epoch=0, rank=rank, progress={"step": 10.0, "loss": value})
        early.hear(ProgressSeen(node_id="node-1", runs=(run,)))


class FailingStore(MemoryStore):
    """It is away when the second value is stored."""

    writes = 0

    async def reach_rung(self, *given: Any, **more: Any) -> bool:
        self.writes += 1
        if self.writes == 2:
            raise StoreUnavailableError("it is away")
        return await super().reach_rung(*given, **more)


def test_what_could_not_be_stored_is_judged_again() -> None:
    async def told() -> list[tuple[str, str]]:
        store, jobs = FailingStore(), elements(4)
        store._jobs |= {job.id: job for job in jobs}
        early = EarlyStops(pool="default", bus=MemoryBus(), store=store, registry=CollectorRegistry())
        await early.review(jobs, 0.0)
        await seen(early, jobs, [9, 1, 2, 3])
        await seen(early, jobs, [0, 0, 0, 0], rank=1)  # of another rank: it counts for nothing
        with pytest.raises(StoreUnavailableError):
            await early.review(jobs, 1.0)
        await early.review(jobs, 2.0)
        await early.review(jobs, 3.0)
        assert [(one.job_id, one.value) for one in await store.rungs(["a-1"])] == [
            *[("j-1-0", 9.0), ("j-1-1", 1.0), ("j-1-2", 2.0), ("j-1-3", 3.0)]
        ]
        other = EarlyStops(pool="default", bus=MemoryBus(), store=store, registry=CollectorRegistry())
        await other.review(jobs, 4.0)
        await seen(other, jobs, [9, 9, 9, 9])
        await other.review(jobs, 5.0)
        return [(ask.subject_id, str(ask.kind)) for ask in await store.asks(pool="default", limit=10)]

    assert run_virtually(told()) == [("j-1-3", "cancel")]
