"""Jobs that choose nodes by labels, and nodes whose taints keep jobs away: placement, growth, reasons, admission."""

from functools import partial
from typing import Any

import pytest
from msgspec import structs

from tests.support import builders
from tests.support.builders import job, spec
from tests.support.scheduler import World, world
from tests.support.service_lives import rounds
from weft.domain.job import CauseCode, JobState
from weft.domain.labels import Marking
from weft.messages.asks import AskKind
from weft.planning.capacity import empty_capacity, free_capacity_of
from weft.planning.finding import find
from weft.planning.policy import PLACEMENTS, Policy
from weft.planning.reasons.refusals import never_fits, why_not
from weft.planning.reserving import emptiest
from weft.planning.resource_request import PlacementRequest, resource_request_of, resource_request_of_job
from weft.samples.benchmark_job import benchmark_spec
from weftd.gateway.errors import RejectedError
from weftd.gateway.thinking.admission import Admission

S = JobState
node = builders.node
zoned = partial(node, labels={"zone": "a"})
ZONE: dict[str, Any] = {"where": "zone == 'a'"}


def places(w: World, job_id: str = "j-1") -> set[str]:
    placement = w.stored[job_id].placement
    return set() if placement is None else {one.node_id for one in placement.allocations}


def mark(w: World, node_id: str, **changes: Any) -> None:
    w.ask(AskKind.MARK, node_id, marking=Marking(**changes))


@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
def test_every_placement_takes_only_nodes_that_match(placement: str) -> None:
    nodes = [node("node-1", gpus=8), zoned("node-2", gpus=2), zoned("node-3", gpus=8, taints={"spot": ""})]
    free_capacity = free_capacity_of(nodes, [])
    free_capacity.placer = Policy(placement=placement).placing.placer
    asked = PlacementRequest("compute", "j-1")
    for gpus, replicas in ((1, 1), (2, 1), (1, 2)):
        anywhere = find(free_capacity, resource_request_of(spec(gpus=gpus, replicas=replicas)), asked)
        found = find(free_capacity, resource_request_of(spec(gpus=gpus, replicas=replicas, **ZONE)), asked)
        assert anywhere is not None
        assert found is not None
        assert {one.node_id for one in found} == {"node-2"}, (gpus, replicas)
    assert find(free_capacity, resource_request_of(spec(gpus=1, replicas=3, **ZONE)), asked) is None
    tolerant = spec(gpus=1, replicas=10, tolerate=["spot"], **ZONE)
    found = find(free_capacity, resource_request_of(tolerant), asked)
    assert found is not None
    assert {one.node_id for one in found} == {"node-2", "node-3"}
    share = spec(gpus=0, role={"share": {"request": 0.5, "memory": "1GiB"}}, **ZONE)
    found = find(free_capacity, resource_request_of(share), asked)
    assert found is not None
    assert {one.node_id for one in found} == {"node-2"}


def test_nodes_that_do_not_match_are_not_kept_for_a_job() -> None:
    nodes = [node("node-1", gpus=8), zoned("node-2"), node("node-3", gpus=8, taints={"spot": ""})]
    assert emptiest(free_capacity_of(nodes, []), resource_request_of(spec(gpus=2, **ZONE))) == ("node-2",)


def test_a_job_waits_until_a_node_has_the_label_and_goes_on_when_it_is_gone() -> None:
    w = world(nodes=2, gpus=1)
    w.round()
    w.submit("j-1", gpus=1, spec=ZONE)
    rounds(w)
    why = w.stored["j-1"].waiting_for
    assert why is not None
    assert (why.code, why.sentence) == (
        CauseCode.NO_NODES,
        "no node of its pool matches `zone == 'a'`; no node has a label",
    )
    mark(w, "node-2", labels={"zone": "a"})
    rounds(w)
    assert (w.state("j-1"), places(w)) == (S.RUNNING, {"node-2"})
    mark(w, "node-2", labels={"zone": None})
    rounds(w)
    assert (w.state("j-1"), places(w)) == (S.RUNNING, {"node-2"})


def test_an_elastic_job_grows_only_onto_nodes_that_match_and_tolerates_only_what_it_says() -> None:
    w = world(nodes=3, gpus=2)
    w.nodes["node-1"].labels = {"zone": "a"}
    w.nodes["node-2"].labels = {"zone": "a"}
    w.nodes["node-2"].taints = {"spot": "yes"}
    w.round()
    role = {"replicas": {"min": 1, "want": 6, "max": 6}}
    live = {"role": role, "resize": {"how": "live"}, **ZONE}
    w.submit("j-1", gpus=1, spec={**live, "tolerate": ["spot=no"]})
    w.submit("j-2", gpus=1, spec={**live, "tolerate": ["spot=yes"]})
    rounds(w)
    assert places(w, "j-1") == {"node-1"}
    assert places(w, "j-2") == {"node-2"}
    assert len(w.stored["j-1"].held) == len(w.stored["j-2"].held) == 2


def test_an_operators_labels_win_and_survive_reports_and_another_leader() -> None:
    w = world(nodes=1, gpus=1)
    w.nodes["node-1"].labels = {"zone": "a", "old": ""}
    w.round()
    mark(w, "node-1", labels={"zone": "b", "old": None}, taints={"spot": ""})
    w.nodes["node-1"].labels = {"zone": "c", "old": "", "rack": "7"}
    w.round()
    (known,) = w.core.cluster_state.pool.nodes.values()
    assert (known.labels, known.taints) == ({"rack": "7", "zone": "b"}, {"spot": ""})
    w.lead_anew([], [known])
    w.round()
    (again,) = w.core.cluster_state.pool.nodes.values()
    assert (again.labels, again.taints, again.marking) == (known.labels, known.taints, known.marking)


def test_the_reason_counts_the_nodes_that_match() -> None:
    nodes = [zoned("node-1", gpus=1), zoned("node-2", gpus=1, taints={"spot": ""}), node("node-3", gpus=8)]
    free_capacity = empty_capacity(nodes)
    wants = resource_request_of_job(job("j-1", gpus=1, spec=ZONE))
    free_capacity.take_all(find(free_capacity, wants) or ())
    cause = why_not(free_capacity, wants)
    assert cause is not None
    assert cause.code is CauseCode.NO_ROOM
    assert "2 of 3 nodes match its `where`: node-1 and node-2" in cause.sentence
    assert "it does not tolerate spot on node-2" in cause.sentence
    assert cause.numbers["nodes_that_match"] == 2
    assert cause.numbers["gpus_free"] == 0


@pytest.mark.parametrize(
    ("fields", "field", "says"),
    [
        ({"where": "zone == 'c'"}, "where", "no node of its pool matches `zone == 'c'`; there is zone=a, zone=b"),
        ({"where": "zone == 'b'"}, "tolerate", "each node of its pool that matches its `where` has a taint"),
        ({"where": "zone == 'b'", "tolerate": ["spot=no"]}, "tolerate", "spot=yes"),
    ],
)
def test_a_job_that_no_node_may_have_is_refused_by_its_field(fields: dict[str, Any], field: str, says: str) -> None:
    nodes = [zoned("node-1"), node("node-2", labels={"zone": "b"}, taints={"spot": "yes"})]
    with pytest.raises(RejectedError) as caught:
        Admission(nodes, default_pool="default", volumes_allowed=(), shares=True).check(spec(**fields), "ada")
    assert caught.value.field == field
    assert says in caught.value.reason
    cause = never_fits(spec(**fields), nodes)
    assert cause is not None
    assert (cause.code, says in cause.sentence) == (CauseCode.TOO_BIG, True)


def test_a_pinned_job_says_why_its_node_does_not_suit_it() -> None:
    nodes = [zoned("node-1"), node("node-2", taints={"spot": ""})]
    for fields, says in (
        ({**ZONE, "tolerate": ["*"]}, "which does not match `zone == 'a'`"),
        ({}, "which has a taint that it does not tolerate: spot"),
    ):
        pinned = resource_request_of(spec(pin={"node": "node-2"}, **fields))
        cause = why_not(empty_capacity(nodes), pinned)
        assert cause is not None
        assert says in cause.sentence


def test_a_benchmark_measures_gpus_of_nodes_with_taints() -> None:
    tainted = node("node-1", taints={"spot": ""})
    gpu = structs.replace(tainted.capacity.gpus[0], emulated=True)
    made = benchmark_spec(gpu, node_id="node-1", pool="default")
    assert find(empty_capacity([tainted]), resource_request_of(made)) is not None
