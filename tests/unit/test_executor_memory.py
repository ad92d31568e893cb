"""What an executor remembers for others: who answered it last, and which GPUs its runs hold."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.support.runs import desired, order
from weft.messages.nodes import EndReason, Leader, NodeDesired, RunState
from weftd.executor.runs import Run, RunKey
from weftd.executor.thinking.core import Memory, Reconciler, ReconcilerTimings, Start

KEY = RunKey("job-1", 1, 0)


def leader(epoch: int, seq: int = 0, *, holder: str = "a", pool: str = "default") -> Leader:
    return Leader(pool=pool, epoch=epoch, holder=holder, seq=seq)


def answered(*leaders: Leader | None) -> Leader | None:
    core = Reconciler(ReconcilerTimings())
    for at, one in enumerate(leaders):
        core.observe(NodeDesired(seq=at, leader=one), reported=(), sent_at=float(at))
    return core.leader


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), min_size=1))
def test_the_latest_leader_is_remembered_in_whatever_order_they_answer(told: list[tuple[int, int]]) -> None:
    assert answered(*(leader(epoch, seq) for epoch, seq in told)) == leader(*max(told))


def test_a_leader_that_is_no_later_does_not_make_a_node_forget() -> None:
    assert answered(leader(5, 9), leader(5, 9, holder="b"), None) == leader(5, 9)
    core = Reconciler(ReconcilerTimings())
    core.observe(NodeDesired(seq=1, leader=leader(7), refused="another speaks for this node"), reported=(), sent_at=1.0)
    assert core.leader is None


def test_a_node_that_goes_to_another_pool_follows_its_leaders() -> None:
    assert answered(leader(900), leader(3, pool="other")) == leader(3, pool="other")


def test_an_executor_that_comes_back_knows_what_its_runs_hold_and_who_led() -> None:
    before = Reconciler(ReconcilerTimings())
    before.observe(desired(order(gpus=(2, 3)), leader=leader(4)), reported=(), sent_at=0.0)
    kept = msgspec.json.decode(msgspec.json.encode(before.memory), type=Memory)
    after = Reconciler(ReconcilerTimings(), kept)
    assert after.leader == leader(4)
    (seen,) = after.report([Run(key=KEY, state=RunState.RUNNING)], {})
    assert seen.gpus == (2, 3)
    # The run is not wanted any more, and what is to come after it waits for its GPU.
    after.observe(desired(order("job-2", gpus=(3,)), seq=2), reported=(), sent_at=1.0)
    actions = after.decide([Run(key=KEY, state=RunState.RUNNING)], busy=frozenset(), now=1.0)
    assert actions
    assert not any(isinstance(action, Start) for action in actions)
    ended = after.report([Run(key=KEY, state=RunState.EXITED)], {})[0]
    assert ended.gpus is None


def test_of_a_run_that_another_began_it_is_not_said_what_it_holds() -> None:
    (seen,) = Reconciler(ReconcilerTimings()).report([Run(key=KEY, state=RunState.RUNNING)], {})
    assert seen.gpus is None


def test_an_executor_knows_after_a_boot_of_its_host_which_runs_had_been_told_to_stop() -> None:
    before = Reconciler(ReconcilerTimings())
    before.observe(desired(order(), leader=leader(4)), reported=(), sent_at=900.0)
    before.observe(NodeDesired(seq=2, leader=leader(4)), reported=(), sent_at=901.0)
    before.decide([Run(key=KEY, state=RunState.RUNNING)], busy=frozenset(), now=901.0)
    after = Reconciler(ReconcilerTimings(), before.memory.after_boot())
    assert after.fenced(1.0)
    ended = Run(key=KEY, state=RunState.EXITED, reason=EndReason.EXIT, exit_code=0)
    assert after.report([ended], {})[0].reason is EndReason.STOPPED
