"""Windows: what was heard of each rank in a few seconds. What is missing stays unknown; the impossible is dropped."""

import math

import pytest
from msgspec import structs

from tests.support.builders import GIB, job
from weft.domain.job import Allocation, Job, JobState, Placement
from weft.messages.nodes import Pace, ProgressSeen, RunProgressed
from weft.messages.signals import GpuSample, HostSample, NodeSampled, RunSample
from weft.tuning.window import KEPT_MAX, Gathering

HOST = HostSample(cpus=8.0, cpus_used=2.0, memory_total=GIB, memory_used=0)


def running(*gpus: int, ranks: int = 1) -> Job:
    held = tuple(
        Allocation(rank=rank, role="worker", node_id="node-1", gpus=gpus, cpus=1.0, memory=GIB) for rank in range(ranks)
    )
    return structs.replace(job(), state=JobState.RUNNING, epoch=1, placement=Placement(allocations=held))


def sampled(*, gpus: tuple[GpuSample, ...] = (), node: str = "node-1", epoch: int = 1, **fields: object) -> NodeSampled:
    run = RunSample(job_id="j-1", epoch=epoch, rank=0, source="cgroup2", **fields)  # type: ignore[arg-type]
    return NodeSampled(node_id=node, pool="default", at=0.0, host=HOST, gpus=gpus, runs=(run,))


def told(now: float, *, window: float = 10.0, node: str = "node-1", steps: int = 10, **fields: object) -> ProgressSeen:
    pace = Pace(**{"window_seconds": window, "steps": steps, "steps_rate": 2.0, "step_seconds": 0.5, **fields})  # type: ignore[arg-type]
    run = RunProgressed(job_id="j-1", epoch=1, rank=0, progress={}, at=now, pace=pace)
    return ProgressSeen(node_id=node, runs=(run,))


def gathering(of: Job | None = None) -> Gathering:
    made = Gathering(window_seconds=10.0)
    made.follow(of or running(), now=0.0)
    return made


def test_means_p95_and_largest() -> None:
    made = gathering()
    for use in (0.2, 0.4, 0.9):
        made.hear(sampled(cpus_used=use, cpu_throttled=use, memory_used=int(use * 1000), cpus_limit=1.0))
    assert made.close("j-1", now=9.9) is None
    window = made.close("j-1", now=10.0)
    assert window is not None
    (rank,) = window.ranks
    assert (rank.samples, rank.cpus_used, rank.cpus_p95) == (3, pytest.approx(0.5), 0.9)
    assert (rank.memory_used, rank.cpus_limit, rank.use_part) == (900, 1.0, pytest.approx(0.5))
    assert (rank.busiest_thread, rank.cpu_pressure, rank.speed, window.speed) == (None, None, None, None)
    assert (rank.host_cpus, rank.host_cpus_used, rank.host_cpu_pressure) == (8.0, 2.0, None)
    again = made.close("j-1", now=20.0)
    assert again is not None
    assert (again.began, again.ranks[0].samples, again.ranks[0].cpus_used) == (10.0, 0, None)


@pytest.mark.parametrize("wrong", [-1.0, math.inf, -math.inf, math.nan])
def test_what_cannot_be_is_counted_and_not_believed(wrong: float) -> None:
    made = gathering()
    made.hear(sampled(cpus_used=wrong, cpu_throttled=0.5))
    made.hear_progress(told(11.0, steps_rate=wrong), now=11.0)
    made.hear_progress(told(11.0, phases={"t_data": wrong}), now=11.0)
    window = made.close("j-1", now=12.0)
    assert window is not None
    assert (window.ranks[0].cpus_used, window.ranks[0].cpu_throttled, window.speed) == (None, 0.5, None)
    assert made.disbelieved == 3


def test_others_words_about_a_rank_do_not_count() -> None:
    made = gathering()
    made.hear(sampled(node="node-2", cpus_used=0.9))
    made.hear(sampled(epoch=2, cpus_used=0.9))
    made.hear_progress(told(11.0, node="node-2"), now=11.0)
    window = made.close("j-1", now=12.0)
    assert window is not None
    assert (window.ranks[0].samples, window.speed) == (0, None)


def test_only_paces_from_after_a_change_count() -> None:
    made = gathering()
    made.begin_anew("j-1", now=100.0)
    made.hear_progress(told(105.0, steps_rate=9.0), now=105.0)
    first = made.close("j-1", now=110.0)
    made.hear_progress(told(111.0), now=111.0)
    made.hear_progress(told(112.0, steps=1), now=112.0)
    second = made.close("j-1", now=120.0)
    assert first is not None
    assert second is not None
    assert (first.speed, second.speed) == (None, 2.0)


def test_samples_before_steps_for_the_speed_of_a_job() -> None:
    made = gathering()
    made.hear_progress(told(11.0, samples_rate=128.0, phases={"t_data": 0.1}), now=11.0)
    window = made.close("j-1", now=12.0)
    assert window is not None
    assert window.speed == 128.0
    assert window.ranks[0].phase_part("t_data", "t_wait") == pytest.approx(0.2)
    assert window.ranks[0].phase_part("t_push") is None


def counted(at: float, **progress: float) -> ProgressSeen:
    run = RunProgressed(job_id="j-1", epoch=1, rank=0, progress=progress, at=at)
    return ProgressSeen(node_id="node-1", runs=(run,))


def test_what_was_counted_in_the_window_is_its_speed_and_a_pace_that_reaches_back_is_not() -> None:
    made = gathering()
    made.hear_progress(told(0.5, window=0.5), now=0.5)
    for second in range(1, 11):
        made.hear_progress(counted(1000.0 + second, step=5.0 * second, samples=160.0 * second), now=float(second))
    window = made.close("j-1", now=10.0)
    assert window is not None
    assert (window.speed, window.ranks[0].steps_rate, window.ranks[0].of_samples) == (160.0, 5.0, True)


def test_after_a_change_counting_begins_anew_and_late_or_doubled_words_are_no_news() -> None:
    made = gathering()
    made.hear_progress(counted(1000.0, step=0.0), now=0.0)
    made.begin_anew("j-1", now=100.0)
    for at, step in ((1100.0, 1000.0), (1105.0, 1010.0), (1105.0, 1010.0), (1090.0, 990.0), (1109.0, 1018.0)):
        made.hear_progress(counted(at, step=step), now=at - 1000.0)
    window = made.close("j-1", now=110.0)
    assert window is not None
    assert window.speed == 2.0


def test_who_goes_back_to_a_checkpoint_is_counted_from_there_and_few_steps_count_for_nothing() -> None:
    made = gathering()
    for at, step in ((1.0, 500.0), (2.0, 100.0), (3.0, 104.0), (10.0, 107.0)):
        made.hear_progress(counted(1000.0 + at, step=step), now=at)
    window = made.close("j-1", now=10.0)
    assert window is not None
    assert window.speed is None


def test_of_several_gpus_the_least_used_counts_and_emulated_ones_are_called_so() -> None:
    made = gathering(running(1, 2))
    gpus = tuple(
        GpuSample(index=index, uuid=f"U{index}", model="M", emulated=index == 2, utilisation=use, sm_active=use)
        for index, use in ((0, 0.1), (1, 0.9), (2, 0.5))
    )
    made.hear(sampled(gpus=gpus))
    window = made.close("j-1", now=10.0)
    assert window is not None
    assert (window.ranks[0].gpu_utilisation, window.ranks[0].sm_active) == (0.5, pytest.approx(0.7))
    assert (window.ranks[0].gpus, window.ranks[0].emulated) == (2, True)


def test_kills_for_memory_are_counted_from_window_to_window() -> None:
    made = gathering()
    found = []
    for kills in (3, 3, 5):
        made.hear(sampled(oom_kills=kills))
        window = made.close("j-1", now=10.0 * (len(found) + 1))
        assert window is not None
        found.append(window.ranks[0].oom_kills)
    assert found == [0, 0, 2]


def test_memory_is_bounded_however_much_is_told() -> None:
    made = gathering()
    for second in range(2000):
        made.hear(sampled(cpus_used=0.5))
        made.hear_progress(told(11.0 + second), now=11.0 + second)
    (rank,) = made._jobs["j-1"].ranks.values()
    assert len(rank.cpus) == len(rank.paces) == KEPT_MAX
    made.keep_only([])
    assert made.close("j-1", now=1e9) is None
