"""Services as the reallocator hears of them: jobs, and the messages of routers and nodes."""

from typing import Any

from tests.support.builders import GIB, job
from weft.domain.job import Allocation, Job, JobState, Placement
from weft.domain.shares import Share
from weft.messages.serving import Endpoint, EndpointsSeen, ServiceServed, ServicesServed


def service_job(
    job_id: str = "j-1",
    *,
    replicas: int = 1,
    least: int = 0,
    most: int = 8,
    share: tuple[float, float] | None = None,
    has_share: int | None = None,
    objective: dict[str, Any] | None = None,
    service: dict[str, Any] | None = None,
    **fields: Any,
) -> Job:
    """With as many replicas as it wants, on GPU 0 of `node-1`, `node-2`, …"""
    role: dict[str, Any] = {"replicas": {"min": least, "want": max(least, 1), "max": most}}
    if share is not None:
        role["share"] = {"request": share[0], "limit": share[1], "memory": "1GiB"}
    held = None
    if share is not None:
        held = Share(request=has_share or round(share[0] * 1000), limit=round(share[1] * 1000), memory=GIB)
    allocations = tuple(
        Allocation(
            rank=rank,
            role="worker",
            node_id=f"node-{rank + 1}",
            gpus=(0,),
            cpus=1.0,
            memory=GIB,
            extra=True,
            share=held,
        )
        for rank in range(replicas)
    )
    return job(
        job_id,
        gpus=0 if share is not None else 1,
        spec={
            "kind": "inference",
            "role": role,
            "service": {"concurrency": 1, **(service or {})},
            "objective": objective or {"latency": "1s", "percentile": 99, "rate": 10},
        },
        state=JobState.RUNNING,
        placement=Placement(allocations=allocations),
        size={"worker": replicas},
        **fields,
    )


def told(
    *services: ServiceServed, seq: int, router: str = "router-1", boot: str = "a", at: float = 0.0
) -> ServicesServed:
    return ServicesServed(router=router, boot=boot, seq=seq, at=at, services=services)


def served(job_id: str = "j-1", arrived: int = 0, **fields: Any) -> ServiceServed:
    return ServiceServed(job_id=job_id, arrived=arrived, **fields)


def seen(
    *jobs: Job, seq: int, at: float, ready: bool = True, since: float = 100.0, took: float = 20.0
) -> list[EndpointsSeen]:
    """Of each node: its replicas of these jobs. They began `since` seconds ago, and became ready `took` later."""
    nodes: dict[str, list[Endpoint]] = {}
    for one in jobs:
        assert one.placement is not None
        for rank in one.placement.allocations:
            nodes.setdefault(rank.node_id, []).append(
                Endpoint(
                    job_id=one.id,
                    epoch=one.epoch,
                    rank=rank.rank,
                    port=8080,
                    ready=ready,
                    started_at=at - since,
                    ready_at=at - since + took if ready else None,
                )
            )
    return [
        EndpointsSeen(node_id=node_id, incarnation=1, seq=seq, at=at, endpoints=tuple(endpoints))
        for node_id, endpoints in nodes.items()
    ]
