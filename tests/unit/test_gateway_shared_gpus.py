"""What is shown of GPUs that jobs share: who holds how much of each."""

from msgspec import structs

from tests.support.builders import GIB, job, node
from weft.domain.job import Allocation, Job, JobState, Placement
from weft.domain.shares import Share
from weft.store.tenants import Access
from weftd.gateway.readmodel.cluster import LiveCluster
from weftd.gateway.readmodel.views import job_view, node_views


def holds(job_id: str, *shares: Share | None, gpu: int = 0, tenant: str = "alice") -> Job:
    """One rank for each share, all on one GPU; None is all of it."""
    allocations = tuple(
        Allocation(rank=rank, role="worker", node_id="node-1", gpus=(gpu,), cpus=1.0, memory=GIB, share=share)
        for rank, share in enumerate(shares)
    )
    asked = {"request": 0.25, "memory": "1GiB"}
    made = job(job_id, gpus=0, replicas=len(shares), spec={"name": job_id, "role": {"share": asked}})
    return structs.replace(
        made, tenant=tenant, state=JobState.RUNNING, placement=Placement(allocations=allocations), placed_at=1.0
    )


def share(request: int) -> Share:
    return Share(request=request, limit=1000, memory=GIB)


def test_all_who_share_a_gpu_are_shown_with_their_parts_the_largest_first() -> None:
    jobs = [holds("j-1", share(100)), holds("j-2", share(300), share(200)), holds("j-3", None, gpu=1)]
    (seen,) = node_views([node("node-1", gpus=3)], jobs, LiveCluster(clock=lambda: 0.0), Access(tenant="alice"))
    shared, whole, free = seen.gpus
    assert [(one.name, one.rank, one.share) for one in shared.sharing] == [
        ("j-2", 0, share(300)),
        ("j-2", 1, share(200)),
        ("j-1", 0, share(100)),
    ]
    assert shared.held_by == shared.sharing[0]
    assert whole.held_by is not None
    assert (whole.held_by.name, whole.held_by.share, whole.sharing) == ("j-3", None, ())
    assert (free.held_by, free.sharing) == (None, ())


def test_of_another_tenants_share_its_size_is_shown_and_not_whose_it_is() -> None:
    jobs = [holds("j-1", share(100)), holds("j-2", share(300), tenant="bob")]
    (seen,) = node_views([node("node-1", gpus=1)], jobs, LiveCluster(clock=lambda: 0.0), Access(tenant="alice"))
    assert [(one.job_id, one.name, one.tenant, one.share) for one in seen.gpus[0].sharing] == [
        ("j-2", "", "", share(300)),
        ("j-1", "j-1", "alice", share(100)),
    ]


def test_a_job_counts_the_parts_that_it_holds_and_while_it_waits_those_that_it_wants() -> None:
    running = holds("j-1", share(300), share(200))
    view = job_view(running, LiveCluster(clock=lambda: 0.0), whole=True)
    assert view.gpus == 0.5
    assert [run.share for run in view.runs] == [share(300), share(200)]
    waits = structs.replace(running, state=JobState.QUEUED, placement=None)
    assert job_view(waits, LiveCluster(clock=lambda: 0.0)).gpus == 0.5  # two of 0.25
