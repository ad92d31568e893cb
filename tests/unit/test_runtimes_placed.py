"""A node that cannot start a job is no place for it: processes have no image, and containers need one."""

from typing import Any

import pytest
from msgspec import structs

from tests.support.builders import job, node
from weft.domain.cluster import IGNORES_IMAGES, Drain, Node
from weft.domain.job import CauseCode
from weft.planning.capacity import FreeCapacity, empty_capacity
from weft.planning.finding import find
from weft.planning.reasons.refusals import never_fits, why_not
from weft.planning.resource_request import ResourceRequest, resource_request_of_job


def made(node_id: str, runtime: str, **fields: Any) -> Node:
    return structs.replace(node(node_id, gpus=2), runtime=runtime, **fields)


def wants(image: str) -> ResourceRequest:
    return resource_request_of_job(job("j-1", gpus=1, spec={"image": image} if image else {}))


def placed(free_capacity: FreeCapacity, image: str) -> list[str]:
    return [one.node_id for one in find(free_capacity, wants(image)) or ()]


PROCESSES, CONTAINERS = made("node-1", "process"), made("node-2", "docker")


def test_a_job_goes_where_the_runtime_can_start_it() -> None:
    free_capacity = empty_capacity([PROCESSES, CONTAINERS])
    assert placed(free_capacity, "") == ["node-1"]
    assert placed(free_capacity, "alpine") == ["node-2"]
    ignoring = made("node-1", "process", not_enforced=(IGNORES_IMAGES,))
    assert placed(empty_capacity([ignoring]), "alpine") == ["node-1"]


@pytest.mark.parametrize(
    ("image", "only"),
    [("", "only node-1 runs jobs without an image"), ("alpine", "only node-2 runs jobs from an image")],
)
def test_the_reason_names_the_nodes_that_can_start_it_and_gives_no_advice_on_the_others(image: str, only: str) -> None:
    drained = [
        structs.replace(one, drain=Drain() if bool(image) == (one is PROCESSES) else None)
        for one in (PROCESSES, CONTAINERS)
    ]
    free_capacity = empty_capacity(drained)
    for held in drained:
        if not held.drained:
            free_capacity.take_all(find(free_capacity, wants(image)) or ())
            free_capacity.take_all(find(free_capacity, wants(image)) or ())
    cause = why_not(free_capacity, wants(image))
    assert cause is not None
    assert cause.code is CauseCode.NO_ROOM
    assert only in cause.sentence
    assert "weft resume" not in cause.sentence


def test_a_job_that_no_runtime_of_the_pool_can_start_never_starts() -> None:
    cause = never_fits(job("j-1", gpus=1).spec, [CONTAINERS])
    assert cause is not None
    assert (cause.code, cause.sentence) == (
        CauseCode.TOO_BIG,
        "every node of its pool runs jobs in containers, and it names no image",
    )
    assert never_fits(job("j-1", gpus=1).spec, [CONTAINERS, PROCESSES]) is None
