"""What is undone, and what comes back, and when, where others have the room by then."""

import pytest
from msgspec import structs

from tests.support.trained import Kindred, Model, Pool, Trained
from weft.domain.job import CauseCode, Placement
from weft.messages.asks import RankTuning
from weft.tuning import tuner
from weft.tuning.proposal import Free, Proposal
from weft.tuning.state import Phase, Trial, begin


def total(job: Trained) -> float:
    return sum(one.cpus for one in job.held)


class Bursty(Model, frozen=True, kw_only=True):
    """Leaves most of its cores unused, and is slower without them."""

    def step_seconds(self, held: object) -> float:
        return 1.0 if min(one.cpus for one in held) >= 4.0 else 1.2  # type: ignore[attr-defined]


def test_a_reclaim_that_costs_speed_is_undone_once() -> None:
    job = Trained(Bursty(roles={"worker": Kindred(count=2, seconds=0.5, cpus=4.0)}))
    pool = Pool(job).run(900)
    assert pool.codes == [CauseCode.RECLAIMED, CauseCode.ROLLED_BACK]
    assert {one.cpus for one in job.held} == {4.0}


def test_a_rollback_that_was_refused_is_asked_for_again_for_the_same_reason() -> None:
    job = Trained(Bursty(roles={"worker": Kindred(count=2, seconds=0.5, cpus=4.0)}))
    pool = Pool(job)
    while not pool.tunes:
        pool.second()
    pool.refuses = True
    while len(pool.tunes) < 3:
        pool.second()
    first, again = (tune.cause.sentence for _, tune in pool.tunes[1:])
    assert "did not pay): speed" in first
    assert again == f"{first}; asked for again"


def reclaimed_among_others() -> tuple[Pool, Trained, Trained]:
    """A pool whose eight cores one job had, which is slower with what a reclaim left it, and another took the rest of.

    The first rollback has just been refused.
    """
    job = Trained(Bursty(roles={"worker": Kindred(count=2, seconds=0.5, cpus=4.0)}))
    pool = Pool(job, cpus=8.0)
    while not pool.tunes:
        pool.second()
    pool.refuses = True
    while len(pool.tunes) < 2:
        pool.second()
    pool.refuses = False
    rest = Kindred(count=1, seconds=0.5, cpus=8.0 - total(job))
    other = Trained(Model(roles={"worker": rest}), job_id="j-2", tuning={"mode": "off"})
    pool.jobs["j-2"] = other
    return pool, job, other


def shrink(job: Trained, cpus: float) -> None:
    (allocation,) = job.held
    job.job = structs.replace(job.job, placement=Placement(allocations=(structs.replace(allocation, cpus=cpus),)))


def test_of_a_rollback_for_which_others_have_the_room_is_done_what_fits_and_the_rest_when_it_does() -> None:
    pool, job, other = reclaimed_among_others()
    pool.run(25)
    assert len(pool.tunes) == 2, "nothing fits: nothing is asked for"
    shrink(other, 5.0)
    pool.run(20)
    assert pool.codes == [CauseCode.RECLAIMED, CauseCode.ROLLED_BACK, CauseCode.ROLLED_BACK]
    assert "as before, as far as capacity is free (each worker" in pool.tunes[-1][1].cause.sentence
    assert [one.cpus for one in job.held] == [pytest.approx(1.5, abs=0.01)] * 2
    assert total(job) + 5.0 <= 8.0
    del pool.jobs["j-2"]
    pool.run(20)
    assert [one.cpus for one in job.held] == [4.0, 4.0]
    assert pool.tunes[-1][1].cause.sentence.startswith("as before (each worker")
    assert pool.tunes[-1][1].cause.numbers == pool.tunes[1][1].cause.numbers
    pool.run(600)
    assert len(pool.tunes) == 4, "that was it"


def test_next_to_nothing_is_not_asked_for() -> None:
    pool, job, other = reclaimed_among_others()
    shrink(other, other.held[0].cpus - 0.1)
    pool.run(45)
    assert len(pool.tunes) == 2
    del pool.jobs["j-2"]
    pool.run(20)
    assert [one.cpus for one in job.held] == [4.0, 4.0]


def test_who_had_a_part_of_it_back_is_asked_to_give_no_more() -> None:
    pool, job, other = reclaimed_among_others()
    shrink(other, 5.0)
    pool.run(900)
    assert [one.cpus for one in job.held] == [pytest.approx(1.5, abs=0.01)] * 2
    assert pool.codes == [CauseCode.RECLAIMED, CauseCode.ROLLED_BACK, CauseCode.ROLLED_BACK]


def test_a_node_that_is_kept_for_another_gives_back_what_the_job_asked_for() -> None:
    """Half of the retries want no more than that."""
    pool, job, _ = reclaimed_among_others()
    del pool.jobs["j-2"]
    roles = {name: structs.replace(role, cpus=3.0) for name, role in job.job.spec.roles.items()}
    job.job = structs.replace(job.job, spec=structs.replace(job.job.spec, roles=roles))
    pool.refuses = True
    pool.run(45)
    asked = [sum(limit.cpus or 0.0 for limit in tune.ranks) for _, tune in pool.tunes[1:]]
    assert asked == [8.0, 6.0, 8.0]


def test_a_split_comes_back_whole_or_not_at_all() -> None:
    """On two nodes, of one of which others have the room: else it would give its cores there, and get none here."""
    two = Trained(Model(roles={"worker": Kindred(count=2, seconds=0.5, cpus=2.0)}))
    before = (RankTuning(rank=0, cpus=4.0), RankTuning(rank=1, cpus=2.0))
    after = (RankTuning(rank=0, cpus=2.0), RankTuning(rank=1, cpus=4.0))
    held = tuple(
        structs.replace(one, node_id=f"node-{one.rank}", cpus=limit.cpus)
        for one, limit in zip(two.held, after, strict=True)
    )
    job = structs.replace(two.job, placement=Placement(allocations=held))
    split = Proposal(
        direction="cpus:split",
        code=CauseCode.REBALANCED,
        before=before,
        after=after,
        gain=0.1,
        cost=0.0,
        sentence="shared anew",
    )
    trial = Trial(proposal=split, speed=1.0, asked_at=0.0, cpus=6.0, rollbacks=1, why="slower")
    state = structs.replace(begin(1, 0.0), phase=Phase.ROLLING_BACK, trial=trial)
    free = {"node-0": Free(cpus=0.0, memory=0), "node-1": Free(cpus=0.0, memory=0)}
    asked = []
    for at in range(30, 150, 30):
        moved = tuner.advance(state, job, None, now=float(at), free=free)
        state = moved.state
        asked.append(moved.tune and moved.tune.ranks)
    assert asked == [before] * 4
    state = tuner.advance(state, job, None, now=150.0, free=free).state
    assert (state.phase, state.failed) == (Phase.SETTLING, {}), "given up, and open as before"
