"""Jobs that may have GPUs of several models, or need GPUs with enough memory."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.builders import GIB, capacity, job, node, spec
from tests.support.nodes import ScriptedNode
from tests.support.scheduler import World
from weft.domain.cluster import Node
from weft.domain.decoding.spec_decoder import SpecError
from weft.domain.job import Allocation, Job, JobState, Placement
from weft.domain.job import JobEvent as E
from weft.domain.spec import JobSpec
from weft.messages.asks import Ask, AskKind, Scale
from weft.messages.signals import Curve, CurvePoint
from weft.planning.capacity import FreeCapacity, empty_capacity
from weft.planning.finding import find
from weft.planning.partition import Rules
from weft.planning.partition.weft import weft
from weft.planning.policy import PLACEMENTS, Policy
from weft.planning.reasons.explain import explain
from weft.planning.reasons.refusals import why_not
from weft.planning.resource_request import PlacementRequest, resource_request_of, resource_request_of_job
from weft.variability.models import ModelRatio, ratios_in, relative_speeds
from weftd.gateway.errors import RejectedError
from weftd.gateway.thinking.admission import Admission
from weftd.reallocator.thinking.partitioning import Plans, SizePlanner


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


@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
def test_a_job_gets_no_gpu_of_a_model_that_it_excludes(placement: str) -> None:
    assert place_of(spec(gpu_model=["!T4", "!H100"]), placement=placement) == {"new"}
    assert place_of(spec(gpu_model="!T4", gpu_memory="41GiB"), placement=placement) == {"newest"}
    assert place_of(spec(gpu_model="!T4", replicas=5), placement=placement) == set()
    assert place_of(spec(gpu_model="!B200", replicas=6), placement=placement) == {"old", "new", "newest"}


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
        ({"gpu_model": ["!K80", "!K80"]}, "gpu_model", "!K80 is named twice"),
        ({"gpu_model": "!"}, "gpu_model", "! stands before the name of one model, such as !K80"),
        ({"gpu_model": ["!any"]}, "gpu_model", "! stands before the name of one model, such as !K80"),
        ({"gpu_model": ["A100", "!A100"]}, "gpu_model", "names A100 and excludes A100: name models or exclude models"),
        (
            {"gpu_model": ["A100", "!T4", "!K80"]},
            "gpu_model",
            "names A100 and excludes T4 and K80: name models or exclude",
        ),
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
            "no node of pool default has a GPU of B200 or L40S; there is A100, H100, T4",
        ),
        (
            {"gpu_model": ["!A100", "!H100", "!T4"]},
            "gpu_model",
            "no node of pool default has a GPU of any model but A100 and H100 and T4; there is A100, H100, T4",
        ),
        (
            {"gpu_memory": "48GiB", "gpu_model": "!H100"},
            "gpu_memory",
            "no GPU of any model but H100 of pool default has 48GiB of memory; the largest has 40GiB",
        ),
        ({"gpu_memory": "96GiB"}, "gpu_memory", "no GPU of pool default has 96GiB of memory; the largest has 80GiB"),
        (
            {"gpu_memory": "48GiB", "gpu_model": ["T4", "A100"]},
            "gpu_memory",
            "no GPU of T4 or A100 of pool default has 48GiB of memory; the largest has 40GiB",
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
    told = why_not(full("old", "new"), resource_request_of(spec(gpus=2, gpu_model="!H100")))
    assert told is not None
    assert told.sentence == "wants 2 GPUs of any model but H100 on one node; none is free"
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
    assert told(*POOL, gpu_model="!A100").endswith("(models of GPUs considered: H100, T4)")
    assert "considered" not in told(POOL[0])


def test_a_text_is_a_list_of_one_and_any_is_no_restriction() -> None:
    assert spec(gpu_model=["A100", "H100"]).gpu_models == ("A100", "H100")
    assert spec(gpu_model=["A100"]).only_model == spec(gpu_model="A100").only_model == "A100"
    assert spec(gpu_model="any").gpu_models == spec().gpu_models == ()
    excluding = spec(gpu_model=["!T4", "!K80"])
    assert (excluding.gpu_models, excluding.gpu_models_excluded) == ((), ("T4", "K80"))


# the partition planner's choice


def test_a_job_starts_on_the_model_that_the_planner_chose_and_anywhere_else_if_that_is_full() -> None:
    waits = replace(job(gpus=2), gpu_model="H100")
    free_capacity = empty_capacity(POOL)
    place = find(free_capacity, resource_request_of_job(waits))
    assert {one.node_id for one in place or ()} == {"newest"}
    free_capacity.take_all(place or ())
    assert find(free_capacity, resource_request_of_job(waits)) is not None


def restarting(**fields: Any) -> dict[str, Any]:
    return {"role": {"replicas": {"min": 1, "want": 2, "max": 4}}, "checkpoints": {"on_stop": True}, **fields}


def two_models() -> World:
    made = World(
        ScriptedNode("node-1", capacity(gpus=2, model="T4")), ScriptedNode("node-2", capacity(gpus=4, model="A100"))
    )
    for node_id in made.nodes:
        made.sync(node_id)
    return made


def started(w: World, **fields: Any) -> Job:
    """`j-1` runs on both T4."""
    w.submit("j-1", spec=restarting(**fields))
    for _ in range(3):
        w.round()
    assert nodes_of(w) == {"node-1"}
    return w.stored["j-1"]


def nodes_of(w: World) -> set[str]:
    return {one.node_id for one in w.stored["j-1"].held}


def scaled(w: World, *, workers: int, model: str) -> None:
    asked = Scale(size={"worker": workers}, gpu_model=model, epoch=w.stored["j-1"].epoch)
    w.keep(w.core.ask(Ask(id=1, kind=AskKind.SCALE, subject_id="j-1", tenant="weft", at=w.now, scale=asked), w.now))


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_job_restarts_whole_on_the_model_that_a_plan_names_with_its_place_kept_for_it(workers: int) -> None:
    w = two_models()
    started(w)
    scaled(w, workers=workers, model="A100")
    for _ in range(4):
        w.round()
    moved = w.stored["j-1"]
    assert (nodes_of(w), moved.granted, moved.epoch) == ({"node-2"}, {"worker": workers}, 1)
    assert w.told("j-1")[-5:] == [E.SCALED, E.STOPPING, E.RESTARTED, E.STARTING, E.STARTED]
    assert moved.placement is not None
    assert moved.placement.why == "on GPUs of A100, by the partition planner"


def test_a_job_stays_where_it_is_until_all_of_it_fits_on_the_other_model() -> None:
    w = two_models()
    started(w)
    w.submit("j-2", gpus=3)
    for _ in range(3):
        w.round()
    scaled(w, workers=2, model="A100")
    for _ in range(3):
        w.round()
    assert (nodes_of(w), w.stored["j-1"].epoch) == ({"node-1"}, 0)
    w.ask(AskKind.CANCEL, "j-2")
    for _ in range(4):
        w.round()
    assert nodes_of(w) == {"node-2"}


def test_a_job_is_not_moved_to_a_model_that_it_may_not_have_nor_a_live_one_at_all() -> None:
    for fields in ({"gpu_model": ["T4", "H100"]}, {"gpu_model": "!A100"}):
        w = two_models()
        started(w, **fields)
        scaled(w, workers=2, model="A100")
        assert w.stored["j-1"].gpu_model == ""
    w = two_models()
    started(w, resize={"how": "live"})
    scaled(w, workers=2, model="A100")
    for _ in range(3):
        w.round()
    assert nodes_of(w) == {"node-1"}


OLD_AND_NEW = (of("T4", "node-1", gpus=4), of("A100", "node-2", gpus=4))


def planned(
    one: Job, *, curves: Mapping[str, Curve], holds: bool, nodes: Sequence[Node] = OLD_AND_NEW
) -> Mapping[str, Scale]:
    planner = SizePlanner(Plans(rules=Rules(theta1=1.0, theta2=1.0)), weft)
    holding, queued = ([one], []) if holds else ([], [one])
    return planner.plan(holding=holding, queued=queued, nodes=nodes, curves=curves, now=10_000.0).sizes


def curve(**speeds: float) -> dict[str, Curve]:
    points = tuple(
        CurvePoint(model=model, replicas=count, cpus=float(count), speed=speed * count, windows=50, at=1.0)
        for model, speed in speeds.items()
        for count in (1, 2, 4)
    )
    return {"job:j-1": Curve(subject="job:j-1", pool="default", points=points)}


def on_old(**fields: Any) -> Job:
    held = tuple(
        Allocation(rank=rank, role="worker", node_id="node-1", gpus=(rank,), cpus=1.0, memory=GIB) for rank in range(4)
    )
    where = {"placement": Placement(allocations=held), "placed_at": 0.0, "started_at": 0.0, "size": {"worker": 4}}
    return job("j-1", spec=restarting(**fields), state=JobState.RUNNING, **where)


def test_the_planner_moves_a_job_to_the_model_on_which_it_is_faster_by_more_than_its_restart_costs() -> None:
    faster = planned(on_old(), curves=curve(T4=1.0, A100=3.0), holds=True)["j-1"]
    assert (faster.gpu_model, faster.size) == ("A100", {"worker": 4})
    assert faster.cause is not None
    assert faster.cause.sentence.startswith("worker 4 on GPUs of A100, by the partition planner: +")
    assert planned(on_old(), curves=curve(T4=1.0, A100=1.02), holds=True) == {}
    assert planned(on_old(gpu_model="T4"), curves=curve(T4=1.0, A100=3.0), holds=True) == {}
    assert planned(on_old(gpu_model="!A100"), curves=curve(T4=1.0, A100=3.0), holds=True) == {}
    pending = replace(on_old(), gpu_model="A100")
    assert planned(pending, curves=curve(T4=1.0, A100=3.0), holds=True) == {}, "it waits for GPUs there already"


def test_a_running_job_of_one_size_moves_to_a_faster_model_if_it_can_restart() -> None:
    one_size = {"role": {"replicas": {"want": 4}}}
    faster = planned(on_old(**one_size), curves=curve(T4=1.0, A100=3.0), holds=True)["j-1"]
    assert (faster.gpu_model, faster.size) == ("A100", {"worker": 4})
    assert planned(on_old(**one_size), curves=curve(T4=3.0, A100=1.0), holds=True) == {}
    assert planned(on_old(**one_size, checkpoints=None), curves=curve(T4=1.0, A100=3.0), holds=True) == {}


def test_a_model_that_was_never_measured_counts_by_its_usual_ratio_to_those_that_were() -> None:
    assert planned(on_old(), curves=curve(T4=1.0), holds=True)["j-1"].gpu_model == "A100"
    unknown = (OLD_AND_NEW[0], of("B200", "node-2", gpus=4))
    assert planned(on_old(), curves=curve(T4=1.0), holds=True, nodes=unknown) == {}, "nothing tells that it is faster"
    slow = curve(T4=1.0) | {"workload:other": replace(curve(T4=3.0, A100=1.0)["job:j-1"], subject="workload:other")}
    for number in range(30):
        slow[f"workload:{number}"] = replace(slow["workload:other"], subject=f"workload:{number}")
    assert planned(on_old(), curves=slow, holds=True) == {}, "other workloads are slower there"


def test_the_speeds_of_models_follow_from_start_values_and_from_workloads_that_ran_on_several() -> None:
    usual = relative_speeds(["Tesla T4", "NVIDIA A100-SXM4-40GB", "NVIDIA GeForce RTX 2080 Ti"], "compute")
    assert usual["NVIDIA A100-SXM4-40GB"] / usual["Tesla T4"] == pytest.approx(4.4)
    assert usual["NVIDIA GeForce RTX 2080 Ti"] / usual["Tesla T4"] == pytest.approx(2.0, rel=0.02)
    assert relative_speeds(["NVIDIA T400", "B200"], "compute") == {"NVIDIA T400": 1.0, "B200": 1.0}
    learnt = [ModelRatio("memory", "B200", "A100", 3.0), *(ModelRatio("mixed", "A100", "T4", 2.0) for _ in range(99))]
    memory = relative_speeds(["T4", "A100", "B200"], "memory", learnt)
    assert memory["B200"] / memory["A100"] == pytest.approx(3.0)
    assert memory["A100"] / memory["T4"] == pytest.approx(2.0, rel=0.03), "other classes, where its own has nothing"
    compute = relative_speeds(["T4", "A100", "B200"], "compute", learnt)
    assert 2.0 < compute["A100"] / compute["T4"] < 3.0, "its own class counts ten times as much"


def test_a_workload_shows_a_ratio_where_as_many_replicas_ran_on_both_models() -> None:
    points = (("T4", 1, 1.0), ("T4", 2, 1.8), ("A100", 2, 3.6), ("A100", 4, 9.0), ("H100", 8, 50.0))
    shown = Curve(
        subject="workload:w",
        pool="default",
        points=tuple(CurvePoint(model=m, replicas=n, cpus=float(n), speed=speed) for m, n, speed in points),
    )
    assert ratios_in(shown, "mixed") == [ModelRatio("mixed", "T4", "A100", 0.5)]


def test_the_planner_names_the_model_on_which_a_waiting_job_is_to_start() -> None:
    waits = job("j-1", spec=restarting())
    assert planned(waits, curves=curve(T4=1.0, A100=3.0), holds=False)["j-1"].gpu_model == "A100"
    assert planned(waits, curves=curve(T4=3.0, A100=1.0), holds=False)["j-1"].gpu_model == "T4"
