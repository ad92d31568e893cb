"""How jobs that share a GPU slow each other down: by pairs of classes, without what they wait for their turns."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest

from tests.support.fleet import Fleet, Rank, Watched, share_all, use
from weft.messages.signals import PairSlowdown
from weftd.scorer.metrics import ScoreGauges
from weftd.scorer.thinking.interference import ALONE_SECONDS_MAX, Interference

KIND = ("resnet", "worker/1x1/H200/device")
HERE, THERE, ELSEWHERE = ("node-1", 0), ("node-2", 0), ("node-3", 0)
PAIR = ("compute", "memory")


def beside(known: Interference, seconds: float, **more: Any) -> float | None:
    told = {"kind": KIND, "place": HERE, "score": 1.0, "classes": PAIR, "now": 10.0, **more}
    return known.beside(seconds=seconds, **told)


def learnt(known: Interference, now: float = 10.0) -> PairSlowdown:
    (pair,) = known.learnt(now)
    return pair


def test_a_step_beside_others_is_compared_with_one_alone_on_the_same_gpu() -> None:
    known = Interference()
    assert beside(known, 0.12) is None
    known.alone(KIND, HERE, 0.10, score=1.0, now=1.0)
    assert beside(known, 0.12) == pytest.approx(1.2)
    assert learnt(known).slowdown == pytest.approx(1.2)
    assert beside(known, 0.12, kind=("other", KIND[1])) is None
    assert beside(known, 0.12, now=1.0 + ALONE_SECONDS_MAX + 1) is None


def test_without_one_on_the_same_gpu_others_count_by_their_scores_and_one_is_too_few() -> None:
    known = Interference()
    known.alone(KIND, THERE, 0.11, score=1.1, now=1.0)
    assert beside(known, 0.24, score=2.0) is None
    known.alone(KIND, ELSEWHERE, 0.10, score=1.0, now=1.0)
    assert beside(known, 0.24, score=2.0) == pytest.approx(1.2)


def test_each_workload_counts_once_and_outliers_and_impossible_ratios_change_nothing() -> None:
    known = Interference()
    for name, ratio in (("a", 1.1), ("b", 1.2), ("c", 1.3)):
        known.alone((name, KIND[1]), HERE, 1.0, score=1.0, now=1.0)
        for _ in range(100 if name == "c" else 3):
            beside(known, ratio, kind=(name, KIND[1]))
        beside(known, 4.0, kind=(name, KIND[1]))
        assert beside(known, 50.0, kind=(name, KIND[1])) is None
    assert beside(known, 1.1, kind=("a", KIND[1]), classes=("compute", "other")) is None
    pair = learnt(known)
    assert (pair.slowdown, pair.workloads) == (pytest.approx(1.2, abs=0.05), 3)
    assert pair.confidence == pytest.approx(0.6)


def test_little_or_old_knowledge_is_believed_little() -> None:
    known = Interference()
    known.alone(KIND, HERE, 1.0, score=1.0, now=1.0)
    beside(known, 1.4)
    one = learnt(known)
    for _ in range(5):
        beside(known, 1.4)
    more, old = learnt(known), learnt(known, now=10.0 + 48 * 3600)
    assert 0.0 < old.confidence < one.confidence < more.confidence < 0.5
    assert 1.0 < old.believed < one.believed < more.believed < 1.4


def test_what_is_remembered_is_bounded() -> None:
    known = Interference()
    for number in range(6_000):
        kind = (f"w-{number}", KIND[1])
        known.alone(kind, HERE, 1.0, score=1.0, now=1.0)
        beside(known, 1.1, kind=kind)
    assert learnt(known).workloads == 200
    assert beside(known, 1.1, kind=("w-0", KIND[1])) is None


# in the scorer


def told(fleet: Fleet, phase: Callable[[], bool]) -> None:
    """A job of memory shares a GPU; while `phase` is true it uses it, and the steps of the other take 1.25 times as
    much of the GPU's own time, and because of the turns twice as much time."""

    def step_of(rank: Rank) -> float:
        return 0.5 if phase() and rank.job.id == "j-node-1-0" else 0.25

    def shape(rank: Rank, run: dict[str, Any]) -> dict[str, Any]:
        contended = phase() and rank.allocation.gpus == (0,)
        use(fleet, {"j-memory": 0.375 if phase() else 0.0, "j-node-1-0": 0.5 * 1.25 / 2 if contended else 0.5})
        made = fleet.shape(rank, run)
        fleet.shape = shape
        return made

    fleet.step_of, fleet.shape = step_of, shape


def test_the_slowdown_of_a_pair_is_learnt_from_a_job_that_is_alone_at_times_and_no_gpu_is_blamed() -> None:
    fleet = Fleet(gpus=4)
    fleet.run_one_each()
    fleet.run("j-memory", [("node-1", (0,))], labels={"weft/class": "memory", "weft/workload": "other"})
    share_all(fleet)
    told(fleet, lambda: fleet.now >= 1120.0)
    watched = Watched(fleet)
    watched.run(300.0)
    pairs = {(pair.job_class, pair.beside): pair for pair in watched.scorer.slowdowns_beside()}
    assert set(pairs) == {("compute", "memory")}
    assert pairs["compute", "memory"].slowdown == pytest.approx(1.25, abs=0.04)
    assert all(watched.score(place).score == pytest.approx(1.0, abs=0.05) for place in fleet.places)

    registry = CollectorRegistry()
    registry.register(ScoreGauges(watched.scorer))
    lines = generate_latest(registry).decode()
    assert 'weft_scorer_slowdown_beside_ratio{beside="memory",class="compute"} 1.2' in lines


def test_beside_a_job_that_runs_no_more_and_beside_two_classes_nothing_is_learnt() -> None:
    for other in ("compute", "gone"):
        fleet = Fleet(gpus=4)
        fleet.run_one_each()
        for name, job_class in (("j-memory", "memory"), ("j-more", other)):
            fleet.run(name, [("node-1", (0,))], labels={"weft/class": job_class, "weft/workload": name})
        share_all(fleet)
        if other == "gone":
            fleet.ranks[-1].job = replace(fleet.ranks[-1].job, state="stopping")
        fleet.sample = lambda gpu: {"processes": ()}
        use(fleet, {})
        watched = Watched(fleet)
        watched.run(240.0)
        assert list(watched.scorer.slowdowns_beside()) == []
        assert watched.scorer.outcomes["beside"] > 0
