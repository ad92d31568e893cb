"""Generated workloads: as the settings say, the same from the same dice, and like Philly's where that is asked for."""

from collections import Counter
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.data import measured
from weft.simulator import traces
from weft.simulator.generate import (
    PHILLY_GANG,
    PHILLY_LARGE,
    PHILLY_SMALL,
    SYNERGY,
    GeneratorSettings,
    Quantiles,
    generate,
)
from weft.simulator.workload import TraceJob

SEED = 7


def quantile(sorted_values: list[float], part: float) -> float:
    return sorted_values[min(int(part * len(sorted_values)), len(sorted_values) - 1)]


def durations(jobs: tuple[TraceJob, ...], *, gangs: bool) -> list[float]:
    return sorted(job.work_s for job in jobs if (job.gpus >= PHILLY_GANG) == gangs)


def test_the_same_dice_give_the_same_jobs() -> None:
    settings = GeneratorSettings(jobs=50)
    assert generate(settings, Random(SEED)) == generate(settings, Random(SEED))
    assert generate(settings, Random(SEED)) != generate(settings, Random(SEED + 1))


def test_a_longer_workload_begins_like_a_shorter_one() -> None:
    short, long = (generate(GeneratorSettings(jobs=count), Random(SEED)).jobs for count in (20, 40))
    assert long[:20] == short


def test_jobs_arrive_at_the_pace_that_was_asked_for() -> None:
    arrivals = [job.arrival_s for job in generate(GeneratorSettings(jobs=5000, jobs_per_hour=60), Random(SEED)).jobs]
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] / len(arrivals) == pytest.approx(60.0, rel=0.05)


def test_gpus_classes_and_tenants_are_as_frequent_as_their_weights() -> None:
    settings = GeneratorSettings(
        jobs=6000, gpus={1: 3, 16: 1}, classes={"A": 1, "B": 1, "none": 0}, tenants={"x": 9, "y": 1}
    )
    jobs = generate(settings, Random(SEED)).jobs
    assert Counter(job.gpus for job in jobs)[16] / len(jobs) == pytest.approx(0.25, abs=0.03)
    assert Counter(job.job_class for job in jobs)["A"] / len(jobs) == pytest.approx(0.5, abs=0.03)
    assert Counter(job.tenant for job in jobs)["y"] / len(jobs) == pytest.approx(0.1, abs=0.03)
    assert {job.job_class for job in jobs} == {"A", "B"}


def test_log_uniform_durations_keep_to_their_bounds_and_halve_at_their_geometric_mean() -> None:
    settings = GeneratorSettings(jobs=4000, durations="log-uniform", duration_least_s=10, duration_most_s=1000)
    found = sorted(job.work_s for job in generate(settings, Random(SEED)).jobs)
    assert found[0] >= 10
    assert found[-1] <= 1000
    assert quantile(found, 0.5) == pytest.approx(100, rel=0.1)


def test_synergy_durations_are_short_in_four_of_five() -> None:
    jobs = generate(replace(SYNERGY, jobs=4000), Random(SEED)).jobs
    found = sorted(job.work_s for job in jobs)
    assert found[0] >= 60 * 10**1.5
    assert found[-1] <= 60 * 10**4
    assert sum(work <= 60 * 10**3 for work in found) / len(found) == pytest.approx(0.8, abs=0.03)
    assert max(job.gpus for job in jobs) <= 16


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"jobs": 0}, "jobs"),
        ({"jobs_per_hour": 0.0}, "jobs_per_hour"),
        ({"jobs_per_hour": float("nan")}, "jobs_per_hour"),
        ({"durations": "long"}, "durations"),
        ({"duration_least_s": 0.0}, "duration_least_s"),
        ({"duration_most_s": 1.0}, "duration_most_s"),
        ({"duration_most_s": float("inf")}, "duration_most_s"),
        ({"gpus": {0: 1.0}}, "gpus"),
        ({"gpus": {}}, "gpus"),
        ({"gpus": {1: -1.0, 2: 3.0}}, "gpus"),
        ({"classes": {"A": 0.0}}, "classes"),
        ({"tenants": {"x": float("nan")}}, "tenants"),
    ],
)
def test_a_setting_that_is_wrong_is_named(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=rf"^{field} must "):
        generate(GeneratorSettings(**wrong), Random(SEED))


@pytest.mark.data
@pytest.mark.parametrize(("gangs", "quantiles"), [(False, PHILLY_SMALL), (True, PHILLY_LARGE)])
def test_the_quantiles_are_those_of_the_published_trace(gangs: bool, quantiles: Quantiles) -> None:
    found = durations(traces.read(measured("traces/philly/philly.csv")).jobs, gangs=gangs)
    assert [(part, quantile(found, part)) for part, _ in quantiles[:-1]] == list(quantiles[:-1])


@pytest.mark.data
def test_generated_jobs_ask_for_as_much_as_the_published_ones() -> None:
    published = traces.read(measured("traces/philly/philly.csv")).jobs
    made = generate(GeneratorSettings(jobs=60000), Random(SEED)).jobs
    for part in (0.1, 0.25, 0.5, 0.75, 0.9, 0.95):
        told, drawn = (quantile(sorted(job.work_s for job in jobs), part) for jobs in (published, made))
        assert drawn == pytest.approx(told, rel=0.3)
    for gangs in (False, True):
        told, drawn = (
            sum(durations(jobs, gangs=gangs)) / len(durations(jobs, gangs=gangs)) for jobs in (published, made)
        )
        assert drawn == pytest.approx(told, rel=0.2)
    for count in (1, 2, 4, 8, 16):
        told, drawn = (sum(job.gpus == count for job in jobs) / len(jobs) for jobs in (published, made))
        assert drawn == pytest.approx(told, abs=0.005)
