"""Laws of estimates, at random: in order, never past, nothing changed by asking, bounded in work."""

from itertools import pairwise
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.builders import job, node
from tests.support.steps import placement
from tests.support.tier import examples
from weft.domain.cluster import Node
from weft.domain.job import Job, JobState
from weft.messages.eta import Basis, EtaOf
from weft.planning.eta.ends import HORIZON_S, Steps
from weft.planning.eta.forward import LOOKS_COUNTED, SCENARIOS, Forward
from weft.planning.eta.learnt import Lasted, kinds_of
from weft.planning.eta.projected import CountedGpus
from weft.planning.eta.record import NARROWER_MAX, WIDER_BY, Range, Track, TrackRecords, quantile
from weft.planning.eta.runs import Holds, WaitingJob
from weft.planning.eta.spread import PARTS, TimeSpread, always, course_of, of_cases
from weft.planning.eta.starts import PoolToCome
from weft.planning.eta.told import to_come
from weft.planning.order import Standing
from weft.planning.policy import BACKFILLS, ORDERS, Policy
from weft.planning.resource_request import NOBODY

NOW = 5_000.0
SECONDS = st.floats(0, 1e7)
TROUBLED = st.one_of(st.floats(), st.just(nan), st.just(inf), st.just(-1.0), st.just(1e308))


@st.composite
def pools(draw: st.DrawFn) -> tuple[list[Node], list[Job], str]:
    """Up to four nodes, running jobs on some of their GPUs, and jobs that wait."""
    nodes = [
        node(f"node-{number}", gpus=draw(st.integers(0, 4)), drained=draw(st.booleans()))
        for number in range(draw(st.integers(1, 4)))
    ]
    jobs: list[Job] = []
    for one in nodes:
        free = list(range(len(one.capacity.gpus)))
        while free and draw(st.booleans()):
            count = draw(st.integers(1, len(free)))
            mine, free = free[:count], free[count:]
            jobs.append(
                job(
                    f"r-{len(jobs)}",
                    seq=len(jobs),
                    gpus=count,
                    state=JobState.RUNNING,
                    placement=placement(*((one.id, gpu) for gpu in mine)),
                    placed_at=draw(st.floats(0, 6_000)),
                    started_at=draw(st.floats(0, 6_000)),
                    progress=draw(st.dictionaries(st.sampled_from(["step", "steps"]), TROUBLED)),
                    spec=_limited(draw),
                )
            )
    for number in range(draw(st.integers(1, 6))):
        spec = {**_limited(draw), "priority": draw(st.integers(-2, 2))}
        demand = {"gpus": draw(st.integers(0, 5)), "replicas": draw(st.integers(1, 3))}
        jobs.append(job(f"w-{number}", seq=100 + number, not_before=draw(st.floats(0, 6_000)), spec=spec, **demand))
    policy = Policy(draw(st.sampled_from(ORDERS)), "packed", draw(st.sampled_from(BACKFILLS)))
    return nodes, jobs, str(policy)


def _limited(draw: st.DrawFn) -> dict[str, Any]:
    limit = draw(st.sampled_from([None, "1s", "1h", "9d"]))
    return {} if limit is None else {"time_limit": limit}


def _pool(nodes: list[Node], jobs: list[Job], policy: str, durations: Lasted, records: Any = None) -> PoolToCome:
    holding = [one for one in jobs if one.state.holding]
    queued = [one for one in jobs if one.state is JobState.QUEUED]
    return PoolToCome(nodes, holding, queued, now=NOW, policy=policy, durations=durations, records=records)


@settings(deadline=None, max_examples=examples(150))
@given(pools(), st.lists(SECONDS, max_size=12), st.lists(st.tuples(SECONDS, SECONDS), max_size=8))
def test_an_estimate_is_in_order_and_never_past_and_asking_changes_nothing(
    drawn: tuple[list[Node], list[Job], str], ended: list[float], judged: list[tuple[float, float]]
) -> None:
    nodes, jobs, policy = drawn
    durations = Lasted()
    for seconds in ended:
        durations.add(kinds_of(jobs[-1]), seconds)
    records: TrackRecords[str] = TrackRecords()
    for number, (foretold, came) in enumerate(judged):
        for of in EtaOf:
            track = records.of(of, Basis.LEARNT)
            track.expect(str(number), *(2 * (Range(foretold / 2, foretold, 2 * foretold),)), at=NOW - came)
            track.came(str(number), NOW)
    pool = _pool(nodes, jobs, policy, durations, records)
    before = {node_id: list(found) for node_id, found in sorted(pool.free_capacity.buckets.items())}
    for one in jobs:
        foreseen, helps = to_come(one, lambda: pool)
        assert foreseen is not None
        for eta in (foreseen.estimate, *(each.eta for each in helps if each.eta is not None)):
            known = [moment for moment in (eta.earliest, eta.likely, eta.latest) if moment is not None]
            assert all(earlier <= later for earlier, later in pairwise(known))
            assert all(NOW <= moment <= NOW + 2 * HORIZON_S for moment in known)
            assert (eta.basis is Basis.UNKNOWN) == (not known) == eta.sentence.startswith("nobody can tell when")
    assert {node_id: list(found) for node_id, found in sorted(pool.free_capacity.buckets.items())} == before


@settings(deadline=None, max_examples=examples(100))
@given(
    st.integers(1, 3), st.integers(1, 4), st.floats(1, 1e4), st.lists(st.floats(0, 1e4), max_size=8), st.integers(1, 12)
)
def test_one_more_free_node_makes_no_start_later_among_identical_jobs(
    count: int, gpus: int, lasts: float, ends: list[float], waiting: int
) -> None:
    def starts(nodes: int) -> list[float]:
        held = [
            Holds(job_id=f"r-{number}", allocations=(), gpus=gpus, left=always(after, Basis.LEARNT))
            for number, after in enumerate(ends[:count])
        ]
        space = CountedGpus(float(gpus * (nodes - len(held))))
        forward = Forward(space, _alike(waiting, gpus, lasts), held, policy=Policy(), gpus=float(gpus * nodes))
        found = forward.look()
        return [found[f"w-{number}"][0].after_s for number in range(waiting)]

    fewer, more = starts(count), starts(count + 1)
    assert all(later <= sooner for later, sooner in zip(more, fewer, strict=True))
    assert fewer == sorted(fewer)  # and none overtakes an identical job


def _alike(count: int, gpus: int, lasts: float) -> list[WaitingJob]:
    return [
        WaitingJob(
            job_id=f"w-{number}",
            place=((float(number),), number, f"w-{number}"),
            standing=Standing(id=f"w-{number}", seq=number, gpus=gpus),
            group=gpus,
            resource_request=(),
            asked=NOBODY,
            gpus=gpus,
            lasts=always(lasts, Basis.LEARNT),
        )
        for number in range(count)
    ]


def test_the_work_of_a_look_is_bounded_however_long_the_queue() -> None:
    space = CountedGpus(0.0)
    held = [Holds(job_id=f"r-{at}", allocations=(), gpus=1, left=always(at, Basis.LEARNT)) for at in range(1_000)]
    forward = Forward(space, _alike(20_000, 1, 60.0), held, policy=Policy(), gpus=1_000.0, looks=LOOKS_COUNTED)
    forward.look("w-19999")
    assert -1_001 <= forward.left <= LOOKS_COUNTED  # one walk more at most than the work allows


@pytest.mark.parametrize("policy", [Policy(), Policy("fifo", "packed", "easy")])
@given(data=st.data())
def test_one_scenario_is_enough_where_all_would_be_alike(policy: Policy, data: st.DataObject) -> None:
    """A queue behind jobs of which the last may end early or late: those that start before need no second scenario."""
    ends = data.draw(st.lists(st.integers(1, 50).map(float), min_size=1, max_size=4))
    varies = TimeSpread((60.0, 90.0, 120.0), Basis.LEARNT)
    left = [*(always(at, Basis.LIMITS) for at in sorted(ends)), varies]
    held = [Holds(job_id=f"r-{at}", allocations=(), gpus=1, left=one) for at, one in enumerate(left)]
    queue = _alike(len(held), 1, 1_000.0)
    for place, one in enumerate(queue):
        forward = Forward(CountedGpus(0.0), queue, held, policy=policy, gpus=float(len(held)))
        starts = {seen.after_s for seen in forward.look(one.job_id)[one.job_id]}
        assert starts == {left[place].seconds[0]} if place < len(ends) else len(starts) > 1
        assert forward.scenarios == (1 if place < len(ends) else SCENARIOS)


@given(st.lists(SECONDS, min_size=1, max_size=60), st.lists(SECONDS, max_size=20), SECONDS)
def test_what_remains_is_ascending_and_not_below_zero(ended: list[float], running: list[float], age: float) -> None:
    course = course_of(sorted(ended), sorted(running))
    assert abs(sum(course.masses) - 1) < 1e-6
    spread = course.left(age)
    assert list(spread.seconds) == sorted(spread.seconds)
    assert spread.seconds[0] >= 0
    parts = [spread.at(part / 20) for part in range(21)]
    assert parts == sorted(parts)


@given(st.lists(SECONDS, min_size=1, max_size=60), st.lists(SECONDS, max_size=20), SECONDS)
def test_a_limit_cuts_off_what_remains(ended: list[float], running: list[float], limit: float) -> None:
    assert course_of(sorted(ended), sorted(running)).left(0.0).at_most(limit).seconds[-1] <= limit


@given(st.lists(SECONDS, min_size=PARTS + 1, max_size=90))
def test_a_spread_is_as_long_as_what_it_is_made_of(ended: list[float]) -> None:
    spread = of_cases([(seconds, 1.0) for seconds in sorted(ended)])
    assert abs(sum(spread.seconds) / PARTS - sum(ended) / len(ended)) <= 1e-6 * (1 + max(ended))


@given(st.lists(SECONDS, min_size=1, max_size=40), st.lists(SECONDS, min_size=1, max_size=10))
def test_jobs_that_still_run_make_jobs_like_them_last_no_shorter(ended: list[float], running: list[float]) -> None:
    def mean(ages: list[float]) -> float:
        course = course_of(sorted(ended), sorted(ages))
        return sum(seconds * mass for seconds, mass in zip(course.seconds, course.masses, strict=True))

    assert mean(running) >= mean([]) - 1e-6 * (1 + max(ended))


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=40), st.floats(0.05, 0.95))
def test_an_error_that_is_still_open_makes_no_quantile_smaller(errors: list[float], part: float) -> None:
    closed = [(error, True) for error in errors]
    assert quantile([*closed[1:], (errors[0], False)], part) >= quantile(closed, part)
    assert quantile(closed, part) in errors


@given(TROUBLED, TROUBLED, TROUBLED, TROUBLED)
def test_no_progress_that_a_job_reports_makes_an_estimate_that_is_no_number(
    step: float, steps: float, rate: float, age: float
) -> None:
    left = Steps(step, steps, rate, age).left()
    assert left is None or all(0 <= seconds < inf for seconds in left.seconds)


def test_a_track_moves_what_was_always_too_early() -> None:
    track: Track[str] = Track()
    raw = Range(80.0, 100.0, 120.0)
    for number in range(60):
        track.expect(str(number), raw, raw, at=0.0)
        track.came(str(number), 300.0)
    assert track.record is not None
    assert (track.record.estimates, track.record.inside) == (60, 0)
    told = track.corrected(raw, now=1_000.0)
    assert told.low <= 300.1
    assert told.high >= 299.9
    assert 250 < told.likely < 350


def test_ranges_grow_wider_as_long_as_misses_go_on() -> None:
    track: Track[str] = Track()
    widths: list[float] = []
    for number in range(400):
        at, foreseen = 1e4 * number, 100.0 * 1.02**number  # each time it takes a fiftieth longer than ever before
        raw = Range(80.0, 100.0, 120.0)
        told = track.corrected(raw, now=at)
        widths.append(told.high)
        track.expect(str(number), raw, told, at=at)
        track.came(str(number), at + foreseen)
    of_wait = [width / (100.0 * 1.02**number) for number, width in enumerate(widths)]
    assert of_wait[100] > 0.9
    assert of_wait[200] > 0.5  # 0.09 by past errors alone


def test_an_estimate_that_is_late_counts_before_it_comes_true_and_not_twice() -> None:
    raw = Range(80.0, 100.0, 120.0)
    early, late = Track[str](), Track[str]()
    for track in (early, late):
        for number in range(30):
            track.expect(str(number), raw, raw, at=0.0)
    early.corrected(raw, now=110.0)
    late.corrected(raw, now=200.0)  # all thirty are late by now
    assert (early._high.wider, late._high.wider) == (0.0, pytest.approx(30 * 0.9 * WIDER_BY))
    for number in range(30):
        late.came(str(number), 300.0)
    assert late._high.wider == pytest.approx(30 * 0.9 * WIDER_BY)


def test_ranges_that_hold_become_a_little_narrower_than_they_were_and_never_more() -> None:
    track: Track[str] = Track()
    raw = Range(80.0, 100.0, 120.0)
    for number in range(10):
        track.expect(str(number), raw, raw, at=0.0)
        track.came(str(number), 10.0)
    assert track._low.wider > 0
    for number in range(200):
        track.expect(f"held-{number}", raw, raw, at=0.0)
        track.came(f"held-{number}", 100.0)
    assert track._low.wider == track._high.wider == -NARROWER_MAX
    told = track.corrected(Range(100.0, 100.0, 100.0), now=0.0)
    assert told.low <= told.likely <= told.high


def test_a_spread_that_ends_in_never_has_a_time_in_every_part() -> None:
    never = TimeSpread((60.0, inf, inf), Basis.LEARNT)
    assert [never.at(part) for part in (0.1, 0.5 / 3, 0.5, 0.9)] == [60.0, 60.0, inf, inf]
    assert TimeSpread((60.0, 90.0, inf, inf), Basis.LEARNT).at(1.5 / 4) == 90.0
