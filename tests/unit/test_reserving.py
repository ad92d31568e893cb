"""Which nodes are kept for a job that waited long: it has to earn what would be idle."""

from tests.support.builders import job, node
from weft.domain.job import Allocation
from weft.planning.capacity import FreeCapacity
from weft.planning.placement.weft_best import weft_best
from weft.planning.reserving import LONGEST_SECONDS, WORTH, nodes_to_keep
from weft.planning.resource_request import resource_request_of
from weft.planning.scores import Scores

SHAPE = resource_request_of(job("j-1", gpus=4).spec)


def free_capacity(*, held: int) -> FreeCapacity:
    """One node of four GPUs, the first ones held."""
    made = FreeCapacity(Scores({}), placer=weft_best)
    made.add(node("node-1"))
    if held:
        made.take(Allocation(node_id="node-1", rank=0, role="worker", gpus=tuple(range(held)), cpus=0.0, memory=0))
    return made


def kept(waited_s: float, *, held: int = 1, left_s: float = 100.0) -> tuple[str, ...]:
    return nodes_to_keep(free_capacity(held=held), SHAPE, waited_s=waited_s, left_on=lambda _: left_s)


def test_a_job_earns_nodes_by_the_gpu_time_that_it_waited_for_against_what_would_be_idle() -> None:
    enough = WORTH * 3 * 100.0 / 4
    assert kept(enough - 1) == ()
    assert kept(enough) == ("node-1",)


def test_nodes_without_a_free_gpu_cost_nothing_to_keep() -> None:
    assert kept(1.0, held=4, left_s=1e6) == ("node-1",)


def test_after_a_day_it_has_earned_whatever_would_be_idle() -> None:
    assert kept(LONGEST_SECONDS - 1, left_s=1e9) == ()
    assert kept(LONGEST_SECONDS, left_s=1e9) == ("node-1",)
