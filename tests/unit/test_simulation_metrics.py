"""What a simulated run was worth, in numbers and as curves."""

import random
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.simulator.metrics import (
    finish_time_fairness,
    jct_cdf,
    mean_over_time,
    metrics,
    percentile,
    queue_over_time,
    utilisation_over_time,
)
from weft.simulator.outcome import JobOutcome, Outcome, Spell


def job(
    name: str, arrival: float, start: float, end: float, work: float, *, gpus: int = 1, **more: float
) -> JobOutcome:
    return JobOutcome(
        id=name, job_class="A", tenant="t", gpus=gpus, arrival_s=arrival, started_s=start, completed_s=end,
        work_s=work, moves=int(more.get("moves", 0)), evictions=int(more.get("evictions", 0)),
        lost_s=more.get("lost", 0.0),
    )  # fmt: skip


def outcome(jobs: Iterable[JobOutcome], spells: Iterable[Spell] = (), *, gpus: int = 2) -> Outcome:
    return Outcome(
        workload="w", policy="fifo+packed+none", nodes=1, gpus_per_node=gpus, jobs=tuple(jobs), spells=tuple(spells)
    )


def evicted_once() -> Outcome:
    """`a` holds both GPUs for 100 s, `b` one of them for 50 s, is evicted for 25 s, and ends after 25 s more."""
    return outcome(
        [job("a", 10, 10, 110, 100, gpus=2), job("b", 20, 110, 210, 50, evictions=1, moves=2, lost=5)],
        [
            Spell(0, 10, 110, ((0, 0), (0, 1)), 1.0),
            Spell(1, 110, 160, ((0, 0),), 1.0),
            Spell(1, 185, 210, ((0, 1),), 1.0, 5.0),
        ],
    )


def test_times_are_from_arrival_to_completion() -> None:
    found = metrics(evicted_once())
    assert (found.jobs, found.jct_mean_s, found.jct_p50_s, found.jct_max_s) == (2, 145.0, 145.0, 190.0)
    assert found.jct_geomean_s == pytest.approx((100 * 190) ** 0.5)
    assert found.makespan_s == 200.0
    assert (found.slowdown_mean, found.slowdown_max) == (2.4, 3.8)


def test_who_holds_no_gpus_waits_also_after_an_eviction() -> None:
    found = metrics(evicted_once())
    assert found.queueing_mean_s == (0 + 115) / 2
    assert found.queueing_p99_s == pytest.approx(113.85)


def test_utilisation_is_what_was_held_and_what_was_of_use() -> None:
    found = metrics(evicted_once())
    assert found.utilisation_allocated == (200 + 75) / 400
    assert found.utilisation_used == (200 + 50) / 400
    assert (found.moves, found.evictions, found.lost_gpu_s) == (2, 1, 5.0)


def test_what_needs_spells_is_unknown_without_them() -> None:
    found = metrics(msgspec.structs.replace(evicted_once(), spells=()))
    assert (found.queueing_mean_s, found.queueing_p99_s, found.utilisation_allocated) == (None, None, None)
    assert found.jct_mean_s == 145.0


def test_of_no_jobs_nothing_can_be_said() -> None:
    with pytest.raises(ValueError, match="nothing to measure"):
        metrics(outcome([]))


def test_a_job_that_took_no_time_breaks_no_number() -> None:
    found = metrics(outcome([job("a", 5, 5, 5, 0)]))
    assert (found.jct_geomean_s, found.makespan_s, found.utilisation_used, found.slowdown_max) == (0, 0, 0, 1)
    assert (found.fairness_loss, found.unfair_part) == (0, 0)


def test_fair_is_who_takes_as_long_as_with_its_share_of_the_cluster() -> None:
    """Two jobs want the whole cluster at once: for the first it is contended twice over, for the second 1.5 times."""
    one_after_the_other = outcome([job("a", 0, 0, 100, 100, gpus=2), job("b", 0, 100, 200, 100, gpus=2)])
    assert finish_time_fairness(one_after_the_other) == [100 / 200, 200 / 150]
    found = metrics(one_after_the_other)
    assert found.fairness_loss == pytest.approx((1 / 3) / 2)
    assert found.fairness_rho_max == pytest.approx(4 / 3)
    assert found.unfair_part == 0.5


def test_an_idle_cluster_makes_no_fair_time_shorter_than_the_work() -> None:
    assert finish_time_fairness(outcome([job("a", 0, 0, 100, 100)], gpus=64)) == [1.0]


def test_the_order_of_jobs_changes_no_number() -> None:
    dice = random.Random(7)
    jobs, spells = [], []
    for number in range(300):
        arrival, wait, work = dice.random() * 1e5, dice.random() * 1e3, dice.random() * 1e4
        jobs.append(
            job(f"{number}", arrival, arrival + wait, arrival + wait + work, work / 1.1, gpus=dice.randint(1, 8))
        )
        spells.append(Spell(number, arrival + wait, arrival + wait + work, ((0, 0),), 1.1))
    order = list(range(300))
    dice.shuffle(order)
    place = {number: at for at, number in enumerate(order)}
    mixed = [msgspec.structs.replace(spell, job=place[spell.job]) for spell in spells]
    dice.shuffle(mixed)
    straight = outcome(jobs, spells, gpus=64)
    assert metrics(outcome([jobs[number] for number in order], mixed, gpus=64)) == metrics(straight)


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=50), st.floats(0, 1))
def test_a_percentile_is_numpys(values: list[float], part: float) -> None:
    numpy = pytest.importorskip("numpy", reason="comes with the extra `report`")
    assert percentile(sorted(values), part) == float(numpy.percentile(values, part * 100, method="linear")) or (
        percentile(sorted(values), part) == pytest.approx(float(numpy.quantile(values, part)), rel=1e-12)
    )


def test_the_curve_of_completion_times_rises_to_all_jobs_in_one_step_per_time() -> None:
    ends = [100, 100, 300, 200]
    jobs = [job(f"{place}", 0, 0, end, end) for place, end in enumerate(ends)]
    assert jct_cdf(outcome(jobs)) == [(100, 0.5), (200, 0.75), (300, 1.0)]


def test_the_queue_has_who_has_come_and_holds_nothing() -> None:
    assert queue_over_time(evicted_once()) == [(10, 0), (20, 1), (110, 0), (160, 1), (185, 0)]


def test_a_move_is_no_wait() -> None:
    moved = outcome(
        [job("a", 0, 0, 100, 100, moves=1)], [Spell(0, 0, 50, ((0, 0),), 1.0), Spell(0, 50, 100, ((0, 1),), 1.0)]
    )
    assert queue_over_time(moved) == [(0, 0)]
    assert metrics(moved).queueing_mean_s == 0


def test_the_cluster_is_as_full_as_what_is_held() -> None:
    curve = utilisation_over_time(evicted_once())
    assert curve == [(10, 1.0), (110, 0.5), (160, 0.0), (185, 0.5), (210, 0.0)]
    assert mean_over_time(curve) == metrics(evicted_once()).utilisation_allocated


def test_curves_of_a_run_without_spells_are_empty() -> None:
    bare = msgspec.structs.replace(evicted_once(), spells=())
    assert queue_over_time(bare) == utilisation_over_time(bare) == []
    assert mean_over_time([]) == 0.0
