"""Runs with shares of GPUs: the GPU's own time for a step says how fast it is, if nobody else used it meanwhile."""

import pytest
from msgspec.structs import replace

from tests.support.fleet import Fleet, Watched, after, share_all, use
from weft.domain.job import JobState, Placement
from weft.domain.shares import Share
from weft.planning.scores import GpuKey

SLOW: GpuKey = ("node-1", 1)


def fleet_of_shares(*, gpus: int = 4) -> Fleet:
    fleet = Fleet(gpus=gpus)
    fleet.run_one_each()
    share_all(fleet)
    use(fleet, {})
    return fleet


def scores(watched: Watched) -> dict[GpuKey, float]:
    return {place: watched.score(place).score for place in watched.fleet.places}


def test_a_gpu_that_needs_more_of_its_own_time_for_a_step_is_slow_and_that_is_believed_by_half_at_most() -> None:
    fleet = fleet_of_shares()
    fleet.slow[SLOW] = 1.3
    watched = after(fleet)
    score = watched.score(SLOW)
    assert score.score == pytest.approx(1.3, abs=0.06)
    assert 0.2 <= score.confidence <= 0.5
    assert score.source == "shares"
    assert score.quarantined_until is None
    assert all(watched.score(place).score == pytest.approx(1.0, abs=0.05) for place in fleet.places if place != SLOW)


def test_a_run_that_gets_less_of_its_gpu_does_not_make_the_gpu_slow() -> None:
    fleet = fleet_of_shares()
    fleet.slow[SLOW] = 2.5  # its steps take so much longer, since it gets so much less
    use(fleet, {f"j-{SLOW[0]}-{SLOW[1]}": 0.2})
    assert all(score == pytest.approx(1.0, abs=0.05) for score in scores(after(fleet)).values())


@pytest.mark.parametrize(("used", "outcome"), [(0.3, "beside"), (None, "shared"), (0.01, "fit")])
def test_a_gpu_is_judged_only_while_others_on_it_are_known_to_be_idle(used: float | None, outcome: str) -> None:
    fleet = fleet_of_shares()
    fleet.run("j-other", [(SLOW[0], (SLOW[1],))], labels={"weft/workload": "other"})
    share_all(fleet)
    fleet.slow[SLOW] = 1.3
    use(fleet, {"j-other": used})
    watched = after(fleet)
    score = watched.score(SLOW)
    assert watched.scorer.outcomes[outcome] > 0
    assert (score.score > 1.2) == (outcome == "fit")
    assert all(watched.score(place).samples > 0 for place in fleet.places if place != SLOW)


def test_a_stray_run_on_the_gpu_is_heeded() -> None:
    fleet = fleet_of_shares()
    fleet.run("j-stray", [(SLOW[0], (SLOW[1],))], labels={"weft/workload": "other"})
    share_all(fleet)
    use(fleet, {"j-stray": 0.3})
    fleet.sample = lambda gpu: {"processes": ()}
    stray = fleet.ranks[-1]
    stray.job = replace(stray.job, state=JobState.STOPPING)
    watched = after(fleet)
    assert watched.scorer.outcomes["beside"] > 0
    assert watched.score(SLOW).samples == 0


def test_a_process_that_the_arbiter_does_not_know_makes_a_window_unfit() -> None:
    fleet = fleet_of_shares()
    fleet.foreign.add(SLOW)
    watched = after(fleet)
    assert watched.scorer.outcomes["shared"] > 0
    assert watched.score(SLOW).samples == 0


def test_ranks_that_wait_for_each_other_on_their_gpus_say_nothing() -> None:
    fleet = Fleet(gpus=4)
    fleet.run("j-1", [("node-1", (gpu,)) for gpu in range(4)])
    share_all(fleet)
    use(fleet, {})
    watched = after(fleet)
    assert watched.scorer.outcomes["fit"] == 0
    assert watched.scorer.outcomes["shared"] > 0


def test_a_run_that_hardly_uses_its_gpu_and_one_without_an_arbiter_say_nothing() -> None:
    for usual in (0.01, None):
        fleet = fleet_of_shares()
        use(fleet, {}, usual=usual)
        watched = after(fleet)
        assert watched.scorer.outcomes["fit"] == 0


def test_shared_runs_are_never_compared_with_those_on_whole_gpus() -> None:
    fleet = Fleet(gpus=8)
    fleet.run_one_each()
    for rank in fleet.ranks[:4]:
        rank.allocation = replace(rank.allocation, share=Share(request=500, memory=1 << 30))
        rank.job = replace(rank.job, placement=Placement(allocations=(rank.allocation,)))
    held = {rank.job.id for rank in fleet.ranks[:4]}
    use(fleet, {})
    told = fleet.shape
    fleet.shape = lambda rank, run: told(rank, run) if rank.job.id in held else run
    assert all(score == pytest.approx(1.0, abs=0.05) for score in scores(after(fleet)).values())
