"""What the guard decides: given the last good sync, what runs and the time, then these actions."""

from hypothesis import given
from hypothesis import strategies as st

from weftd.executor.guard.thinking import Action, FenceTimings, Guard, Seen
from weftd.executor.runs import RunKey
from weftd.executor.thinking.core import Kill, Remove, Terminate

TIMINGS = FenceTimings(fence_seconds=90.0, slack_seconds=5.0, grace_max=30.0, kill_again_seconds=2.0)
KEY, OTHER = RunKey("job-1", 1, 0), RunKey("job-2", 1, 0)


def seen(key: RunKey = KEY, *, grace: float = 10.0, begun: bool = True) -> Seen:
    return Seen(key=key, grace=grace, begun=begun)


def decide(
    guard: Guard, *runs: Seen, now: float, synced_at: float | None = 0.0, stops: dict[RunKey, float] | None = None
) -> list[Action]:
    return guard.decide(runs, synced_at=synced_at, stops=stops or {}, now=now)


def guard_of(*ended: RunKey, began: float = 0.0) -> Guard:
    return Guard(TIMINGS, began=began, ended=ended)


def test_within_the_fence_and_its_slack_nothing_is_done() -> None:
    guard = guard_of()
    assert decide(guard, seen(), seen(OTHER, begun=False), now=95.0) == []
    assert guard.ended == frozenset()


def test_after_that_every_run_is_asked_once_and_killed_when_its_grace_is_over() -> None:
    guard = guard_of()
    assert decide(guard, seen(), seen(OTHER, grace=3600.0), now=95.1) == [Terminate(KEY), Terminate(OTHER)]
    assert decide(guard, seen(), seen(OTHER), now=105.0) == []
    assert decide(guard, seen(), seen(OTHER), now=105.2) == [Kill(KEY)]
    assert decide(guard, seen(), seen(OTHER), now=106.0) == []
    assert decide(guard, seen(), seen(OTHER), now=107.3) == [Kill(KEY)]
    assert decide(guard, seen(OTHER), now=125.0) == [Kill(OTHER)]


def test_no_grace_counts_from_later_than_the_fall_of_the_fence() -> None:
    assert decide(guard_of(), seen(grace=3600.0), now=200.0) == [Kill(KEY)]
    late = guard_of(began=120.0)
    assert decide(late, seen(grace=3600.0), now=120.0) == [Terminate(KEY)]
    assert decide(late, seen(), now=125.0) == [Kill(KEY)]


def test_a_run_that_began_after_the_fall_is_killed_at_once() -> None:
    guard = guard_of()
    assert decide(guard, now=96.0) == []
    assert decide(guard, seen(grace=3600.0), now=97.0) == [Kill(KEY)]


def test_what_was_made_and_has_not_begun_never_begins() -> None:
    guard = guard_of()
    assert decide(guard, seen(begun=False), now=96.0) == [Remove(KEY)]
    assert guard.ended == frozenset()


def test_whom_the_executor_has_asked_is_not_asked_again_but_killed_in_time() -> None:
    guard = guard_of()
    assert decide(guard, seen(), now=96.0, stops={KEY: 500.0}) == []
    assert decide(guard, seen(), now=125.0, stops={KEY: 500.0}) == [Kill(KEY)]
    hasty = guard_of()
    assert decide(hasty, seen(), now=96.0, stops={KEY: 91.0}) == [Kill(KEY)]


def test_what_was_told_to_end_is_carried_through_when_the_node_syncs_again() -> None:
    guard = guard_of()
    assert decide(guard, seen(), now=96.0) == [Terminate(KEY)]
    assert decide(guard, seen(), seen(OTHER), now=100.0, synced_at=99.0) == []
    assert decide(guard, seen(), seen(OTHER), now=106.0, synced_at=105.0) == [Kill(KEY)]


def test_a_guard_that_follows_another_asks_nobody_twice() -> None:
    guard = guard_of(KEY, began=100.0)
    assert decide(guard, seen(), now=100.0) == []
    assert decide(guard, seen(), now=125.0) == [Kill(KEY)]
    synced = guard_of(KEY, began=100.0)
    assert decide(synced, seen(), now=129.0, synced_at=100.0) == []
    assert decide(synced, seen(), now=130.0, synced_at=100.0) == [Kill(KEY)]


def test_without_a_sync_on_record_the_executor_has_the_slack_alone() -> None:
    guard = guard_of(began=50.0)
    assert decide(guard, seen(), now=55.0, synced_at=None) == []
    assert decide(guard, seen(), now=55.1, synced_at=None) == [Terminate(KEY)]


def test_whoever_is_gone_from_the_node_is_forgotten() -> None:
    guard = guard_of()
    decide(guard, seen(), seen(OTHER), now=96.0)
    guard.keep({OTHER})
    assert guard.ended == {OTHER}


STEP = st.tuples(
    st.floats(0.05, 40.0),  # until the next look
    st.one_of(st.none(), st.floats(0, 3)),  # a good sync, sent so long before it
    st.one_of(st.none(), st.floats(0, 3600)),  # a run that begins, with its grace
    st.booleans(),  # is the guard another one from now on?
)


@given(steps=st.lists(STEP, min_size=1, max_size=40))
def test_at_no_look_a_run_lives_beyond_the_promise(
    steps: list[tuple[float, float | None, float | None, bool]],
) -> None:
    guard, now, synced_at, live = guard_of(), 0.0, 0.0, dict[RunKey, float]()
    for number, (seconds, sync, grace, another) in enumerate(steps):
        now += seconds
        if sync is not None:
            synced_at = max(synced_at, now - sync)
        if grace is not None:
            live[RunKey("job-1", number, 0)] = grace
        if another:
            guard = guard_of(*guard.ended, began=now)
        for action in decide(guard, *(seen(key, grace=live[key]) for key in live), now=now, synced_at=synced_at):
            assert now > synced_at + TIMINGS.fence_seconds + TIMINGS.slack_seconds or action.key in guard.ended
            if isinstance(action, Kill):
                del live[action.key]
        if now >= synced_at + TIMINGS.fence_seconds + TIMINGS.slack_seconds + TIMINGS.grace_max:
            assert not live
