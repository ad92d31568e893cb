"""The walk over the waiting jobs: what it decides of each, in order, and when it ends."""

from collections.abc import Collection, Mapping

import pytest
from msgspec import structs

from weft.domain.cluster import Request
from weft.domain.job import Allocation
from weft.planning.backfill import Ending
from weft.planning.finding import Place
from weft.planning.order import FIFO, Standing
from weft.planning.policy import Policy
from weft.planning.queue import Queue
from weft.planning.resource_request import ResourceRequest, RoleRequest, gpus_least, gpus_of
from weft.planning.scheduling_pass import Demand, SchedulingPass, Starts, Waits

HOUR = 3600.0


def demand(least: int, most: int = 0, *, lasts_s: float | None = None, pinned: bool = False) -> Demand:
    request = Request(gpus=1, cpus=1.0, memory=1)
    return Demand((RoleRequest("worker", least, most or least, request),), least, lasts_s, pinned=pinned)


class Free:
    """A number of free GPUs, and a queue of jobs in the order of the mapping. Each is a group of its own, unless it is
    in `group`."""

    def __init__(
        self,
        gpus: int,
        jobs: Mapping[str, Demand | None],
        *,
        backfill: str,
        ends_s: float | None,
        group: Collection[str] = (),
    ) -> None:
        self.gpus = gpus
        self.jobs = jobs
        self.impossible = 1000  # what would not fit in an empty pool
        self.queue = Queue(FIFO)
        for seq, job_id in enumerate(jobs):
            self.queue.add(
                Standing(id=job_id, seq=seq, gpus=1, priority=0, tenant="t"), "group" if job_id in group else job_id
            )
        policy = Policy("fifo", "packed", backfill)
        endings = [] if ends_s is None else [Ending(ends_s, 8)]
        self.scheduling_pass = SchedulingPass(
            self.queue.served(),
            backfill=backfill,
            demand=jobs.__getitem__,
            find=self.find,
            fits_empty=lambda resource_request: gpus_least(resource_request) < self.impossible,
            filling=lambda: policy.filling(now=0.0, free=self.gpus, endings=lambda: endings),
        )

    def find(self, _: str, resource_request: ResourceRequest) -> Place | None:
        if gpus_of(resource_request) > self.gpus:
            return None
        return (
            Allocation(
                rank=0, role="worker", node_id="n", gpus=tuple(range(gpus_of(resource_request))), cpus=1, memory=1
            ),
        )

    def decided(self) -> list[str]:
        """`a 4`: the job starts with so many GPUs; `b`: it waits; `c < b`: it waits behind one that it would delay."""
        found: list[str] = []
        for decision in self.scheduling_pass:
            match decision:
                case Starts(job_id, place):
                    self.gpus -= len(place[0].gpus)
                    self.queue.remove(job_id)
                    found.append(f"{job_id} {len(place[0].gpus)}")
                case Waits(job_id, its_turn, ahead, in_the_way):
                    nobody = "" if in_the_way else " (in nobody's way)"
                    found.append((job_id if its_turn else f"{job_id} < {ahead}") + nobody)
        return found


def decided(
    gpus: int, jobs: Mapping[str, Demand | None], *, backfill: str = "easy", ends_s: float | None = HOUR
) -> list[str]:
    return Free(gpus, jobs, backfill=backfill, ends_s=ends_s).decided()


def test_jobs_start_in_order_as_long_as_they_fit() -> None:
    assert decided(8, {"a": demand(4), "b": demand(3), "c": demand(1)}) == ["a 4", "b 3", "c 1"]


def test_without_backfill_the_first_that_does_not_fit_is_the_last_that_is_looked_at() -> None:
    one = Free(4, {"a": demand(8), "b": demand(1)}, backfill="none", ends_s=HOUR)
    assert one.decided() == ["a"]
    assert (one.scheduling_pass.over, one.scheduling_pass.ahead) == (True, "a")


@pytest.mark.parametrize("backfill", ["easy", "conservative"])
def test_a_job_overtakes_where_it_delays_nobody_ahead(backfill: str) -> None:
    jobs = {"a": demand(8), "long": demand(5, lasts_s=2 * HOUR), "short": demand(4, lasts_s=HOUR / 2)}
    assert decided(4, jobs, backfill=backfill) == ["a", "long < a", "short 4"]
    assert decided(4, {"a": demand(11), "few": demand(1), "more": demand(1)}, backfill=backfill)[:2] == ["a", "few 1"]


def test_a_job_takes_as_many_replicas_as_delay_nobody_ahead() -> None:
    assert decided(4, {"a": demand(11), "b": demand(1, 4)}) == ["a", "b 1"]
    assert decided(4, {"b": demand(1, 4), "a": demand(11)}) == ["b 4", "a"]


def test_a_job_that_would_not_fit_in_an_empty_pool_or_is_pinned_holds_nobody_back() -> None:
    assert decided(4, {"a": demand(1000), "b": demand(4)}) == ["a (in nobody's way)", "b 4"]
    assert decided(4, {"a": demand(8, pinned=True), "b": demand(4)}) == ["a", "b 4"]
    assert decided(4, {"a": demand(8, pinned=True), "b": demand(4)}, backfill="none") == ["a"]


def test_a_pinned_job_makes_no_reservation_that_holds_others_back() -> None:
    assert decided(4, {"a": demand(12, pinned=True), "b": demand(4)}) == ["a", "b 4"]
    assert decided(4, {"a": demand(12), "b": demand(4)}) == ["a", "b < a"], "nothing is spare once it starts"


def test_those_that_overtake_take_from_what_the_reservation_leaves() -> None:
    assert decided(4, {"a": demand(11), "few": demand(1), "more": demand(1)}) == ["a", "few 1", "more < a"]


def test_a_job_that_quotas_hold_back_holds_its_group_back_and_no_other() -> None:
    jobs = {"a": structs.replace(demand(1), held=True), "b": demand(1), "other": demand(4)}
    one = Free(4, jobs, backfill="none", ends_s=None, group=("a", "b"))
    assert one.decided() == ["other 4"]
    assert one.scheduling_pass.ahead == ""


def test_a_job_that_is_not_to_be_placed_now_is_passed() -> None:
    assert decided(4, {"moves": None, "b": demand(4)}, backfill="none") == ["b 4"]


def test_no_place_is_looked_for_where_there_is_none() -> None:
    one = Free(4, {"a": structs.replace(demand(2), may_fit=False)}, backfill="easy", ends_s=None)
    assert one.decided() == ["a"]


def test_nobody_is_held_back_for_a_job_of_which_nobody_knows_when_it_will_fit() -> None:
    assert decided(4, {"a": demand(8), "b": demand(1)}, ends_s=None) == ["a", "b 1"]


def test_it_stops_after_the_decision_at_which_it_is_told_to() -> None:
    one = Free(8, {"a": demand(1), "b": demand(1)}, backfill="easy", ends_s=None)
    found = []
    for decision in one.scheduling_pass:
        found.append(decision.job_id)
        one.queue.remove(decision.job_id)
        one.scheduling_pass.stop()
    assert (found, one.scheduling_pass.over) == (["a"], False)
