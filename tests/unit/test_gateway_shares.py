"""What a job that shares a GPU is told of its share: what it got, and who is beside it, if that is its tenant's."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.builders import GIB, job, node
from weft.domain.cluster import NO_SHARES, NOT_HELD_TO_SHARES
from weft.domain.job import Allocation, Job, JobState, Placement
from weft.domain.shares import Share
from weft.messages.http.explanation import BesideSeen, ShareSeen
from weft.messages.signals import HostSample, NodeSampled, RunSample, ShareSample
from weft.store.tenants import Access
from weftd.cli.rendering.shares import share_lines
from weftd.gateway.readmodel.cluster import LiveCluster
from weftd.gateway.readmodel.shares import SHOWN_MAX, shares_seen

ALICE, BOB = Access(tenant="alice"), Access(tenant="bob")
ADMIN = Access(tenant="root", admin=True)
NODES = {"node-1": node()}


def of(request: int, limit: int = 1000) -> Share:
    return Share(request=request, limit=limit, memory=4 * GIB)


def sharing(
    job_id: str, request: int, *, gpu: int = 0, ranks: int = 1, tenant: str = "alice", limit: int = 1000
) -> Job:
    share = of(request, limit)
    allocations = tuple(
        Allocation(rank=rank, role="worker", node_id="node-1", gpus=(gpu,), cpus=1.0, memory=GIB, share=share)
        for rank in range(ranks)
    )
    made = job(job_id, state=JobState.RUNNING, epoch=2, placement=Placement(allocations=allocations))
    return replace(made, tenant=tenant)


async def heard(**used: float) -> LiveCluster:
    """`used` of each job's first rank."""
    cluster = LiveCluster(clock=lambda: 0.0)
    runs = tuple(
        RunSample(
            job_id=job_id.replace("_", "-"),
            epoch=2,
            rank=0,
            source="cgroup2",
            share=ShareSample(gpu_uuid="u", request=0.5, limit=1.0, used=part),
        )
        for job_id, part in used.items()
    )
    host = HostSample(cpus=1, memory_total=1, memory_used=1)
    await cluster.hear_sample(NodeSampled(node_id="node-1", pool="default", at=1.0, host=host, runs=runs))
    return cluster


async def test_a_rank_is_told_what_it_got_and_who_is_beside_it() -> None:
    mine, friend, other, elsewhere = (
        sharing("j-1", 300, limit=800),
        sharing("j-2", 500),
        sharing("j-3", 200, tenant="bob"),
        sharing("j-4", 500, gpu=1),
    )
    cluster = await heard(j_1=0.25, j_2=0.5, j_3=0.125)
    (seen,) = shares_seen(mine, [mine, friend, other, elsewhere], NODES, cluster, ALICE)
    got = ShareSample(gpu_uuid="u", request=0.5, limit=1.0, used=0.25)
    assert seen == ShareSeen(
        rank=0,
        node_id="node-1",
        gpu=0,
        share=of(300, 800),
        got=got,
        beside=(
            BesideSeen(job_id="j-2", name=friend.name, tenant="alice", share=of(500), used=0.5),
            BesideSeen(job_id="j-3", share=of(200)),
        ),
    )
    (all_seen,) = shares_seen(mine, [mine, friend, other], NODES, cluster, ADMIN)
    assert [each.used for each in all_seen.beside] == [0.5, 0.125]


async def test_without_a_sample_what_was_got_is_not_known_and_a_node_that_holds_nobody_to_a_share_is_told() -> None:
    mine = sharing("j-1", 300)
    (seen,) = shares_seen(mine, [mine], NODES, await heard(), ALICE)
    assert (seen.got, seen.enforced, seen.beside) == (None, True, ())
    for word in (NOT_HELD_TO_SHARES, NO_SHARES):
        free = {"node-1": replace(NODES["node-1"], not_enforced=("egress", word))}
        (seen,) = shares_seen(mine, [mine], free, await heard(), ALICE)
        assert not seen.enforced


async def test_the_ranks_of_one_job_are_beside_each_other_and_the_first_of_them_are_told() -> None:
    mine = sharing("j-1", 10, ranks=40)
    seen = shares_seen(mine, [mine], NODES, await heard(), ALICE)
    assert [share.rank for share in seen] == list(range(SHOWN_MAX))
    assert [each.rank for each in seen[0].beside] == list(range(1, 40))


HELD = ShareSeen(rank=0, node_id="node-1", gpu=1, share=of(300, 800))


def got(**known: Any) -> ShareSeen:
    return replace(HELD, got=ShareSample(gpu_uuid="u", request=0.3, limit=0.8, **known))


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (HELD, "its use is not known yet"),
        (replace(HELD, enforced=False), "its node does not enforce shares, so its use is not measured"),
        (got(used=0.25), "it used 25% of the GPU's time lately"),
        (got(used=0.45, borrowed=0.15), "it used 45% of the GPU's time lately (15% beyond its request)"),
        (
            got(used=0.1, lent=0.2, wait_p99_seconds=0.0123, memory_used=GIB),
            "it used 10% of the GPU's time lately, others used 20% that it left, 99 of 100 turns came within 12.3"
            " ms, 1GiB in use",
        ),
        (
            got(used=0.1, refused=2, overruns=1, given_up=3),
            "it used 10% of the GPU's time lately, 2 allocations beyond its memory refused, 1 turn taken from it as it"
            " kept them too long, it went on without a turn 3 times, as the arbiter did not answer",
        ),
    ],
)
def test_a_share_is_told_in_words(share: ShareSeen, text: str) -> None:
    assert share_lines([share]) == [
        f"rank 0 has 0.3 to 0.8 of GPU 1 of node-1, 4GiB: {text}",
        "  no other job has a share of that GPU",
    ]


def test_neighbours_are_told_by_name_if_they_may_be() -> None:
    beside = (
        BesideSeen(job_id="j-2", name="train\x1b", tenant="alice", share=of(500, 500), used=0.4),
        BesideSeen(job_id="j-3", share=of(200)),
    )
    (_, line) = share_lines([replace(HELD, beside=beside)])
    assert line == "  beside it: train  (j-2) 0.5, used 40%; a job of another tenant (j-3) 0.2 to 1"
