"""Slow is not dead: a slow GPU is left aside while there is another, taken where there is none, and it is said why."""

from typing import Any

import pytest
from msgspec import structs

from tests.support.scheduler import World, world
from weft.domain.job import JobState
from weft.messages.signals import GpuScore
from weft.planning.moves import MoveRules
from weft.planning.reasons.slow import SlowGpus, slow_text
from weftd.scheduler.thinking.core_settings import Settings

NOW = 1000.0


def score(gpu: int, value: float, **fields: Any) -> GpuScore:
    known: dict[str, Any] = {"node_id": "node-1", "job_class": "compute", "source": "jobs", "samples": 40, **fields}
    return GpuScore(gpu_index=gpu, score=value, **known)


def placed(w: World, job_id: str, **fields: Any) -> tuple[tuple[int, ...], str]:
    w.submit(job_id, **fields)
    w.round()
    assert w.state(job_id) is JobState.RUNNING
    placement = w.core.cluster_state.jobs[job_id].placement
    assert placement is not None
    return tuple(gpu for one in placement.allocations for gpu in one.gpus), placement.why


@pytest.mark.parametrize(
    ("known", "told"),
    [
        ({"measured_at": NOW - 120}, "compute-bound jobs (40 samples, 2m0s old, from jobs)"),
        ({"samples": 1, "source": "benchmark"}, "compute-bound jobs (1 sample, from benchmark)"),
        ({"samples": 0, "source": ""}, "compute-bound jobs"),
        ({"job_class": "mixed"}, "mixed jobs (40 samples, from jobs)"),
        ({"confidence": 0.5}, "compute-bound jobs (50 % sure, so it counts as 1.10×, 40 samples, from jobs)"),
        ({"quarantined_until": NOW + 60}, "compute-bound jobs (40 samples, from jobs, not forgiven for 1m0s more)"),
        ({"quarantined_until": NOW}, "compute-bound jobs (40 samples, from jobs)"),
    ],
)
def test_a_slow_gpu_is_told_with_how_that_is_known(known: dict[str, Any], told: str) -> None:
    assert slow_text(score(3, 1.21, **known), NOW) == f"gpu-3 of node-1 is 1.21× slower for {told}"


def test_the_slowest_are_named_and_the_others_counted() -> None:
    measured = {("node-1", gpu): score(gpu, 1.0 + gpu / 10, samples=0, source="") for gpu in range(5)}
    slow = SlowGpus(measured, NOW)
    assert slow.taken([("node-1", gpu) for gpu in range(5)]) == (
        "gpu-4 of node-1 is 1.40× slower for compute-bound jobs and"
        " gpu-3 of node-1 is 1.30× slower for compute-bound jobs and 2 more are slower"
    )
    assert slow.taken([("node-1", 0)]) == ""
    assert slow.avoided([("node-1", 1), ("node-1", 2)], 1.15) == (
        "gpu-2 of node-1 is 1.20× slower for compute-bound jobs"
    )
    assert SlowGpus({}, NOW).taken([("node-1", 1)]) == ""


def test_a_slow_gpu_is_left_aside_and_the_placement_says_which_and_why() -> None:
    w = world(gpus=2)
    w.core.cluster_state.rescore([score(0, 1.21, measured_at=w.now)])
    gpus, why = placed(w, "j-1")
    assert gpus == (1,)
    assert (
        "; left aside: gpu-0 of node-1 is 1.21× slower for compute-bound jobs (40 samples, 1.0s old, from jobs)" in why
    )
    gpus, why = placed(w, "j-2")
    assert gpus == (0,)
    assert "; taken although gpu-0 of node-1 is 1.21× slower for compute-bound jobs (40 samples, 2.0s old" in why


def test_a_gpu_that_turned_slow_all_at_once_is_used_when_nothing_else_is_free() -> None:
    w = world(gpus=2)
    w.core.cluster_state.rescore([score(0, 3.0, quarantined_until=w.now + 1e6)])
    assert placed(w, "j-1")[0] == (1,)
    gpus, why = placed(w, "j-2")
    assert gpus == (0,)
    assert "taken although gpu-0 of node-1 is 3.00× slower" in why


def test_what_is_hardly_sure_demotes_hardly_and_what_recovered_is_used_as_before() -> None:
    w = world(gpus=2, settings=Settings(moves=MoveRules(on=False)))
    for gpu_0, gpu_1, best in (
        (score(0, 3.0, confidence=0.02), score(1, 1.1), 0),  # counts as 1.04
        (score(0, 3.0, confidence=0.5), score(1, 1.1), 1),
        (score(0, 1.0), score(1, 1.1), 0),  # it recovered
    ):
        w.core.cluster_state.rescore([gpu_0, gpu_1])
        job_id = f"j-{w.seq}"
        assert placed(w, job_id)[0] == (best,)
        w.nodes["node-1"].end((job_id, 0, 0), 0)
        w.round()
        assert w.state(job_id) is JobState.SUCCEEDED


def test_where_a_pinned_job_goes_is_said_to_be_slow() -> None:
    w = world(gpus=2)
    w.core.cluster_state.rescore([score(0, 1.5), structs.replace(score(1, 1.4), job_class="memory")])
    _, why = placed(w, "j-1", spec={"pin": {"node": "node-1", "gpu": 0}})
    assert why.startswith("pinned: 1 GPU of node-1, score 1.50; taken although gpu-0 of node-1 is 1.50× slower")
    _, why = placed(w, "j-2", spec={"pin": {"node": "node-1", "gpu": 1}})
    assert why == "pinned: 1 GPU of node-1, score 1.00"
