"""Which class workloads are of, and how fast whole jobs go on."""

from itertools import pairwise

import pytest

from tests.support.builders import GIB, job, spec
from weft.domain.job import Allocation
from weft.domain.spec import JobSpec
from weft.messages.nodes import Pace, RunProgressed
from weft.messages.signals import GpuSample, WorkloadClass
from weft.variability.classes import Classes, Features, Thresholds, told_apart
from weftd.scorer.thinking import workloads as module
from weftd.scorer.thinking.throughput import SAVE_SECONDS, SAVE_SECONDS_MAX, Throughput, grown, speed_of
from weftd.scorer.thinking.windows import ScoredRun, busy
from weftd.scorer.thinking.workloads import RENEWED_SECONDS, REVIEWS_AGREEING, WINDOWS_LEAST, Workloads

JOB_CLASSES = ("compute", "mixed", "memory")


def reviewed(workloads: Workloads, now: float = 0.0) -> dict[str, WorkloadClass]:
    """What a review found, learnt as the service does."""
    found = workloads.review(now, names=workloads.names)
    for pool, classes in found.items():
        workloads.learnt(pool, classes)
    return {one.workload: one for classes in found.values() for one in classes}


def use(workloads: Workloads, workload: str, compute: float, memory: float, times: int = WINDOWS_LEAST) -> None:
    for _ in range(times):
        workloads.used("default", workload, compute, memory, 0.0)


def of(workloads: Workloads, workload: str, **labels: str) -> str:
    asked: JobSpec = spec(labels={f"weft/{name}": value for name, value in labels.items()})
    return workloads.class_of(asked, workload)


# classes


@pytest.mark.parametrize(
    ("compute", "memory", "job_class"),
    [
        (0.95, 0.2, "compute"),
        (0.95, 0.9, "memory"),
        (0.3, 0.8, "memory"),
        (0.7, 0.5, "mixed"),
        (0.1, 0.05, "mixed"),
    ],
)
def test_of_a_few_workloads_thresholds_tell_the_class(compute: float, memory: float, job_class: str) -> None:
    workloads = Workloads()
    use(workloads, "w", compute, memory)
    assert reviewed(workloads)["w"].job_class == job_class
    assert of(workloads, "w") == job_class


def test_what_is_not_known_is_most_sensitive_and_a_label_is_always_right() -> None:
    workloads = Workloads()
    assert of(workloads, "w") == "compute"
    assert of(workloads, "w", **{"class": "memory"}) == "memory"
    use(workloads, "w", 0.3, 0.9)
    reviewed(workloads)
    assert of(workloads, "w") == "memory"
    assert of(workloads, "w", **{"class": "compute"}) == "compute"
    assert of(workloads, "w", **{"class": "nonsense"}) == "memory"


def test_too_few_windows_tell_nothing_and_impossible_ones_are_not_taken() -> None:
    workloads = Workloads()
    use(workloads, "w", 0.9, 0.2, times=WINDOWS_LEAST - 1)
    use(workloads, "w", float("nan"), 0.2)
    use(workloads, "w", 80.0, 0.2)
    assert reviewed(workloads) == {}


def test_single_windows_do_not_change_what_is_typical() -> None:
    workloads = Workloads()
    use(workloads, "w", 0.9, 0.2, times=10)
    use(workloads, "w", 0.0, 1.0, times=3)
    found = reviewed(workloads)["w"]
    assert (found.compute, found.memory, found.job_class) == (0.9, 0.2, "compute")
    assert found.samples == 13


def test_a_workload_changes_its_class_only_after_some_reviews_agree() -> None:
    workloads = Workloads()
    use(workloads, "w", 0.9, 0.2)
    reviewed(workloads)
    for review in range(1, REVIEWS_AGREEING + 1):
        use(workloads, "w", 0.3, 0.9, times=31)
        reviewed(workloads, now=float(review))
        assert of(workloads, "w") == ("memory" if review == REVIEWS_AGREEING else "compute")


def test_one_on_the_edge_does_not_flap() -> None:
    workloads = Workloads()
    use(workloads, "w", 0.8, 0.45)
    reviewed(workloads)
    before = of(workloads, "w")
    for review in range(20):
        use(workloads, "w", 0.8, 0.50 if review % 2 else 0.46, times=31)
        reviewed(workloads, now=float(review))
        assert of(workloads, "w") == before


def test_nothing_new_is_not_said_again() -> None:
    workloads = Workloads()
    use(workloads, "w", 0.9, 0.2)
    assert reviewed(workloads)
    assert reviewed(workloads) == {}
    use(workloads, "w", 0.88, 0.22)
    assert reviewed(workloads) == {}


def test_a_class_that_still_stands_is_stored_again_once_a_day_so_that_it_is_not_forgotten() -> None:
    workloads, stored = Workloads(), []
    for hour in range(48):
        workloads.used("default", "w", 0.9, 0.2, hour * 3600.0)
        found = workloads.review(hour * 3600.0, names=workloads.names)
        for pool, classes in found.items():
            workloads.learnt(pool, classes)
            stored.append(hour)
    assert stored == [WINDOWS_LEAST - 1, WINDOWS_LEAST - 1 + RENEWED_SECONDS // 3600]


def test_what_the_store_has_forgotten_is_not_known_any_more() -> None:
    workloads = Workloads()
    use(workloads, "w", 0.3, 0.9)
    use(workloads, "x", 0.3, 0.9)
    kept = reviewed(workloads)["x"]
    workloads.learnt("other", [kept])
    workloads.recall("default", [kept])
    assert (of(workloads, "w"), of(workloads, "x")) == ("compute", "memory")
    workloads.recall("default", [])
    assert workloads.class_of(spec(pool="other"), "x") == "memory"


def test_of_very_many_workloads_the_latest_are_clustered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLUSTERED_MOST", 6)
    looked_at: list[int] = []
    monkeypatch.setattr(
        module, "told_apart", lambda made, names: looked_at.append(len(made)) or told_apart(made, names)
    )
    workloads = Workloads()
    for number in range(20):
        use(workloads, str(number), 0.9, 0.2)
    assert len(reviewed(workloads)) == 20
    assert looked_at == [6]


def test_many_workloads_are_clustered() -> None:
    made = [(0.9, 0.1), (0.85, 0.15), (0.45, 0.35), (0.5, 0.4), (0.2, 0.5), (0.15, 0.45)]
    apart = told_apart([Features(compute=compute, memory=memory) for compute, memory in made], JOB_CLASSES)
    assert isinstance(apart, Classes)
    workloads = Workloads()
    for number, (compute, memory) in enumerate(made):
        use(workloads, str(number), compute, memory)
    found = reviewed(workloads)
    assert [found[str(number)].job_class for number in range(6)] == [
        *("compute", "compute", "mixed", "mixed", "memory", "memory")
    ]


def test_many_workloads_that_are_all_alike_are_not_torn_apart() -> None:
    alike = [Features(compute=0.9 + 0.01 * number, memory=0.2) for number in range(8)]
    tells = told_apart(alike, JOB_CLASSES)
    assert isinstance(tells, Thresholds)
    assert {tells.of(one) for one in alike} == {"compute"}


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ({"sm_active": 0.8, "dram_active": 0.3, "utilisation": 1.0}, (0.8, 0.3)),
        ({"tensor_active": 0.6, "memory_utilisation": 0.4}, (0.6, 0.4)),
        ({"power_watts": 350.0, "power_limit_watts": 700.0, "utilisation": 0.9}, (0.5, 0.4)),
        ({"utilisation": 0.9, "memory_utilisation": 0.2}, (0.9, 0.2)),
        ({"utilisation": 0.9}, (None, 0.0)),
        ({}, (None, 0.0)),
    ],
)
def test_a_gpu_shows_how_busy_it_is_by_what_it_counts(told: dict[str, float], found: tuple[float, float]) -> None:
    compute, memory = busy(GpuSample(index=0, uuid="u", model="m", **told))  # type: ignore[arg-type]
    assert (compute, pytest.approx(memory)) == (found[0], found[1])


# curves


def run(rank: int = 0, *, role: str = "worker", speed: float | None = 4.0, samples: float | None = None) -> ScoredRun:
    allocation = Allocation(rank=rank, role=role, node_id="node-1", cpus=2.0, memory=GIB)
    made = ScoredRun(job(), allocation, workload="w", ranks=0, first=False, now=0.0)
    if speed is not None:
        pace = Pace(window_seconds=10, steps=40, steps_rate=speed, samples_rate=samples, step_seconds=1 / speed)
        assert made.told(RunProgressed(job_id="j-1", epoch=0, rank=rank, progress={}, at=1.0, pace=pace), 10.0)
    return made


def test_samples_of_all_ranks_add_up_and_steps_do_not() -> None:
    assert speed_of([run(0, samples=100.0), run(1, samples=80.0)], 10.0) == ((2, 4.0), 180.0)
    assert speed_of([run(0, speed=4.0), run(1, speed=5.0)], 10.0) == ((2, 4.0), 4.5)


def test_the_role_that_tells_its_steps_counts() -> None:
    servers = [run(2, role="server", speed=None)]
    assert speed_of([run(0), run(1), *servers], 10.0) == ((2, 4.0), 4.0)


def test_while_the_larger_role_is_silent_the_smaller_one_is_not_the_jobs_speed() -> None:
    workers = [run(0), run(1)]
    late = _heard(run(2, role="evaluator", speed=1.0), 100.0)
    assert speed_of([*workers, late], 100.0) is None


def test_samples_and_steps_are_not_mixed() -> None:
    assert speed_of([run(0, samples=100.0), run(1, samples=None)], 10.0) is None


def test_a_job_of_which_some_ranks_are_silent_has_no_speed() -> None:
    assert speed_of([run(0), run(1, speed=None)], 10.0) is None
    assert speed_of([run(0)], 100.0) is None, "what was told long ago is not how it is"
    assert speed_of([], 0.0) is None


def test_a_job_is_stored_every_half_minute_at_first_and_seldom_later_and_soon_when_its_size_is_new() -> None:
    throughput = Throughput()
    stored: list[float] = []

    def live(begin: int, end: int, ranks: int) -> None:
        for now in range(begin, end, 15):
            runs = [run(rank, samples=100.0) for rank in range(ranks)]
            throughput.window("j", [_heard(one, now) for one in runs], float(now))
            if throughput.due({"j": ("default", "w")}, float(now)):
                stored.append(float(now))

    live(0, 3600, 1)
    assert stored[0] == SAVE_SECONDS
    gaps = [later - earlier for earlier, later in pairwise(stored)]
    assert gaps == sorted(gaps)
    assert min(gaps) >= SAVE_SECONDS
    assert gaps[-1] == SAVE_SECONDS_MAX
    count = len(stored)
    live(3600, 3720, 2)
    assert len(stored) > count


def _heard(one: ScoredRun, now: float) -> ScoredRun:
    one.heard_at = now
    return one


def test_what_is_new_is_merged_into_the_curve_of_the_job_and_of_its_workload() -> None:
    throughput = Throughput()
    for _ in range(3):
        throughput.window("j-1", [run(0, samples=100.0)], 10.0)
        throughput.window("j-2", [run(0, samples=120.0)], 10.0)
    growths = throughput.due(dict.fromkeys(("j-1", "j-2"), ("default", "w")), 100.0)
    curves = {curve.subject: curve for curve in grown((), growths, at=100.0)}
    assert curves.keys() == {"job:j-1", "job:j-2", "workload:w"}
    assert curves["job:j-1"].points[0].speed == 100.0
    assert curves["workload:w"].points[0].speed == pytest.approx(110.0)
    assert curves["workload:w"].points[0].windows == 6
    again = grown(curves.values(), growths, at=200.0)
    assert {curve.points[0].windows for curve in again if curve.subject == "job:j-1"} == {6}
    assert throughput.due({"j-1": ("default", "w")}, 100.0 + SAVE_SECONDS * 4) == [], "told once"
