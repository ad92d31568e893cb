"""Services in the world of a scheduler's core: what they are made of, and what there is of them."""

from typing import Any

from tests.support.nodes import Key
from tests.support.scheduler import World
from weft.domain.job import Job


def service(least: int = 0, want: int = 1, most: int = 8, **fields: Any) -> dict[str, Any]:
    """A specification; `fields` of it, and `service` for those of its rules."""
    rules = {"ready": "/healthz", "start": "60s", "drain": "1s", **fields.pop("service", {})}
    made = {"kind": "inference", "role": {"replicas": {"min": least, "want": want, "max": most}}, "service": rules}
    return {"grace": "1s", "retries": {"max": 0, "backoff": "5s", "backoff_max": "40s"}, **made, **fields}


def of(w: World, job_id: str = "j-1") -> Job:
    return w.stored[job_id]


def ranks(w: World, job_id: str = "j-1") -> list[int]:
    """Of the replicas that stay."""
    placement = of(w, job_id).placement
    return [] if placement is None else [each.rank for each in placement.staying]


def revisions(w: World, job_id: str = "j-1") -> list[int]:
    """What the replicas that stay run."""
    placement = of(w, job_id).placement
    return [] if placement is None else [each.revision for each in placement.staying]


def runs(w: World, job_id: str = "j-1") -> list[Key]:
    """Every live run, wherever it is."""
    return sorted(key for node in w.nodes.values() for key in node.live if key[0] == job_id)


def rounds(w: World, count: int = 3) -> None:
    for _ in range(count):
        w.round()


def running(w: World, spec: dict[str, Any], job_id: str = "j-1", gpus: int = 1) -> None:
    w.submit(job_id, gpus=gpus, spec=spec)
    rounds(w)


def end(w: World, rank: int, exit_code: int = 1, job_id: str = "j-1", **how: Any) -> None:
    """A replica ends by itself."""
    key = (job_id, of(w, job_id).epoch, rank)
    (node,) = [node for node in w.nodes.values() if key in node.live]
    node.end(key, exit_code, **how)
