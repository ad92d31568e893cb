"""The rules of the tuner, each by itself: what is kept, what counts as steady, what a node and an envelope allow."""

from collections.abc import Mapping

import pytest
from msgspec import structs

from tests.support.builders import GIB, job
from weft.domain.job import Allocation, CauseCode, Job, JobState, Placement
from weft.messages.asks import RankTuning
from weft.tuning.cause import Stood
from weft.tuning.cpus import more, split
from weft.tuning.envelope import bounds_of
from weft.tuning.limits import may_shrink_to, more_memory
from weft.tuning.proposal import Case, Free, Proposal
from weft.tuning.state import Measure, Phase, Trial, TunerState, is_kept, is_stable
from weft.tuning.tuner import advance
from weft.tuning.verdict import Reading, Verdict
from weft.tuning.window import JobWindow, Window

MIB = 1 << 20
ASKED = Proposal(
    direction="cpus:up:worker",
    code=CauseCode.UPSCALED,
    before=(RankTuning(rank=0, cpus=1.0),),
    after=(RankTuning(rank=0, cpus=2.0),),
    gain=0.1,
    cost=0.0,
    sentence="each worker 1.00 → 2.00 cores",
)


def rank(number: int, role: str = "worker", *, node_id: str = "node-1", cpus: float = 1.0) -> Allocation:
    return Allocation(rank=number, role=role, node_id=node_id, cpus=cpus, memory=GIB)


def running(*ranks: Allocation) -> Job:
    roles = {
        name: {"replicas": {"want": sum(one.role == name for one in ranks)}, "cpus": 1.0, "memory": "1GiB"}
        for name in dict.fromkeys(one.role for one in ranks)
    }
    made = job(spec={"roles": roles})
    return structs.replace(made, state=JobState.RUNNING, started_at=0.0, placement=Placement(allocations=ranks))


def case(ranks: list[Allocation], windows: list[Window], free: Mapping[str, Free], code: Verdict) -> Case:
    made = running(*ranks)
    stood = Stood(reading=Reading(code=code, sentence=""), rank=0, role="worker", times=3, since=0.0)
    recent = [JobWindow(job_id=made.id, epoch=0, began=0.0, ended=10.0, ranks=tuple(windows))]
    return Case(job=made, stood=stood, recent=recent, free=free, bounds=bounds_of(made, growth=4.0))


# a trial


def test_a_change_is_kept_if_it_gains_and_is_worth_what_it_costs() -> None:
    assert is_kept(ASKED, 0.05)
    assert not is_kept(ASKED, 0.02), "that may be noise"
    dear = structs.replace(ASKED, cost=0.5)
    assert not is_kept(dear, 0.05), "half as much again for a twentieth"
    assert is_kept(dear, 0.2)


def test_windows_in_which_other_ranks_report_are_not_compared() -> None:
    one = Measure(speed=10.0, cpus=2.0, told=2)
    assert is_stable([one, one])
    assert not is_stable([one, structs.replace(one, told=3)])
    assert not is_stable([one])


@pytest.mark.parametrize(("in_force", "counts"), [(1.0, 0), (2.0, 1), (None, 1)])
def test_a_window_counts_for_a_trial_once_the_node_applies_the_limits(in_force: float | None, counts: int) -> None:
    trial = Trial(proposal=ASKED, speed=10.0, asked_at=0.0, cpus=4.0)
    state = TunerState(epoch=0, phase=Phase.VERIFYING, skip=0, trial=trial)
    seen = Window(rank=0, role="worker", cpus_limit=in_force, cpus_used=1.0, speed=10.0)
    window = JobWindow(job_id="j-1", epoch=0, began=0.0, ended=10.0, ranks=(seen,))
    moved = advance(state, running(rank(0, cpus=2.0)), window, now=10.0, free={})
    assert moved.state.phase is Phase.VERIFYING
    assert len(moved.state.measures) == counts


# memory


def test_a_rank_shrinks_only_to_what_it_survives_with() -> None:
    used = Window(rank=0, role="worker", memory_used=900 * MIB)
    assert may_shrink_to(used, GIB)
    assert not may_shrink_to(used, 950 * MIB), "it would be killed"
    assert may_shrink_to(None, 1)


def test_ranks_get_no_more_memory_than_their_node_has() -> None:
    ranks = [rank(0), rank(1), rank(2, node_id="node-2")]
    windows = [
        Window(rank=number, role="worker", memory_limit=GIB, memory_used=GIB, oom_kills=1) for number in range(3)
    ]
    free = {"node-1": Free(cpus=0.0, memory=100 * MIB), "node-2": Free(cpus=0.0, memory=GIB)}
    proposal = more_memory(case(ranks, windows, free, Verdict.MEMORY_BOUND))
    assert proposal is not None
    given = {one.rank: (one.memory or 0) - GIB for one in proposal.after}
    assert given == {0: 100 * MIB, 2: 307 * MIB}


def test_a_trial_is_not_undone_where_a_rank_would_be_killed() -> None:
    """It was given a second GiB of memory and uses it: the change stays, whatever the speed is."""
    grown = structs.replace(
        ASKED, before=(RankTuning(rank=0, memory=GIB),), after=(RankTuning(rank=0, memory=2 * GIB),), cost=1.0
    )
    trial = Trial(proposal=grown, speed=10.0, asked_at=0.0, cpus=4.0)
    measures = (Measure(speed=10.0, cpus=1.0, told=1),)
    state = TunerState(epoch=0, phase=Phase.VERIFYING, skip=0, trial=trial, measures=measures)
    made = running(structs.replace(rank(0), memory=2 * GIB))
    for used, phase in ((GIB // 2, Phase.ROLLING_BACK), (3 * GIB // 2, Phase.SETTLING)):
        seen = Window(rank=0, role="worker", cpus_used=1.0, memory_used=used, memory_limit=2 * GIB, speed=10.0)
        window = JobWindow(job_id="j-1", epoch=0, began=0.0, ended=10.0, ranks=(seen,))
        moved = advance(state, made, window, now=10.0, free={})
        assert (moved.state.phase, moved.tune is None) == (phase, phase is Phase.SETTLING)


# cores


def test_ranks_get_no_more_cores_than_their_own_node_has() -> None:
    ranks = [rank(0), rank(1, node_id="node-2")]
    windows = [
        Window(rank=number, role="worker", cpus_used=1.0, cpus_p95=1.0, cpu_throttled=0.9, busiest_thread=0.13)
        for number in range(2)
    ]
    free = {"node-1": Free(cpus=0.0, memory=0), "node-2": Free(cpus=1.0, memory=0)}
    proposal = more(case(ranks, windows, free, Verdict.CPU_QUOTA_BOUND))
    assert proposal is not None
    assert [one.rank for one in proposal.after] == [1]
    assert 1.0 < (proposal.after[0].cpus or 0.0) <= 2.0


def test_a_split_gives_a_job_no_more_cores_in_all_though_small_changes_of_ranks_are_left_out() -> None:
    ranks = [rank(0), *(rank(number, "ps") for number in range(1, 9))]
    starved = Window(rank=0, role="worker", cpus_used=1.0, cpus_p95=1.0, cpu_throttled=0.95, busiest_thread=0.13)
    spare = [
        Window(rank=number, role="ps", cpus_used=0.82, cpus_p95=0.8208, cpu_throttled=0.0) for number in range(1, 9)
    ]
    free = {"node-1": Free(cpus=8.0, memory=0)}
    proposal = split(case(ranks, [starved, *spare], free, Verdict.CPU_QUOTA_BOUND))
    before = {one.rank: one.cpus for one in ranks}
    after = before | {one.rank: one.cpus or 0.0 for one in (proposal.after if proposal is not None else ())}
    assert sum(after.values()) <= sum(before.values()) + 1e-9
