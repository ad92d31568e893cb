"""Jobs that hang: which runs show no sign of work, and what follows for their job."""

import pytest
from msgspec import structs

from tests.support.scheduler import World, world
from weft.domain.decoding.spec_decoder import SpecError, decode_spec
from weft.domain.failure import Failure, FailureClass
from weft.domain.job import CauseCode, JobEvent, JobState
from weft.domain.spec import Checkpointing, HangAct, HangRules, Kind, Retries
from weft.messages.signals import GpuSample, HostSample, NodeSampled, RunSample
from weftd.executor.runs import RunKey
from weftd.executor.thinking.hangs import SAMPLES_SECONDS_MAX, Still, StillWatch
from weftd.scheduler.thinking.decide.inactivity import STACKS_SECONDS

KEY, S = RunKey("job-1", 1, 0), JobState


class Watched:
    """One run with two GPUs, sampled each second."""

    def __init__(self) -> None:
        self.watch, self.now = StillWatch(), 0.0

    def goes_on(
        self, seconds: int, *, use: float = 0.0, log: int = 10, step_seconds: float = 0.0, **run: float
    ) -> Still:
        for _ in range(seconds):
            self.now += 1.0
            gpus = tuple(GpuSample(index=index, uuid=f"u-{index}", model="m", utilisation=use) for index in (0, 1))
            runs = (RunSample(job_id="job-1", epoch=1, rank=0, source="cgroup2", **run),)  # type: ignore[arg-type]
            host = HostSample(cpus=1, memory_total=1, memory_used=0)
            told = NodeSampled(node_id="n", pool="p", at=self.now, host=host, gpus=gpus, runs=runs)
            self.watch.sampled(told, {KEY: (0, 1)}, self.now)
            self.watch.wrote(KEY, self.now, log_bytes=log, progress={"step": 4.0}, step_seconds=step_seconds)
        return self.watch.still(KEY, self.now)


@pytest.mark.parametrize("use", [0.0, 1.0])
def test_a_run_that_writes_nothing_is_still_if_its_gpus_idle_or_are_wholly_busy(use: float) -> None:
    run = Watched()
    assert run.goes_on(50, use=use) == Still()
    assert run.goes_on(150, use=use) == Still(180, use)


def test_each_sign_of_work_begins_the_time_again() -> None:
    for sign in ({"log": 11}, {"use": 0.5}, {"use": 1.0}, {"disk_read_rate": 9e6}, {"network_receive_rate": 9e6}):
        run = Watched()
        assert run.goes_on(200).seconds == 180
        run.goes_on(1, **sign)  # type: ignore[arg-type]
        assert run.goes_on(50, log=int(sign.get("log", 10))) == Still(), sign


def test_a_run_of_long_steps_is_still_only_after_ten_of_them() -> None:
    run = Watched()
    run.goes_on(1, step_seconds=30.0)
    assert run.goes_on(290) == Still()
    assert run.goes_on(20).seconds == 300


def test_the_stacks_that_a_run_is_asked_for_are_no_sign_of_work() -> None:
    run = Watched()
    assert run.goes_on(130).seconds == 120
    run.watch.dumps(KEY, run.now)
    assert run.goes_on(60, log=900).seconds == 180
    assert run.goes_on(1, log=901) == Still(), "it writes again later"


def test_without_samples_nothing_is_known() -> None:
    run = Watched()
    run.goes_on(200)
    assert run.watch.still(KEY, run.now + SAMPLES_SECONDS_MAX + 1) == Still()
    run.watch.keep(())
    assert run.watch.still(KEY, run.now) == Still()


# the scheduler


def stands_still(w: World, seconds: int, *uses: float) -> None:
    """Every rank of job j-1 reports `seconds` without a sign of work, with this use of its GPUs."""
    for node in w.nodes.values():
        for key, run in node.runs.items():
            if run.state == "running":
                node.runs[key] = structs.replace(run, still_seconds=seconds, still_use=uses[key[2]])
    w.round()
    w.tick(2.0)


def gang(w: World, **hang: object) -> None:
    rules = HangRules(**hang)  # type: ignore[arg-type]
    w.submit(
        "j-1",
        gpus=2,
        replicas=2,
        spec={"hang": rules, "retries": Retries(max=1, backoff="1s"), "checkpoints": Checkpointing(on_stop=True)},
    )
    w.round()
    assert w.state("j-1") is S.RUNNING


def notes(w: World) -> list[str]:
    return [step.cause.sentence for step in w.steps if step.event is JobEvent.NOTED]


def test_a_job_hangs_once_all_of_its_ranks_are_still_for_long_enough_and_its_story_says_so_once() -> None:
    w = world(nodes=2, gpus=2)
    gang(w)
    stands_still(w, 540, 0.0, 0.0)
    assert notes(w) == []
    stands_still(w, 600, 0.0, 0.0)
    stands_still(w, 660, 0.0, 0.0)
    assert notes(w) == [
        "it hangs: no output, no step and no change in the use of its GPUs for 10m0s; 2 of its 2 ranks idle"
    ]
    assert w.state("j-1") is S.RUNNING
    stands_still(w, 0, 0.0, 0.0)
    assert "it no longer counts as hung" in notes(w)[1]
    assert w.stored["j-1"].hung_since is None
    stands_still(w, 600, 0.0, 0.0)
    assert len(notes(w)) == 3


def test_the_nodes_of_a_job_that_hangs_are_told_so_and_by_which_signal_it_writes_its_stacks() -> None:
    w = world(nodes=2, gpus=2)
    gang(w, signal="SIGUSR1")
    stands_still(w, 600, 1.0, 1.0)
    orders = [order for node_id in w.nodes for order in w.runs_of(node_id)]
    assert [(order.hung, order.hang_signal) for order in orders] == [(True, "SIGUSR1")] * 2
    w.lead_anew(w.open_jobs(), list(w.core.cluster_state.pool.nodes.values()))
    stands_still(w, 660, 1.0, 1.0)
    assert len(notes(w)) == 1, "a new leader notes it once"
    stands_still(w, 0, 1.0, 1.0)
    orders = [order for node_id in w.nodes for order in w.runs_of(node_id)]
    assert [(order.hung, order.hang_signal) for order in orders] == [(False, None)] * 2


def test_one_rank_that_works_is_enough() -> None:
    w = world(nodes=2, gpus=2)
    gang(w)
    stands_still(w, 3600, 1.0, 1.0)
    node = next(node for node in w.nodes.values() if any(key[2] == 1 for key in node.runs))
    assert len(notes(w)) == 1
    w = world(nodes=2, gpus=2)
    gang(w)
    for node in w.nodes.values():
        for key, run in node.runs.items():
            node.runs[key] = structs.replace(run, still_seconds=3600 if key[2] == 0 else 0)
    w.round()
    w.tick(2.0)
    assert notes(w) == []


def test_a_hung_job_that_asks_for_it_starts_again_away_from_the_rank_that_idles() -> None:
    w = world(nodes=3, gpus=2)
    gang(w, after="30m", do=HangAct.REQUEUE)
    job = w.core.cluster_state.jobs["j-1"]
    assert job.placement is not None
    guilty = next(each.node_id for each in job.placement.allocations if each.rank == 1)
    stands_still(w, 1740, 1.0, 0.0)
    assert notes(w) == []
    stands_still(w, 1800, 1.0, 0.0)
    assert f"rank 1 on node {guilty} idles, and the others wait" in notes(w)[0]
    assert w.state("j-1") is S.RUNNING, "its nodes write its stacks first"
    w.tick(STACKS_SECONDS)
    w.round()
    stored = w.stored["j-1"]
    assert (stored.epoch, stored.attempts) == (1, 1)
    assert stored.failures == (Failure(kind=FailureClass.UNKNOWN, nodes=(guilty,)),)
    w.tick(5.0)
    w.round()
    placement = w.core.cluster_state.jobs["j-1"].placement
    assert placement is not None
    assert guilty not in {each.node_id for each in placement.allocations}
    stopped = next(step for step in w.steps if step.event is JobEvent.STOPPING)
    assert stopped.cause.code is CauseCode.HUNG


def test_a_job_that_wants_nothing_done_is_left_alone() -> None:
    w = world(nodes=2, gpus=2)
    gang(w, do=HangAct.NOTHING)
    stands_still(w, 7200, 0.0, 0.0)
    assert notes(w) == []


def test_a_notebook_that_waits_for_its_user_does_not_hang() -> None:
    w = world(gpus=2)
    w.submit("j-1", gpus=2, spec={"kind": Kind.NOTEBOOK})
    w.round()
    stands_still(w, 7200, 0.0)
    assert notes(w) == []


def test_a_new_start_of_a_hung_job_needs_a_retry() -> None:
    text = b"name: a\ncommand: [x]\nhang: {do: requeue}\n"
    with pytest.raises(SpecError, match=r"hang\.do: requeue counts as a retry"):
        decode_spec(text, content="yaml")
    assert decode_spec(text + b"retries: {max: 1}\n", content="yaml").hang.after == "10m"
