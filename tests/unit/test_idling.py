"""Jobs that hold GPUs and use none: what counts as unused, the warning, the stop, and the bound of a tenant."""

import pytest
from msgspec import structs

from tests.support.builders import node, spec
from tests.support.scheduler import World, world
from weft.domain.decoding.spec_decoder import SpecError, decode_spec
from weft.domain.idling import NOTEBOOK_SECONDS, bounded, idle_seconds_max
from weft.domain.job import CauseCode, JobEvent, JobState
from weft.domain.spec import Kind
from weft.domain.tenants import Allowance, beyond
from weft.messages.signals import GpuSample, HostSample, NodeSampled, RunSample, ShareSample
from weftd.executor.runs import RunKey
from weftd.executor.thinking.hangs import SAMPLES_SECONDS_MAX, StillWatch
from weftd.gateway.readmodel.cluster import LiveCluster
from weftd.gateway.readmodel.sampling import NodeTold, enter
from weftd.gateway.thinking.accounting.used import UsedLedger

KEY, S = RunKey("job-1", 1, 0), JobState
HOUR = 3600


# unused GPUs


class Watched:
    """One run with two GPUs, sampled each second."""

    def __init__(self) -> None:
        self.watch, self.now = StillWatch(), 0.0

    def idles(self, seconds: int, *uses: float | None, share: float | None = None) -> int:
        for _ in range(seconds):
            self.now += 1.0
            gpus = tuple(
                GpuSample(index=index, uuid=f"u-{index}", model="m", utilisation=use) for index, use in enumerate(uses)
            )
            got = None if share is None else ShareSample(gpu_uuid="u-0", request=0.5, limit=1.0, used=share)
            runs = (RunSample(job_id="job-1", epoch=1, rank=0, source="cgroup2", share=got),)
            host = HostSample(cpus=1, memory_total=1, memory_used=0)
            told = NodeSampled(node_id="n", pool="p", at=self.now, host=host, gpus=gpus, runs=runs)
            self.watch.sampled(told, {KEY: tuple(range(len(uses)))}, self.now)
        return self.watch.idle_seconds(KEY, self.now)


def test_a_run_is_idle_while_none_of_its_gpus_is_used_whatever_else_it_does() -> None:
    run = Watched()
    assert run.idles(150, 0.0, 0.03) == 120
    assert run.idles(1, 0.0, 0.06) == 0
    assert run.idles(90, 0.0, 0.0) == 60


def test_a_gpu_of_which_the_use_is_not_known_is_not_idle() -> None:
    assert Watched().idles(300, 0.0, None) == 0


def test_a_run_with_a_share_is_judged_by_its_own_use_of_the_gpu() -> None:
    assert Watched().idles(150, 0.9, share=0.0) == 120
    assert Watched().idles(150, 0.0, share=0.5) == 0


def test_a_time_without_samples_does_not_count() -> None:
    run = Watched()
    run.idles(150, 0.0)
    run.now += SAMPLES_SECONDS_MAX + 1.0
    assert run.watch.idle_seconds(KEY, run.now) == 0
    assert run.idles(90, 0.0) == 60


# the specification


def test_a_notebook_is_stopped_after_two_hours_and_other_jobs_never_unless_they_say_so() -> None:
    assert idle_seconds_max(spec("a", gpus=1, kind=Kind.NOTEBOOK)) == NOTEBOOK_SECONDS
    assert idle_seconds_max(spec("a", gpus=0, kind=Kind.NOTEBOOK)) is None
    assert idle_seconds_max(spec("a", gpus=1)) is None
    assert idle_seconds_max(spec("a", gpus=1, idle_stop="30m")) == 1800.0
    assert idle_seconds_max(spec("a", gpus=1, kind=Kind.NOTEBOOK, idle_stop="never")) is None


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("training", "1s", "must be at least 10s, or `never`, not 1s"),
        ("training", "soon", "expected a duration such as 30m or 2h, or never"),
        ("inference", "2h", "is not for kind inference"),
        ("training", "400d", "is longer than 366 days"),
    ],
)
def test_an_absurd_idle_stop_is_refused(kind: str, text: str, said: str) -> None:
    with pytest.raises(SpecError, match="idle_stop") as refused:
        decode_spec(f"name: a\ncommand: [x]\nkind: {kind}\nidle_stop: {text}\n".encode(), content="yaml")
    assert said in str(refused.value)


def test_the_bound_of_a_tenant_is_for_jobs_that_say_nothing_and_a_longer_time_is_refused() -> None:
    assert bounded(spec("a", gpus=1), 600).idle_stop == "600s"
    assert bounded(spec("a", gpus=1, kind=Kind.NOTEBOOK), 8 * HOUR).idle_stop is None
    assert bounded(spec("a", gpus=1, kind=Kind.NOTEBOOK), 600).idle_stop == "600s"
    for unchanged in (spec("a", gpus=0), spec("a", gpus=1, kind=Kind.INFERENCE), spec("a", gpus=1, idle_stop="1m")):
        assert bounded(unchanged, 600) is unchanged
    allowance = Allowance(idle_seconds_max=2 * HOUR)
    assert beyond(spec("a", gpus=1, idle_stop="2h"), allowance) is None
    assert beyond(spec("a", gpus=0, idle_stop="never"), allowance) is None
    for wanted in ("never", "3h"):
        found = beyond(spec("a", gpus=1, idle_stop=wanted), allowance)
        reason = f"{wanted} is longer than the 2h0m that this tenant's jobs may hold unused GPUs"
        assert found == ("idle_stop", reason)
        assert beyond(spec("a", gpus=1, idle_stop=wanted), Allowance()) is None


# the scheduler


def idles(w: World, *seconds: int, tick: float = 2.0) -> None:
    """The ranks of the job report that they have used none of their GPUs for so long."""
    for one in w.nodes.values():
        for key, run in one.runs.items():
            if run.state == "running":
                one.runs[key] = structs.replace(run, idle_seconds=seconds[key[2]])
    w.round()
    w.tick(tick)


def running(**fields: object) -> World:
    w = world(nodes=2, gpus=2)
    w.submit("j-1", gpus=2, replicas=2, spec=fields)
    w.round()
    assert w.state("j-1") is S.RUNNING
    return w


def notes(w: World) -> list[str]:
    return [step.cause.code for step in w.steps if step.event is JobEvent.NOTED]


def test_a_job_whose_gpus_idle_is_warned_and_then_stopped() -> None:
    w = running(idle_stop="2h")
    idles(w, 6240, 6240)
    assert notes(w) == []
    idles(w, 6300, 6300)
    assert notes(w) == [CauseCode.HELD_IDLE]
    idles(w, 7140, 7140, tick=900.0)
    assert (w.state("j-1"), len(notes(w))) == (S.RUNNING, 1)
    idles(w, 7200, 7200)
    w.round()
    ended = w.ended("j-1")
    assert (ended.state, ended.attempts) == (S.CANCELLED, 0)
    causes = [step.cause for step in w.steps if step.event in (JobEvent.STOPPING, JobEvent.CANCELLED)]
    assert {cause.code for cause in causes} == {CauseCode.IDLE_STOPPED}
    assert causes[0].sentence == "it has used none of its 4 GPUs for 2h0m: its `idle_stop` is 2h0m"


def test_one_rank_that_uses_its_gpus_is_enough_and_begins_the_time_again() -> None:
    w = running(idle_stop="1h")
    idles(w, 7200, 0)
    assert notes(w) == []
    idles(w, 3600, 3600)
    idles(w, 0, 4000)
    idles(w, 3600, 3600, tick=2.0)
    assert (w.state("j-1"), notes(w)) == (S.RUNNING, [CauseCode.HELD_IDLE] * 2)


def test_a_new_leader_warns_again_before_it_stops_a_job() -> None:
    w = running(idle_stop="1h")
    idles(w, 3600, 3600)
    w.lead_anew(w.open_jobs(), list(w.core.cluster_state.pool.nodes.values()))
    w.round()
    w.tick(60.0)
    idles(w, 7200, 7200)
    assert (w.state("j-1"), notes(w)) == (S.RUNNING, [CauseCode.HELD_IDLE] * 2)
    idles(w, 7200, 7200, tick=900.0)
    assert w.state("j-1") is S.STOPPING


def test_a_training_job_that_says_nothing_is_left_alone() -> None:
    w = running()
    idles(w, 90_000, 90_000)
    assert (w.state("j-1"), notes(w)) == (S.RUNNING, [])


# views


async def test_a_gpu_that_is_not_used_is_counted_from_its_last_use() -> None:
    now = 0.0
    live = LiveCluster(clock=lambda: now)

    async def sampled(*uses: float) -> None:
        gpus = tuple(GpuSample(index=i, uuid=f"u-{i}", model="m", utilisation=use) for i, use in enumerate(uses))
        host = HostSample(cpus=1, memory_total=1, memory_used=0)
        await live.hear_sample(NodeSampled(node_id="n", pool="p", at=now, host=host, gpus=gpus))

    await sampled(0.0, 0.9)
    now = 5.0
    await sampled(0.0, 0.0)
    now = 8.0
    assert (live.unused_seconds("n", 0), live.unused_seconds("n", 1), live.unused_seconds("n", 2)) == (8.0, 3.0, None)
    now = 100.0
    assert live.unused_seconds("n", 0) is None, "its samples are too old"
    await sampled(0.0)
    assert live.unused_seconds("n", 0) == 0.0


def test_the_account_has_the_time_in_which_gpus_were_held_and_not_used() -> None:
    w = running()
    (held,) = w.open_jobs()
    ledger = UsedLedger()
    host = HostSample(cpus=1, memory_total=1, memory_used=0)
    for at, use in ((5.0, 0.0), (10.0, 0.5)):
        gpus = tuple(GpuSample(index=i, uuid=f"u-{i}", model="m", utilisation=use) for i in (0, 1))
        told = NodeSampled(node_id="node-1", pool="p", at=at, host=host, gpus=gpus)
        seen = {"node-1": NodeTold(node("node-1", gpus=2), told)}
        enter(ledger, held, seen, at=at, lasted=5.0)
    found = ledger.of(("j-1", held.epoch, "Emulated GPU"), 0, 3_600_000_000)
    assert (found.sampled, found.idle) == (2 * 10 * 10**9, 2 * 5 * 10**9)
