"""Jobs that name volumes go to nodes that offer them: at first, by a move, as they grow, and where others give way."""

from functools import partial
from typing import Any

import pytest
from msgspec import structs

from tests.support import builders
from tests.support.builders import job, spec
from tests.support.scheduler import World, world
from tests.support.service_lives import rounds, service
from tests.support.volumes import offering, with_volumes
from weft.domain.job import CauseCode, JobState
from weft.messages.signals import GpuScore
from weft.planning.capacity import free_capacity_of
from weft.planning.finding import find
from weft.planning.moves import MoveRules
from weft.planning.policy import PLACEMENTS, Policy
from weft.planning.preemption import Holder, select_victims
from weft.planning.reasons.explain import explain
from weft.planning.reserving import emptiest
from weft.planning.resource_request import PlacementRequest, resource_request_of
from weftd.scheduler.thinking.core_settings import Settings

S = JobState
node = partial(builders.node, runtime="docker")
VOLUMES = [{"name": "sets"}]
NEEDS: dict[str, Any] = {"image": "x", "volumes": VOLUMES}


def places(w: World, job_id: str = "j-1") -> list[str]:
    placement = w.stored[job_id].placement
    return [] if placement is None else [one.node_id for one in placement.allocations]


def offers(w: World, node_id: str, *volumes: dict[str, Any]) -> None:
    one = w.nodes[node_id]
    one.capacity = with_volumes(one.capacity, *volumes)
    w.round()


def migration(*, gpus: int = 1) -> World:
    return world(nodes=3, gpus=gpus, settings=Settings(lease_seconds=1e6, stop_seconds=1e7, moves=MoveRules()))


def rescore(w: World, **scores: float) -> None:
    found = [
        GpuScore(node_id=name.replace("_", "-"), gpu_index=0, job_class="compute", score=score)
        for name, score in scores.items()
    ]
    w.core.cluster_state.rescore(found)


# placement


@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
def test_every_placement_takes_only_nodes_that_offer_the_volume(placement: str) -> None:
    nodes = [node("node-1", gpus=8), offering("node-2", {"name": "sets"}, gpus=2), node("node-3", gpus=8)]
    free_capacity = free_capacity_of(nodes, [])
    free_capacity.placer = Policy(placement=placement).placing.placer
    for gpus, replicas in ((1, 1), (2, 1), (1, 2)):
        made = spec(gpus=gpus, replicas=replicas, **NEEDS)
        found = find(free_capacity, resource_request_of(made, "ada"), PlacementRequest("compute", "j-1"))
        assert found is not None
        assert {one.node_id for one in found} == {"node-2"}, (gpus, replicas)
    assert find(free_capacity, resource_request_of(spec(gpus=1, replicas=3, **NEEDS), "ada")) is None
    assert find(free_capacity, resource_request_of(spec(gpus=0, **NEEDS), "ada")) is not None


def test_shares_and_replicas_of_services_go_there_too() -> None:
    free_capacity = free_capacity_of([node("node-1"), offering("node-2", {"name": "sets"})], [])
    share = spec(gpus=0, role={"share": {"request": 0.5, "memory": "1GiB"}}, **NEEDS)
    found = find(free_capacity, resource_request_of(share, "ada"))
    assert found is not None
    assert [one.node_id for one in found] == ["node-2"]
    serves = spec(gpus=1, **service(want=3), **NEEDS)
    asked = PlacementRequest("compute", "j-1", tolerates=1.0)
    found = find(free_capacity, resource_request_of(serves, "ada"), asked)
    assert found is not None
    assert {one.node_id for one in found} == {"node-2"}


def test_in_a_large_pool_the_one_node_that_offers_it_is_found_however_full_it_is() -> None:
    nodes = [node(f"node-{at:03}", gpus=8) for at in range(200)] + [offering("node-x", {"name": "sets"}, gpus=2)]
    free_capacity = free_capacity_of(nodes, [])
    for name in sorted(PLACEMENTS):
        free_capacity.placer = Policy(placement=name).placing.placer
        found = find(
            free_capacity,
            resource_request_of(spec(gpus=1, replicas=2, **NEEDS), "ada"),
            PlacementRequest("compute", "j"),
        )
        assert found is not None, name
        assert {one.node_id for one in found} == {"node-x"}, name


def test_a_job_waits_until_a_node_offers_its_volume_to_its_tenant_and_starts_there() -> None:
    w = world(nodes=2, gpus=1)
    offers(w, "node-2", {"name": "sets", "tenants": ["bob"]})
    w.submit("j-1", gpus=1, spec=NEEDS)
    rounds(w)
    assert w.state("j-1") is S.QUEUED
    why = w.stored["j-1"].waiting_for
    assert why is not None
    assert why.sentence == "no node of its pool offers the volume sets; they offer none"
    offers(w, "node-2", {"name": "sets", "tenants": ["alice", "bob"]})
    rounds(w)
    assert (w.state("j-1"), places(w)) == (S.RUNNING, ["node-2"])


def test_a_run_is_not_begun_on_a_node_whose_owner_offers_its_volume_no_more() -> None:
    w = world(nodes=1, gpus=1)
    offers(w, "node-1", {"name": "sets"})
    w.submit("j-1", gpus=1, spec=NEEDS)
    w.tick()
    assert w.state("j-1") is S.PLACED
    w.nodes["node-1"].capacity = with_volumes(w.nodes["node-1"].capacity)
    w.sync("node-1")
    w.sync("node-1")
    assert w.nodes["node-1"].live == []


def test_explain_names_the_nodes_that_offer_it_and_who_holds_them_alone() -> None:
    nodes = [node("node-1", seen_at=60.0), offering("node-2", {"name": "sets"}, gpus=1, seen_at=60.0)]
    w = world(nodes=2, gpus=1)
    offers(w, "node-2", {"name": "sets"})
    for job_id in ("j-1", "j-2"):
        w.submit(job_id, gpus=1)
    rounds(w)
    waits = job("j-3", seq=3, gpus=1, spec=NEEDS)
    holding = [w.stored["j-1"], w.stored["j-2"]]
    told = explain(waits, nodes=nodes, holding=holding, queued=[waits], now=60.0)
    assert told.sentence.endswith("only node-2 offers the volume sets")
    assert [holder.nodes for holder in told.holders] == [("node-2",)]


# moves


def test_a_job_moves_only_to_a_node_that_offers_its_volume() -> None:
    w = migration()
    for name in ("node-1", "node-2"):
        offers(w, name, {"name": "sets"})
    w.submit("j-1", gpus=1, spec={**NEEDS, "checkpoints": {"on_stop": True}})
    w.round()
    [before] = places(w)
    other = {"node-1": "node-2", "node-2": "node-1"}[before]
    rescore(w, **{before.replace("-", "_"): 3.0, other.replace("-", "_"): 1.5, "node_3": 0.5})
    w.tick(3600.0)
    rounds(w)
    assert (w.stored["j-1"].epoch, places(w)) == (1, [other])


# growth


def live(least: int, want: int, most: int) -> dict[str, Any]:
    return {"role": {"replicas": {"min": least, "want": want, "max": most}}, "resize": {"how": "live"}}


def test_a_job_grows_only_on_nodes_that_offer_its_volume() -> None:
    w = world(nodes=2, gpus=2)
    offers(w, "node-1", {"name": "sets"})
    w.submit("j-1", gpus=1, spec={**live(1, 1, 4), **NEEDS})
    rounds(w)
    w.scale("j-1", worker=4)
    rounds(w)
    assert places(w) == ["node-1"] * 2
    offers(w, "node-2", {"name": "sets"})
    rounds(w)
    assert sorted(places(w)) == ["node-1"] * 2 + ["node-2"] * 2


# what others give up


def test_no_job_is_preempted_on_a_node_that_does_not_offer_the_volume() -> None:
    w = world(nodes=2, gpus=1)
    offers(w, "node-2", {"name": "sets"})
    for job_id in ("j-1", "j-2"):
        w.submit(job_id, gpus=1)
    rounds(w)
    there = {name: job_id for job_id in ("j-1", "j-2") for name in places(w, job_id)}
    w.submit("j-3", gpus=1, spec={**NEEDS, "priority": 10})
    rounds(w, 5)
    assert (w.state("j-3"), places(w, "j-3")) == (S.RUNNING, ["node-2"])
    assert w.state(there["node-1"]) is S.RUNNING
    stopped = {step.job_id for step in w.steps if step.cause.code is CauseCode.PREEMPTED}
    assert stopped == {there["node-2"]}


def test_holders_elsewhere_do_not_help_and_no_node_is_kept_in_vain() -> None:
    nodes = [node("node-1", gpus=1), offering("node-2", {"name": "sets"}, gpus=1)]
    resource_request = resource_request_of(spec(gpus=1, **NEEDS), "ada")
    free_capacity = free_capacity_of(nodes, [])
    held = find(free_capacity, resource_request_of(spec(gpus=1, image="x", pin={"node": "node-1"})))
    assert held is not None
    holder = Holder(job_id="j-1", worth=(1.0,), allocations=held)
    free_capacity.take_all(held)
    used = find(free_capacity, resource_request)
    assert used is not None
    free_capacity.take_all(used)
    assert select_victims(resource_request, free_capacity=free_capacity, holders=[holder]) is None
    assert emptiest(free_capacity, resource_request) == ("node-2",)
    mine = structs.replace(holder, job_id="j-2", allocations=used)
    selection = select_victims(resource_request, free_capacity=free_capacity, holders=[holder, mine])
    assert selection is not None
    assert selection.victims == (mine,)
