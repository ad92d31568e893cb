"""What the executor decides: given what is desired and what is seen, then these actions."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import structs

from tests.support.runs import desired, order
from tests.support.tier import examples
from weft.domain.shares import Share
from weft.domain.spec import ResizeSignal
from weft.messages.nodes import EndReason, Leader, NodeDesired, RunState, StartRun
from weftd.executor.runs import Run, RunKey
from weftd.executor.thinking.core import (
    Action,
    DumpStacks,
    Hurry,
    Kill,
    Memory,
    Reconciler,
    ReconcilerTimings,
    Remove,
    Start,
    Stop,
    Terminate,
)

TIMINGS = ReconcilerTimings(fence_seconds=90.0, fence_grace_max=30.0, kill_again_seconds=5.0)
KEY = RunKey("job-1", 1, 0)
NOBODY: frozenset[RunKey] = frozenset()


def told(
    *orders: StartRun, at: float = 0.0, reconciler: Reconciler | None = None, runs: tuple[Run, ...] = ()
) -> Reconciler:
    """A reconciler that has heard these orders in answer to a report of these runs."""
    reconciler = reconciler or Reconciler(TIMINGS)
    reconciler.observe(desired(*orders), reported=reconciler.report(runs, {}), sent_at=at)
    return reconciler


def running(key: RunKey = KEY, *, grace: float = 10.0) -> Run:
    return Run(key=key, state=RunState.RUNNING, grace=grace, started_at=1.0)


def ended(key: RunKey = KEY, *, exit_code: int | None = 0, reason: EndReason = EndReason.EXIT) -> Run:
    return Run(key=key, state=RunState.EXITED, exit_code=exit_code, reason=reason)


def decide(reconciler: Reconciler, *runs: Run, now: float, busy: frozenset[RunKey] = NOBODY) -> list[Action]:
    return reconciler.decide(runs, busy=busy, now=now)


def test_a_desired_run_that_is_not_there_starts() -> None:
    assert decide(told(order()), now=1.0) == [Start(order())]


def test_a_desired_run_that_is_there_is_left_alone() -> None:
    assert decide(told(order()), running(), now=1.0) == []
    assert decide(told(order()), ended(), now=1.0) == []


def test_a_run_whose_start_is_in_hand_is_not_started_again() -> None:
    assert decide(told(order()), now=1.0, busy=frozenset({KEY})) == []


def test_nothing_is_done_before_the_control_plane_was_heard() -> None:
    reconciler = Reconciler(TIMINGS, Memory(synced_at=0.0))
    assert decide(reconciler, running(), ended(RunKey("job-2", 1, 0)), now=1.0) == []


def test_a_desired_run_that_could_not_begin_yet_is_reported_until_it_is_no_longer_desired() -> None:
    reconciler = told(order())
    (seen,) = reconciler.report([], {})
    assert (RunKey(seen.job_id, seen.epoch, seen.rank), seen.state) == (KEY, RunState.STARTING)
    assert told(reconciler=reconciler).report([], {}) == ()


def test_what_would_begin_later_is_not_reported_by_an_executor_that_leaves() -> None:
    reconciler = told(order())
    reconciler.close()
    assert reconciler.report([], {}) == ()


def test_an_undesired_run_is_asked_to_stop_once_and_killed_when_its_grace_is_over() -> None:
    reconciler = told()
    assert decide(reconciler, running(grace=10.0), now=1.0) == [Terminate(KEY)]
    assert decide(reconciler, running(), now=7.6) == []
    assert decide(reconciler, running(), now=7.7) == [Hurry(KEY)]
    assert decide(reconciler, running(), now=10.9) == []
    assert decide(reconciler, running(), now=11.0) == [Kill(KEY)]
    assert decide(reconciler, running(), now=12.0) == []
    assert decide(reconciler, running(), now=16.0) == [Kill(KEY)]


def test_the_stacks_of_a_run_that_hangs_are_asked_for_once_until_it_has_gone_on() -> None:
    hangs = order(hung=True, hang_signal="SIGUSR1")
    reconciler = told(hangs)
    assert decide(reconciler, running(), now=1.0) == [DumpStacks(KEY, ResizeSignal.USR1)]
    assert decide(reconciler, running(), now=2.0) == []
    told(order(), reconciler=reconciler, at=3.0)
    assert decide(reconciler, running(), now=3.0) == []
    told(hangs, reconciler=reconciler, at=4.0)
    assert decide(reconciler, running(), now=4.0) == [DumpStacks(KEY, ResizeSignal.USR1)]
    told(reconciler=reconciler, at=5.0)
    assert decide(reconciler, running(), now=5.0) == [Terminate(KEY)]


def test_the_grace_of_the_newest_order_counts() -> None:
    reconciler = told(order(grace=60.0))
    decide(reconciler, running(grace=10.0), now=1.0)
    told(reconciler=reconciler, at=2.0)
    assert decide(reconciler, running(grace=10.0), now=2.0) == [Terminate(KEY)]
    assert decide(reconciler, running(), now=51.9) == []
    assert decide(reconciler, running(), now=52.0) == [Hurry(KEY)], "10 s before the end at most"
    reconciler.undo(Hurry(KEY))
    assert decide(reconciler, running(), now=53.0) == [Hurry(KEY)]
    assert decide(reconciler, running(), now=61.9) == []
    assert decide(reconciler, running(), now=62.0) == [Kill(KEY)]


def test_a_run_that_was_asked_to_stop_is_carried_through_even_if_it_is_desired_again() -> None:
    reconciler = told()
    decide(reconciler, running(), now=1.0)
    told(order(), reconciler=reconciler, at=2.0)
    assert decide(reconciler, running(), now=11.0) == [Kill(KEY)]
    assert not reconciler.permits(KEY, 11.0)


def test_a_restart_remembers_whom_it_asked_to_stop_and_since_when() -> None:
    reconciler = told()
    decide(reconciler, running(), now=1.0)
    next_one = told(reconciler=Reconciler(TIMINGS, reconciler.memory), at=5.0)
    assert decide(next_one, running(), now=5.0) == []
    assert decide(next_one, running(), now=11.0) == [Kill(KEY)]


def test_an_end_is_removed_only_after_the_control_plane_has_heard_of_it() -> None:
    reconciler = told()
    assert decide(reconciler, ended(), now=1.0) == []
    told(reconciler=reconciler, runs=(ended(),), at=2.0)
    assert decide(reconciler, ended(), now=2.0) == [Remove(KEY)]


def test_an_end_stays_while_it_is_desired() -> None:
    assert decide(told(order(), runs=(ended(),)), ended(), now=1.0) == []


def test_a_new_epoch_waits_until_the_old_one_has_ended_here() -> None:
    reconciler = told(order(epoch=2))
    assert decide(reconciler, running(), now=1.0) == [Terminate(KEY)]
    assert decide(reconciler, ended(), now=2.0) == [Start(order(epoch=2))]


def test_a_new_epoch_waits_for_an_old_one_whose_start_is_in_hand() -> None:
    assert decide(told(order(epoch=2)), now=1.0, busy=frozenset({KEY})) == []


def test_of_two_epochs_desired_at_once_only_the_newer_counts() -> None:
    reconciler = told(order(epoch=2), order(epoch=1))
    assert decide(reconciler, now=1.0) == [Start(order(epoch=2))]


def test_a_refused_report_changes_nothing() -> None:
    reconciler = told(order())
    reconciler.observe(NodeDesired(seq=2, refused="an older incarnation"), reported=(), sent_at=50.0)
    assert decide(reconciler, running(), now=51.0) == []
    assert reconciler.memory.synced_at == 0.0


def test_a_fenced_node_ends_its_runs_and_starts_none() -> None:
    other = RunKey("job-2", 1, 0)
    reconciler = told(order(grace=3600.0), order("job-2"), order("job-3"))
    assert decide(reconciler, running(), running(other), ended(RunKey("job-3", 1, 0)), now=90.0) == []
    assert decide(reconciler, running(), running(other), now=90.1) == [Terminate(KEY), Terminate(other)]
    assert decide(reconciler, running(), now=100.2) == []
    assert decide(reconciler, running(), now=120.1) == [Kill(KEY)]
    assert reconciler.report([ended(exit_code=143)], {})[0].reason is EndReason.FENCED


def test_the_fence_shortens_a_grace_that_has_begun() -> None:
    reconciler = told(at=60.0)
    assert decide(reconciler, running(grace=3600.0), now=61.0) == [Terminate(KEY)]
    assert decide(reconciler, running(), now=151.0) == []
    assert decide(reconciler, running(), now=181.0) == [Kill(KEY)]
    assert reconciler.report([ended(exit_code=None, reason=EndReason.LOST)], {})[0].reason is EndReason.STOPPED


def test_a_node_without_a_sync_on_record_is_fenced() -> None:
    assert decide(Reconciler(TIMINGS), running(), now=1.0) == [Terminate(KEY)]


def test_a_start_is_permitted_only_within_the_fence_of_the_sync_that_allowed_it() -> None:
    reconciler = told(order())
    assert reconciler.permits(KEY, 90.0)
    assert not reconciler.permits(KEY, 90.1)
    assert not told().permits(KEY, 1.0)


def test_an_answer_that_comes_late_counts_from_when_its_report_was_sent() -> None:
    """As when the executor was stopped while the answer waited in its socket."""
    reconciler = told(order(), at=0.0)
    assert decide(reconciler, now=200.0) == []
    assert not reconciler.permits(KEY, 200.0)
    assert decide(reconciler, running(), now=200.0) == [Kill(KEY)]


def test_after_a_long_stop_no_grace_is_given_that_the_fence_has_used_up() -> None:
    reconciler = told(order(grace=3600.0))
    assert decide(reconciler, running(), now=110.0) == [Terminate(KEY)]
    assert decide(reconciler, running(), now=119.8) == [Hurry(KEY)]
    assert decide(reconciler, running(), now=119.9) == []
    assert decide(reconciler, running(), now=120.0) == [Kill(KEY)]


def test_whom_the_guard_has_told_to_end_is_carried_through_and_told_of_as_fenced() -> None:
    reconciler = told(order(), at=100.0)
    reconciler.note_fenced({KEY}, now=101.0)
    assert decide(reconciler, running(), now=101.0) == []
    assert decide(reconciler, running(), now=131.0) == [Kill(KEY)]
    assert reconciler.report([ended(exit_code=143)], {})[0].reason is EndReason.FENCED


def test_whom_the_node_had_stopped_already_is_not_told_of_as_fenced() -> None:
    reconciler = told()
    decide(reconciler, running(), now=1.0)
    reconciler.note_fenced({KEY}, now=2.0)
    assert reconciler.report([ended(exit_code=143)], {})[0].reason is EndReason.STOPPED


def test_a_late_sync_does_not_turn_time_back() -> None:
    reconciler = told(order(), at=50.0)
    told(order(), reconciler=reconciler, at=40.0)
    assert reconciler.memory.synced_at == 50.0


def test_what_was_stopped_is_reported_as_stopped_with_its_status() -> None:
    reconciler = told()
    decide(reconciler, running(), now=1.0)
    seen = reconciler.report([ended(exit_code=143)], {})[0]
    assert (seen.reason, seen.exit_code) == (EndReason.STOPPED, 143)


def test_what_was_told_to_stop_and_ends_with_status_0_is_reported_as_stopped() -> None:
    reconciler = told()
    decide(reconciler, running(), now=1.0)
    seen = reconciler.report([ended(exit_code=0)], {})[0]
    assert (seen.reason, seen.exit_code) == (EndReason.STOPPED, 0)


def test_what_was_killed_and_left_no_status_is_reported_as_killed() -> None:
    reconciler = Reconciler(TIMINGS, Memory(synced_at=0.0, stops=(Stop(key=KEY, kill_at=5.0, killed_at=6.0),)))
    seen = reconciler.report([ended(exit_code=None, reason=EndReason.LOST)], {})[0]
    assert (seen.reason, seen.exit_code) == (EndReason.STOPPED, 137)


def test_a_start_that_failed_while_being_stopped_is_still_told_as_that() -> None:
    reconciler = told()
    decide(reconciler, running(), now=1.0)
    assert reconciler.report([ended(reason=EndReason.START_FAILED)], {})[0].reason is EndReason.START_FAILED


def test_an_order_to_stop_that_could_not_be_carried_out_is_given_again() -> None:
    reconciler = told()
    decide(reconciler, running(), now=1.0)
    reconciler.undo(Terminate(KEY))
    assert decide(reconciler, running(), now=2.0) == [Terminate(KEY)]
    decide(reconciler, running(), now=12.0)
    reconciler.undo(Kill(KEY))
    assert decide(reconciler, running(), now=12.1) == [Kill(KEY)]


def test_an_executor_that_closes_ends_everything_within_the_fences_grace() -> None:
    reconciler = told(order(grace=3600.0))
    reconciler.close()
    assert decide(reconciler, running(grace=3600.0), now=1.0) == [Terminate(KEY)]
    assert decide(reconciler, running(), now=31.0) == [Kill(KEY)]
    assert decide(reconciler, now=32.0) == []


JOBS = ("job-1", "job-2")
KEYS = st.builds(RunKey, st.sampled_from(JOBS), st.integers(1, 4), st.integers(0, 1))


class NodeMachine(RuleBasedStateMachine):
    """A node, its control plane and its runtime, in any order of events: syncs, ends, restarts, silence, failures."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.core = Reconciler(TIMINGS)
        self.live: dict[RunKey, bool] = {}  # → does it heed SIGTERM
        self.ended: set[RunKey] = set()
        self.asked: set[RunKey] = set()
        self.in_hand: dict[RunKey, Action] = {}
        self.lost_ends: set[RunKey] = set()
        self.heard_ends: set[RunKey] = set()

    def runs(self) -> list[Run]:
        return [running(key) for key in sorted(self.live)] + [ended(key) for key in sorted(self.ended)]

    @rule(keys=st.sets(KEYS, max_size=4), delay=st.floats(0, 3))
    def sync(self, keys: set[RunKey], delay: float) -> None:
        reported = self.core.report(self.runs(), {})
        sent_at, self.now = self.now, self.now + delay
        self.heard_ends |= {RunKey(run.job_id, run.epoch, run.rank) for run in reported if run.state is RunState.EXITED}
        orders = tuple(order(key.job_id, epoch=key.epoch, rank=key.rank) for key in sorted(keys))
        self.core.observe(desired(*orders), reported=reported, sent_at=sent_at)
        self.synced_at = sent_at

    @rule()
    def decide(self) -> None:
        for action in self.core.decide(self.runs(), busy=frozenset(self.in_hand), now=self.now):
            assert action.key not in self.in_hand
            self.in_hand[action.key] = action

    @precondition(lambda self: self.in_hand)
    @rule(data=st.data(), heeds=st.booleans(), fails=st.booleans())
    def carry_out(self, data: st.DataObject, heeds: bool, fails: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.in_hand)))
        action = self.in_hand.pop(key)
        if fails:
            self.core.undo(action)
            return
        match action:
            case Start():
                if self.core.permits(key, self.now):
                    self.live[key] = heeds
            case Terminate():
                if self.live.get(key):
                    self.end(key)
            case Kill():
                self.end(key)
            case Remove():
                assert key in self.heard_ends, "an end was forgotten before it was told"
                self.ended.discard(key)

    def end(self, key: RunKey) -> None:
        if key in self.live:
            del self.live[key]
            self.ended.add(key)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def ends_by_itself(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.live))))

    @rule(seconds=st.floats(0, 60))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def the_executor_restarts(self) -> None:
        self.core = Reconciler(TIMINGS, self.core.memory)
        self.in_hand.clear()

    @invariant()
    def no_rank_runs_in_two_epochs_at_once(self) -> None:
        ranks = [(key.job_id, key.rank) for key in self.live]
        assert len(ranks) == len(set(ranks))

    def teardown(self) -> None:
        """Whatever is not desired ends, when the environment behaves from now on."""
        self.sync(set(), 0.0)
        for _ in range(6):
            self.in_hand.clear()
            for action in self.core.decide(self.runs(), busy=NOBODY, now=self.now):
                self.in_hand[action.key] = action
            for key in sorted(self.in_hand):
                action = self.in_hand.pop(key)
                if (isinstance(action, Terminate) and self.live.get(key)) or isinstance(action, Kill):
                    self.end(key)
                elif isinstance(action, Remove):
                    self.ended.discard(key)
            self.now += 15.0
            self.sync(set(), 0.0)
        assert not self.live
        assert not self.ended


NodeMachine.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
TestAnyHistory = NodeMachine.TestCase


@settings(deadline=None)
@given(st.lists(st.tuples(KEYS, st.booleans()), max_size=8), st.lists(KEYS, max_size=8))
def test_deciding_twice_about_the_same_asks_for_the_same_starts(
    found: list[tuple[RunKey, bool]], desired: list[RunKey]
) -> None:
    reconciler = told(*(order(key.job_id, epoch=key.epoch, rank=key.rank) for key in desired))
    runs = [running(key) if live else ended(key) for key, live in dict(found).items()]
    first = [action for action in decide(reconciler, *runs, now=1.0) if isinstance(action, Start)]
    again = [action for action in decide(reconciler, *runs, now=1.0) if isinstance(action, Start)]
    assert first == again


def test_a_run_waits_until_whoever_has_its_gpus_has_ended() -> None:
    core = Reconciler(ReconcilerTimings())
    first, second = order("job-a", gpus=(0, 1)), order("job-b", gpus=(1, 2))
    core.observe(desired(first), reported=(), sent_at=0.0)
    assert core.decide([], busy=frozenset(), now=0.0) == [Start(first)]
    core.observe(desired(second, seq=2), reported=(), sent_at=1.0)
    running = Run(key=RunKey.of(first), state=RunState.RUNNING, grace=5.0)
    assert core.decide([running], busy=frozenset(), now=1.0) == [Terminate(RunKey.of(first))]
    ended = Run(key=RunKey.of(first), state=RunState.EXITED, grace=5.0, exit_code=143, reason=EndReason.EXIT)
    assert Start(second) in core.decide([ended], busy=frozenset(), now=2.0)


def test_a_run_that_ended_and_was_removed_never_begins_again_and_who_wants_it_hears_that() -> None:
    """An answer may be older than the one before it: a stand-in read the store before the leader took the end."""
    reconciler = told(runs=(ended(),))
    assert decide(reconciler, ended(), now=1.0) == [Remove(KEY)]
    told(order(), at=1.0, reconciler=reconciler, runs=(ended(),))
    assert decide(reconciler, now=2.0) == []
    (seen,) = reconciler.report([], {})
    assert (seen.state, seen.reason) == (RunState.EXITED, EndReason.LOST)
    told(order(epoch=2), at=2.0, reconciler=reconciler)
    assert [(run.epoch, run.state) for run in reconciler.report([], {})] == [(2, RunState.STARTING)]
    assert decide(reconciler, now=3.0) == [Start(order(epoch=2))]


def test_a_run_that_never_began_and_was_removed_is_not_said_to_have_run() -> None:
    """After a restore of the store its job would count as started, and then as lost."""
    never = ended(exit_code=None, reason=EndReason.START_FAILED)
    reconciler = told(runs=(never,))
    assert decide(reconciler, never, now=1.0) == [Remove(KEY)]
    told(order(), at=1.0, reconciler=reconciler, runs=(never,))
    (seen,) = reconciler.report([], {})
    assert (seen.state, seen.reason) == (RunState.EXITED, EndReason.START_FAILED)


# a leader whose store is away

LEADER = Leader(pool="default", epoch=3, holder="scheduler-1", seq=7)


def held(reconciler: Reconciler, *runs: Run, at: float, leader: Leader | None = LEADER) -> None:
    answer = NodeDesired(seq=1, hold=True, leader=leader)
    reconciler.observe(answer, reported=reconciler.report(runs, {}), sent_at=at)


def led(*orders: StartRun, runs: tuple[Run, ...] = ()) -> Reconciler:
    reconciler = Reconciler(TIMINGS)
    answer = desired(*orders, leader=LEADER)
    reconciler.observe(answer, reported=reconciler.report(runs, {}), sent_at=0.0)
    return reconciler


def test_a_node_that_is_held_goes_on_past_its_fence_and_starts_nothing() -> None:
    reconciler = led(order(), order(rank=1))
    held(reconciler, running(), at=80.0)
    assert decide(reconciler, running(), now=160.0) == []
    assert not reconciler.permits(RunKey("job-1", 1, 1), 160.0)
    assert decide(reconciler, running(), now=171.0) == [Terminate(KEY)]


def test_a_hold_forgets_no_end_of_a_run() -> None:
    reconciler = led(order(), runs=(running(),))
    held(reconciler, ended(), at=80.0)
    assert decide(reconciler, ended(), now=81.0) == []
    assert reconciler.report((ended(),), {})[0].state is RunState.EXITED
    told(reconciler=reconciler, at=82.0)
    assert decide(reconciler, ended(), now=83.0) == []  # its end was in a report that was held, not taken in
    told(reconciler=reconciler, at=84.0, runs=(ended(),))
    assert decide(reconciler, ended(), now=85.0) == [Remove(KEY)]


def test_a_hold_of_another_leader_than_answered_last_is_worth_nothing() -> None:
    for leader in (None, structs.replace(LEADER, epoch=2), structs.replace(LEADER, holder="scheduler-2")):
        reconciler = led(order())
        held(reconciler, running(), at=80.0, leader=leader)
        assert reconciler.fenced(100.0)


def test_an_executor_that_restarts_while_its_node_is_held_ends_nothing() -> None:
    reconciler = Reconciler(TIMINGS, led(order()).memory)
    held(reconciler, running(), at=80.0)
    assert decide(reconciler, running(), now=160.0) == []


def test_runs_with_shares_of_a_gpu_start_beside_each_other_as_far_as_it_reaches() -> None:
    def part(job_id: str, request: int) -> StartRun:
        return order(job_id, gpus=(0,), share=Share(request=request, memory=1))

    first, second, third, whole = part("job-a", 600), part("job-b", 400), part("job-c", 1), order("job-d", gpus=(0,))
    reconciler = told(first, second)
    assert decide(reconciler, now=1.0) == [Start(first), Start(second)]
    both = (running(RunKey.of(first)), running(RunKey.of(second)))
    told(second, third, whole, reconciler=reconciler, runs=both)
    again = Reconciler(TIMINGS, reconciler.memory)  # an executor that was started anew knows it too
    told(second, third, whole, reconciler=again, runs=both)
    for one in (reconciler, again):
        assert decide(one, *both, now=2.0) == [Terminate(RunKey.of(first))]
        assert decide(one, ended(RunKey.of(first)), both[1], now=3.0) == [Start(third)]


def test_a_run_with_gpus_that_failed_is_reported_as_running_while_its_gpus_may_show_why() -> None:
    failed, stopped = ended(exit_code=1), ended(RunKey("job-2", 1, 0), exit_code=143)
    well, without = ended(RunKey("job-3", 1, 0)), ended(RunKey("job-4", 1, 0), exit_code=1)
    orders = [order(job_id=f"job-{number}", gpus=(0,) if number < 4 else ()) for number in (1, 2, 3, 4)]
    reconciler = told(*orders, runs=tuple(running(RunKey.of(each)) for each in orders))
    decide(reconciler, *(running(RunKey.of(each)) for each in orders), now=1.0)
    told(*(each for each in orders if each.job_id != "job-2"), reconciler=reconciler)
    decide(reconciler, running(stopped.key), now=2.0)
    runs = [failed, stopped, well, without]
    seen = {run.job_id: run for run in reconciler.report(runs, {}, unjudged=lambda _: True)}
    assert (seen["job-1"].state, seen["job-1"].exit_code, seen["job-1"].reason) == (RunState.RUNNING, None, None)
    assert {seen[f"job-{number}"].state for number in (2, 3, 4)} == {RunState.EXITED}
    assert reconciler.report(runs, {}, unjudged=lambda _: False)[0].exit_code == 1
