"""A page that takes every delta shows what a page that is opened now shows, and a tenant's has nothing of others."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.support.builders import job, node
from tests.support.steps import placement
from tests.support.tier import examples
from tests.support.topologies import topology
from weft.domain.health import HealthRecord, HealthState
from weft.domain.job import Job, JobState
from weft.domain.shares import Share
from weft.messages.live import LiveDelta, LiveNode, LiveSnapshot
from weft.messages.signals import GpuSample, GpuScore, HostSample, NodeSampled
from weftd.gateway.readmodel.cluster import LiveCluster
from weftd.gateway.readmodel.live_picture import (
    SAMPLED_AT_ONCE,
    ClusterSeen,
    LiveChange,
    LiveCounts,
    LivePicture,
    waiting_of,
)
from weftd.gateway.readmodel.live_stream import WAITING_BYTES_MAX, WAITING_MAX, Live, LiveReader, LiveView

NODES = ("node-1", "node-2", "node-3")
TENANTS = ("alice", "bob")
NOW = 1_000_000.0

jobs = st.fixed_dictionaries(
    {
        "number": st.integers(0, 5),
        "version": st.integers(1, 3),
        "gpus": st.lists(st.tuples(st.sampled_from(NODES), st.integers(0, 3)), min_size=1, max_size=3, unique=True),
        "share": st.sampled_from([None, 250, 500]),
        "state": st.sampled_from([JobState.PLACED, JobState.RUNNING, JobState.STOPPING]),
    }
)
looks = st.fixed_dictionaries(
    {
        "nodes": st.lists(
            st.tuples(st.sampled_from(NODES), st.booleans(), st.booleans(), st.sampled_from([0.0, 50.0])),
            max_size=3,
            unique_by=lambda each: each[0],
        ),
        "jobs": st.lists(jobs, max_size=4, unique_by=lambda each: each["number"]),
        "waiting": st.lists(st.sampled_from(TENANTS), max_size=3),
        "samples": st.dictionaries(st.sampled_from(NODES), st.floats(-1, 2), max_size=2),
        "scores": st.none() | st.dictionaries(st.sampled_from(NODES), st.floats(0.5, 3), max_size=2),
        "sampled": st.booleans(),
    }
)


def holding(fields: dict[str, Any], earlier: dict[str, Job], version: int) -> Job:
    """One job that holds something; a version stands for one state of it."""
    job_id = f"j-{fields['number']}"
    where = placement(*fields["gpus"])
    if fields["share"]:
        share = Share(request=fields["share"], memory=1)
        where = structs.replace(
            where, allocations=tuple(structs.replace(one, share=share) for one in where.allocations)
        )
    tenant = TENANTS[fields["number"] % 2]
    made = job(job_id, seq=fields["number"], spec={"name": f"name-of-{tenant}"})
    made = structs.replace(made, tenant=tenant, state=fields["state"], placement=where, version=version)
    known = earlier.get(job_id)
    return known if known is not None and structs.replace(known, version=version) == made else made


def taken(page: dict[str, Any], told: LiveDelta) -> None:
    page["nodes"] |= {each.id: each for each in told.nodes}
    page["jobs"] |= told.jobs
    for gone in told.nodes_gone:
        del page["nodes"][gone]
    for gone in told.jobs_gone:
        del page["jobs"][gone]
    for name in ("totals", "states", "waiting", "findings"):
        if getattr(told, name) is not None:
            page[name] = getattr(told, name)


def opened(view: LiveView) -> dict[str, Any]:
    told = msgspec.json.decode(view.snapshot(), type=LiveSnapshot)
    return {
        "nodes": {each.id: each for each in told.nodes},
        "jobs": told.jobs,
        **{name: getattr(told, name) for name in ("totals", "states", "waiting", "findings")},
    }


@settings(deadline=None, max_examples=examples(150))
@given(st.lists(looks, min_size=1, max_size=8))
async def test_all_deltas_together_are_the_snapshot(several: list[dict[str, Any]]) -> None:
    cluster = LiveCluster(clock=lambda: 0.0)
    live = cast(Live, SimpleNamespace(picture=LivePicture(cluster), looks=0, cursor="1-1", at=NOW, findings=b"[]"))
    views = [LiveView(live, key) for key in (("alice", False), ("bob", False), ("bob", True))]
    pages = [opened(view) for view in views]
    earlier: dict[str, Job] = {}
    for number, fields in enumerate(several, 1):
        for node_id, used in fields["samples"].items():
            gpu = GpuSample(index=0, uuid="E", model="E", utilisation=used, memory_used=int(abs(used) * (1 << 40)))
            host = HostSample(cpus=1, memory_total=1, memory_used=0)
            await cluster.hear_sample(
                NodeSampled(node_id=node_id, pool="default", at=NOW, host=host, gpus=(gpu,), runs=())
            )
        nodes = [
            node(node_id, ready=ready, drained=drained, seen_at=NOW - silence)
            for node_id, ready, drained, silence in sorted(fields["nodes"])
        ]
        held = [holding(each, earlier, number) for each in fields["jobs"]]
        earlier |= {each.id: each for each in held}
        queued = [structs.replace(job(f"w-{index}"), tenant=of) for index, of in enumerate(fields["waiting"])]
        scores = fields["scores"] and [
            GpuScore(node_id=node_id, gpu_index=0, job_class="A", score=score)
            for node_id, score in fields["scores"].items()
        ]
        seen = ClusterSeen(nodes=nodes, holding=held, waiting=waiting_of(queued, held), now=NOW)
        change = live.picture.look(seen, sampled=fields["sampled"], scores=scores)
        live.looks += 1
        for view, page in zip(views, pages, strict=True):
            told = view.delta(change, b"[%s]" % b",".join(change.nodes))
            if told:
                taken(page, msgspec.json.decode(told, type=LiveDelta))
            assert page == opened(view)
            if not view.admin:
                other = "bob" if view.tenant == "alice" else "alice"
                assert other.encode() not in told
                assert other.encode() not in view.snapshot()
        for gpu_of in pages[0]["nodes"].values():
            for shown in gpu_of.gpus:
                assert shown.used is None or 0.0 <= shown.used <= 1.0
                assert shown.memory_used is None or 0 <= shown.memory_used <= shown.memory


def test_what_is_the_same_is_not_told_again() -> None:
    picture = LivePicture(LiveCluster(clock=lambda: 0.0))
    one = structs.replace(job(), state=JobState.RUNNING, placement=placement(("node-1", 0)))

    def look(seen_at: float) -> LiveChange:
        nodes, held = [node(seen_at=seen_at)], [structs.replace(one)]  # read again, and otherwise the same
        return picture.look(ClusterSeen(nodes=nodes, holding=held, waiting=LiveCounts(), now=NOW), sampled=True)

    first = look(NOW - 1)
    assert len(first.nodes) == len(list(first.jobs(None))) == 1
    again = look(NOW)
    assert not again.nodes
    assert not again.nodes_gone
    assert not list(again.jobs(None))
    assert again.totals == b""


async def test_of_very_many_nodes_the_samples_are_told_in_turn_and_all_of_them() -> None:
    cluster = LiveCluster(clock=lambda: 0.0)
    picture = LivePicture(cluster)
    nodes = [node(f"node-{number}", gpus=1, seen_at=NOW) for number in range(2 * SAMPLED_AT_ONCE + 10)]
    seen = ClusterSeen(nodes=nodes, holding=[], waiting=LiveCounts(), now=NOW)
    picture.look(seen, sampled=True)
    for each in nodes:
        gpu = GpuSample(index=0, uuid="E", model="E", utilisation=0.5)
        host = HostSample(cpus=1, memory_total=1, memory_used=0)
        await cluster.hear_sample(NodeSampled(node_id=each.id, pool="default", at=NOW, host=host, gpus=(gpu,), runs=()))
    counts = [len(picture.look(seen, sampled=True).nodes) for _ in range(4)]
    assert max(counts) <= SAMPLED_AT_ONCE
    assert sum(counts) == len(nodes)
    assert picture.look(seen, sampled=False).nodes == []


class _Told:
    """A view and its picture, of which only the frames matter."""

    def snapshot(self) -> bytes:
        return b"{}"

    def frame(self, event: str, told: bytes) -> bytes:
        return event.encode()

    def check(self) -> None:
        pass


async def test_a_reader_that_takes_nothing_gets_a_snapshot_in_place_of_what_it_missed() -> None:
    """Its frames do not pile up in the gateway."""
    reader = LiveReader(cast(LiveView, _Told()), cast(Live, _Told()))
    assert await reader.frames(0.1) == b"snapshot"
    for _ in range(3):
        reader.put(b"a")
    assert await reader.frames(0.1) == b"aaa"
    for _ in range(WAITING_MAX + 5):
        reader.put(b"a")
    assert await reader.frames(0.1) == b"snapshot"
    reader.put(bytes(WAITING_BYTES_MAX - 1))
    reader.put(b"aa")
    assert await reader.frames(0.1) == b"snapshot"
    assert await reader.frames(0.01) == b""


def test_a_version_that_comes_again_with_other_ranks_leaves_none_of_the_earlier_ones() -> None:
    """As in a store that was restored."""
    picture = LivePicture(LiveCluster(clock=lambda: 0.0))

    def look(*gpus: tuple[str, int]) -> None:
        made = structs.replace(job("j-1"), state=JobState.RUNNING, placement=placement(*gpus), version=7)
        held = [made] if gpus else []
        nodes = [node(node_id) for node_id in NODES]
        seen = ClusterSeen(nodes=nodes, holding=held, waiting=waiting_of([], held), now=NOW)
        picture.look(seen, sampled=True, scores=None)

    look(("node-1", 0), ("node-2", 1))
    look(("node-3", 2))
    look()
    assert not any(picture._held.values())


def test_a_node_and_a_gpu_that_are_out_of_use_say_why() -> None:
    gone = HealthRecord(gpu=1, state=HealthState.QUARANTINED, code="xid-79", sentence="Xid 79: it fell off the bus")
    hung = HealthRecord(state=HealthState.QUARANTINED, sentence="the GPU driver does not answer")
    suspect = HealthRecord(gpu=0, state=HealthState.SUSPECT, sentence="it is throttled")
    nodes = [
        structs.replace(node("node-1", seen_at=NOW), health=(suspect, gone)),
        structs.replace(node("node-2", seen_at=NOW), health=(hung,)),
        structs.replace(node("node-3", seen_at=NOW, drained=True), health=(hung,)),
    ]
    picture = LivePicture(LiveCluster(clock=lambda: 0.0))
    seen = ClusterSeen(nodes=nodes, holding=[], waiting=waiting_of([], []), now=NOW)
    change = picture.look(seen, sampled=True, scores=[])
    shown = {each.id: each for each in (msgspec.json.decode(told, type=LiveNode) for told in change.nodes)}
    assert [gpu.out for gpu in shown["node-1"].gpus[:2]] == ["", "quarantined: Xid 79: it fell off the bus"]
    assert [shown[f"node-{number}"].state for number in (1, 2, 3)] == ["ready", "quarantined", "drained"]
    assert shown["node-2"].out == "quarantined: the GPU driver does not answer"


def test_a_node_is_shown_with_the_links_of_its_gpus() -> None:
    links = topology("pairs-8")
    known, unknown = node("node-1", gpus=8), node("node-2", gpus=8)
    known = structs.replace(known, capacity=structs.replace(known.capacity, topology=links))
    seen = ClusterSeen(nodes=[known, unknown], holding=[], waiting=waiting_of([], []), now=NOW)
    change = LivePicture(LiveCluster(clock=lambda: 0.0)).look(seen, sampled=True)
    shown = [msgspec.json.decode(each, type=LiveNode) for each in change.nodes]
    assert [each.topology for each in shown] == [links, None]
