"""The partition planner and the moves never undo each other's choice of a GPU model: one of them owns it.

The scheduler's core and the planner run together in virtual time, in a pool of several models: elastic jobs and jobs
of one size that write checkpoints. Curves are drawn so that the two believe different things: the planner reads the
speed at each size, the scheduler the ratio of two models at the smallest size that ran on both.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from random import Random

import pytest

from tests.support.builders import capacity
from tests.support.nodes import ScriptedNode
from tests.support.scheduler import World
from weft.domain.classes import WORKLOAD_LABEL
from weft.domain.job import JobEvent
from weft.messages.asks import Ask, AskKind, Scale
from weft.messages.signals import Curve, CurvePoint, GpuScore
from weft.planning.moves import MoveRules
from weft.planning.partition import Rules
from weft.planning.partition.weft import weft
from weft.variability.models import ratios_of
from weftd.reallocator.thinking.partitioning import Plans, SizePlanner
from weftd.scheduler.thinking.core_settings import Settings

LOOK_S = 20.0  # between two looks of the scheduler at what moves
CHANGES_MOST = 2  # changes of a job's model without that long a progress in between:
PROGRESS_S = 600.0

Speeds = Mapping[str, Mapping[int, float]]
"""By model and number of replicas."""


def curve_of(workload: str, speeds: Speeds) -> Curve:
    points = tuple(
        CurvePoint(model=model, replicas=count, cpus=float(count), speed=speed, windows=50, at=1.0)
        for model, of_model in speeds.items()
        for count, speed in of_model.items()
    )
    return Curve(subject=f"workload:{workload}", pool="default", points=points)


class Pool:
    """A core and a planner, over nodes of several models."""

    def __init__(self, models: Sequence[str], curves: Mapping[str, Curve], *, gpus: int = 4) -> None:
        settings = Settings(moves=MoveRules(cost_seconds=1.0), lease_seconds=1e9, start_seconds=1e9)
        nodes = [ScriptedNode(f"node-{at}", capacity(gpus=gpus, model=model)) for at, model in enumerate(models)]
        self.world = World(*nodes, settings=settings)
        self._model = {f"node-{at}": model for at, model in enumerate(models)}
        for node_id in self.world.nodes:
            self.world.sync(node_id)
        self._curves = curves
        self.world.core.cluster_state.learn_ratios(ratios_of(curves.values()))
        self.planner = SizePlanner(Plans(rules=Rules(theta1=1.0, theta2=1.0)), weft)

    @property
    def models(self) -> dict[str, list[tuple[float, str]]]:
        """By job: when it was placed on GPUs of another model than before, and on which."""
        found: dict[str, list[tuple[float, str]]] = {}
        for step in self.world.steps:
            models = {self._model[one.node_id] for one in step.placement.allocations} if step.placement else set()
            if step.event in (JobEvent.PLACED, JobEvent.RESTARTED) and len(models) == 1:
                seen = found.setdefault(step.job_id, [])
                if not seen or seen[-1][1] not in models:
                    seen.append((step.at, models.pop()))
        return found

    def submit(self, job_id: str, workload: str, *, least: int, want: int, most: int) -> None:
        sizes = {"min": least, "want": want, "max": most}
        role = {"cpus": 1, "memory": "1MiB", "replicas": sizes}
        checkpoints = {"on_stop": True}
        spec = {"grace": "1s", "labels": {WORKLOAD_LABEL: workload}, "checkpoints": checkpoints, "role": role}
        self.world.submit(job_id, spec=spec)

    def look(self) -> None:
        world = self.world
        world.now += LOOK_S
        for _ in range(3):
            for node_id in world.nodes:
                world.sync(node_id)

    def plan(self) -> None:
        world, jobs = self.world, self.world.open_jobs()
        found = self.planner.plan(
            holding=[job for job in jobs if job.state.holding],
            queued=[job for job in jobs if not job.state.holding],
            nodes=list(world.core.cluster_state.pool.nodes.values()),
            curves=self._curves,
            now=world.now,
        )
        for job_id, scale in found.sizes.items():
            self.ask(job_id, scale)

    def ask(self, job_id: str, scale: Scale) -> None:
        world = self.world
        ask = Ask(id=1, kind=AskKind.SCALE, subject_id=job_id, tenant="weft", at=world.now, scale=scale)
        world.keep(world.core.ask(ask, world.now))

    def run(self, seconds: float, *, plans: bool = True) -> None:
        for at in range(int(seconds / LOOK_S)):
            self.look()
            if plans and at % 3 == 2:
                self.plan()

    def nodes_of(self, job_id: str) -> set[str]:
        return {one.node_id for one in self.world.stored[job_id].held}


def restless(models: Mapping[str, Sequence[tuple[float, str]]]) -> Iterator[str]:
    """The jobs that changed their model more than `CHANGES_MOST` times without `PROGRESS_S` on one in between."""
    for job_id, seen in models.items():
        changes = 0
        for (since, _), (until, _) in pairwise(seen):
            changes = 1 if until - since >= PROGRESS_S else changes + 1
            if changes > CHANGES_MOST:
                yield f"{job_id}: {seen}"
                break


LARGE_IS_FASTER_ON_T4: Speeds = {"T4": {1: 1.0, 4: 4.0}, "A100": {1: 2.0, 4: 2.0}}


@pytest.mark.parametrize("least", [4, 2])
def test_a_move_does_not_take_a_job_from_the_model_that_the_planner_chose(least: int) -> None:
    pool = Pool(("T4", "A100"), {"workload:w": curve_of("w", LARGE_IS_FASTER_ON_T4)})
    pool.submit("j-1", "w", least=least, want=4, most=4)
    pool.run(1500.0)
    models = [model for _, model in pool.models["j-1"]]
    assert models[-2:] == ["A100", "T4"], "the scheduler begins, the planner decides, and nobody takes it back"
    assert len(models) <= CHANGES_MOST + 1
    assert pool.world.stored["j-1"].gpu_model == "T4"


def test_without_a_planner_a_job_moves_to_the_model_that_the_scheduler_believes_faster() -> None:
    pool = Pool(("T4", "A100"), {"workload:w": curve_of("w", LARGE_IS_FASTER_ON_T4)})
    pool.submit("j-0", "w", least=4, want=4, most=4)
    pool.look()
    pool.submit("j-1", "w", least=4, want=4, most=4)
    pool.run(200.0, plans=False)
    pool.world.ask(AskKind.CANCEL, "j-0")
    pool.run(600.0, plans=False)
    assert [model for _, model in pool.models["j-1"]] == ["T4", "A100"]


def test_a_job_moves_among_the_gpus_of_the_model_that_the_planner_chose_and_onto_no_other() -> None:
    pool = Pool(("T4", "T4", "A100"), {"workload:w": curve_of("w", LARGE_IS_FASTER_ON_T4)})
    slow = [GpuScore(node_id="node-0", gpu_index=gpu, job_class="compute", score=4.0) for gpu in range(4)]
    pool.world.core.cluster_state.rescore(slow)
    for job_id in ("j-0", "j-1"):
        pool.submit(job_id, "w", least=4, want=4, most=4)
        pool.ask(job_id, Scale(size={"worker": 4}, gpu_model="T4"))
    pool.run(200.0, plans=False)
    assert [pool.nodes_of(job_id) for job_id in ("j-0", "j-1")] == [{"node-1"}, {"node-0"}], "the A100 idle"
    pool.world.ask(AskKind.CANCEL, "j-0")
    pool.run(600.0, plans=False)
    assert pool.nodes_of("j-1") == {"node-1"}


@pytest.mark.parametrize("seed", range(4))
def test_no_job_changes_its_model_again_and_again_without_progress(seed: int) -> None:
    dice = Random(f"models {seed}")
    models = ("T4", "A100", "H100")[: dice.choice((2, 3))]
    workloads = {
        f"w-{number}": {
            model: {count: count ** dice.uniform(0.3, 1.0) * dice.choice((1.0, 2.0, 3.0)) for count in (1, 2, 4)}
            for model in models
        }
        for number in range(3)
    }
    pool = Pool(models, {f"workload:{name}": curve_of(name, speeds) for name, speeds in workloads.items()})
    for number in range(6):
        want = dice.choice((1, 2, 4))
        least, most = dice.choice(((want, want), (1, 4)))
        pool.submit(f"j-{number}", dice.choice(sorted(workloads)), least=least, want=want, most=most)
        pool.run(dice.choice((60.0, 200.0, 400.0)))
    pool.run(1200.0)
    assert list(restless(pool.models)) == []
    assert len(pool.models) >= 3
