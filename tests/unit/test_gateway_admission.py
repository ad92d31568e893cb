"""What the gateway refuses before it stores anything."""

from typing import Any

import pytest

from tests.support.builders import node, spec
from tests.support.volumes import offering
from weft.domain.cluster import NO_SHARES, Node
from weft.domain.spec import JobSpec
from weftd.gateway.errors import RejectedError
from weftd.gateway.thinking.admission import Admission


def refusal(
    asked: JobSpec, *nodes: Node, allowed: tuple[str, ...] = (), shares: bool = True, tenant: str = "ada"
) -> tuple[int, str, str] | None:
    there = nodes or (node(gpus=4),)
    admission = Admission(there, default_pool="default", volumes_allowed=allowed, shares=shares)
    try:
        admission.check(asked, tenant)
    except RejectedError as error:
        return error.status, error.field, error.reason
    return None


def volume(source: str) -> dict[str, Any]:
    return {"volumes": [{"source": source, "target": "/data"}]}


def test_what_fits_some_node_is_taken() -> None:
    assert refusal(spec(gpus=4)) is None


def test_more_gpus_than_any_node_has_names_the_role_and_the_numbers() -> None:
    status, field, reason = refusal(spec(gpus=5)) or (0, "", "")
    assert (status, field) == (422, "roles.worker.gpus")
    assert "5 GPUs" in reason
    assert "has 4" in reason


@pytest.mark.parametrize(
    ("asked", "advice"),
    [
        (spec(gpus=16), "; try --gpus 8 --replicas 2"),
        (spec(gpus=12), "; try --gpus 6 --replicas 2"),
        (spec(gpus=13), ""),  # no node has a part of it
        (spec(gpus=24), ""),  # three nodes of 8 are not there
    ],
)
def test_more_gpus_than_a_node_has_may_be_had_from_several(asked: JobSpec, advice: str) -> None:
    _, field, reason = refusal(asked, node("node-1", gpus=8), node("node-2", gpus=8)) or (0, "", "")
    assert field == "roles.worker.gpus"
    assert reason.partition("; try")[2] == advice.removeprefix("; try")


def test_a_gang_larger_than_the_pool_names_its_replicas() -> None:
    status, field, _ = refusal(spec(gpus=4, replicas=3), node("node-1"), node("node-2")) or (0, "", "")
    assert (status, field) == (422, "roles.worker.replicas")


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (spec(role={"cpus": 65}), "roles.worker.cpus"),
        (spec(role={"memory": "257GiB"}), "roles.worker.memory"),
        (spec(gpu_model="H300"), "gpu_model"),
    ],
)
def test_what_no_node_has_is_named(asked: JobSpec, field: str) -> None:
    status, found, _ = refusal(asked) or (0, "", "")
    assert (status, found) == (422, field)


def test_roles_that_fit_one_by_one_and_not_together_are_refused_together() -> None:
    asked = spec()
    both = JobSpec(name="two", command=("true",), roles={"a": spec(gpus=4).roles["worker"], "b": asked.roles["worker"]})
    assert (refusal(both) or (0, "", ""))[:2] == (422, "roles")


def test_a_drained_or_silent_node_counts_for_what_is_possible() -> None:
    assert refusal(spec(gpus=4), node(gpus=4, ready=False)) is None
    assert refusal(spec(gpus=4), node(gpus=4, drained=True)) is None


def test_the_default_pool_may_be_empty_and_others_must_have_a_node() -> None:
    empty = Admission((), default_pool="default", volumes_allowed=(), shares=False)
    empty.check(spec(gpus=8), "ada")
    with pytest.raises(RejectedError) as caught:
        empty.check(spec(pool="other"), "ada")
    assert (caught.value.status, caught.value.field) == (422, "pool")
    assert "default" in caught.value.reason


def share(memory: str, **fields: Any) -> JobSpec:
    return spec(gpus=0, role={"share": {"request": 0.5, "memory": memory}}, **fields)


def test_a_share_is_taken_where_the_cluster_gives_shares() -> None:
    assert refusal(share("4GiB")) is None
    status, field, reason = refusal(share("4GiB"), shares=False) or (0, "", "")
    assert (status, field) == (422, "roles.worker.share")
    assert "GATEWAY_SHARES" in reason


def test_a_share_of_more_memory_than_any_gpu_has_names_its_memory() -> None:
    assert refusal(share("16GiB")) is None
    status, field, reason = refusal(share("17GiB")) or (0, "", "")
    assert (status, field) == (422, "roles.worker.share.memory")
    assert "one share can have 16GiB" in reason


def test_a_share_of_a_model_that_no_node_has_names_the_model() -> None:
    assert (refusal(share("4GiB", gpu_model="H300")) or (0, "", ""))[:2] == (422, "gpu_model")


def test_a_share_where_no_node_gives_any_is_refused() -> None:
    status, field, reason = refusal(share("4GiB"), node(not_enforced=(NO_SHARES,))) or (0, "", "")
    assert (status, field) == (422, "roles.worker.share")
    assert "no node" in reason


def test_an_objective_is_for_services_and_a_job_that_may_grow_is_taken() -> None:
    promised = {"kind": "inference", "objective": {"latency": "50ms", "rate": 10}}
    status, field, reason = refusal(spec(**promised)) or (0, "", "")
    assert (status, field) == (422, "objective")
    assert "is only for services" in reason
    assert refusal(spec(**promised, service={"port": 8000})) is None
    assert refusal(spec(role={"replicas": {"want": 1, "max": 2}})) is None


def test_a_model_that_is_not_there_is_answered_with_those_that_are() -> None:
    nodes = node("node-1", model="A100"), node("node-2", model="L40S")
    _, field, reason = refusal(spec(gpus=1, gpu_model="NVIDIA H100"), *nodes) or (0, "", "")
    assert field == "gpu_model"
    assert reason == "no node of pool default has a GPU of NVIDIA H100; there is A100, L40S"
    assert refusal(spec(gpus=1, gpu_model="L40S"), *nodes) is None


def test_without_an_allow_list_no_volume_is_taken() -> None:
    assert (refusal(spec(**volume("/data"))) or (0, "", ""))[:2] == (422, "volumes[0].source")


@pytest.mark.parametrize("source", ["/srv", "/srv/data", "/srv/./data", "//srv//data/", "/home/me"])
def test_a_volume_below_the_allow_list_is_taken(source: str) -> None:
    assert refusal(spec(**volume(source)), allowed=("/srv/", "/home/me")) is None


@pytest.mark.parametrize("source", ["/", "/srvx", "/home", "/home/mean", "/etc/passwd", "//etc"])
def test_a_volume_outside_the_allow_list_is_refused(source: str) -> None:
    assert (refusal(spec(**volume(source)), allowed=("/srv", "/home/me")) or (0, "", ""))[:2] == (
        422,
        "volumes[0].source",
    )


def test_an_allow_list_with_the_root_allows_everything() -> None:
    assert refusal(spec(**volume("/any/where")), allowed=("/",)) is None


@pytest.mark.parametrize(
    "source", ["/", "/etc", "/proc", "/srv/database", "/srv", "//", "/srv//database", "/srv/./", "/srv/data2/x"]
)
def test_a_folder_of_the_host_that_nobody_offers_is_refused(source: str) -> None:
    found = refusal(spec(**volume(source)), allowed=("/srv/data",))
    assert (found or (0, "", ""))[:2] == (422, "volumes[0].source")


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (spec(pin={"node": "node-9"}), "pin.node"),
        (spec(pin={"node": "node-1", "gpu": 4}), "pin.gpu"),
        (spec(gpus=5, pin={"node": "node-1", "gpu": 0}), "roles.worker.gpus"),
        (spec(role={"cpus": 65}, pin={"node": "node-1"}), "roles.worker.cpus"),
    ],
)
def test_a_pin_that_can_never_be_held_names_what_is_wrong_with_it(asked: JobSpec, field: str) -> None:
    _, found, reason = refusal(asked) or (0, "", "")
    assert found == field
    assert "is pinned to" in reason


def test_a_volume_that_no_node_offers_to_the_tenant_is_refused_by_its_number() -> None:
    nodes = (offering("node-1", {"name": "sets", "tenants": ["ada"]}), offering("node-2", {"name": "more"}))
    both = spec(image="x", volumes=[{"name": "more", "read_only": True}, {"name": "sets"}])
    alone = spec(image="x", volumes=[{"name": "sets"}])
    assert refusal(alone, *nodes) is None
    found = refusal(alone, *nodes, tenant="bob")
    assert found == (422, "volumes[0]", "no node of its pool offers the volume sets; there is more")
    found = refusal(both, *nodes)
    assert found is not None
    assert found[:2] == (422, "volumes")
    found = refusal(spec(image="x", volumes=[{"name": "more"}, {"name": "set"}]), *nodes)
    assert found == (422, "volumes[1]", "no node of its pool offers the volume set; there is more, sets")


def test_a_volume_by_name_needs_no_allow_list_of_paths() -> None:
    assert refusal(spec(image="x", volumes=[{"name": "sets"}]), offering("node-1", {"name": "sets"})) is None


def test_a_job_too_big_for_the_nodes_that_offer_its_volume_is_told_which_they_are() -> None:
    nodes = (offering("node-1", {"name": "sets"}, gpus=2), node("node-2", gpus=8, runtime="docker"))
    found = refusal(spec(gpus=4, image="x", volumes=[{"name": "sets"}]), *nodes)
    assert found is not None
    assert found[0] == 422
    assert found[2].endswith("only node-1 offers the volume sets")
