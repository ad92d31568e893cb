"""Runs that hold a share of a GPU: when they start beside each other, and when they are held to another share."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.runs import desired, order
from weft.domain.shares import Share
from weft.messages.nodes import EndReason, Leader, RunState, StartRun
from weftd.executor.runs import Limits, Run, RunKey
from weftd.executor.settings import ExecutorSettings
from weftd.executor.shares.backend import CHOICES, Attached, TimeSlicing
from weftd.executor.thinking.core import Kill, Reconciler, ReconcilerTimings, Resize, Start
from weftd.executor.thinking.rounding import fault, shown

GIB = 1 << 30


def shared(job_id: str, request: int, **fields: Any) -> StartRun:
    return replace(order(job_id, gpus=(0,)), share=Share(request=request, memory=GIB, kind="batch"), **fields)


def core(*orders: StartRun) -> Reconciler:
    made = Reconciler(ReconcilerTimings())
    made.observe(desired(*orders), reported=(), sent_at=1.0)
    return made


def running(of: StartRun, **limits: Any) -> Run:
    has = {"cpus": of.cpus, "memory": of.memory, "share": of.share, **limits}
    return Run(key=RunKey.of(of), state=RunState.RUNNING, started_at=1.0, limits=Limits(**has))


def started(made: Reconciler, *runs: Run) -> list[str]:
    return [each.key.job_id for each in made.decide(runs, busy=frozenset(), now=1.0) if isinstance(each, Start)]


def test_shares_of_one_gpu_start_beside_each_other_and_wait_for_what_is_more_than_the_gpu() -> None:
    one, two, three = shared("j-1", 700), shared("j-2", 300), shared("j-3", 400)
    assert started(core(one, two), running(one)) == ["j-2"]
    assert started(core(one, three), running(one)) == []
    assert started(core(one, order("j-4", gpus=(0,))), running(one)) == []
    whole = order("j-5", gpus=(0,))
    assert started(core(whole, two), replace(running(two), key=RunKey.of(whole))) == []


def test_what_a_run_gives_up_of_its_gpu_is_given_away_once_it_is_held_to_less() -> None:
    one, two = shared("j-1", 700), shared("j-2", 600)
    less = replace(one, share=Share(request=400, memory=GIB, kind="batch"))
    made = core(less, two)
    assert started(made, running(one)) == []
    assert started(made, running(less)) == ["j-2"]


def test_what_a_run_holds_of_its_gpu_survives_a_restart_of_the_executor() -> None:
    one, two, three = shared("j-1", 700), shared("j-2", 300), shared("j-3", 400)
    before = core(one)
    before.decide([running(one)], busy=frozenset(), now=1.0)
    made = Reconciler(ReconcilerTimings(), before.memory)
    made.observe(desired(two, three), reported=(), sent_at=1.0)
    assert started(made, running(one)) == ["j-2"]
    assert started(made) == ["j-2", "j-3"]


def test_a_run_is_held_to_another_share_as_soon_as_it_is_ordered_and_not_for_another_kind() -> None:
    one = shared("j-1", 700)
    more = replace(one, share=Share(request=500, limit=800, memory=GIB, kind="batch"))
    actions = core(more).decide([running(one)], busy=frozenset(), now=1.0)
    assert actions == [Resize(RunKey.of(one), Limits(share=more.share))]
    found = running(one, share=replace(one.share, kind=""))
    assert core(one).decide([found], busy=frozenset(), now=1.0) == []


def test_a_node_that_does_not_hold_shares_does_not_try_again_and_again() -> None:
    one = shared("j-1", 700)
    assert core(one).decide([running(one, share=None)], busy=frozenset(), now=1.0) == []
    assert TimeSlicing().not_enforced == ("shares",)


@pytest.mark.parametrize(
    "share",
    [
        Share(request=0, memory=GIB),
        Share(request=1001, limit=1001, memory=GIB),
        Share(request=500, limit=400, memory=GIB),
        Share(request=500, memory=0),
        Share(request=500, memory=1 << 60),
    ],
)
def test_a_share_out_of_range_is_not_applied(share: Share) -> None:
    assert fault(Limits(share=share)).startswith("share: ")


def test_our_paths_come_before_those_of_the_jobs_own_variable() -> None:
    attached = Attached(env={"WEFT_SHARE": "/s"}, lists={"LD_PRELOAD": ("/hook.so",), "LD_LIBRARY_PATH": ("/driver",)})
    found = attached.added_to({"LD_PRELOAD": "/own.so", "WEFT_SHARE": "/mine", "A": "b"})
    assert found == {
        "LD_PRELOAD": "/hook.so:/own.so",
        "LD_LIBRARY_PATH": "/driver",
        "WEFT_SHARE": "/s",
        "A": "b",
    }


def test_another_share_is_told_in_words() -> None:
    limits = Limits(cpus=2.5, share=Share(request=250, limit=800, memory=GIB, kind="batch"))
    assert shown(limits) == "2.5 CPUs, 0.25 to 0.8 of a GPU with 1073741824 bytes of its memory"


LEADER = Leader(pool="default", epoch=1, holder="s-1", seq=1)


def strict(*orders: StartRun, strict: bool = True) -> Reconciler:
    made = Reconciler(ReconcilerTimings())
    made.observe(desired(*orders, leader=LEADER, strict=strict), reported=(), sent_at=1.0)
    return made


def ends_of(made: Reconciler, run: Run, told: list[bool | None], *beside: Run, second: float = 1.0) -> list[type]:
    """What is done to a run in seconds in which a sample says this of it; None: it is not known."""
    done = []
    for number, outside in enumerate(told):
        now = second + number
        made.note_outside({} if outside is None else {run.key: outside}, now=now)
        done += [type(each) for each in made.decide([run, *beside], busy=frozenset(), now=now)]
    return done


def test_a_strict_pool_kills_a_run_that_stays_outside_its_share_and_reports_why() -> None:
    one, two = shared("j-1", 700), shared("j-2", 300)
    made = strict(one, two)
    run, beside = running(one), running(two)
    assert ends_of(made, run, [True] * 5, beside) == []
    made.note_outside({run.key: True, beside.key: False}, now=6.0)
    assert made.decide([run, beside], busy=frozenset(), now=6.0) == [Kill(run.key)]
    ended = replace(run, state=RunState.EXITED, exit_code=None)
    told = {seen.job_id: seen for seen in made.report([ended, beside], {})}
    assert (told["j-1"].reason, told["j-1"].exit_code) == (EndReason.STOPPED, 137)
    assert (told["j-1"].uncontrolled, told["j-2"].uncontrolled) == (True, False)
    after = Reconciler(ReconcilerTimings(), made.memory)
    assert after.report([ended], {})[0].uncontrolled, "an executor that was started again knows why"


def test_a_kill_that_failed_is_tried_again_and_stays_what_it_was_for() -> None:
    run = running(shared("j-1", 700))
    made = strict(shared("j-1", 700))
    ends_of(made, run, [True] * 6)
    made.undo(Kill(run.key))
    assert made.decide([run], busy=frozenset(), now=6.5) == [Kill(run.key)]
    assert made.report([replace(run, state=RunState.EXITED)], {})[0].uncontrolled


def test_nothing_is_killed_where_a_run_was_outside_for_a_moment_or_the_pool_is_not_strict() -> None:
    one = shared("j-1", 700)
    run = running(one)
    assert ends_of(strict(one, strict=False), run, [True] * 20) == []
    assert ends_of(strict(one), run, [True, True, True, True, False] * 4) == []
    assert ends_of(strict(one), run, [True, True, True, None] * 5) == [], "its arbiter was away"
    whole = order("j-2", gpus=(0,))
    assert ends_of(strict(whole), running(whole, share=None), [True] * 20) == []
    silent = strict(one)
    silent.note_outside({run.key: True}, now=1.0)
    assert silent.decide([run], busy=frozenset(), now=80.0) == [], "no sample has come since"


def test_an_answer_without_a_leader_leaves_a_pool_as_strict_as_it_was() -> None:
    one = shared("j-1", 700)
    made = strict(one)
    made.observe(desired(one, seq=2), reported=(), sent_at=2.0)
    assert ends_of(made, running(one), [True] * 6, second=2.0) == [Kill]
    made = strict(one)
    made.observe(desired(one, seq=2, leader=LEADER), reported=(), sent_at=2.0)
    assert ends_of(made, running(one), [True] * 6, second=2.0) == []


def test_shares_are_one_of_the_back_ends() -> None:
    node = {"node_id": "node-1", "home": Path("/tmp/h")}
    for choice in CHOICES:
        assert ExecutorSettings(**node, shares=choice).shares == choice
    with pytest.raises(ValueError, match="shares is one of auto, hook, time-slice, not mig"):
        ExecutorSettings(**node, shares="mig")
