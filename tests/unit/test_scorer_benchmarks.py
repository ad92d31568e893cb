"""Which GPUs are measured when, and what is made of the results."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.benchmarks import bench_job, bench_node, gpu, measurement
from tests.support.tier import examples
from weft.domain.cluster import Drain, Node
from weft.messages.signals import GpuSample, GpuScore, ModelSpeed
from weftd.scorer.thinking.benchmarks import Benchmarks, BenchmarkSettings, Wanted

HOUR = 3600.0


class World:
    """A pool whose benchmarks take a minute and tell what `slow` says of their GPU."""

    def __init__(self, *nodes: Node, **fields: object) -> None:
        self.benchmarks = Benchmarks(BenchmarkSettings(**fields), trusted=("admin",))  # type: ignore[arg-type]
        self.nodes = list(nodes)
        self.held: set[tuple[str, int]] = set()
        self.slow: dict[str, float] = {}
        self.driver, self.power = "", None
        self.now = 0.0
        self.keys: list[str] = []

    def due(self) -> list[Wanted]:
        self.benchmarks.observe_nodes(self.nodes, self.held, now=self.now)
        return self.benchmarks.due(self.now)

    def ask(self) -> list[Wanted]:
        wanted = self.due()
        for one in wanted:
            self.benchmarks.asked(one, now=self.now)
            self.keys.append(one.key)
        return wanted

    def end(self, wanted: Wanted, **fields: float) -> None:
        assert wanted.spec.pin is not None
        of = next(each for node in self.nodes for each in node.capacity.gpus if each.uuid == wanted.uuid)
        told = measurement(self.slow.get(wanted.uuid, 1.0), **fields)
        job = bench_job(of, wanted.spec.pin.node, told, at=self.now, job_id=wanted.key, spec=wanted.spec)
        assert self.benchmarks.ended(job) is not None

    def round(self) -> list[str]:
        """Ask for what is due, and a minute later it has ended; the causes."""
        wanted = self.ask()
        self.now += 60
        for one in wanted:
            self.end(one)
        return [one.cause.partition("-")[0] for one in wanted]

    def settle(self) -> int:
        """Until nothing is due any more; how many benchmarks that took."""
        done = 0
        while made := self.round():
            done += len(made)
            assert done < 1000
        return done

    def scores(self, job_class: str = "compute") -> dict[str, GpuScore]:
        self.due()
        return {
            f"{score.node_id}/{score.gpu_index}": score
            for score in self.benchmarks.scores()
            if score.job_class == job_class
        }


def three(**fields: object) -> World:
    return World(*(bench_node(f"node-{number}") for number in (1, 2, 3)), **fields)


def uuid(node: int) -> str:
    return f"EMULATED-node-{node}-0"


# when


def test_a_gpu_that_joins_is_measured_once() -> None:
    w = World(bench_node("node-1"))
    (wanted,) = w.ask()
    assert (wanted.cause, wanted.uuid) == ("joined", uuid(1))
    assert wanted.spec.pin is not None
    assert (wanted.spec.pin.node, wanted.spec.pin.gpu) == ("node-1", 0)
    assert w.ask() == [], "it is under way"
    w.now += 60
    w.end(wanted)
    assert w.ask() == []
    w.nodes.append(bench_node("node-2"))
    assert [one.uuid for one in w.ask()] == [uuid(2)]


def test_never_two_on_one_node_and_no_more_than_are_allowed_in_a_pool() -> None:
    w = World(*(bench_node(f"node-{number}", gpus=4) for number in range(5)), bench_node("other", pool="other"))
    wanted = w.ask()
    assert sorted(one.spec.pin.node for one in wanted if one.spec.pin) == ["node-0", "node-1", "other"]
    assert w.ask() == []
    assert three(at_once=3).settle() == 3
    assert len(three(at_once=1).ask()) == 1


def test_all_gpus_of_a_pool_are_measured_in_the_end() -> None:
    w = World(*(bench_node(f"node-{number}", gpus=4) for number in range(5)))
    assert w.settle() == 20
    assert len(w.benchmarks.results()) == 20


def test_a_gpu_that_a_job_holds_is_left_alone() -> None:
    w = World(bench_node("node-1", gpus=2))
    w.held = {("node-1", 0)}
    assert [one.spec.pin.gpu for one in w.ask() if one.spec.pin] == [1]


@pytest.mark.parametrize("state", [{"ready": False}, {"drain": Drain()}])
def test_a_node_that_takes_no_work_is_left_alone(state: dict[str, bool]) -> None:
    w = World(replace(bench_node("node-1"), **state))
    assert w.ask() == []
    w.nodes = [bench_node("node-1")]
    assert len(w.ask()) == 1


def test_nodes_that_run_containers_need_an_image() -> None:
    w = World(bench_node("node-1", runtime="docker"))
    assert w.ask() == []
    assert w.benchmarks.without_image
    w = World(bench_node("node-1", runtime="docker"), image="weft:local")
    assert w.ask()[0].spec.image == "weft:local"
    assert World(bench_node("node-1"), image="weft:local").ask()[0].spec.image is None


def test_a_real_gpu_is_measured_once_telemetry_has_told_of_it_and_nobody_uses_it() -> None:
    w = World(bench_node("node-1", emulated=False))
    sample = GpuSample(index=0, uuid="GPU-node-1-0", model="H200", driver="580.65", power_limit_watts=700.0)
    assert w.ask() == []
    for hindered in (replace(sample, problem="lost"), replace(sample, utilisation=0.5)):
        w.benchmarks.observe_sample(hindered)
        assert w.ask() == []
    w.benchmarks.observe_sample(sample)
    (wanted,) = w.ask()
    assert wanted.spec.labels["weft/benchmark-driver"] == "580.65"
    assert wanted.spec.labels["weft/benchmark-power-limit"] == "700"


def test_one_that_is_idle_for_long_is_measured_again_when_its_result_is_old() -> None:
    w = World(bench_node("node-1"), idle_seconds=1800, every_seconds=6 * HOUR)
    w.settle()
    w.now = 6 * HOUR - 60
    assert w.due() == []
    w.now = 6 * HOUR + 61
    assert w.round() == ["idle"]
    assert w.due() == []
    w.held = {("node-1", 0)}
    w.now += 24 * HOUR
    assert w.due() == [], "held"
    w.held = set()
    assert w.due() == [], "free for an instant"
    w.now += 1799
    assert w.due() == []
    w.now += 2
    assert w.round() == ["idle"]


def test_a_new_driver_or_power_limit_is_measured_at_once() -> None:
    w = World(bench_node("node-1", emulated=False))
    sample = GpuSample(index=0, uuid="GPU-node-1-0", model="H200", driver="570.1", power_limit_watts=700.0)

    def tell(**fields: object) -> list[str]:
        w.due()
        w.benchmarks.observe_sample(replace(sample, **fields))
        causes: list[str] = []
        for one in w.ask():
            w.now += 60
            w.end(one, emulated=0)
            causes.append(one.cause.partition("-")[0])
        return causes

    assert tell() == ["joined"]
    assert tell() == []
    assert tell(driver="570.2") == [], "a minor version"
    assert tell(driver="580.1") == ["changed"]
    assert tell(driver="580.1", power_limit_watts=702.0) == [], "as good as the same"
    assert tell(driver="580.1", power_limit_watts=500.0) == ["changed"]
    assert tell(driver="580.1", power_limit_watts=500.0) == []


def test_switched_off_nothing_is_due_and_results_still_count() -> None:
    w = three(on=False)
    assert w.ask() == []
    job = bench_job(gpu("node-1"), "node-1", measurement(), at=1.0)
    assert w.benchmarks.ended(job) is not None
    assert list(w.scores()) == ["node-1/0"]


# what becomes of one that does not come back


def test_one_that_comes_to_nothing_is_asked_for_again_ever_later() -> None:
    w = World(bench_node("node-1"), deadline_seconds=900.0, backoff_seconds_max=7200.0)
    asked: list[float] = []
    for _ in range(24 * 60):
        if w.ask():
            asked.append(w.now)
        w.now += 60
    pauses = [round(after - before) for before, after in pairwise(asked)]
    assert pauses[:4] == [1800, 2700, 4500, 8100]
    assert set(pauses[4:]) == {8100}
    assert len(set(w.keys)) == len(w.keys), "each try is a job of its own"


def test_one_that_is_lost_keeps_neither_its_node_nor_its_pool_from_others() -> None:
    w = World(bench_node("node-1", gpus=2), deadline_seconds=900.0)
    (first,) = w.ask()
    w.now += 901
    (second,) = w.ask()
    assert first.uuid != second.uuid


def test_one_that_is_refused_is_tried_again_later_with_another_key() -> None:
    w = World(bench_node("node-1"), deadline_seconds=900.0)
    (wanted,) = w.due()
    w.benchmarks.refused(wanted, now=w.now)
    w.now += 899
    assert w.due() == []
    w.now += 2
    (again,) = w.due()
    assert (wanted.key, again.key) == (f"bench-{uuid(1)}-joined-0", f"bench-{uuid(1)}-joined-1")


def test_what_is_due_is_the_same_job_for_whoever_asks() -> None:
    assert three().due() == three().due()


# what counts


def test_only_benchmarks_of_trusted_tenants_count() -> None:
    w = three()
    job = bench_job(gpu("node-1"), "node-1", measurement(9.0), at=1.0, tenant="mallory")
    assert w.benchmarks.ended(job) is None
    assert w.benchmarks.results() == {}


def test_the_same_result_again_is_the_same() -> None:
    w = three()
    job = bench_job(gpu("node-1"), "node-1", measurement(), at=1.0)
    assert w.benchmarks.ended(job) is not None
    assert w.benchmarks.ended(job) is None


def test_a_result_that_was_read_again_does_not_end_what_was_asked_since() -> None:
    w = World(bench_node("node-1"))
    w.settle()
    w.now += 7 * HOUR
    (wanted,) = w.ask()
    old = bench_job(gpu("node-1"), "node-1", measurement(), at=60.0, job_id=w.keys[0])
    assert w.benchmarks.ended(old) is None
    assert w.ask() == []
    assert wanted.cause.startswith("idle")


# scores


def test_a_gpu_is_as_slow_as_it_takes_longer_than_the_middle_one_of_its_like() -> None:
    w = World(*(bench_node(f"node-{number}") for number in range(1, 6)))
    w.slow = {uuid(2): 1.33}
    w.settle()
    scores = w.scores()
    assert [round(scores[f"node-{number}/0"].score, 3) for number in range(1, 6)] == [1, 1.33, 1, 1, 1]
    assert {score.source for score in scores.values()} == {"benchmark"}
    assert min(score.confidence for score in scores.values()) > 0.75
    assert [round(w.scores("memory")["node-2/0"].score, 3), round(w.scores("mixed")["node-2/0"].score, 3)] == [
        1.0,
        1.153,
    ]


def test_with_too_few_of_its_like_a_gpu_counts_as_typical_and_nobody_is_sure() -> None:
    w = World(bench_node("node-1"), bench_node("node-2"), *(bench_node(f"a-{n}", model="A100") for n in range(3)))
    w.slow = {uuid(2): 1.5}
    w.settle()
    scores = w.scores()
    assert (scores["node-2/0"].score, scores["node-2/0"].confidence) == (1.0, 0.2)
    assert scores["a-1/0"].confidence > 0.7


def test_emulated_and_real_ones_are_never_compared() -> None:
    w = three()
    real = [bench_job(gpu(f"r-{n}", emulated=False), f"r-{n}", measurement(9.0, emulated=0), at=1.0) for n in range(5)]
    for job in real:
        w.benchmarks.ended(job)
    w.settle()
    assert {score.score for score in w.scores().values()} == {1.0}


def test_nodes_learn_how_fast_a_model_is_in_the_fleet_by_its_slowest_conditions() -> None:
    w = three()
    for number, seconds in enumerate((1.0, 1.1, 9.0, 1.2, 1.3)):
        name, power = f"r-{number}", 700.0 if number < 3 else 400.0
        told = measurement(seconds, emulated=0, **({"copy_in_s": seconds} if number else {}))
        w.benchmarks.ended(bench_job(gpu(name, emulated=False), name, told, at=1.0, power=power))
    usual = ModelSpeed(model="H200", emulated=False, gpus=3, compute_s=1.1, memory_s=1.0, copy_in_s=5.05)
    assert w.benchmarks.model_speeds() == (usual,), "two GPUs with less power are too few"
    told = measurement(2.0, emulated=0)
    w.benchmarks.ended(bench_job(gpu("r-5", emulated=False), "r-5", told, at=1.0, power=400.0))
    assert w.benchmarks.model_speeds() == (replace(usual, gpus=6, compute_s=1.3),)


def test_less_is_believed_of_a_wide_spread_few_repetitions_and_few_gpus() -> None:
    def confidence(nodes: int, job_class: str = "compute", **fields: float) -> float:
        w = World(*(bench_node(f"node-{number}") for number in range(1, nodes + 1)), at_once=9)
        for wanted in w.ask():
            w.end(wanted, **fields)
        return w.scores(job_class)["node-1/0"].confidence

    usual = confidence(4)
    assert 0.7 < usual < 1.0
    assert confidence(8) > usual > confidence(3) > confidence(2)
    assert confidence(4, reps=3) < usual
    assert confidence(4, compute_spread=0.2) < usual / 4
    assert confidence(4, memory_spread=0.2) == usual
    assert confidence(4, "memory", memory_spread=0.2) == confidence(4, "mixed", memory_spread=0.2) < usual / 4


def test_one_disturbed_run_brands_nobody() -> None:
    """It is measured again at once; until then the GPU counts as it did."""
    w = World(*(bench_node(f"node-{number}") for number in range(1, 5)))
    w.settle()
    w.now += 7 * HOUR
    w.slow = {uuid(1): 3.0}
    while w.benchmarks.results()[uuid(1)].measurement.compute_s != 3.0:
        assert w.round()
    assert w.scores()["node-1/0"].score == 1.0
    w.slow = {}
    causes = w.round()
    assert "confirm" in causes
    w.settle()
    assert w.scores()["node-1/0"].score == 1.0
    assert w.scores()["node-1/0"].confidence > 0.75


def test_one_disturbed_run_brands_no_gpu_that_has_just_joined() -> None:
    w = World(*(bench_node(f"node-{number}") for number in range(1, 5)))
    w.settle()
    w.nodes.append(bench_node("node-9"))
    w.slow = {uuid(9): 3.0}
    assert w.round() == ["joined"]
    assert w.scores()["node-9/0"].score == 1.0
    assert w.scores()["node-9/0"].confidence < 0.5
    w.slow = {}
    assert w.round() == ["confirm"]
    w.settle()
    assert w.scores()["node-9/0"].score == 1.0


@pytest.mark.parametrize(("before", "after"), [(1.0, 1.33), (1.33, 1.0)])
def test_a_gpu_that_turned_slow_or_recovered_is_known_after_two_runs(before: float, after: float) -> None:
    w = World(*(bench_node(f"node-{number}") for number in range(1, 6)))
    w.slow = {uuid(2): before}
    w.settle()
    assert w.scores()["node-2/0"].score == pytest.approx(before)
    w.slow = {uuid(2): after}
    w.now += 7 * HOUR
    w.settle()
    assert w.scores()["node-2/0"].score == pytest.approx(after)
    assert w.scores()["node-2/0"].confidence > 0.75


def test_a_gpu_whose_results_never_agree_is_not_measured_without_end() -> None:
    w = World(*(bench_node(f"node-{number}") for number in range(1, 5)))
    w.settle()
    rng = random.Random(7)
    w.now += 7 * HOUR
    runs = 0
    for _ in range(60):
        w.slow = {uuid(1): rng.choice([1.0, 1.3, 1.6, 2.0, 2.5, 3.0])}
        runs += sum(1 for one in w.due() if one.uuid == uuid(1))
        w.round() or setattr(w, "now", w.now + 60)
    assert runs <= 8, "three in half an hour at most"


def test_a_gpu_that_moved_to_another_place_is_still_itself() -> None:
    w = World(*(bench_node(f"node-{number}") for number in range(1, 5)))
    w.slow = {uuid(1): 1.33}
    w.settle()
    moved = bench_node("node-9")
    capacity = replace(moved.capacity, gpus=(replace(gpu("node-1"), index=5),))
    w.nodes[0] = replace(moved, capacity=capacity)
    assert w.scores()["node-9/5"].score == pytest.approx(1.33)
    assert "node-1/0" not in w.scores()


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0.5, 3.0), st.integers(0, 30)), max_size=30), st.randoms())
def test_in_whichever_order_results_come_the_scores_are_the_same(
    told: list[tuple[int, float, int]], rng: random.Random
) -> None:
    jobs = [
        bench_job(gpu(f"node-{of}"), f"node-{of}", measurement(seconds), at=float(at), job_id=f"j-{number}")
        for number, (of, seconds, at) in enumerate(told)
    ]
    found = []
    for _ in range(2):
        w = World(*(bench_node(f"node-{number}") for number in range(4)))
        for job in jobs:
            w.benchmarks.ended(job)
        found.append(w.scores())
        rng.shuffle(jobs)
    assert found[0] == found[1]
    assert all(0 < score.score < 10 and 0 < score.confidence < 1 for score in found[0].values())
