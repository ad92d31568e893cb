"""Which class a job is of: what its label says, else what was learnt of its workload, else the most sensitive."""

from typing import Any

from tests.support.builders import spec
from tests.support.lives import Life
from tests.support.scheduler import World, world
from tests.unit.test_scheduler_loop import World as DeskWorld
from weft.domain.classes import CLASS_LABEL, class_of, workload_of
from weft.messages.asks import AskKind
from weft.messages.signals import ClassesLearnt, GpuScore, WorkloadClass
from weftd.scheduler.refreshing import SCORES_SECONDS
from weftd.scheduler.thinking.record import entries as recorded
from weftd.scheduler.thinking.record.keeping import pickled, unpickled


def learnt(job_class: str, workload: str = "", *, at: float = 0.0, **fields: Any) -> WorkloadClass:
    return WorkloadClass(
        workload=workload or workload_of(spec(**fields)), job_class=job_class, compute=0.1, memory=0.9, at=at
    )


def labelled(job_class: str) -> dict[str, Any]:
    return {"labels": {CLASS_LABEL: job_class}}


def slow_for(w: World, job_class: str, gpu: int) -> None:
    w.core.cluster_state.rescore([GpuScore(node_id="node-1", gpu_index=gpu, job_class=job_class, score=1.5)])


def gpu_of(w: World, job_id: str) -> int:
    placement = w.core.cluster_state.jobs[job_id].placement
    assert placement is not None
    return placement.allocations[0].gpus[0]


def test_a_label_comes_before_what_was_learnt_and_what_is_no_class_is_not_believed() -> None:
    known = {workload_of(spec()): "memory"}
    assert class_of(spec(), known) == "memory"
    assert class_of(spec(**labelled("mixed")), known) == "mixed"
    assert class_of(spec(**labelled("huge")), known) == "compute"
    assert class_of(spec(), {}) == "compute"
    assert class_of(spec(), {workload_of(spec()): "huge"}) == "compute"
    assert class_of(spec(command=["other"]), known) == "compute"


def test_a_job_is_placed_by_the_class_that_was_learnt_of_its_workload() -> None:
    for name, gpu in (("compute", 1), ("memory", 0)):
        w = world(gpus=2)
        slow_for(w, "compute", 0)
        slow_for(w, "memory", 1)
        w.core.cluster_state.learn([learnt(name)], 0.0)
        w.submit("j-1")
        w.round()
        assert gpu_of(w, "j-1") == gpu


def test_jobs_that_wait_already_are_placed_by_what_is_learnt_meanwhile() -> None:
    w = world(gpus=2)
    slow_for(w, "compute", 0)
    slow_for(w, "memory", 1)
    w.submit("j-0", gpus=2)
    w.round()
    w.submit("j-1")
    w.submit("j-2", spec=labelled("compute"))
    w.tick()
    queue = w.core.cluster_state.waitlist
    assert queue.group("j-1") == queue.group("j-2")
    w.core.cluster_state.learn([learnt("memory")], w.now)
    assert (queue.group("j-1").job_class, queue.group("j-2").job_class) == ("memory", "compute")
    w.nodes["node-1"].end(("j-0", 0, 0), 0)
    w.round()
    assert (gpu_of(w, "j-1"), gpu_of(w, "j-2")) == (0, 1)


def test_what_is_learnt_twice_or_is_no_class_changes_nothing() -> None:
    w = world(gpus=1)
    w.core.cluster_state.learn([learnt("memory")], 0.0)
    scored = w.core.cluster_state.score_cache.changes
    w.core.cluster_state.learn([learnt("memory"), learnt("huge", "w")], 0.0)
    assert w.core.cluster_state.score_cache.changes == scored
    assert not w.core.cluster_state.score_cache.is_learnt_anew(learnt("memory"))
    assert not w.core.cluster_state.score_cache.is_learnt_anew(learnt("huge"))
    assert w.core.cluster_state.score_cache.is_learnt_anew(learnt("mixed"))


def test_a_core_begun_in_the_middle_knows_what_was_learnt() -> None:
    w = world(gpus=1)
    w.core.cluster_state.learn([learnt("memory")], 0.0)
    assert (
        unpickled(pickled(w.core), w.core.cluster_state.jobs.values()).cluster_state.score_cache.learnt
        == w.core.cluster_state.score_cache.learnt
    )


async def test_a_desk_takes_in_what_it_is_told_and_finds_what_it_is_not() -> None:
    w = DeskWorld()
    await w.store.save_classes([learnt("mixed", "known-before", at=w.now)], pool="default")
    await w.cycles()
    w.scheduler_loop.learnt(ClassesLearnt(pool="default", classes=(learnt("memory", "told"),)))
    assert w.scheduler_loop.core.cluster_state.score_cache.learnt == {"known-before": "mixed"}
    await w.cycles()
    assert w.scheduler_loop.core.cluster_state.score_cache.learnt == {"known-before": "mixed", "told": "memory"}
    await w.store.save_classes([learnt("memory", "found", at=w.now)], pool="default")
    await w.store.save_classes([learnt("memory", "of-others", at=w.now)], pool="other")
    w.now += SCORES_SECONDS
    await w.cycles(2)
    assert w.scheduler_loop.core.cluster_state.score_cache.learnt == {
        "known-before": "mixed",
        "told": "memory",
        "found": "memory",
    }


async def test_random_lives_learn_and_tune_so_that_their_replays_do() -> None:
    """What test_history replays has these in it."""
    entries: list[recorded.Entry] = []
    tuned = 0
    for seed in range(3):
        life = Life(seed)
        await life.live(150)
        await life.settle()
        records = await life.store.history(pool="default", limit=10_000, bytes_max=1 << 40)
        entries += [entry for record in records for entry in recorded.entries_of(record)]
        tuned += sum(event.event == "tuned" for event in await life.store.events(limit=100_000))
    assert any(isinstance(entry, recorded.Learnt) for entry in entries)
    assert any(isinstance(entry, recorded.Asked) and entry.ask.kind is AskKind.TUNE for entry in entries)
    assert tuned > 5
