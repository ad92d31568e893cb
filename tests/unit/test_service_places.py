"""Where replicas of a service go: apart from each other, beside no training, on fast GPUs only if they need them."""

import time
from collections import Counter

from tests.support.builders import GIB, job, node
from weft.domain.cluster import Request
from weft.domain.job import Allocation
from weft.domain.shares import Share
from weft.planning.capacity import FreeCapacity
from weft.planning.finding import find
from weft.planning.jobs import WITH_OBJECTIVE, WITH_SLACK, asked_by
from weft.planning.locality import Locality
from weft.planning.placement.weft_best import weft_best
from weft.planning.reasons.why import why_there
from weft.planning.resizing import grow
from weft.planning.resource_request import PlacementRequest, RoleRequest, resource_request_of
from weft.planning.scores import Scores

ASKED = PlacementRequest("compute", "j-1", tolerates=WITH_OBJECTIVE)
SLOW = {"compute": {("n1", 0): 1.0, ("n1", 1): 1.2, ("n1", 2): 0.9, ("n1", 3): 1.8}}


def room_of(*gpus: int, scores: dict[str, dict[tuple[str, int], float]] | None = None) -> FreeCapacity:
    free_capacity = FreeCapacity(Scores(scores or {}), placer=weft_best, locality=Locality(across_nodes=1.7))
    for number, count in enumerate(gpus, 1):
        free_capacity.add(node(f"n{number}", gpus=count))
    return free_capacity


def whole(count: int = 1, *, gpus: int = 1, least: int | None = None, cpus: float = 1.0) -> RoleRequest:
    return RoleRequest("worker", count if least is None else least, count, Request(gpus=gpus, cpus=cpus, memory=GIB))


def part(count: int = 1, request: int = 250) -> RoleRequest:
    share = Share(request=request, memory=GIB, kind="inference")
    return RoleRequest("worker", count, count, Request(gpus=0, cpus=1.0, memory=GIB, share=share))


def takes(free_capacity: FreeCapacity, node_id: str, gpu: int, kind: str, request: int = 300) -> None:
    share = Share(request=request, memory=GIB, kind=kind)
    free_capacity.take(Allocation(rank=0, role="w", node_id=node_id, gpus=(gpu,), cpus=1.0, memory=GIB, share=share))


def where(
    free_capacity: FreeCapacity, want: RoleRequest, asked: PlacementRequest = ASKED
) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.node_id, one.gpus) for one in find(free_capacity, (want,), asked) or ()]


def nodes(free_capacity: FreeCapacity, want: RoleRequest, asked: PlacementRequest = ASKED) -> Counter[str]:
    return Counter(node_id for node_id, _ in where(free_capacity, want, asked))


def test_replicas_go_to_different_nodes_as_long_as_there_are_any_and_then_evenly() -> None:
    assert nodes(room_of(4, 4, 4), whole(3)) == {"n1": 1, "n2": 1, "n3": 1}
    assert nodes(room_of(4, 4, 4), whole(6)) == {"n1": 2, "n2": 2, "n3": 2}
    assert nodes(room_of(8, 1), whole(4)) == {"n1": 3, "n2": 1}
    assert nodes(room_of(4, 4, 4), whole(3), PlacementRequest("compute", "j-1")) == {"n1": 3}, "training stays together"
    assert nodes(room_of(4, 4, 4), whole(3, gpus=0)) == {"n1": 1, "n2": 1, "n3": 1}


def test_a_replica_that_joins_goes_where_none_is() -> None:
    free_capacity, held = (
        room_of(4, 4, 4),
        [Allocation(rank=0, role="worker", node_id="n1", gpus=(0,), cpus=1.0, memory=GIB)],
    )
    free_capacity.take_all(held)
    more = grow(free_capacity, held, whole(), 2, first_rank=1, asked=ASKED)
    assert sorted(one.node_id for one in more or ()) == ["n2", "n3"]
    assert [one.rank for one in more or ()] == [1, 2]


def test_as_many_replicas_start_as_fit_and_none_is_given_what_another_has() -> None:
    free_capacity = room_of(2, 1)
    found = where(free_capacity, whole(5, least=1))
    assert sorted(found) == [("n1", (0,)), ("n1", (1,)), ("n2", (0,))]
    assert where(free_capacity, whole(4)) == []
    assert where(room_of(3, 2), whole(3, gpus=2, least=1)) == [("n2", (0, 1)), ("n1", (0, 1))]


def test_the_room_is_as_before_and_closed_nodes_stay_closed() -> None:
    free_capacity = room_of(4, 4)
    free_capacity.close(["n2"])
    free = free_capacity.gpus_free
    assert nodes(free_capacity, whole(3)) == {"n1": 3}
    assert (free_capacity.gpus_free, free_capacity.is_open("n1"), free_capacity.is_open("n2")) == (free, True, False)


def test_a_service_with_slack_is_served_by_slow_gpus_and_one_with_an_objective_by_those_fast_enough() -> None:
    slack = PlacementRequest("compute", "j-1", tolerates=WITH_SLACK)
    assert where(room_of(4, scores=SLOW), whole(), slack) == [("n1", (1,))], "as slow as it may be, and no slower"
    assert where(room_of(4, scores=SLOW), whole()) == [("n1", (0,))], "fast enough; the fastest is left to others"
    free_capacity = room_of(4, scores=SLOW)
    free_capacity.take(Allocation(rank=0, role="w", node_id="n1", gpus=(0, 1), cpus=1.0, memory=GIB))
    assert where(free_capacity, whole()) == [("n1", (2,))], "no other is fast enough"
    free_capacity.take(Allocation(rank=0, role="w", node_id="n1", gpus=(2,), cpus=1.0, memory=GIB))
    assert where(free_capacity, whole()) == [("n1", (3,))], "better than none"


def test_what_a_service_tolerates_depends_on_its_objective() -> None:
    spec = {"kind": "inference", "service": {}}
    assert asked_by(job(spec=spec)).tolerates == WITH_SLACK
    objective = {"latency": "100ms", "rate": 5}
    assert asked_by(job(spec={**spec, "objective": objective})).tolerates == WITH_OBJECTIVE
    assert asked_by(job(spec={"kind": "inference"})).tolerates is None
    assert asked_by(job()).tolerates is None


def test_shares_of_a_service_go_beside_notebooks_then_alone_and_beside_training_last() -> None:
    free_capacity = room_of(3)
    takes(free_capacity, "n1", 0, "training")
    takes(free_capacity, "n1", 1, "notebook")
    assert where(free_capacity, part()) == [("n1", (1,))]
    takes(free_capacity, "n1", 1, "notebook", 700)
    assert where(free_capacity, part()) == [("n1", (2,))]
    takes(free_capacity, "n1", 2, "notebook", 1000)
    assert where(free_capacity, part()) == [("n1", (0,))], "better than none"


def test_shares_of_a_service_go_to_different_nodes_then_to_different_gpus() -> None:
    assert nodes(room_of(2, 2), part(2)) == {"n1": 1, "n2": 1}
    assert sorted(where(room_of(2, 2), part(4))) == [("n1", (0,)), ("n1", (1,)), ("n2", (0,)), ("n2", (1,))]
    assert len(where(room_of(1), part(4))) == 4
    free_capacity = room_of(2, 1)
    takes(free_capacity, "n2", 0, "training")
    assert sorted(where(free_capacity, part(2))) == [("n1", (0,)), ("n1", (1,))], (
        "rather another GPU than beside training"
    )


def test_why_a_service_is_where_it_is_counts_no_distance_between_its_replicas() -> None:
    free_capacity, made = room_of(2, 2), job(spec={"kind": "inference", "service": {}}, replicas=2)
    asked = asked_by(made)
    place = find(free_capacity, resource_request_of(made.spec), asked)
    assert place is not None
    why = why_there(free_capacity, resource_request_of(made.spec), asked, place, placement="weft-best")
    assert why.sentence == "replicas apart: 2 GPUs of n1 and n2, slowest 1.00"
    assert why.numbers == {"slowdown": 1.0, "slowest": 1.0, "locality": 1.0}


def test_a_replica_finds_its_place_fast_among_many_nodes_and_siblings() -> None:
    free_capacity = room_of(*[8] * 780)
    for want in (whole(), part()):
        held: list[Allocation] = []
        spent: list[float] = []
        for rank in range(60):
            began = time.process_time()
            found = grow(free_capacity, held, want, 1, first_rank=rank, asked=ASKED)
            spent.append(time.process_time() - began)
            assert found
            free_capacity.take_all(found)
            held += found
        assert len({one.node_id for one in held}) == 60
        # The first look sees every node; the bound is many times what is measured, as the machine may be busy.
        assert sorted(spent[1:])[29] < 0.01
