"""Jobs that start with fewer replicas than they want: found, reserved for, counted and shown at the size they have."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.builders import GIB, capacity, node, spec
from tests.support.scheduler import World, world
from tests.support.tier import examples
from weft.domain.cluster import Request
from weft.domain.job import JobState
from weft.messages.asks import AskKind
from weft.messages.http import JobView
from weft.planning import order
from weft.planning.capacity import FreeCapacity
from weft.planning.finding import find
from weft.planning.jobs import standing_of
from weft.planning.order import LAS, SRTF
from weft.planning.policy import PLACEMENTS, Policy
from weft.planning.reasons.refusals import never_fits, why_not
from weft.planning.resource_request import ResourceRequest, RoleRequest, resource_request_of
from weftd.gateway.readmodel.cluster import LiveCluster
from weftd.gateway.readmodel.views import job_view
from weftd.scheduler.thinking.core_settings import Settings

S = JobState


def elastic(least: int, want: int, **fields: object) -> dict[str, object]:
    """The part of a specification that says so."""
    return {"role": {"replicas": {"min": least, "want": want}}, **fields}


def room_of(*cpus: float, gpus: int = 0, placement: str = "packed-sticky") -> FreeCapacity:
    free_capacity = FreeCapacity(placer=Policy(placement=placement).placing.placer)
    for number, count in enumerate(cpus, 1):
        free_capacity.add(replace(node(f"n{number}"), capacity=replace(capacity(gpus=gpus), cpus=count)))
    return free_capacity


def counts(found: object) -> dict[str, int]:
    assert isinstance(found, tuple), found
    return {role: sum(one.role == role for one in found) for role in {one.role for one in found}}


# a place for fewer replicas


def test_a_role_takes_no_more_replicas_than_leave_room_for_the_roles_behind_it() -> None:
    made = spec(
        roles={
            "worker": {"replicas": {"min": 1, "want": 8}, "cpus": 1, "gpus": 0},
            "ps": {"replicas": {"want": 1}, "cpus": 1, "gpus": 0},
        }
    )
    there = replace(node(), capacity=replace(capacity(gpus=0), cpus=8.0))
    assert never_fits(made, [there]) is None
    assert counts(find(room_of(8.0), resource_request_of(made))) == {"worker": 7, "ps": 1}


def test_roles_that_may_both_be_smaller_are_made_smaller_together_and_then_filled_up() -> None:
    one = Request(gpus=0, cpus=1.0, memory=GIB)
    resource_request = (RoleRequest("worker", 2, 10, one), RoleRequest("ps", 1, 5, one))
    assert counts(find(room_of(8.0), resource_request)) == {"worker": 6, "ps": 2}
    assert counts(find(room_of(3.0), resource_request)) == {"worker": 2, "ps": 1}
    assert why_not(room_of(2.0), resource_request)


def test_why_there_is_no_place_is_told_of_the_room_that_the_roles_before_leave() -> None:
    resource_request = (
        RoleRequest("worker", 6, 8, Request(gpus=0, cpus=1.0, memory=GIB)),
        RoleRequest("ps", 1, 1, Request(gpus=0, cpus=4.0, memory=GIB)),
    )
    free_capacity = room_of(8.0)
    found = why_not(free_capacity, resource_request)
    assert found is not None
    assert "2 CPUs" in found.sentence
    assert free_capacity.nodes["n1"].cpus == 8.0


Shapes = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 6), st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=3
)


@settings(max_examples=examples(150), deadline=None)
@given(
    asked=Shapes,
    there=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    placement=st.sampled_from([name for name in PLACEMENTS if name != "random"]),
)
def test_a_gang_gets_a_place_exactly_when_its_least_has_one_and_never_less_or_more_than_asked(
    asked: list[tuple[int, int, int, int]], there: list[int], placement: str
) -> None:
    resource_request: ResourceRequest = tuple(
        RoleRequest(f"r{at}", least, least + more, Request(gpus=gpus, cpus=float(cpus), memory=GIB))
        for at, (least, more, gpus, cpus) in enumerate(asked)
    )
    free_capacity = room_of(*map(float, there), gpus=4, placement=placement)
    least = tuple(replace(want, count=want.least) for want in resource_request)
    found = find(free_capacity, resource_request)
    assert (found is not None) == (find(free_capacity, least) is not None)
    assert [node.cpus for node in free_capacity.nodes.values()] == [float(cpus) for cpus in there]
    if found is None:
        assert why_not(free_capacity, resource_request)
        return
    assert [one.rank for one in found] == list(range(len(found)))
    for want in resource_request:
        assert want.least <= counts(found)[want.role] <= want.count
    for of_node, cpus in zip(free_capacity.nodes, there, strict=True):
        here = [one for one in found if one.node_id == of_node]
        assert sum(one.cpus for one in here) <= cpus
        assert len({gpu for one in here for gpu in one.gpus}) == sum(len(one.gpus) for one in here) <= 4


# whom it waits for, and who waits for it


def ready(w: World, job_id: str, status: int = 0) -> None:
    job = w.core.cluster_state.jobs[job_id]
    assert job.placement is not None
    for allocation in job.placement.allocations:
        w.nodes[allocation.node_id].end((job_id, job.epoch, allocation.rank), status)
    w.round()


def test_backfill_reserves_what_starts_a_job_and_not_all_that_it_wants() -> None:
    w = world(gpus=8, settings=Settings(policy=Policy(order="fifo")))
    w.submit("j-long", gpus=6, spec={"time_limit": "1h"})
    w.submit("j-soon", gpus=1, spec={"time_limit": "100s"})
    w.round()
    w.submit("j-elastic", gpus=1, spec=elastic(2, 8))
    w.submit("j-behind", gpus=1, spec={"time_limit": "500s"})
    w.round()
    # j-elastic starts in 100 s with 2 GPUs, and j-behind, which has fitted all the while, would take one of them.
    assert (w.state("j-elastic"), w.state("j-behind")) == (S.QUEUED, S.QUEUED)
    ready(w, "j-soon")
    assert w.state("j-elastic") is S.RUNNING
    assert w.core.cluster_state.jobs["j-elastic"].granted == {"worker": 2}


def test_a_job_that_overtakes_takes_no_more_than_delays_nobody_ahead_of_it() -> None:
    w = world(gpus=8, settings=Settings(policy=Policy(order="fifo")))
    w.submit("j-first", gpus=4, spec={"time_limit": "1h"})
    w.round()
    w.submit("j-ahead", gpus=7)  # in an hour; one GPU is spare then
    w.submit("j-elastic", gpus=1, spec=elastic(1, 4))
    w.round()
    assert (w.state("j-ahead"), w.state("j-elastic")) == (S.QUEUED, S.RUNNING)
    assert w.core.cluster_state.jobs["j-elastic"].granted == {"worker": 1}


# how much it has had, and how it is seen


def test_las_counts_the_gpus_that_a_job_held_and_not_those_that_it_wants() -> None:
    w = world(gpus=4)
    w.submit("j-rest", gpus=3)
    w.round()
    w.submit("j-elastic", gpus=1, spec=elastic(1, 8))
    w.round()
    w.tick(3000)  # 50 minutes
    w.ask(AskKind.REQUEUE, "j-elastic")
    w.nodes["node-1"].end(("j-elastic", 0, 0), 143)
    w.sync("node-1")
    job = w.stored["j-elastic"]
    assert job.epoch == 1
    assert 2990 < job.attained_gpu_seconds == job.attained_seconds < 3100
    waiting = standing_of(replace(job, state=S.QUEUED, placement=None), w.now, LAS)
    assert (
        order.las_level(waiting) == 1
    )  # 50 minutes of one GPU are in the second level; of eight they would be in the third


def test_a_job_of_the_api_has_the_size_that_it_was_granted() -> None:
    w = world(gpus=4)
    w.submit("j-rest", gpus=3)
    w.round()
    w.submit("j-elastic", gpus=1, spec=elastic(1, 8))
    assert (view(w).gpus, view(w).replicas) == (8, 8)  # while it waits, all that it wants
    w.round()
    assert (view(w).gpus, view(w).replicas) == (1, 1)


def view(w: World) -> JobView:
    return job_view(w.stored["j-elastic"], LiveCluster(clock=lambda: w.now))


def test_a_time_limit_is_the_limit_of_a_try_in_the_order_too() -> None:
    w = world(gpus=1, settings=None)
    w.submit("j-1", gpus=1, spec={"time_limit": "1h"})
    w.round()
    w.tick(3000)
    running = standing_of(w.core.cluster_state.jobs["j-1"], w.now, SRTF)
    assert running.left_s is not None
    assert running.left_s < 610
    waiting = replace(w.core.cluster_state.jobs["j-1"], state=S.QUEUED, placement=None, attained_seconds=3000.0)
    assert standing_of(waiting, w.now, SRTF).left_s == 3600.0
