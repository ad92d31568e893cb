"""The check of GPUs before a job: which GPU fails, when it is checked, and where the job starts then."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec import structs

from tests.support.builders import capacity
from tests.support.runs import order
from tests.support.scheduler import World, world
from weft.domain.cluster import Gpu
from weft.domain.health import HealthState
from weft.domain.job import JobState
from weft.emulation.slowdowns import slow_down
from weft.health.preflight import KEPT, Speed, learnt, why_failed
from weft.messages.nodes import GpuSigns, NodeSigns, StartRun
from weft.messages.signals import ModelSpeed, SpeedsMeasured
from weft.samples.benchmark_result import LinksMeasured, Measurement
from weftd.executor import preflight
from weftd.executor.preflight import DAY_SECONDS, SHOWN_SECONDS, Checked, LinksChecked, Preflight, links_of
from weftd.scheduler.thinking.core_settings import Settings

WELL = Speed(1.0, 1.0)
TWICE = "take 2.00 times as long as those of its model on this node"


def measured(seconds: float = 1.0, **values: float) -> Measurement:
    fields = {"compute_spread": 0.0, "memory_spread": 0.0, "emulated": 0.0} | values
    return Measurement(compute_s=seconds, memory_s=1.0, reps=9, seconds=1.0, **fields)


@pytest.mark.parametrize(
    ("found", "others", "why"),
    [
        (measured(1.3), [WELL] * 3, ""),
        (measured(1.4), [WELL] * 3, "its compute pulses take 1.40 times as long as those of its model on this node"),
        (measured(copy_in_s=2.0), [Speed(1.0, 1.0, 1.0)] * 2, f"copies from the host {TWICE}"),
        (measured(copy_out_s=2.0), [Speed(1.0, 1.0, 1.0, 1.0)] * 2, f"copies to the host {TWICE}"),
        (measured(copy_in_s=2.0), [WELL] * 3, ""),  # their copies were not measured
        (measured(9.0), [WELL], ""),  # too few to compare with
        (measured(compute_spread=0.06), [], "its compute pulses differ by 6.0%, more than 5%"),
        (measured(memory_spread=0.06), [], "its memory pulses differ by 6.0%, more than 5%"),
        (measured(memory_spread=0.06, emulated=1.0), [], ""),
    ],
)
def test_which_gpus_fail_their_check(found: Measurement, others: list[Speed], why: str) -> None:
    assert why_failed(found, others) == why


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_speeds_that_make_no_sense_fail_no_gpu(seconds: float) -> None:
    absurd = Speed(seconds, seconds, seconds, seconds)
    assert why_failed(measured(copy_in_s=1.0, copy_out_s=1.0), [absurd] * 3, absurd) == ""


def test_no_more_is_learnt_than_is_kept() -> None:
    known: tuple[Speed, ...] = ()
    for number in range(KEPT + 9):
        known = learnt(known, measured(1.0 + number))
    assert (len(known), known[-1].compute) == (KEPT, KEPT + 9.0)


class Node:
    """The GPUs of a node, which a test makes fail."""

    def __init__(self, path: Path) -> None:
        self.path, self.now = path, 1e6
        self.seconds: dict[int, float] = {}
        self.failed: dict[int, str] = {}
        self.checked: list[int] = []
        self.links = LinksChecked()
        self.linked: list[tuple[int, ...]] = []
        self.preflight = self.again()

    def again(self) -> Preflight:
        gpus = capacity(gpus=4).gpus
        return Preflight(self.path, gpus=lambda: gpus, now=lambda: self.now, check=self._check, check_links=self._links)

    async def _links(self, gpus: Sequence[Gpu], slowdowns: str) -> LinksChecked:
        del slowdowns
        self.linked.append(tuple(gpu.index for gpu in gpus))
        return self.links

    async def _check(self, gpu: Gpu, slowdowns: str) -> Checked:
        del slowdowns
        self.checked.append(gpu.index)
        if gpu.index in self.failed:
            return Checked(failed=self.failed[gpu.index])
        return Checked(measured=measured(self.seconds.get(gpu.index, 1.0)))

    async def why_not(self, *gpus: int) -> str:
        return await self.preflight.why_not(structs.replace(order("j-1", gpus=gpus), preflight=True))


async def test_a_gpu_is_checked_once_a_day_also_by_the_next_executor(tmp_path: Path) -> None:
    node = Node(tmp_path / "preflight.json")
    assert await node.why_not(0, 1) == ""
    node.preflight = node.again()
    assert await node.why_not(0, 1, 2) == ""
    assert node.checked == [0, 1, 2]
    node.now += DAY_SECONDS
    assert await node.why_not(0) == ""
    assert node.checked == [0, 1, 2, 0]


async def test_a_gpu_that_fails_is_a_sign_for_a_minute_and_is_checked_again(tmp_path: Path) -> None:
    node = Node(tmp_path / "preflight.json")
    node.seconds[2], node.failed[3] = 2.0, "this GPU computes wrong"
    why = await node.why_not(0, 1, 2, 3)
    assert (
        why == "GPU 2: its compute pulses take 2.00 times as long as those of its model on this node; "
        "GPU 3: this GPU computes wrong"
    )
    shown = node.preflight.with_failed(NodeSigns(boot="t", gpus=(GpuSigns(index=3, xids={"31": 1}),)))
    assert shown is not None
    assert [(each.index, dict(each.levels), dict(each.xids)) for each in shown.gpus] == [
        (2, {"preflight": 1.0}, {}),
        (3, {"preflight": 1.0}, {"31": 1}),
    ]
    assert await node.why_not(0, 1, 2) != ""
    assert node.checked == [0, 1, 2, 3]
    node.now += SHOWN_SECONDS
    assert node.preflight.with_failed(NodeSigns(boot="t")) == NodeSigns(boot="t")
    node.seconds.clear()
    assert await node.why_not(0, 1, 2) == ""
    assert node.checked == [0, 1, 2, 3, 2]


async def test_a_gpu_is_compared_with_those_of_the_fleet_also_if_its_whole_node_is_slow(tmp_path: Path) -> None:
    node = Node(tmp_path / "preflight.json")
    node.seconds = dict.fromkeys(range(4), 2.0)
    assert await node.why_not(0, 1, 2) == ""
    (gpu, *_) = capacity(gpus=1).gpus
    usual = ModelSpeed(model=gpu.model, emulated=gpu.emulated, gpus=3, compute_s=1.0, memory_s=1.0)
    await node.preflight.heard(SpeedsMeasured(models=(structs.replace(usual, model="another", compute_s=9.0), usual)))
    node.preflight = node.again()  # the message is kept
    assert await node.why_not(3) == "GPU 3: its compute pulses take 2.00 times as long as usual for its model"


async def test_an_all_reduce_that_is_slower_than_before_fails_all_gpus_that_are_in_it(tmp_path: Path) -> None:
    node = Node(tmp_path / "preflight.json")
    node.failed[3] = "this GPU computes wrong"
    for seconds in (1.0, 1.0, 1.3):
        node.links = LinksChecked(measured=LinksMeasured(all_reduce_s=seconds))
        assert await node.why_not(0, 1, 2) == ""
        node.now += DAY_SECONDS
    node.links = LinksChecked(measured=LinksMeasured(all_reduce_s=1.5))
    slow = "an all-reduce of 3 GPUs takes 1.50 times as long as before on this node"
    assert await node.why_not(0, 1, 2, 3) == "; ".join(
        (f"GPU 0: {slow}", f"GPU 1: {slow}", f"GPU 2: {slow}", "GPU 3: this GPU computes wrong")
    )
    assert node.linked[-1] == (0, 1, 2)


async def test_links_that_fail_or_do_not_answer_fail_the_gpus_and_links_that_cannot_be_measured_do_not(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path / "preflight.json")
    assert await node.why_not(0) == ""
    node.links = LinksChecked(failed="the check did not end within 20 s")
    assert await node.why_not(1) == "GPU 1: the check did not end within 20 s"


async def test_the_program_measures_emulated_gpus_and_their_links(tmp_path: Path) -> None:
    gpus = [structs.replace(gpu, emulated=True) for gpu in capacity(gpus=2).gpus]
    slow_down(tmp_path, 1, 3.0)
    checked = await links_of(gpus, str(tmp_path))
    assert checked.measured is not None
    (one, _), (slow, _) = (checked.measured.copies[str(gpu.index)] for gpu in gpus)
    assert slow > 2 * one
    assert checked.measured.all_reduce_s is not None
    assert checked.measured.all_reduce_s > 2 * one


async def test_a_check_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "LINKS_SECONDS_MAX", 0.01)
    gpus = [structs.replace(gpu, emulated=True) for gpu in capacity(gpus=2).gpus]
    assert await links_of(gpus, str(tmp_path)) == LinksChecked(failed="the check did not end within 0.01 s")


async def test_a_file_that_makes_no_sense_counts_as_none(tmp_path: Path) -> None:
    path = tmp_path / "preflight.json"
    path.write_text('{"passed": [], "speeds": 1}')
    assert await Node(path).why_not(0) == ""
    assert await Node(path).why_not(0) == ""


def orders(w: World) -> list[StartRun]:
    return [run for node_id in w.nodes for run in w.runs_of(node_id)]


@pytest.mark.parametrize(
    ("fields", "pool", "checks"),
    [
        ({"replicas": 2}, False, False),
        ({"replicas": 2}, True, True),
        ({"replicas": 1}, True, False),
        ({"replicas": 1, "spec": {"preflight": True}}, False, True),
    ],
)
def test_which_jobs_are_checked_before_they_start(fields: dict[str, object], pool: bool, checks: bool) -> None:
    w = world(nodes=2, gpus=4, settings=Settings(preflight=pool))
    w.submit("j-1", gpus=4, **fields)
    w.tick()
    assert {run.preflight for run in orders(w)} == {checks}


def test_a_gang_whose_node_fails_its_check_starts_with_another_and_is_charged_no_try() -> None:
    w = world(nodes=3, gpus=2)
    w.submit("j-1", gpus=2, replicas=2, spec={"preflight": True})
    w.tick()
    placement = w.core.cluster_state.jobs["j-1"].placement
    assert placement is not None
    sick = placement.allocations[0].node_id
    signs = GpuSigns(index=1, levels={"preflight": 1.0}, detail="its memory pulses differ by 9%")
    w.nodes[sick].signs = NodeSigns(boot="t", gpus=(signs,))
    w.sync(sick)
    for _ in range(3):
        w.round()
    job = w.stored["j-1"]
    assert (job.state, job.attempts) == (JobState.RUNNING, 0)
    assert job.placement is not None
    assert sick not in {each.node_id for each in job.placement.allocations}
    health = w.core.cluster_state.pool.nodes[sick].health_of(1)
    assert health is not None
    assert health.state is HealthState.QUARANTINED
    assert health.sentence == "it failed the check before a job (its memory pulses differ by 9%)"
    assert health.exit == "probation after 1h0m, or by `weft gpu return`"
