"""What a gateway may answer, valid and small: override only what the test is about. All of it is of the time NOW."""

from datetime import UTC, datetime
from typing import Any

from weft.domain.job import Cause, CauseCode, JobState
from weft.domain.spec import Kind
from weft.messages.http import (
    ArrayView,
    ClusterView,
    EventData,
    EventView,
    GpuHeldBy,
    GpuView,
    JobView,
    NodeView,
    Totals,
)

GIB = 1 << 30
NOW = 1_700_000_000.0  # 2023-11-14 22:13:20 UTC

NO_ROOM = Cause(
    code=CauseCode.NO_ROOM,
    sentence="wants 4 GPUs on one node; the most free is 2, on node-2",
    numbers={"wanted": 4.0, "most_free": 2.0},
)


def array_view(name: str = "parts", **states: int) -> ArrayView:
    """An array with so many elements in each state."""
    return ArrayView(
        id=f"a-{name}",
        name=name,
        tenant="alice",
        kind=Kind.TRAINING,
        pool="default",
        elements=sum(states.values()),
        states=states,
        submitted_at=NOW,
    )


def job_view(job_id: str = "j-aaaaaaaaaa", state: JobState = JobState.RUNNING, **fields: Any) -> JobView:
    usual: dict[str, Any] = {
        "id": job_id,
        "name": "train",
        "tenant": "alice",
        "kind": Kind.TRAINING,
        "pool": "default",
        "state": state,
        "epoch": 0,
        "version": 3,
        "priority": 0,
        "preemptible": True,
        "gpus": 1,
        "replicas": 1,
        "seq": 1,
        "submitted_at": NOW - 300,
        "since": NOW - 192,
    }
    return JobView(**(usual | fields))


def gpu_view(index: int = 0, *, held_by: JobView | None = None, emulated: bool = True, **fields: Any) -> GpuView:
    holder = GpuHeldBy(job_id=held_by.id, name=held_by.name, tenant=held_by.tenant) if held_by else None
    usual: dict[str, Any] = {
        "index": index,
        "uuid": f"GPU-{index}",
        "model": "Emulated GPU" if emulated else "NVIDIA H200",
        "memory": 16 * GIB,
        "emulated": emulated,
        "held_by": holder,
    }
    return GpuView(**(usual | fields))


def node_view(node_id: str = "node-1", *gpus: GpuView, **fields: Any) -> NodeView:
    usual: dict[str, Any] = {
        "id": node_id,
        "pool": "default",
        "address": "127.0.0.1",
        "runtime": "process",
        "ready": True,
        "drained": False,
        "seen_at": NOW - 1,
        "cpus": 16.0,
        "cpus_allocated": 6.0,
        "memory": 64 * GIB,
        "memory_allocated": 12 * GIB,
        "gpus": gpus,
    }
    return NodeView(**(usual | fields))


def cluster_view(*nodes: NodeView, running: tuple[JobView, ...] = (), queued: tuple[JobView, ...] = ()) -> ClusterView:
    gpus = [gpu for node in nodes for gpu in node.gpus]
    states: dict[str, int] = {}
    for job in (*running, *queued):
        states[job.state.value] = states.get(job.state.value, 0) + 1
    return ClusterView(
        at=NOW,
        totals=Totals(
            nodes=len(nodes),
            nodes_ready=sum(node.ready and not node.drained for node in nodes),
            gpus=len(gpus),
            gpus_emulated=sum(gpu.emulated for gpu in gpus),
            gpus_held=sum(gpu.held_by is not None for gpu in gpus),
            cpus=sum(node.cpus for node in nodes),
            cpus_allocated=sum(node.cpus_allocated for node in nodes),
            memory=sum(node.memory for node in nodes),
            memory_allocated=sum(node.memory_allocated for node in nodes),
        ),
        nodes=nodes,
        states=states,
        waiting={},
        running=running,
        queued=queued,
    )


def event_view(event: str, *, version: int = 1, at: float = NOW, job: str = "j-aaaaaaaaaa", **data: Any) -> EventView:
    usual: dict[str, Any] = {"version": version, "pool": "default", "job_id": job, "name": "train", "tenant": "alice"}
    return EventView(
        specversion="1.0",
        id=f"jobs/{job}/{version}",
        source="/weft",
        type=f"weft.jobs.{event}",
        subject=job,
        time=datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z"),
        datacontenttype="application/json",
        data=EventData(**(usual | data)),
        cursor=f"7-{version}",
    )
