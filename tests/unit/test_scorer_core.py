"""What the scorer believes of GPUs from the jobs that run on them, and what it does not."""

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.fleet import WATCHED_SECONDS, Fleet, Rank, Watched, after
from weft.domain.job import Placement
from weft.domain.shares import Share
from weft.messages.nodes import Pace, ProgressSeen, RunProgressed
from weft.messages.signals import GpuPace, GpuScore, NodeSampled, PacesSeen
from weftd.scorer.thinking.core import Scorer
from weftd.scorer.thinking.scores import MeasuredGpus

SLOW = ("node-1", 3)


def working(**fields: Any) -> Fleet:
    fleet = Fleet(gpus=8, **fields)
    fleet.run_one_each()
    return fleet


def only(place: tuple[str, int]) -> Callable[[Rank], bool]:
    return lambda rank: (rank.allocation.node_id, rank.allocation.gpus[0]) == place


# what is believed


def test_a_slow_gpu_is_known_by_its_steps_and_by_how_many_of_them() -> None:
    fleet = working()
    fleet.slow = {SLOW: 1.21}
    found = after(fleet).score(SLOW)
    assert found.score == pytest.approx(1.21, abs=0.03)
    assert found.confidence > 0.8
    assert found.source == "jobs"
    assert found.samples >= 10
    assert found.measured_at is not None
    assert fleet.now - found.measured_at <= 15


def test_other_classes_are_not_judged_by_it() -> None:
    fleet = working()
    fleet.slow = {SLOW: 1.3}
    watched = after(fleet)
    assert watched.score(SLOW, "memory").source == "assumed"
    labelled = Fleet(gpus=8)
    labelled.run_one_each(labels={"weft/class": "memory"})
    labelled.slow = {SLOW: 1.3}
    watched = after(labelled)
    assert watched.score(SLOW, "memory").score == pytest.approx(1.3, abs=0.04)
    assert watched.score(SLOW).source == "assumed"


def test_a_profile_is_believed_until_jobs_tell_otherwise() -> None:
    fleet = working()
    watched = Watched(fleet, MeasuredGpus(by_place={SLOW: {"compute": 1.4, "mixed": 1.2, "memory": 1.0}}))
    watched.run(20)
    assert (watched.score(SLOW).score, watched.score(SLOW).source) == (1.4, "profile")
    watched.run(WATCHED_SECONDS)
    assert watched.score(SLOW).score < 1.1
    assert watched.score(SLOW, "mixed").score == 1.2


def test_ranks_whose_variables_differ_are_not_compared() -> None:
    """The same program with another batch takes another time for a step."""
    fleet = Fleet(gpus=8)
    large = fleet.places[:3]
    fleet.run_one_each(large, env={"BATCH": "128"})
    fleet.run_one_each(fleet.places[3:], env={"BATCH": "64"})
    fleet.slow = dict.fromkeys(large, 1.9)
    watched = after(fleet)
    assert all(watched.score(place).score == pytest.approx(1.0, abs=0.05) for place in fleet.places)


def test_three_gpus_are_enough_to_compare_and_two_are_not() -> None:
    for gpus, told in ((3, "jobs"), (2, "assumed")):
        fleet = Fleet(gpus=gpus)
        fleet.run_one_each()
        fleet.slow = {("node-1", 0): 1.4}
        found = after(fleet).score(("node-1", 0))
        assert found.source == told
        assert (found.score > 1.3) == (gpus == 3)


def test_gpus_of_another_model_are_not_compared() -> None:
    fleet = Fleet(gpus=8, nodes=2)
    fleet.nodes[1] = replace(
        fleet.nodes[1],
        capacity=replace(
            fleet.nodes[1].capacity,
            gpus=tuple(replace(gpu, model="Emulated old GPU") for gpu in fleet.nodes[1].capacity.gpus),
        ),
    )
    fleet.run_one_each()
    fleet.slow = {place: 2.0 for place in fleet.places if place[0] == "node-2"}
    watched = after(fleet)
    assert all(watched.score(place).score == pytest.approx(1.0, abs=0.05) for place in fleet.places)


def test_a_workload_that_runs_on_slow_gpus_only_does_not_make_them_typical() -> None:
    fleet = working()
    slow = [("node-1", gpu) for gpu in range(3)]
    fleet.slow = dict.fromkeys(slow, 1.3)
    watched = after(fleet)
    assert all(watched.score(place).score > 1.25 for place in slow)
    for gpu in range(3, 8):
        fleet.end(f"j-node-1-{gpu}")
    watched.run(300)
    assert all(watched.score(place).score > 1.2 for place in slow)


def test_a_gpu_that_is_not_used_any_more_counts_less_and_less() -> None:
    fleet = working()
    fleet.slow = {SLOW: 1.3}
    watched = after(fleet)
    sure = watched.score(SLOW)
    fleet.end("j-node-1-3")
    fleet.now += 12 * 3600
    watched.run(90)
    later = watched.score(SLOW)
    assert later.score == pytest.approx(sure.score)
    assert later.confidence < sure.confidence * 0.75
    assert later.believed < sure.believed


def test_a_benchmark_counts_as_much_as_it_is_sure_and_a_job_may_tell_otherwise_later() -> None:
    fleet = Fleet(gpus=8)
    watched = after(fleet, 20)
    found = GpuScore(
        node_id="node-1",
        gpu_index=3,
        job_class="compute",
        score=1.3,
        confidence=0.9,
        source="benchmark",
        measured_at=fleet.now,
    )
    watched.scorer.observe_benchmarks([found])
    watched.run(5)
    told = watched.score(SLOW)
    assert (told.score, told.source) == (pytest.approx(1.3), "benchmark")
    for _ in range(5):
        watched.scorer.observe_benchmarks([found])
    assert watched.score(SLOW).confidence == pytest.approx(told.confidence, abs=0.001)
    assert watched.score(SLOW).samples == told.samples, "the same result counts once"
    assert told.confidence > 0.75
    watched.scorer.observe_benchmarks([replace(found, score=1.0, measured_at=fleet.now)])
    assert watched.score(SLOW).score < 1.05, "one benchmark is enough"
    for wrong in (replace(found, score=nan), replace(found, score=-1.0), replace(found, node_id="node-9")):
        watched.scorer.observe_benchmarks([replace(wrong, measured_at=fleet.now)])
    assert watched.score(SLOW).score < 1.05
    fleet.run_one_each()
    fleet.slow = {SLOW: 1.3}
    watched.run(WATCHED_SECONDS)
    assert watched.score(SLOW).score == pytest.approx(1.3, abs=0.04)
    assert watched.score(SLOW).source == "jobs"


def test_clocks_alone_are_a_faint_sign_and_only_under_load() -> None:
    fleet = Fleet(gpus=8)
    fleet.run_one_each()
    fleet.paces = lambda rank: {"steps": 0}
    slow_uuid = fleet.nodes[0].capacity.gpus[3].uuid
    told = {"emulated": False, "utilisation": 0.99, "sm_clock_mhz": 1800.0}
    fleet.sample = lambda gpu: told | ({"sm_clock_mhz": 1500.0} if gpu.uuid == slow_uuid else {})
    watched = after(fleet, 150)
    assert watched.score(SLOW).score < 1.1
    watched.run(450)
    assert watched.score(SLOW).score == pytest.approx(1.2, abs=0.02)
    assert watched.score(SLOW).confidence <= 0.5
    idle = Fleet(gpus=8)
    idle.run_one_each()
    idle.paces = fleet.paces
    idle.sample = lambda gpu: told | {"utilisation": 0.5} | ({"sm_clock_mhz": 1500.0} if gpu.index == 3 else {})
    assert after(idle, 600).score(SLOW).source == "assumed"


# transients and faults


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_short_transient_brands_no_gpu(seed: int) -> None:
    fleet = working(seed=seed)
    watched = after(fleet, 120)
    for number in range(20):
        fleet.slow = {("node-1", (seed + number) % 8): 3.0}
        watched.run(12)
        fleet.slow = {}
        watched.run(45 + seed)
    assert max(watched.worst.values()) < 1.1


def test_one_run_that_is_three_times_slower_is_forgotten_soon_after_it_ended() -> None:
    fleet = working()
    watched = after(fleet, 120)
    fleet.slow = {SLOW: 3.0}
    watched.run(300)
    during = watched.score(SLOW)
    assert during.score == pytest.approx(3.0, rel=0.05)
    assert during.quarantined_until is not None
    fleet.end("j-node-1-3")
    fleet.slow = {}
    fleet.now += 3 * 3600
    watched.run(70)
    assert watched.score(SLOW).quarantined_until is None
    assert watched.score(SLOW).believed < 1.1
    fleet.run("j-new", [("node-1", (3,))])
    watched.run(120)
    assert watched.score(SLOW).score < 1.05


def test_a_quarantine_ends_as_soon_as_steps_agree_that_all_is_well() -> None:
    fleet = working()
    watched = after(fleet, 120)
    fleet.slow = {SLOW: 2.0}
    watched.run(120)
    assert watched.score(SLOW).quarantined_until is not None
    fleet.slow = {}
    assert watched.run(120, lambda: watched.score(SLOW).quarantined_until is None) is not None
    assert watched.score(SLOW).score < 1.1


# windows that say nothing of the GPU


def unfit(outcome: str, change: Callable[[Fleet], None]) -> None:
    fleet = working()
    fleet.slow = {SLOW: 1.5}
    change(fleet)
    watched = after(fleet)
    assert watched.score(SLOW).source == "assumed"
    assert watched.scorer.outcomes[outcome] >= 10
    assert all(watched.score(place).score < 1.1 for place in fleet.places)


def of_run(**told: Any) -> Callable[[Fleet], None]:
    def change(fleet: Fleet) -> None:
        fleet.shape = lambda rank, run: run | (told if only(SLOW)(rank) else {})

    return change


def of_pace(**told: Any) -> Callable[[Fleet], None]:
    def change(fleet: Fleet) -> None:
        fleet.paces = lambda rank: told if only(SLOW)(rank) else {}

    return change


def give_a_share(fleet: Fleet) -> None:
    """The rank on the slow GPU holds a third of it, and another rank another third."""
    for rank in list(filter(only(SLOW), fleet.ranks)):
        allocation = replace(rank.allocation, share=Share(request=333, memory=1 << 30))
        rank.allocation = allocation
        rank.job = replace(rank.job, placement=Placement(allocations=(allocation,)))


@pytest.mark.parametrize(
    ("outcome", "change"),
    [
        ("throttled", of_run(cpu_throttled=0.06)),
        ("memory", of_run(memory_failures_rate=1.0)),
        ("memory", of_run(memory_pressure=0.3)),
        ("io", of_run(disk_pressure=0.3)),
        ("io", of_run(blocked=0.5)),
        ("data", of_pace(phases={"t_data": 0.15, "t_compute": 0.25})),
        ("few-steps", of_pace(steps=2)),
        ("unsteady", of_pace(step_spread=0.5)),
        ("disbelieved", of_pace(step_seconds=nan)),
        ("disbelieved", of_pace(step_seconds=-1.0)),
        ("disbelieved", of_pace(step_seconds=1e9)),
        ("disbelieved", of_pace(steps_rate=inf)),
        ("disbelieved", of_pace(phases={"t_data": -5.0})),
        ("shared", lambda fleet: fleet.foreign.add(SLOW)),
        ("shared", give_a_share),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_rank_that_something_else_holds_back_says_nothing_of_its_gpu(
    outcome: str, change: Callable[[Fleet], None]
) -> None:
    unfit(outcome, change)


def test_a_job_that_has_just_begun_says_nothing() -> None:
    fleet = Fleet(gpus=8)
    watched = after(fleet, 60)
    fleet.run_one_each()
    fleet.slow = {SLOW: 1.5}
    watched.run(30)
    assert watched.scorer.outcomes["unsettled"] >= 8
    assert watched.score(SLOW).source == "assumed"


def test_a_node_that_telemetry_does_not_tell_of_says_nothing() -> None:
    fleet = working()
    fleet.slow = {SLOW: 1.5}
    watched = Watched(fleet)
    observe = watched.scorer.observe
    watched.scorer.observe = lambda sampled, now: None  # type: ignore[method-assign]
    watched.run(WATCHED_SECONDS)
    assert watched.scorer.outcomes["unseen"] > 0
    assert watched.score(SLOW).source == "assumed"
    watched.scorer.observe = observe  # type: ignore[method-assign]
    watched.run(WATCHED_SECONDS)
    assert watched.score(SLOW).score > 1.4


# what is never believed


def progressed(**fields: Any) -> RunProgressed:
    pace = Pace(window_seconds=10.0, steps=40, steps_rate=0.4, step_seconds=2.5)
    told = {"job_id": "j-node-1-3", "epoch": 1, "rank": 0, "progress": {}, "at": 0.0, "pace": pace}
    return RunProgressed(**(told | fields))


@pytest.mark.parametrize(
    ("node_id", "told"),
    [
        ("node-1", {"epoch": 0}),
        ("node-1", {"rank": 7}),
        ("node-1", {"job_id": "j-unknown"}),
        ("node-2", {}),
    ],
)
def test_a_run_that_holds_no_gpu_there_or_an_older_epoch_is_not_heard(node_id: str, told: dict[str, Any]) -> None:
    fleet = working()
    watched = after(fleet, 120)
    before = watched.score(SLOW).samples
    watched.scorer.outcomes.clear()
    for _ in range(8):
        watched.run(15)
        said = ProgressSeen(node_id=node_id, runs=(progressed(at=fleet.now + 1, **told),))
        watched.scorer.observe_progress(said, fleet.now)
    assert watched.scorer.outcomes["not-there"] == 8
    assert watched.score(SLOW).score < 1.05
    assert watched.score(SLOW).samples > before


def test_progress_that_is_late_or_doubled_is_not_heard() -> None:
    fleet = working()
    watched = after(fleet, 120)
    for at in (fleet.now, fleet.now - 5):
        watched.scorer.observe_progress(ProgressSeen(node_id="node-1", runs=(progressed(at=at),)), fleet.now)
    assert watched.scorer.outcomes["disbelieved"] == 2


def test_samples_that_are_late_or_doubled_are_counted_and_dropped() -> None:
    fleet = working()
    scorer = Watched(fleet)
    scorer.run(60)
    (sampled,) = [message for message in fleet.tick() if isinstance(message, NodeSampled)]
    for _ in range(3):
        scorer.scorer.observe(sampled, fleet.now)
    assert scorer.scorer.outcomes["late-sample"] == 2


def test_paces_of_another_scorer_that_cannot_be_true_change_nothing() -> None:
    fleet = working()
    watched = after(fleet, 120)
    pace = GpuPace(
        workload="resnet",
        job_class="compute",
        node_id="node-7",
        gpu_index=0,
        step_seconds=0.01,
        windows=1,
        at=0.0,
        alike="worker/1x1/Emulated GPU/steps",
    )
    wrong = [{"step_seconds": nan}, {"step_seconds": -1.0}, {"score": 0.0}, {"score": inf}, {"node_id": "node-1"}]
    for _ in range(6):
        said = tuple(replace(pace, gpu_index=number, **fields) for number, fields in enumerate(wrong * 20))
        watched.scorer.observe_paces(PacesSeen(pool="default", scorer="b", paces=said), fleet.now)
        mine = tuple(replace(pace, gpu_index=number) for number in range(100))
        watched.scorer.observe_paces(PacesSeen(pool="default", scorer="scorer", paces=mine), fleet.now)
        watched.run(15)
    assert all(watched.score(place).score == pytest.approx(1.0, abs=0.05) for place in fleet.places)


# bounds


def test_a_scorer_that_owns_nothing_says_nothing() -> None:
    fleet = working()
    scorer = Scorer()
    scorer.learn(nodes=fleet.nodes, jobs=fleet.jobs, now=0.0)
    for message in fleet.tick():
        if isinstance(message, NodeSampled):
            scorer.observe(message, 0.0)
        else:
            scorer.observe_progress(message, 0.0)
    assert scorer.decide(5.0).scores == {}


def test_a_node_that_goes_is_forgotten() -> None:
    fleet = working()
    watched = after(fleet, 60)
    fleet.nodes, fleet.ranks = [], []
    watched.run(10)
    assert watched.scorer.gpus_scored == 0


def test_gpus_that_a_node_makes_up_are_not_scored() -> None:
    fleet = working()
    watched = after(fleet)
    known = watched.scorer.gpus_scored
    sampled = next(message for message in fleet.tick() if isinstance(message, NodeSampled))
    made_up = tuple(replace(sampled.gpus[0], index=1000 + number, uuid=f"GPU-{number}") for number in range(200))
    watched.scorer.observe(replace(sampled, gpus=(*sampled.gpus, *made_up)), fleet.now)
    watched.scorer.decide(fleet.now)
    assert len(watched.scorer._models) == 8
    assert watched.scorer.gpus_scored == known
