"""With the PAL artifact's own rules, every job of its traces ends at the second at which it ends in the artifact."""

import json
from functools import cache
from pathlib import Path

import pytest

from tests.bench.policies.rounds import simulate_rounds
from tests.support.data import measured
from weft.profiles import read_profile, scores_for
from weft.simulator import traces
from weft.simulator.metrics import metrics
from weft.simulator.model import Cluster

NODES, GPUS_PER_NODE, PENALTY = 16, 4, 1.7
WORKLOADS = ("1", "2", "3", "4")
PLACEMENTS = ("pal", "pm-first", "packed-sticky", "packed")
JOBS = 160

Times = dict[str, tuple[float, float]]
"""By job: when it came, and when it was complete."""

pytestmark = pytest.mark.data


@cache
def published() -> dict[str, dict[str, Times]]:
    """By workload and placement, what the artifact says."""
    golden = json.loads(measured("golden/pal-sia-philly.json").read_text())
    return {
        workload: {
            placement: {name: (job["arrival_s"], job["completed_s"]) for name, job in jobs.items()}
            for placement, jobs in by_placement.items()
        }
        for workload, by_placement in golden.items()
    }


def trace(workload: str) -> Path:
    return measured(f"traces/sia-philly/workload-{workload}.csv")


def profile() -> Path:
    return measured("variability/perfvar_256gpu_seed42.csv")


def cluster() -> Cluster:
    scores = scores_for(read_profile(profile()), NODES, GPUS_PER_NODE)
    return Cluster(nodes=NODES, gpus_per_node=GPUS_PER_NODE, scores=scores)


def test_the_golden_results_are_of_every_job_workload_and_placement() -> None:
    golden = published()
    assert tuple(golden) == WORKLOADS
    for by_placement in golden.values():
        assert set(by_placement) == set(PLACEMENTS)
        assert {len(times) for times in by_placement.values()} == {JOBS}


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_job_is_complete_when_the_artifact_completes_it(workload: str, placement: str) -> None:
    outcome = simulate_rounds(traces.read(trace(workload)), cluster(), placement, penalty=PENALTY)
    found = {job.id: (job.arrival_s, job.completed_s) for job in outcome.jobs}
    assert found == published()[workload][placement]


def test_the_mean_time_is_the_published_one() -> None:
    outcome = simulate_rounds(traces.read(trace("1")), cluster(), "pal", penalty=PENALTY)
    assert metrics(outcome).jct_mean_s / 3600 == pytest.approx(7.03, abs=0.005)
