"""Jobs that may have GPUs of several models, or need GPUs with enough memory."""

import pytest
from msgspec.structs import replace

from tests.support.builders import GIB, job, node, spec
from weft.domain.cluster import Node
from weft.domain.decoding.spec_decoder import SpecError
from weft.domain.spec import JobSpec
from weft.planning.capacity import FreeCapacity, empty_capacity
from weft.planning.finding import find
from weft.planning.policy import PLACEMENTS, Policy
from weft.planning.reasons.explain import explain
from weft.planning.reasons.refusals import why_not
from weft.planning.resource_request import PlacementRequest, resource_request_of
from weftd.gateway.errors import RejectedError
from weftd.gateway.thinking.admission import Admission


def of(model: str, name: str, *, gpus: int = 2, memory: int = 16) -> Node:
    made = node(name, gpus=gpus, model=model)
    alike = tuple(replace(gpu, memory=memory * GIB) for gpu in made.capacity.gpus)
    return replace(made, capacity=replace(made.capacity, gpus=alike))


POOL = (of("T4", "old"), of("A100", "new", memory=40), of("H100", "newest", memory=80))


def place_of(asked: JobSpec, *nodes: Node, placement: str = "packed") -> set[str]:
    """The nodes on which it starts; empty if it does not."""
    free_capacity = empty_capacity(nodes or POOL)
    free_capacity.placer = Policy(placement=placement).placing.placer
    found = find(free_capacity, resource_request_of(asked), PlacementRequest("A", "j-1"))
    return {one.node_id for one in found or ()}


@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
def test_a_job_gets_gpus_of_the_first_model_that_it_names_and_of_none_that_it_does_not(placement: str) -> None:
    assert place_of(spec(gpu_model=["H100", "A100"]), placement=placement) == {"newest"}
    assert place_of(spec(gpu_model=["A100", "H100"]), placement=placement) == {"new"}
    assert place_of(spec(gpu_model=["L40S", "A100"]), placement=placement) == {"new"}
    assert place_of(spec(gpu_model=["L40S", "B200"]), placement=placement) == set()


@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
def test_a_job_gets_no_gpu_with_less_memory_than_it_needs(placement: str) -> None:
    assert place_of(spec(gpu_memory="40GiB", replicas=4), placement=placement) == {"new", "newest"}
    assert place_of(spec(gpu_memory="41GiB", gpu_model="any"), placement=placement) == {"newest"}
    assert place_of(spec(gpu_memory="40GiB", gpu_model=["T4", "A100"]), placement=placement) == {"new"}
    assert place_of(spec(gpu_memory="40GiB", gpu_model="T4"), placement=placement) == set()


def test_a_share_is_of_a_gpu_that_suits_the_job() -> None:
    share = {"gpus": 0, "share": {"request": 0.5, "memory": "4GiB"}}
    assert place_of(spec(role=share, gpu_model=["A100", "H100"])) == {"new"}
    assert place_of(spec(role=share, gpu_memory="41GiB")) == {"newest"}


def test_a_gang_has_one_model_if_all_of_it_fits_there_and_several_only_if_it_fits_on_none() -> None:
    assert place_of(spec(replicas=2, gpu_model=["A100", "H100"])) == {"new"}
    assert place_of(spec(replicas=3, gpu_model=["A100", "H100"]), *POOL, of("H100", "more", gpus=4)) == {"more"}
    assert place_of(spec(replicas=4, gpu_model=["A100", "H100"])) == {"new", "newest"}


def test_a_role_without_gpus_runs_anywhere() -> None:
    assert place_of(spec(gpus=0, gpu_model=["L40S"], gpu_memory="900GiB"))


@pytest.mark.parametrize(
    ("fields", "field", "reason"),
    [
        ({"gpu_model": ["A100", "H100", "A100"]}, "gpu_model", "A100 is named twice"),
        ({"gpu_model": ["A100", "any"]}, "gpu_model", "any stands for every model: leave the others out, or any"),
        ({"gpu_model": []}, "gpu_model", ""),
        ({"gpu_memory": "0GiB"}, "gpu_memory", "must be above 0 and at most 1TiB, not 0GiB"),
        ({"gpu_memory": "2TiB"}, "gpu_memory", "must be above 0 and at most 1TiB, not 2TiB"),
    ],
)
def test_a_wrong_model_or_memory_is_refused_with_one_error(fields: dict[str, object], field: str, reason: str) -> None:
    with pytest.raises(SpecError) as refused:
        spec(**fields)  # type: ignore[arg-type]
    assert (refused.value.field, len(refused.value.mistakes)) == (field, 1)
    assert reason in refused.value.reason


@pytest.mark.parametrize(
    ("fields", "field", "reason"),
    [
        (
            {"gpu_model": ["B200", "L40S"]},
            "gpu_model",
            "no node of pool default has a GPU of model B200 or L40S; there is A100, H100, T4",
        ),
        ({"gpu_memory": "96GiB"}, "gpu_memory", "no GPU of pool default has 96GiB of memory; the largest has 80GiB"),
        (
            {"gpu_memory": "48GiB", "gpu_model": ["T4", "A100"]},
            "gpu_memory",
            "no GPU of model T4 or A100 of pool default has 48GiB of memory; the largest has 40GiB",
        ),
    ],
)
def test_what_the_pool_does_not_have_is_refused_with_what_it_has(
    fields: dict[str, object], field: str, reason: str
) -> None:
    admission = Admission(POOL, default_pool="default", volumes_allowed=(), shares=True)
    with pytest.raises(RejectedError) as refused:
        admission.check(spec(**fields), "ada")  # type: ignore[arg-type]
    assert (refused.value.status, refused.value.field, refused.value.reason) == (422, field, reason)
    admission.check(spec(gpu_model=["B200", "T4"]), "ada")


def full(*names: str) -> FreeCapacity:
    free_capacity = empty_capacity(POOL)
    for name in names:
        found = find(free_capacity, resource_request_of(spec(gpus=2, gpu_model={"old": "T4", "new": "A100"}[name])))
        free_capacity.take_all(found or ())
    return free_capacity


def test_a_waiting_job_is_told_which_models_and_how_much_memory_it_waits_for() -> None:
    told = why_not(full("old", "new"), resource_request_of(spec(gpus=2, gpu_model=["T4", "A100"])))
    assert told is not None
    assert told.sentence == "wants 2 GPUs of T4 or A100 on one node; none is free"
    told = why_not(full(), resource_request_of(spec(gpus=4, gpu_memory="40GiB")))
    assert told is not None
    assert told.sentence == (
        "wants 4 GPUs of 40GiB or more on one node; the most free on one node is 2 (4 free in all)"
    )


def test_explain_names_the_models_that_were_considered_in_a_pool_of_several() -> None:
    def told(*nodes: Node, **fields: object) -> str:
        waits = job(gpus=2, spec=fields)
        return explain(waits, nodes=nodes, holding=[], queued=[waits], now=0.0).sentence

    assert told(*POOL).endswith("(models of GPUs considered: A100, H100, T4)")
    assert told(*POOL, gpu_memory="40GiB").endswith("(models of GPUs considered: A100, H100)")
    assert "considered" not in told(POOL[0])


def test_a_text_is_a_list_of_one_and_any_is_no_restriction() -> None:
    assert spec(gpu_model=["A100", "H100"]).gpu_models == ("A100", "H100")
    assert spec(gpu_model=["A100"]).only_model == spec(gpu_model="A100").only_model == "A100"
    assert spec(gpu_model="any").gpu_models == spec().gpu_models == ()
