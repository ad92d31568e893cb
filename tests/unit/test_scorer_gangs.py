"""What the scorer believes of GPUs whose ranks wait for each other, or have several."""

from typing import Any

import pytest
from msgspec import structs
from msgspec.structs import replace

from tests.support.builders import job
from tests.support.fleet import Fleet, Rank, after
from tests.support.steps import placement
from weft.domain.job import JobState
from weftd.scorer.thinking.whereabouts import Whereabouts


def gangs(count: int, **fields: Any) -> Fleet:
    """`count` jobs of four ranks each, one on each node, as if all ranks waited for the slowest."""
    fleet = Fleet(nodes=count, gpus=4, **fields)
    for number in range(1, count + 1):
        fleet.run(f"gang-{number}", [(f"node-{number}", (gpu,)) for gpu in range(4)])
    return fleet


def in_step(fleet: Fleet) -> None:
    """All ranks of a job show the time of the slowest."""

    def told(rank: Rank) -> dict[str, Any]:
        slowest = max(
            (fleet.slow.get((one.node_id, gpu), 1.0) for one in _placed(rank) for gpu in one.gpus), default=1.0
        )
        return {"step_seconds": 0.25 * slowest * fleet.dice.lognormvariate(0.0, 0.005)}

    fleet.paces = told


def _placed(rank: Rank) -> tuple[Any, ...]:
    assert rank.job.placement is not None
    return rank.job.placement.allocations


def test_a_job_whose_ranks_wait_for_each_other_says_of_no_gpu_alone_that_it_is_slow() -> None:
    fleet = gangs(1)
    in_step(fleet)
    fleet.slow = {("node-1", 2): 1.4}
    watched = after(fleet, 600)
    assert {watched.score(place).source for place in fleet.places} == {"assumed"}


def test_against_other_jobs_it_tells_a_little_of_all_its_gpus() -> None:
    fleet = gangs(5)
    in_step(fleet)
    fleet.slow = {("node-1", 2): 1.4}
    watched = after(fleet, 120)
    assert all(watched.score(("node-1", gpu)).score < 1.1 for gpu in range(4))
    watched.run(900)
    assert all(watched.score(("node-1", gpu)).score == pytest.approx(1.4, abs=0.05) for gpu in range(4))
    assert watched.score(("node-1", 2)).confidence <= 0.5
    others = [place for place in fleet.places if place[0] != "node-1"]
    assert all(watched.score(place).score < 1.05 for place in others)


def test_of_gpus_of_which_none_alone_is_known_to_be_slow_none_is_put_into_quarantine() -> None:
    fleet = gangs(5)
    in_step(fleet)
    fleet.slow = {("node-1", 2): 1.7}
    watched = after(fleet, 20)

    def branded() -> bool:
        return any(watched.score(("node-1", gpu)).confidence > 0.5 for gpu in range(4))

    assert watched.run(1500, until=branded) is None
    assert all(watched.score(("node-1", gpu)).score > 1.6 for gpu in range(4))


def test_ranks_that_tell_what_they_compute_are_told_apart() -> None:
    fleet = gangs(1)
    fleet.paces = lambda rank: {"phases": {"t_compute": 0.2}}
    fleet.slow = {("node-1", 2): 1.4}
    watched = after(fleet)
    assert watched.score(("node-1", 2)).score == pytest.approx(1.4, abs=0.04)
    assert all(watched.score(("node-1", gpu)).score < 1.05 for gpu in (0, 1, 3))


def test_ranks_that_are_seen_to_go_on_by_themselves_are_told_apart_and_are_forgiven() -> None:
    fleet = gangs(1)
    fleet.slow = {("node-1", 2): 1.4}
    watched = after(fleet, 300)
    assert watched.score(("node-1", 2)).score == pytest.approx(1.4, abs=0.04)
    fleet.slow = {}
    watched.run(120)
    assert watched.score(("node-1", 2)).score < 1.1


def test_a_gang_whose_ranks_all_slow_down_for_a_moment_blames_nobody_and_one_that_stays_slow_is_known() -> None:
    fleet = gangs(3)
    fleet.paces = lambda rank: {"phases": {"t_compute": 0.2}}
    watched = after(fleet, 120)
    fleet.slow = {("node-1", gpu): 1.4 for gpu in range(4)}
    watched.run(40)
    assert all(watched.score(place).score < 1.1 for place in fleet.places)
    fleet.slow = {}
    watched.run(120)
    fleet.slow = {("node-1", gpu): 1.4 for gpu in range(4)}
    watched.run(240)
    assert all((watched.score(place).score > 1.3) == (place[0] == "node-1") for place in fleet.places)


def pairs() -> Fleet:
    """Jobs of one rank with two GPUs each."""
    fleet = Fleet(nodes=2, gpus=8)
    for number, (node_id, gpu) in enumerate(place for place in fleet.places if place[1] % 2 == 0):
        fleet.run(f"j-{number}", [(node_id, (gpu, gpu + 1))])
    return fleet


def test_a_rank_with_several_gpus_says_a_little_of_each() -> None:
    fleet = pairs()
    fleet.slow = {("node-1", 2): 1.4}
    watched = after(fleet, 900)
    assert {round(watched.score(("node-1", gpu)).score, 1) for gpu in (2, 3)} == {1.4}
    others = set(fleet.places) - {("node-1", 2), ("node-1", 3)}
    assert all(watched.score(place).score < 1.05 for place in others)


def test_where_clocks_differ_the_lowest_is_blamed_alone() -> None:
    fleet = pairs()
    fleet.slow = {("node-1", 2): 1.4}
    slow_uuid = fleet.nodes[0].capacity.gpus[2].uuid
    told_apart = replace(fleet.nodes[1].capacity)
    fleet.nodes[1] = replace(
        fleet.nodes[1],
        capacity=replace(told_apart, gpus=tuple(replace(gpu, uuid=f"{gpu.uuid}-b") for gpu in told_apart.gpus)),
    )
    fleet.sample = lambda gpu: {
        "emulated": False,
        "utilisation": 0.99,
        "sm_clock_mhz": 1300.0 if gpu.uuid == slow_uuid else 1800.0,
    }
    watched = after(fleet, 300)
    assert watched.score(("node-1", 2)).score == pytest.approx(1.4, abs=0.05)
    assert watched.score(("node-1", 3)).score < 1.1


def test_a_version_that_comes_again_with_other_ranks_leaves_none_of_the_earlier_ones() -> None:
    """As in a store that was restored."""
    where = Whereabouts()
    where.own(["node-1", "node-2"], 0.0)
    running = structs.replace(job("j-1"), state=JobState.RUNNING, version=7)
    key = ("j-1", 0)
    where.learn({key: structs.replace(running, placement=placement(("node-1", 0), ("node-2", 1)))}, 1.0)
    where.learn({key: structs.replace(running, placement=placement(("node-2", 2)))}, 2.0)
    assert [run.gpus for run in where.runs_here()] == [(2,)]
    assert where.learn({}, 3.0) == [key]
    assert not list(where.runs_here())
