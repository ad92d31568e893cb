"""Why a job waits, told with the nodes that take no work, and where it is, with the nodes that are silent."""

from typing import Any

from msgspec import structs

from tests.support.builders import job, node
from tests.support.steps import placement
from weft.domain.job import CauseCode, Job, JobState
from weft.domain.spec import Pin, Role
from weft.messages.http.explanation import Explanation
from weft.planning.capacity import free_capacity_of
from weft.planning.reasons.explain import explain
from weft.planning.reasons.refusals import why_not
from weft.planning.resource_request import resource_request_of_job

HOLDS_ONE = job("j-1", gpus=2, state=JobState.RUNNING, placement=placement(("node-1", 0), ("node-1", 1)))
HOLDS_TWO = job("j-2", gpus=2, state=JobState.RUNNING, placement=placement(("node-2", 0), ("node-2", 1)))
WANTS = job("j-3", seq=3, gpus=2)


def why(waiting: Job, *holding: Job, drained: bool = True, ready: bool = True) -> Explanation:
    nodes = [node("node-1", gpus=2, seen_at=100.0), node("node-2", gpus=8, drained=drained, ready=ready, seen_at=100.0)]
    return explain(waiting, nodes=nodes, holding=holding, queued=[waiting], now=100.0)


def test_a_drained_node_with_room_is_named_with_what_opens_it() -> None:
    told = why(WANTS, HOLDS_ONE)
    assert told.code == CauseCode.NO_ROOM
    assert told.sentence == (
        "wants 2 GPUs on one node; none is free on a node that takes work;"
        " node-2 has 8 free GPUs, but is drained (`weft resume node-2`)"
    )
    assert [(each.node_id, each.drained, each.gpus_free) for each in told.closed] == [("node-2", True, 8)]


def test_a_lost_node_with_room_is_named() -> None:
    assert why(WANTS, HOLDS_ONE, drained=False, ready=False).sentence.endswith("node-2 has 8 free GPUs, but is lost")


def test_where_every_node_is_closed_it_is_said_why() -> None:
    told = explain(WANTS, nodes=[node("node-1", drained=True)], holding=[], queued=[WANTS], now=0.0)
    assert told.code == CauseCode.NO_NODES
    assert told.sentence == (
        "no node of its pool takes work now: node-1 has 4 free GPUs, but is drained (`weft resume node-1`)"
    )


def test_a_job_whose_end_would_not_help_is_not_listed_as_a_holder() -> None:
    """What it gives back is on a drained node."""
    assert [holder.job_id for holder in why(WANTS, HOLDS_ONE, HOLDS_TWO).holders] == ["j-1"]


def test_a_placed_job_is_told_with_the_silence_of_its_node() -> None:
    nodes = [node("node-1", seen_at=60.0), node("node-2", seen_at=0.0)]
    told = explain(HOLDS_ONE, nodes=nodes, holding=[], queued=[], now=100.0)
    assert told.sentence.endswith("; node-1 has been silent for 40s")
    assert [(each.node_id, each.seconds) for each in told.silent] == [("node-1", 40.0)]
    heard = explain(HOLDS_ONE, nodes=[node("node-1", seen_at=85.0)], holding=[], queued=[], now=100.0)
    assert "silent" not in heard.sentence


def test_the_memory_that_keeps_replicas_from_fitting_is_named() -> None:
    many = job("j-4", gpus=1, replicas=4, spec={"role": {"memory": "100GiB"}})
    told = explain(many, nodes=[node("node-1", gpus=4)], holding=[], queued=[many], now=0.0)
    assert told.code == CauseCode.TOO_BIG
    held = job("j-5", gpus=0, state=JobState.RUNNING, placement=placement(("node-1", 0)))
    small = job("j-6", gpus=1, replicas=4, spec={"role": {"memory": "64GiB"}})
    told = explain(small, nodes=[node("node-1", gpus=5)], holding=[held], queued=[small], now=0.0)
    assert told.sentence == (
        "wants 4 replicas of 1 GPU at once; 3 would fit now, for lack of memory (64GiB each) (4 GPUs free in all)"
    )


def test_two_jobs_are_told_the_same_of_the_same_free_gpus() -> None:
    """What the roles before take of them is free as long as the job waits."""
    nodes = [node("node-1", gpus=4)]
    held = job("j-1", gpus=1, state=JobState.RUNNING, placement=placement(("node-1", 0)))
    whole, parts = job("j-2", seq=2, gpus=4), of_roles("j-3", first=3, second=1)
    told = [explain(each, nodes=nodes, holding=[held], queued=[whole, parts], now=0.0) for each in (whole, parts)]
    assert [each.sentence for each in told] == [
        "wants 4 GPUs on one node; the most free on one node is 3 (3 free in all)",
        "its role second wants 1 GPU on one node; with its role first placed, none is free",
    ]
    assert [(each.numbers["gpus_free"], each.numbers["gpus_free_max"]) for each in told] == [(3.0, 3.0), (3.0, 3.0)]
    assert told[1].numbers["gpus_for_other_roles"] == 3.0


def test_the_room_is_as_it_was_once_a_job_of_several_roles_was_explained() -> None:
    free_capacity = free_capacity_of([node("node-1", gpus=4)], [])
    resource_request = resource_request_of_job(of_roles("j-1", first=2, second=2, third=1))
    for _ in range(2):
        cause = why_not(free_capacity, resource_request)
        assert cause is not None
        assert cause.sentence == (
            "its role third wants 1 GPU on one node; with its roles first and second placed, none is free"
        )
        assert cause.numbers["gpus_free"] == 4.0
    assert free_capacity.gpus_free == 4


def test_a_pinned_role_is_told_of_its_node_alone() -> None:
    several = of_roles("j-1", first=2, second=1)
    pinned = structs.replace(several, spec=structs.replace(several.spec, pin=Pin(node="node-1")))
    cause = why_not(
        free_capacity_of([node("node-1", gpus=2), node("node-2", gpus=8)], []), resource_request_of_job(pinned)
    )
    assert cause is not None
    assert cause.sentence.startswith("its role second is pinned to node-1; with its role first placed, it wants 1 × ")
    assert (cause.numbers["gpus_free"], cause.numbers["gpus_for_other_roles"]) == (2.0, 2.0)


def of_roles(job_id: str, **gpus: int) -> Job:
    """A job with a role of one replica for each, with so many GPUs."""
    roles = {name: Role(gpus=each) for name, each in gpus.items()}
    made = job(job_id, seq=3)
    return structs.replace(made, spec=structs.replace(made.spec, roles=roles))


def test_one_cpu_is_one_cpu() -> None:
    small = job("j-1", gpus=0, spec={"role": {"cpus": 1, "memory": "1GiB"}})
    told = explain(small, nodes=[node("node-1", gpus=0, cpus=0.5)], holding=[], queued=[small], now=0.0)
    assert "1 × (0 GPUs, 1 CPU, 1GiB)" in told.sentence


def of_two_nodes(*holding: Job, **closed: Any) -> str:
    """Why a job waits that needs 8 GPUs on each of two nodes, of which the second is closed."""
    nodes = [node("node-1", gpus=8), node("node-2", gpus=8, **closed)]
    wide = job("j-3", seq=3, gpus=8, replicas=2)
    return explain(wide, nodes=nodes, holding=holding, queued=[wide], now=0.0).sentence


def holding_all(job_id: str, node_id: str) -> Job:
    gpus = tuple((node_id, gpu) for gpu in range(8))
    return job(job_id, gpus=8, state=JobState.RUNNING, placement=placement(*gpus))


def test_a_drained_and_full_node_without_which_a_job_cannot_start_is_named() -> None:
    full = holding_all("j-1", "node-1"), holding_all("j-2", "node-2")
    needs = "needs 2 nodes with 8 free GPUs each; "
    drained = "node-2 is drained, so it cannot start until node-2 is resumed"
    assert of_two_nodes(*full, drained=True) == needs + drained
    assert of_two_nodes(full[1], drained=True) == needs + drained
    assert of_two_nodes(*full, ready=False) == needs + "node-2 is lost, so it cannot start until node-2 is back"
    assert of_two_nodes(*full) == "wants 8 GPUs on one node, 2 times; none is free"


def test_a_drained_and_empty_node_without_which_a_job_cannot_start_is_named_once() -> None:
    assert of_two_nodes(holding_all("j-1", "node-1"), drained=True) == (
        "needs 2 nodes with 8 free GPUs each; node-2 has 8 free GPUs, but is drained (`weft resume node-2`);"
        " it cannot start until node-2 is resumed"
    )


def test_a_full_pool_of_drained_nodes_is_told_as_one() -> None:
    full = holding_all("j-1", "node-1")
    narrow = job("j-3", seq=3, gpus=8)
    nodes = [node("node-1", gpus=8, drained=True)]
    assert explain(narrow, nodes=nodes, holding=[full], queued=[narrow], now=0.0).sentence == (
        "no node of its pool takes work now; node-1 is drained, so it cannot start until node-1 is resumed"
    )


def test_of_several_nodes_that_are_missed_it_is_said_that_enough_must_come_back() -> None:
    nodes = [node("node-1", gpus=8), *(node(f"node-{n}", gpus=8, drained=True) for n in (2, 3, 4))]
    full = [holding_all(f"j-{n}", f"node-{n}") for n in (1, 2, 3, 4)]
    wide = job("j-9", seq=9, gpus=8, replicas=2)
    assert explain(wide, nodes=nodes, holding=full, queued=[wide], now=0.0).sentence == (
        "needs 2 nodes with 8 free GPUs each; node-2, node-3 and 1 more take no work,"
        " so it cannot start until enough of them do"
    )
