"""Lemon nodes: how often runs fail on a node against the fleet, and what follows."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.scheduler import World, world
from weft.domain.health import HealthRecord, HealthState, Tally
from weft.domain.job import JobEvent
from weft.domain.spec import Retries
from weft.health.catalogue import FAILS_OFTEN, LEMON
from weft.health.lemons import JOBS_KEPT, LemonRules, after_alarm, began, failed, fleet_rate, signs_of
from weft.messages.asks import AskKind
from weft.messages.nodes import EndReason, NodeSigns
from weftd.scheduler.thinking.core_settings import Settings

RULES, H = LemonRules(), HealthState
RATE = 0.01


def failures_until_found(rate: float, dice: Random) -> int:
    tally = Tally()
    for number in range(100_000):
        tally = began(tally, 1, RATE, RULES)
        if dice.random() < rate:
            tally = failed(tally, f"j-{number}", RATE, float(number), RULES)
            if LEMON in signs_of(tally, 20, RULES):
                break
    return tally.failures


def test_a_node_that_fails_five_times_as_often_is_found_within_seven_failures() -> None:
    found = [failures_until_found(RULES.factor * RATE, Random(seed)) for seed in range(300)]
    assert sum(found) / len(found) <= 7


def test_a_node_is_a_suspect_before_it_is_a_lemon() -> None:
    tally, seen = Tally(runs=10), list[str]()
    for number in range(5):
        tally = failed(tally, f"j-{number}", RATE, float(number), RULES)
        seen += signs_of(tally, 20, RULES)
    assert seen == [FAILS_OFTEN, LEMON, LEMON]


def test_one_job_condemns_no_node_and_a_fleet_of_two_has_no_lemon() -> None:
    of_one, of_many = Tally(), Tally()
    for number in range(20):
        of_one = failed(of_one, "j-1", RATE, 1.0, RULES)
        of_many = failed(of_many, f"j-{number}", RATE, 1.0, RULES)
    assert signs_of(of_one, 20, RULES) == {}
    assert signs_of(of_many, 2, RULES) == {}
    assert LEMON in signs_of(of_many, 3, RULES)
    assert len(of_many.jobs) == JOBS_KEPT


def test_where_everything_fails_no_node_is_to_blame() -> None:
    rate = fleet_rate([Tally(runs=100, failures=90), Tally(runs=100, failures=80)], RULES)
    tally = Tally()
    for number in range(20):
        tally = failed(began(tally, 1, rate, RULES), f"j-{number}", rate, 1.0, RULES)
    assert (rate > 0.5, tally.score, signs_of(tally, 20, RULES)) == (True, 0.0, {})


def test_a_failure_long_after_the_one_before_begins_from_nothing() -> None:
    old = Tally(runs=9, failures=5, score=5.9, jobs=("a", "b", "c"), at=0.0)
    found = failed(old, "d", RATE, RULES.window_seconds + 1, RULES)
    assert (found.failures, found.jobs) == (6, ("d",))
    assert found.score < RULES.threshold / 2


@given(st.lists(st.booleans(), max_size=80), st.floats(0, 1), st.floats(1.5, 50))
def test_a_score_is_a_number_that_is_never_below_zero(ends: list[bool], rate: float, factor: float) -> None:
    rules, tally = LemonRules(factor=factor), Tally()
    rate = max(rules.rate_least, rate)
    for number, bad in enumerate(ends):
        tally = began(tally, 1, rate, rules)
        tally = failed(tally, f"j-{number}", rate, float(number), rules) if bad else tally
        assert 0 <= tally.score < 1e6
    assert after_alarm(tally, rules).score == rules.threshold / 2


# the scheduler


def own(w: World, node_id: str) -> HealthRecord:
    found = w.core.cluster_state.pool.nodes[node_id].own_health
    assert found is not None
    return found


def starts_fail(w: World, node_id: str, jobs: int, *, first: int = 0) -> None:
    """Place `jobs` jobs on this node, none of which can start there."""
    for number in range(first, first + jobs):
        job_id = f"j-{number}"
        w.submit(job_id, gpus=1, spec={"pin": {"node": node_id}, "retries": Retries(max=0)})
        w.tick()
        w.sync(node_id)
        w.nodes[node_id].end((job_id, 0, 0), None, reason=EndReason.START_FAILED)
        w.sync(node_id)
        w.tick()


def test_a_lemon_takes_no_jobs_for_an_hour_and_says_how_often_runs_failed() -> None:
    w = world(nodes=4, gpus=4)
    w.core.take_node_changes()
    starts_fail(w, "node-2", 3)
    assert own(w, "node-2").state is H.SUSPECT
    starts_fail(w, "node-2", 2, first=3)
    lemon = own(w, "node-2")
    assert (lemon.state, lemon.code) == (H.QUARANTINED, "lemon")
    assert "4 of 4 runs failed, the latest of 4 jobs; 1.0% elsewhere" in lemon.sentence
    assert lemon.exit == "probation after 1h0m, or by `weft gpu return`"
    told = [change.sentence for change in w.core.take_node_changes() if change.event == "health"]
    assert told[-1].startswith("the node is quarantined: runs fail there far more often than elsewhere (")
    w.submit("next", gpus=4)
    w.round()
    placement = w.core.cluster_state.jobs["next"].placement
    assert placement is not None
    assert placement.allocations[0].node_id != "node-2"
    w.tick(3700.0)
    w.round()
    assert own(w, "node-2").state is H.PROBATION
    assert own(w, "node-2").tally == after_alarm(lemon.tally or Tally(), RULES)


def test_a_lemon_ends_likewise_on_a_node_with_telemetry() -> None:
    w = world(nodes=4, gpus=4)
    for node in w.nodes.values():
        node.signs = NodeSigns(boot="t1")
    w.round()
    starts_fail(w, "node-2", 4)
    assert own(w, "node-2").state is H.QUARANTINED
    w.round()
    w.tick(3700.0)
    w.round()
    assert own(w, "node-2").state is H.PROBATION


def test_a_person_returns_a_lemon() -> None:
    w = world(nodes=4, gpus=4)
    starts_fail(w, "node-2", 4)
    w.ask(AskKind.RETURN, "node-2")
    assert own(w, "node-2").state is H.PROBATION


@pytest.mark.parametrize("status", [1, 137])
def test_failures_of_programs_count_against_no_node(status: int) -> None:
    """137: a tenant whose jobs kill themselves takes no node from others."""
    w = world(nodes=4, gpus=4)
    for number in range(8):
        job_id = f"j-{number}"
        w.submit(job_id, gpus=1, spec={"pin": {"node": "node-2"}, "retries": Retries(max=0)})
        w.round()
        w.nodes["node-2"].end((job_id, 0, 0), status)
        w.round()
    assert w.core.cluster_state.pool.nodes["node-2"].own_health is None


def test_a_lost_node_that_ends_many_jobs_failed_once() -> None:
    w = world(nodes=4, gpus=4, settings=Settings(lease_seconds=100.0))
    for number in range(4):
        w.submit(f"j-{number}", gpus=1, spec={"pin": {"node": "node-2"}})
    w.round()
    for _ in range(11):
        w.now += 10.0
        for node_id in ("node-1", "node-3", "node-4"):
            w.sync(node_id)
    w.tick()
    assert len([step for step in w.steps if step.event is JobEvent.REQUEUED]) == 4
    w.tick()
    assert (own(w, "node-2").tally or Tally()).failures == 1


def test_a_new_leader_goes_on_from_the_failures_that_were_stored() -> None:
    w = world(nodes=4, gpus=4)
    starts_fail(w, "node-2", 3)
    w.lead_anew(w.open_jobs(), list(w.core.cluster_state.pool.nodes.values()))
    w.round()
    w.tick(20.0)
    starts_fail(w, "node-2", 1, first=3)
    assert own(w, "node-2").state is H.QUARANTINED
