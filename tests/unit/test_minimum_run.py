"""A job runs for some time after each start before it is pre-empted: it gets on, whatever stream comes before it."""

from math import log2
from typing import Any

import pytest

from tests.support.builders import job
from tests.support.scheduler import World, world
from weft.domain.job import JobEvent, JobState
from weft.domain.quotas import ALL, Quota
from weft.messages.asks import AskKind
from weft.planning.eta.sooner import sooner
from weft.planning.eta.starts import PoolToCome
from weft.planning.preemption.minimum_run import MinimumRun
from weft.planning.reasons.explain import explain
from weftd.scheduler.thinking.core_settings import Settings

S = JobState
AFTER = 300.0


def pool(**settings: Any) -> World:
    return world(gpus=4, settings=Settings(preemption_after_seconds=AFTER, **settings))


def stops(w: World, job_id: str) -> list[float]:
    return [step.at for step in w.steps if step.job_id == job_id and step.event is JobEvent.STOPPING]


def run(w: World, seconds: int, *, step: int = 1) -> None:
    for _ in range(0, seconds, step):
        w.now += step - 1
        w.round()


def end(w: World, job_id: str) -> None:
    (node,) = w.nodes.values()
    for key in [key for key in node.live if key[0] == job_id]:
        node.end(key, 0)
    w.round()


def test_a_job_without_checkpoints_gets_on_under_a_stream_of_short_jobs() -> None:
    """It was pre-empted 20 of 20 times. It needs 50 minutes."""
    w = pool()
    w.submit("j-long", gpus=4)
    run(w, 3)
    number = 0
    while w.now < 4 * 3600.0 and not w.state("j-long").final:
        if not any(job.id.startswith("j-short") for job in w.open_jobs()):
            number += 1
            w.submit(f"j-short{number}", gpus=4, spec={"priority": 50})
        run(w, 10, step=10)
        for held in [one for one in w.open_jobs() if one.state is S.RUNNING and one.started_at is not None]:
            needs = 3000.0 if held.id == "j-long" else 10.0
            if held.started_at is not None and w.now - held.started_at >= needs:
                end(w, held.id)
    assert w.state("j-long") is S.SUCCEEDED, len(stops(w, "j-long"))
    assert 1 <= len(stops(w, "j-long")) <= 1 + log2(3000.0 / AFTER)
    assert number > 1


def test_the_one_that_waits_says_who_may_not_be_stopped_before_when_and_starts_then() -> None:
    w = pool()
    w.submit("j-low", gpus=4)
    run(w, 120)
    began = w.stored["j-low"].started_at
    assert began is not None
    w.submit("j-high", gpus=4, spec={"priority": 50})
    run(w, 2)
    high = w.stored["j-high"]
    why = high.waiting_for
    assert why is not None
    assert why.numbers == {"stops_at": began + AFTER, "grace": 30.0}
    assert why.sentence.startswith("j-low may not be stopped for it before 00:05:")
    assert why.sentence.endswith("of the 5m0s of its minimum run time")
    nodes = list(w.core.cluster_state.pool.nodes.values())
    told = explain(high, nodes=nodes, holding=[w.stored["j-low"]], queued=[high], now=w.now, policy="priority")
    assert told.sentence == why.sentence
    coming = PoolToCome(
        nodes, [w.stored["j-low"]], [high], now=w.now, policy="priority", minimum_run=MinimumRun(seconds=AFTER)
    )
    eta = coming.start_of(high)
    assert (eta.estimate.earliest, eta.estimate.latest) == (began + AFTER, began + AFTER + 30.0)
    assert coming.starts()["j-high"] == eta
    assert sooner(coming, high, eta) == (), "no priority stops a job that has not run for its minimum"
    run(w, 400)
    assert began + AFTER <= stops(w, "j-low")[0] <= began + AFTER + 3.0
    assert w.state("j-high") is S.RUNNING
    assert w.told("j-high").count(JobEvent.WAITING) <= 3, "not one event a second"


def test_a_lender_has_its_gpus_back_after_the_minimum_and_one_grace_however_often_the_borrower_was_stopped() -> None:
    w = pool()
    w.core.cluster_state.limit([Quota(name="vision", guaranteed={ALL: 4000})], w.now)
    w.submit("j-guest", tenant="guest", gpus=4)
    for cycle in range(3):
        run(w, 5)
        began = w.stored["j-guest"].started_at
        assert began is not None
        w.submit(f"j-own{cycle}", tenant="vision", gpus=4)
        run(w, 10)
        assert w.state("j-guest") is S.RUNNING
        run(w, int(AFTER))
        assert began + AFTER <= stops(w, "j-guest")[-1] <= began + AFTER + 3.0
        assert w.state(f"j-own{cycle}") is S.RUNNING
        end(w, f"j-own{cycle}")
    assert len(stops(w, "j-guest")) == 3


@pytest.mark.parametrize(
    ("spec", "epoch", "seconds"),
    [
        ({}, 0, 300.0),
        ({}, 1, 600.0),
        ({}, 3, 2400.0),
        ({}, 9, 3600.0),
        ({"checkpoints": {"on_stop": True}}, 5, 60.0),
        ({"checkpoints": {"every": "20m"}}, 0, 1200.0),
        ({"checkpoints": {"every": "10s"}}, 0, 60.0),
        ({"checkpoints": {"every": "9h"}}, 0, 3600.0),
    ],
)
def test_the_minimum_doubles_without_checkpoints_and_lasts_until_one_is_written_with_them(
    spec: dict[str, Any], epoch: int, seconds: float
) -> None:
    rule = MinimumRun(300.0)
    assert rule.of(job("j-1", epoch=epoch, spec=spec)) == seconds
    assert rule.of(job("j-1", epoch=epoch, spec=spec), reclaimed=True) == (60.0 if spec else 300.0)
    assert MinimumRun().of(job("j-1", epoch=epoch, spec=spec)) == 0.0


def test_a_user_waits_for_no_minimum() -> None:
    w = pool()
    w.submit("j-1", gpus=4)
    run(w, 3)
    w.ask(AskKind.REQUEUE, "j-1")
    assert w.state("j-1") is S.STOPPING
