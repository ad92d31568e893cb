"""Valid things to build tests from: override only what the test is about."""

from collections.abc import Mapping
from typing import Any

import msgspec

from weft.domain.cluster import Capacity, Drain, Gpu, Node
from weft.domain.decoding.spec_decoder import decode_spec
from weft.domain.job import Job
from weft.domain.spec import JobSpec

GIB = 1 << 30


def spec(name: str = "train", *, gpus: int = 1, replicas: int = 1, **fields: Any) -> JobSpec:
    role = {"gpus": gpus, "replicas": {"want": replicas}, **fields.pop("role", {})}
    body = {"name": name, "command": fields.pop("command", ["true"]), "roles": {"worker": role}, **fields}
    return decode_spec(msgspec.json.encode(body))


def job(job_id: str = "j-1", *, seq: int = 1, gpus: int = 1, replicas: int = 1, **fields: Any) -> Job:
    of_spec: Mapping[str, Any] = fields.pop("spec", {})
    made = spec(gpus=gpus, replicas=replicas, **of_spec)
    fields.setdefault("tenant", "alice")
    return Job(id=job_id, spec=made, seq=seq, submitted_at=0.0, priority=made.priority, **fields)


def capacity(*, gpus: int = 4, cpus: float = 64, memory: int = 256 * GIB, model: str = "Emulated GPU") -> Capacity:
    return Capacity(
        cpus=cpus,
        memory=memory,
        gpus=tuple(
            Gpu(index=index, uuid=f"EMULATED-{index}", model=model, memory=16 * GIB, emulated=True)
            for index in range(gpus)
        ),
    )


def node(node_id: str = "node-1", *, gpus: int = 4, model: str = "Emulated GPU", **fields: Any) -> Node:
    made = capacity(gpus=gpus, model=model, **{size: fields.pop(size) for size in ("cpus", "memory") if size in fields})
    drain = Drain() if fields.pop("drained", False) else fields.pop("drain", None)
    return Node(id=node_id, pool="default", address="127.0.0.1", capacity=made, drain=drain, **fields)
