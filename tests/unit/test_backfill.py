"""Who may start ahead of a job that does not fit, and that nobody with a reservation comes later by it."""

from collections.abc import Callable, Sequence
from itertools import count
from math import inf
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.tier import examples
from weft.planning.backfill import RESERVATIONS_MAX, Backfill, Conservative, Easy, Ending, NoBackfill
from weft.planning.policy import Policy
from weft.simulator.model import Cluster, World
from weft.simulator.run import simulate
from weft.simulator.workload import TraceJob, Workload

KINDS: dict[str, Callable[..., Backfill]] = {
    "none": NoBackfill,
    "easy": Easy,
    "conservative": Conservative,
}
NOW = 1000.0


def easy(free: int, *endings: tuple[float, int]) -> Easy:
    return Easy(now=NOW, free=free, endings=lambda: [Ending(NOW + after, gpus) for after, gpus in endings])


def conservative(free: int, *endings: tuple[float, int]) -> Conservative:
    return Conservative(now=NOW, free=free, endings=lambda: [Ending(NOW + after, gpus) for after, gpus in endings])


# none


def test_without_backfill_the_first_that_does_not_fit_ends_the_walk() -> None:
    nobody = NoBackfill(now=NOW, free=4, endings=tuple)
    assert nobody.may_start(1, None)
    nobody.started(1, None)
    assert not nobody.blocked(8, 5.0)


# easy


def test_easy_holds_nobody_back_before_somebody_is_blocked() -> None:
    backfill = easy(2, (100, 6))
    assert backfill.may_start(2, None)
    backfill.started(1, None)
    assert backfill.may_start(1, inf)


def test_easy_lets_those_start_that_end_before_the_reservation() -> None:
    backfill = easy(2, (50, 2), (100, 4))
    assert backfill.blocked(8, None)  # 2 free, 4 at 50, 8 at 100
    assert backfill.may_start(2, 100.0)
    assert not backfill.may_start(2, 100.1)
    assert not backfill.may_start(1, None)


def test_easy_lets_those_start_that_need_only_what_is_left_over_then() -> None:
    backfill = easy(3, (100, 4))
    backfill.blocked(5, None)  # at 100, 7 are free: 2 to spare
    assert backfill.may_start(2, None)
    assert not backfill.may_start(3, None)
    backfill.started(1, None)
    assert backfill.may_start(1, None)
    assert not backfill.may_start(2, None)
    backfill.started(2, 100.0)  # gives them back in time
    assert backfill.may_start(1, None)


def test_easy_counts_all_that_end_at_the_moment_of_the_reservation() -> None:
    backfill = easy(0, (100, 2), (100, 2), (101, 2))
    backfill.blocked(1, None)
    assert backfill.may_start(3, None)
    assert not backfill.may_start(4, None)


def test_easy_has_one_reservation_that_of_the_first() -> None:
    backfill = easy(1, (10, 1), (1000, 8))
    backfill.blocked(2, None)
    assert backfill.blocked(9, None)
    assert backfill.may_start(1, 10.0)
    assert not backfill.may_start(1, 500.0)


def test_easy_holds_nobody_back_for_a_job_of_which_nobody_knows_when_it_will_fit() -> None:
    backfill = easy(2, (10, 1))
    backfill.blocked(4, None)
    assert backfill.may_start(2, None)


def test_easy_asks_who_ends_only_when_somebody_is_blocked_and_only_once() -> None:
    asked = count()

    def endings() -> Sequence[Ending]:
        next(asked)
        return [Ending(NOW + 10, 4)]

    backfill = Easy(now=NOW, free=1, endings=endings)
    backfill.started(1, 5.0)
    assert next(asked) == 0
    backfill.blocked(4, None)
    backfill.blocked(4, None)
    assert next(asked) == 2


def test_easy_counts_a_job_once_that_was_started_in_the_same_walk() -> None:
    """Who runs is asked for when somebody is blocked: those that were started until then are among them."""
    running = [Ending(NOW + 100, 1)]
    backfill = Easy(now=NOW, free=2, endings=lambda: running)
    backfill.started(1, 100.0)
    running.append(Ending(NOW + 100, 1))
    backfill.blocked(3, None)  # 1 free, 3 at 100, and none to spare
    assert not backfill.may_start(1, 101.0)
    assert backfill.may_start(1, 100.0)


# conservative


def test_conservative_gives_everybody_a_reservation_in_order() -> None:
    backfill = conservative(2, (100, 2))
    assert backfill.blocked(4, 50.0)  # from 100 to 150
    assert backfill.blocked(3, 10.0)  # from 150
    assert backfill.may_start(2, 100.0)
    assert not backfill.may_start(2, 101.0)
    backfill.started(1, 100.0)
    assert not backfill.may_start(2, 100.0)
    assert backfill.may_start(1, 50.0)


def test_conservative_lets_nobody_delay_the_second_either() -> None:
    """EASY would: it looks after the first alone."""
    ends = ((100.0, 3), (200.0, 3))
    for backfill, may in ((easy(1, *ends), True), (conservative(1, *ends), False)):
        backfill.blocked(3, 50.0)  # at 100, one to spare
        backfill.blocked(7, 50.0)  # at 200
        assert backfill.may_start(1, 150.0)
        assert backfill.may_start(1, 250.0) is may


def test_conservative_finds_a_hole_before_a_reservation() -> None:
    backfill = conservative(1, (10, 1), (100, 6))
    backfill.blocked(8, 5.0)  # at 100
    backfill.blocked(2, 90.0)  # fits in from 10 to 100
    assert backfill.may_start(1, 10.0)
    assert not backfill.may_start(1, 11.0)


def test_conservative_reserves_nothing_for_whom_nobody_knows_when_it_fits() -> None:
    backfill = conservative(2, (10, 1))
    assert backfill.blocked(9, 5.0)
    assert backfill.may_start(2, None)


def test_conservative_lets_one_of_unknown_length_start_only_where_it_is_in_nobodys_way_for_ever() -> None:
    backfill = conservative(3, (10, 3))
    backfill.blocked(5, 20.0)
    assert backfill.may_start(1, None)
    assert not backfill.may_start(2, None)


def test_conservative_takes_from_those_who_end_later_than_now_even_if_they_should_have_ended() -> None:
    backfill = conservative(1, (-50, 2))  # late, but gone any moment
    assert backfill.may_start(3, 10.0)


def test_conservative_keeps_so_many_reservations_and_nobody_behind_them_starts() -> None:
    backfill = conservative(1, (10, 1))
    assert all(backfill.blocked(2, 1.0) for _ in range(RESERVATIONS_MAX - 1))
    assert not backfill.blocked(2, 1.0)


# with exact estimates


class Listed(NamedTuple):
    """A job of a list; it comes, needs so many GPUs, and lasts."""

    at_s: int
    gpus: int
    lasts_s: int


class Scheduled(NamedTuple):
    """When each started; and when each that was the first to be blocked would have, had nobody overtaken it."""

    starts: dict[int, float]
    promised: dict[int, float]


def schedule(kind: str, jobs: Sequence[Listed], gpus: int) -> Scheduled:
    """A list of jobs, served in order, on GPUs that are all alike: nothing but the backfill decides."""
    waiting = sorted(range(len(jobs)), key=lambda number: (jobs[number].at_s, number))
    running: list[tuple[float, int]] = []  # until when, how many
    starts: dict[int, float] = {}
    promised: dict[int, float] = {}

    def endings() -> list[Ending]:
        return sorted(Ending(until, held) for until, held in running)

    now = -1.0
    while waiting:
        moments = [float(jobs[number].at_s) for number in waiting] + [until for until, _ in running]
        now = min(moment for moment in moments if moment > now)
        for one in [one for one in running if one[0] <= now]:
            running.remove(one)
        free = gpus - sum(held for _, held in running)
        backfill = KINDS[kind](now=now, free=free, endings=endings)
        blocked = False
        for number in [number for number in waiting if jobs[number].at_s <= now]:
            job = jobs[number]
            if job.gpus <= free and backfill.may_start(job.gpus, job.lasts_s):
                waiting.remove(number)
                starts[number] = now
                free -= job.gpus
                running.append((now + job.lasts_s, job.gpus))
                backfill.started(job.gpus, job.lasts_s)
                continue
            if not blocked:
                blocked = True
                promised.setdefault(number, would_start(job.gpus, free, running))
            if not backfill.blocked(job.gpus, job.lasts_s):
                break
    return Scheduled(starts, promised)


def would_start(gpus: int, free: int, running: Sequence[tuple[float, int]]) -> float:
    for until, held in sorted(running):
        free += held
        if free >= gpus:
            return until
    raise AssertionError("it never fits")


def lists(gpus: int) -> st.SearchStrategy[list[Listed]]:
    one = st.builds(Listed, st.integers(0, 30), st.integers(1, gpus), st.integers(1, 40))
    return st.lists(one, min_size=1, max_size=14)


@settings(max_examples=examples(300), deadline=None)
@given(lists(6))
@example([Listed(0, 1, 100), Listed(0, 6, 10), Listed(0, 1, 1000), Listed(0, 1, 50)])
def test_easy_never_delays_the_job_at_the_head(jobs: list[Listed]) -> None:
    """From when it is the first that does not fit, it starts no later than if nobody overtook it."""
    found = schedule("easy", jobs, 6)
    assert len(found.starts) == len(jobs)
    for number, at in found.promised.items():
        assert found.starts[number] <= at


@settings(max_examples=examples(300), deadline=None)
@given(lists(6))
def test_under_conservative_backfill_nobody_starts_later_than_without_any(jobs: list[Listed]) -> None:
    """Each starts in the first hole that those before it leave, and those have all started no later, by induction."""
    without, found = schedule("none", jobs, 6), schedule("conservative", jobs, 6)
    assert all(found.starts[number] <= without.starts[number] for number in range(len(jobs)))
    assert all(found.starts[number] <= at for number, at in found.promised.items())


@settings(max_examples=examples(100), deadline=None)
@given(lists(6))
def test_without_backfill_jobs_start_in_the_order_in_which_they_came(jobs: list[Listed]) -> None:
    starts = schedule("none", jobs, 6).starts
    order = sorted(range(len(jobs)), key=lambda number: (jobs[number].at_s, number))
    assert [starts[number] for number in order] == sorted(starts.values())


@pytest.mark.parametrize("kind", list(KINDS))
@settings(max_examples=examples(60), deadline=None)
@given(jobs=lists(6))
@example(jobs=[Listed(0, 1, 100), Listed(0, 2, 10), Listed(0, 1, 1000), Listed(0, 1, 50), Listed(0, 5, 5)])
def test_the_simulator_starts_jobs_when_the_list_says(kind: str, jobs: list[Listed]) -> None:
    """On one node of GPUs all alike, with durations known, where nothing costs anything."""
    made = sorted(jobs, key=lambda job: job.at_s)
    trace = tuple(
        TraceJob(id=f"{number:03d}", arrival_s=job.at_s, gpus=job.gpus, work_s=job.lasts_s)
        for number, job in enumerate(made)
    )
    outcome = simulate(
        Workload(name="list", jobs=trace),
        Cluster(nodes=1, gpus_per_node=6),
        Policy("fifo", "packed-sticky", kind),
        World(durations_known=True),
    )
    expected = schedule(kind, made, 6).starts
    assert {number: job.started_s for number, job in enumerate(outcome.jobs)} == pytest.approx(expected)


def test_a_shorter_job_overtakes_where_a_longer_one_of_its_kind_may_not() -> None:
    jobs = [Listed(0, 1, 100), Listed(0, 2, 10), Listed(0, 1, 1000), Listed(0, 1, 50)]
    for kind in ("easy", "conservative"):
        assert schedule(kind, jobs, 2).starts == {0: 0, 1: 100, 2: 110, 3: 0}
