"""The GPUs of a node that jobs get by their links: pairs, NVLink groups and sockets, beside their scores."""

from itertools import combinations, pairwise, permutations
from random import Random

import pytest
from msgspec import ValidationError, convert, structs

from tests.bench.inside_node import kept, measured
from tests.support.builders import node
from tests.support.topologies import NAMES, topology
from weft.domain.cluster import Request
from weft.domain.job import Allocation
from weft.domain.shares import Share
from weft.domain.topology import Topology
from weft.gpus.topology import topology_of_table
from weft.planning.capacity import FreeCapacity
from weft.planning.capacity.near import Near, bandwidth_of, near_of
from weft.planning.finding import find
from weft.planning.locality import Locality
from weft.planning.placement.weft_best import weft_best
from weft.planning.policy import PLACEMENTS, Policy
from weft.planning.reasons.why import why_there
from weft.planning.resource_request import PlacementRequest, ResourceRequest, RoleRequest
from weft.planning.scores import Scores

SEEDS = range(30)


def of(*, gpus: int, count: int = 1, share: Share | None = None) -> ResourceRequest:
    request = Request(gpus=gpus, cpus=1.0, memory=1, share=share)
    return (RoleRequest("worker", count, count, request),)


def room(
    links: Topology | None, scores: dict[int, float] | None = None, *, taken: tuple[int, ...] = ()
) -> FreeCapacity:
    """One node with these links, on which a job has the GPUs `taken`."""
    count = 8 if links is None else len(links.gpus)
    by_gpu = {("node-1", gpu): score for gpu, score in (scores or {}).items()}
    free = FreeCapacity(Scores({"compute": by_gpu} if scores else None), placer=weft_best)
    made = node("node-1", gpus=count)
    held = Allocation(rank=0, role="worker", node_id="node-1", gpus=taken, cpus=1.0, memory=1)
    free.add(structs.replace(made, capacity=structs.replace(made.capacity, topology=links)), [held] if taken else ())
    return free


def chosen(free: FreeCapacity, request: ResourceRequest, job_class: str = "compute") -> list[tuple[int, ...]]:
    place = find(free, request, PlacementRequest(job_class=job_class))
    assert place is not None
    return [one.gpus for one in place]


# the model


@pytest.mark.parametrize("name", NAMES)
def test_the_bandwidth_of_a_group_is_that_of_the_slowest_link_of_its_best_ring(name: str) -> None:
    links, dice = topology(name), Random(name)
    near = Near(links)
    for _ in range(12):
        group = tuple(dice.sample(range(len(links.gpus)), dice.randint(2, min(6, len(links.gpus)))))
        rings = [(group[0], *rest, group[0]) for rest in permutations(group[1:])]
        best = max(min(bandwidth_of(links.link(*pair)) for pair in pairwise(ring)) for ring in rings)
        assert near.bandwidth(sum(1 << place for place in group)) == best


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("pcie-4", [(0, 1), (2, 3)]),
        ("pairs-8", [(0, 1), (2, 3), (0, 1, 2, 3), (4, 5), (6, 7), (4, 5, 6, 7)]),
        ("dgx1-8", [(0, 1, 2, 3), (4, 5, 6, 7)]),
        ("nvswitch-8", [(0, 1, 2, 3), (4, 5, 6, 7)]),
    ],
)
def test_groups_are_what_links_join_and_sockets(name: str, groups: list[tuple[int, ...]]) -> None:
    near = Near(topology(name))
    assert sorted(map(near.named, near.groups)) == sorted(groups)


def test_the_table_of_nvidia_smi_is_read_with_what_stands_beside_the_gpus() -> None:
    links = topology("nvswitch-8")
    assert links.gpus == tuple(range(8))
    assert links.links[0].split() == ["NV18"] * 7
    assert links.numa == (0, 0, 0, 0, 1, 1, 1, 1)
    assert topology("pairs-8").link(6, 4) == "NODE"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "must have a header"),
        ("\tGPU0\tGPU1\nGPU0\tX\tNV1\n", "a row for each of its 2 GPUs, got 1"),
        ("\tGPU0\tGPU1\nGPU0\tX\tNV1\nGPU1\tNV1\n", "a link in each row"),
        ("\tGPU0\tGPU1\nGPU0\tX\tWIFI\nGPU1\tWIFI\tX\n", "no such link as 'WIFI'"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused_with_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        topology_of_table(text)


@pytest.mark.parametrize(
    "body",
    [
        {"gpus": [1, 0]},
        {"gpus": [0, 1], "links": ["NV4", "NV4"]},
        {"gpus": [0, 1], "links": ["NV4 NV4"]},
        {"gpus": [0, 1], "numa": [0]},
        {"gpus": list(range(65))},
    ],
)
def test_a_node_cannot_report_a_topology_that_contradicts_itself(body: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        convert(body, Topology)


# the choice


def test_a_pair_of_a_broken_socket_is_taken_before_one_of_a_whole_socket() -> None:
    assert chosen(room(topology("pairs-8"), taken=(6, 7)), of(gpus=2)) == [(4, 5)]


def test_ranks_of_one_gpu_go_to_one_pair_as_one_replica_of_two_does() -> None:
    free = room(topology("pairs-8"), taken=(0, 3, 5))
    assert sorted(chosen(free, of(gpus=1, count=2))) == [(6,), (7,)]


def test_one_gpu_comes_of_a_broken_pair() -> None:
    assert chosen(room(topology("pairs-8"), taken=(5,)), of(gpus=1)) == [(4,)]


def test_replicas_of_two_gpus_get_a_pair_each() -> None:
    scores = {0: 1.0, 1: 1.03, 2: 1.01, 3: 1.02, 4: 1.2, 5: 1.2, 6: 1.2, 7: 1.2}
    assert sorted(chosen(room(topology("pairs-8"), scores), of(gpus=2, count=2))) == [(0, 1), (2, 3)]


def test_a_slow_gpu_is_left_aside_when_it_costs_more_than_a_slower_link() -> None:
    pair = {0: 1.0, 1: 1.6, 2: 1.6, 3: 1.0, 4: 1.6, 5: 1.6, 6: 1.6, 7: 1.6}
    assert chosen(room(topology("pairs-8"), pair), of(gpus=2)) == [(0, 3)]
    little = {**pair, 1: 1.05}
    assert chosen(room(topology("pairs-8"), little), of(gpus=2)) == [(0, 1)]


def test_without_a_penalty_links_do_not_count() -> None:
    free = room(topology("pairs-8"), {gpu: 1.0 + 0.2 * (gpu % 2) for gpu in range(8)})
    free.locality = Locality(across_nodes=1.0)
    assert chosen(free, of(gpus=2)) == [(0, 2)]


def test_a_node_with_the_links_is_taken_before_one_without() -> None:
    free = room(topology("pairs-8"), taken=(0, 2, 4, 6))
    other = node("node-2", gpus=8)
    free.add(structs.replace(other, capacity=structs.replace(other.capacity, topology=topology("pairs-8"))))
    place = find(free, of(gpus=2), PlacementRequest())
    assert place is not None
    assert (place[0].node_id, place[0].gpus) == ("node-2", (0, 1))


def test_a_share_goes_to_a_gpu_of_a_broken_pair() -> None:
    share = Share(request=500, limit=1000, memory=1 << 20)
    assert chosen(room(topology("pairs-8"), taken=(5,)), of(gpus=0, share=share)) == [(4,)]


def test_a_replica_of_a_service_gets_gpus_that_are_linked() -> None:
    place = find(room(topology("pairs-8"), taken=(0,)), of(gpus=2), PlacementRequest(tolerates=1.0))
    assert place is not None
    assert place[0].gpus == (2, 3)


def test_the_decision_names_the_locality_of_the_links() -> None:
    free, request = room(topology("pcie-8")), of(gpus=4)
    place = find(free, request, PlacementRequest())
    assert place is not None
    explained = why_there(free, request, PlacementRequest(), place, placement="weft-best")
    assert explained.numbers["locality"] == pytest.approx(1 + 0.7 * 8 / 16)
    assert explained.numbers["slowest"] == 1.0


# choices that stay as they were


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_flat_topology_is_chosen_from_as_one_that_is_not_known(placement: str) -> None:
    flat = Topology(gpus=tuple(range(8)), links=tuple(" ".join(["SYS"] * left) for left in range(7, 0, -1)))
    for seed in SEEDS:
        dice = Random(seed)
        scores = {gpu: dice.lognormvariate(0.0, 0.1) for gpu in range(8)}
        taken = tuple(sorted(dice.sample(range(8), dice.randint(1, 5))))
        request = of(gpus=dice.choice((1, 2)), count=dice.choice((1, 2)))
        places = []
        for links in (flat, None):
            free = room(links, scores, taken=taken)
            free.placer = Policy(placement=placement).placing.placer
            places.append(find(free, request, PlacementRequest(job_class="compute", key="j")))
        assert places[0] == places[1]


@pytest.mark.parametrize("placement", ["pal", "pm-first", "packed"])
def test_the_published_placements_do_not_look_at_links(placement: str) -> None:
    for seed in SEEDS:
        scores = {gpu: Random(f"{seed}/{gpu}").lognormvariate(0.0, 0.1) for gpu in range(8)}
        found = []
        for links in (topology("pairs-8"), None):
            free = room(links, scores)
            free.placer = Policy(placement=placement).placing.placer
            found.append(chosen(free, of(gpus=2)))
        assert found[0] == found[1]


def test_a_topology_of_other_gpus_than_the_node_has_counts_as_unknown() -> None:
    made = node(gpus=4)
    assert near_of(structs.replace(made.capacity, topology=topology("pairs-8"))) is None
    assert near_of(structs.replace(made.capacity, topology=topology("pcie-4"))) is not None


@pytest.mark.parametrize("name", NAMES)
def test_what_a_job_gets_is_free_and_as_much_as_it_asks(name: str) -> None:
    links = topology(name)
    for seed in SEEDS:
        dice = Random(seed)
        taken = tuple(sorted(dice.sample(links.gpus, dice.randint(1, len(links.gpus) - 2))))
        left = len(links.gpus) - len(taken)
        each = dice.choice((1, 2))
        count = dice.randint(1, left // each)
        gpus = [gpu for rank in chosen(room(links, taken=taken), of(gpus=each, count=count)) for gpu in rank]
        assert len(set(gpus)) == len(gpus) == each * count
        assert not set(gpus) & set(taken)


def test_a_node_of_sixteen_gpus_finds_groups_as_near_as_the_best() -> None:
    rows = [[f"NV{4 if one // 4 == other // 4 else 1}" for other in range(16)] for one in range(16)]
    links = Topology(gpus=tuple(range(16)), links=tuple(" ".join(row[at + 1 :]) for at, row in enumerate(rows[:-1])))
    near = Near(links)
    for seed in SEEDS:
        free = Random(seed).sample(range(16), 11)
        best = max(near.bandwidth(near.mask(group)) for group in combinations(free, 4))
        assert near.best(near.mask(free), 4) == best


def test_the_bench_keeps_its_aims_but_for_the_clock() -> None:
    figures = measured(count=200, seed=3)
    assert kept({name: {**each, "decision_ms_more": 0.0} for name, each in figures.items()})
