"""What the gateway hears of nodes and keeps: each node's word counts for what is its own."""

from msgspec import structs

from tests.support.builders import job
from tests.support.steps import placement
from weft.domain.job import JobState
from weft.messages.nodes import ProgressSeen, RunProgressed
from weft.messages.signals import NOT_TUNED, Finding, PoolReviewed, RankVerdict
from weftd.cli.rendering.tuned import told_once
from weftd.gateway.readmodel.cluster import JOBS_PER_NODE_MAX, LiveCluster

JOB = job("j-1", replicas=2, state=JobState.RUNNING, epoch=3, placement=placement(("node-1", 0), ("node-2", 0)))


def told(node_id: str, *, rank: int = 0, epoch: int = 3, step: float = 1.0, job_id: str = "j-1") -> ProgressSeen:
    run = RunProgressed(job_id=job_id, epoch=epoch, rank=rank, progress={"step": step})
    return ProgressSeen(node_id=node_id, runs=(run,))


def steps(cluster: LiveCluster) -> dict[int, float]:
    return {rank: run.progress["step"] for rank, run in cluster.progress(JOB).items()}


async def test_progress_is_told_by_the_node_where_the_rank_is_placed() -> None:
    cluster = LiveCluster(clock=lambda: 0.0)
    await cluster.hear_progress(told("node-1", rank=0, step=10))
    await cluster.hear_progress(told("node-2", rank=1, step=11))
    assert steps(cluster) == {0: 10, 1: 11}


async def test_what_another_node_tells_of_a_run_changes_nothing() -> None:
    cluster = LiveCluster(clock=lambda: 0.0)
    await cluster.hear_progress(told("node-1", rank=0, step=10))
    await cluster.hear_progress(told("node-2", rank=0, step=99))
    await cluster.hear_progress(told("node-3", rank=0, step=99))
    await cluster.hear_progress(told("node-3", rank=0, epoch=1000, step=99))
    for number in range(2 * JOBS_PER_NODE_MAX):
        await cluster.hear_progress(told("node-3", job_id=f"j-{number + 2}"))
    assert steps(cluster) == {0: 10}


async def test_progress_of_an_earlier_epoch_is_not_shown_for_this_one() -> None:
    cluster = LiveCluster(clock=lambda: 0.0)
    await cluster.hear_progress(told("node-1", epoch=2))
    assert cluster.progress(JOB) == {}
    await cluster.hear_progress(told("node-1", epoch=3, step=5))
    await cluster.hear_progress(told("node-1", epoch=2, step=4))
    assert steps(cluster) == {0: 5}


async def test_a_verdict_of_a_replica_long_gone_is_not_shown_and_none_is_shown_twice() -> None:
    cluster = LiveCluster(clock=lambda: 0.0)
    verdict = RankVerdict(job_id="j-1", epoch=3, rank=0, code="over-provisioned", sentence="uses 0.01 of its 1 core")
    of_job = structs.replace(verdict, rank=-1, sentence=f"1 of 1 ranks leaves CPU unused: rank 0 {verdict.sentence}!")
    gone = tuple(structs.replace(verdict, rank=rank) for rank in (7, 8, 9))
    again = structs.replace(verdict, rank=1)
    await cluster.hear_review(PoolReviewed(pool="default", at=0.0, verdicts=(verdict, of_job, again, *gone, verdict)))
    assert [one.rank for one in cluster.verdicts(JOB)] == [-1, 0, 1]
    assert told_once(cluster.verdicts(JOB)) == [of_job]
    assert told_once([verdict, again]) == [verdict]


async def test_that_a_job_is_not_tuned_is_shown_on_the_job_and_not_among_the_findings_of_all() -> None:
    cluster = LiveCluster(clock=lambda: 0.0)
    untuned = Finding(code=NOT_TUNED, job_id="j-1", sentence="not tuned")
    idle = Finding(code="idle-gpu", job_id="j-1", sentence="idle")
    await cluster.hear_review(PoolReviewed(pool="default", at=0.0, findings=(untuned, idle)))
    assert cluster.findings_on(JOB) == (untuned, idle)
    assert cluster.findings() == (idle,)
