"""From rows to what they say, and from what is to be stored to columns."""

import hashlib
import re
from typing import Any

import msgspec

from libs.domain.cluster import Capacity, Node
from libs.domain.job import Cause, Job, JobState, Placement
from libs.domain.lease import Lease, Pledge
from libs.domain.spec import JobSpec
from libs.domain.tenants import NAMES, AllowanceChosen, Use
from libs.messages.asks import Ask, AskKind, Tune
from libs.messages.events import Event
from libs.messages.history import Record
from libs.messages.signals import Curve, CurvePoint
from libs.store import Envelope, TenantKept
from libs.store.asking import Row

_ZERO_BYTE = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")


def as_json(value: object) -> str:
    """As JSON that Postgres takes: what a node says may hold a zero byte, which no text there can."""
    text = msgspec.json.encode(value).decode()
    return _ZERO_BYTE.sub(r"\1\\ufffd", text) if "\\u0000" in text else text


def as_text(value: str) -> str:
    return value.replace("\0", "\ufffd")


def columns_of(record: Record) -> tuple[Any, ...]:
    return (
        record.epoch,
        record.number,
        record.format,
        record.begins,
        record.at,
        record.until,
        record.turns,
        record.steps,
        record.body,
    )


def hash_of(spec: JobSpec) -> bytes:
    return hashlib.sha256(msgspec.json.encode(spec, order="deterministic")).digest()


def lease_of(row: Row | None) -> Lease | None:
    if row is None:
        return None
    return Lease(
        name=row["name"],
        holder=row["holder"],
        epoch=row["epoch"],
        seq=row["seq"],
        went_back=row["went_back"],
        pledge=Pledge(seconds=row["holds_seconds"], members=tuple(row["members"]), nats=row["nats"]),
    )


def ask_of(row: Row) -> Ask:
    return Ask(**{**row, "kind": AskKind(row["kind"]), "tune": row["tune"] and _TUNE.decode(row["tune"])})


def spec_of(row: Row) -> JobSpec:
    return _SPEC.decode(row["spec"])


def chosen_of(row: Row) -> AllowanceChosen:
    return AllowanceChosen(**{name: row[name] for name in NAMES})


def use_of(row: Row) -> Use:
    return Use(jobs=row["jobs"], spec_bytes=row["bytes"])


def tenant_of(row: Row) -> TenantKept:
    return TenantKept(id=row["id"], created_at=row["created_at"], chosen=chosen_of(row), use=use_of(row))


def job_of(row: Row) -> Job:
    return Job(
        id=row["id"],
        tenant=row["tenant"],
        spec=spec_of(row),
        seq=row["seq"],
        submitted_at=row["submitted_at"],
        state=JobState(row["state"]),
        epoch=row["epoch"],
        version=row["version"],
        priority=row["priority"],
        attempts=row["attempts"],
        not_before=row["not_before"] or 0.0,
        since=row["since"],
        stopping_for=row["stopping_for"] and _CAUSE.decode(row["stopping_for"]),
        waiting_for=row["waiting_for"] and _CAUSE.decode(row["waiting_for"]),
        placement=row["placement"] and _PLACEMENT.decode(row["placement"]),
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        exit_code=row["exit_code"],
        progress=_PROGRESS.decode(row["progress"]) if row["progress"] else {},
        placed_at=row["placed_at"],
        attained_seconds=row["attained_seconds"],
        attained_gpu_seconds=row["attained_gpu_seconds"],
        nodes=None if row["nodes"] is None else tuple(row["nodes"]),
    )


def node_of(row: Row) -> Node:
    return Node(
        id=row["id"],
        pool=row["pool"],
        address=row["address"],
        capacity=msgspec.json.decode(row["capacity"], type=Capacity),
        runtime=row["runtime"],
        not_enforced=tuple(msgspec.json.decode(row["not_enforced"], type=list[str])),
        ready=row["ready"],
        drained=row["drained"],
        seen_at=row["seen_at"],
        rack=row["rack"],
    )


def event_of(row: Row) -> Event:
    fields = dict(row)
    return Event(**{**fields, "data": msgspec.Raw(fields["data"].encode())})


def curve_of(row: Row) -> Curve:
    return Curve(pool=row["pool"], subject=row["subject"], points=_POINTS.decode(row["points"]), at=row["at"])


def envelope_of(row: Row) -> Envelope:
    return Envelope(job_id=row["job_id"], pool=row["pool"], epoch=row["epoch"], state=row["state"].encode())


_SPEC = msgspec.json.Decoder(JobSpec)
_CAUSE = msgspec.json.Decoder(Cause)
_TUNE = msgspec.json.Decoder(Tune)
_POINTS = msgspec.json.Decoder(tuple[CurvePoint, ...])
_PLACEMENT = msgspec.json.Decoder(Placement)
_PROGRESS = msgspec.json.Decoder(dict[str, float])
