"""Decodes rows, and encodes values to be stored as columns."""

import hashlib
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

import msgspec

from weft.domain.cluster import Capacity, Drain, Node
from weft.domain.dependencies import Ends
from weft.domain.failure import Failure
from weft.domain.health import HealthRecord
from weft.domain.job import Cause, Job, JobChange, JobState, Loan, Placement, Revision
from weft.domain.labels import Marking
from weft.domain.lease import Lease, Pledge
from weft.domain.selection import Selection, simplified
from weft.domain.spec import Checkpointing, JobSpec, Kind, Objective, ServiceRules
from weft.domain.tenants import NAMES, AllowanceChosen, Use
from weft.messages.accounts import JobFacts
from weft.messages.asks import Ask, AskKind, Entrance, Reshare, Scale, Tune, Update
from weft.messages.events import Event, step_data
from weft.messages.history import Record
from weft.messages.signals import Curve, CurvePoint, GangPoint, WorkloadPenalty
from weft.messages.tolerant import TolerantDecoder
from weft.store import OpenService, UnlawfulError, Unsent
from weft.store.arrays import ArrayKept
from weft.store.asking import Row
from weft.store.tenants import TenantKept
from weft.store.tuning import Envelope

_ZERO_BYTE = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")


_AS_LIKE = str.maketrans({"*": "%", "?": "_", "%": r"\%", "_": r"\_", "\\": r"\\"})


def as_json(value: object) -> str:
    """As JSON that Postgres takes: a node's report may hold a zero byte, which no text there can."""
    text = msgspec.json.encode(value).decode()
    return _ZERO_BYTE.sub(r"\1\\ufffd", text) if "\\u0000" in text else text


def as_micros(at: float) -> int:
    """Whole microseconds since 1970, to which times are kept."""
    return round(at * 1e6)


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
        record.cycles,
        record.steps,
        record.body,
    )


def selection_columns(selection: Selection) -> tuple[Any, ...]:
    """The conditions of a selection as arguments of `jobs_selected`; a pattern of names as LIKE has it."""
    return (
        simplified(selection.names).translate(_AS_LIKE),
        selection.id_prefix,
        [name for name, _ in selection.labels],
        [value for _, value in selection.labels],
        [kind.value for kind in selection.kinds],
        selection.node,
        selection.since,
        selection.benchmarks,
        selection.elements,
    )


def steps_of(changes: Sequence[JobChange]) -> tuple[str, str]:
    """Steps as the arguments of `store_steps`: the changes in the rows of their jobs, and the events.

    An unchanged column is left out, so the columns of a later version stay too. If a job takes several steps, each is
    in a round of its own.
    """
    rounds: list[list[dict[str, Any]]] = []
    events: list[dict[str, Any]] = []
    count_of: dict[str, int] = {}
    for ordinal, change in enumerate(changes, 1):
        step = change.step
        count = count_of[step.job_id] = count_of.get(step.job_id, 0) + 1
        if count > len(rounds):
            rounds.append([])
        row = {"version": change.after.version, "last_event": step.event, **_columns(change)}
        rounds[count - 1].append({"ordinal": ordinal, "id": step.job_id, "version": step.version, "row": row})
        data = step_data(change)
        events.append({"ordinal": ordinal, "event": step.event, "at": step.at, "ask": step.ask, "data": data})
    return as_json(rounds), as_json(events)


def _columns(change: JobChange) -> dict[str, Any]:
    """The columns that a step changes. Revisions whose text is stored already go without it."""
    pairs = zip(COLUMNS, _fields(change.before), _fields(change.after), strict=True)
    columns = {column: written(after) for (_, column, written), before, after in pairs if after is not before}
    if "revisions" in columns:
        stored = {one.number for one in change.before.revisions}
        columns["revisions"] = [one.reference if one.number in stored else one for one in change.after.revisions]
    return columns


def _as_is(value: Any) -> Any:
    return value


def _time(at: float | None) -> datetime | None:
    try:
        return None if at is None else datetime.fromtimestamp(at, UTC)
    except (ValueError, OverflowError) as error:
        raise UnlawfulError(f"the time {at}: {error}") from error


def _interval(seconds: float) -> str:
    return f"{seconds:.6f} s"


COLUMNS: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
    ("state", "state", _as_is),
    ("epoch", "epoch", _as_is),
    ("priority", "priority", _as_is),
    ("attempts", "attempts", _as_is),
    ("not_before", "not_before", _time),
    ("since", "since", _time),
    ("stopping_for", "stopping_for", _as_is),
    ("waiting_for", "waiting_for", _as_is),
    ("placement", "placement", _as_is),
    ("started_at", "started_at", _time),
    ("ended_at", "ended_at", _time),
    ("exit_code", "exit_code", _as_is),
    ("progress", "progress", _as_is),
    ("placed_at", "placed_at", _time),
    ("attained_seconds", "attained", _interval),
    ("attained_gpu_seconds", "attained_gpu_seconds", _as_is),
    ("nodes", "nodes", _as_is),
    ("size", "size", _as_is),
    ("gpu_model", "gpu_model", _as_is),
    ("worked", "worked", _as_is),
    ("sized_at", "sized_at", _time),
    ("next_placement", "next_placement", _as_is),
    ("revisions", "revisions", _as_is),
    ("loans", "loans", _as_is),
    ("failures", "failures", _as_is),
    ("hung_since", "hung_since", _time),
)
"""The fields of a job that a step may change: each with its column in `jobs`, and how it is written there."""
_fields = attrgetter(*(name for name, _, _ in COLUMNS))


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
    tune, scale = row["tune"] and _TUNE.decode(row["tune"]), row["scale"] and _SCALE.decode(row["scale"])
    share, update = row["share"] and _RESHARE.decode(row["share"]), row["update"] and _UPDATE.decode(row["update"])
    what = {"kind": AskKind(row["kind"]), "tune": tune, "scale": scale, "share": share, "update": update}
    what["entry"] = row["entry"] and _ENTRY.decode(row["entry"])
    what["why"] = row["why"] and _CAUSE.decode(row["why"])
    what["drain"] = row["drain"] and _DRAIN.decode(row["drain"])
    what["marking"] = row["marking"] and _MARKING.decode(row["marking"])
    return Ask(**{**row, **what})


def spec_of(row: Row) -> JobSpec:
    return _SPEC.decode(row["spec"])


def facts_of(row: Row) -> JobFacts:
    return JobFacts(
        id=row["id"],
        tenant=row["tenant"],
        pool=row["pool"],
        name=row["name"],
        kind=row["kind"],
        labels={} if row["labels"] is None else msgspec.json.decode(row["labels"], type=dict[str, str]),
        checkpoints=None if row["checkpoints"] is None else _CHECKPOINTS.decode(row["checkpoints"]),
        wanted=row["wanted"],
    )


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
        nodes=tuple(row["nodes"]),
        size=_SIZE.decode(row["size"]) if row["size"] else {},
        gpu_model=row["gpu_model"] or "",
        worked=_SIZE.decode(row["worked"]) if row["worked"] else {},
        sized_at=row["sized_at"],
        next_placement=row["next_placement"] and _PLACEMENT.decode(row["next_placement"]),
        revisions=_REVISIONS.decode(row["revisions"]) if row["revisions"] else (),
        loans=_LOANS.decode(row["loans"]) if row["loans"] else (),
        failures=_FAILURES.decode(row["failures"]) if row["failures"] else (),
        hung_since=row["hung_since"],
        submitter=row["submitter"],
    )


def array_of(row: Row) -> ArrayKept:
    spec = spec_of(row)
    assert spec.element is not None, "it is an element"
    return ArrayKept(
        id=row["id"],
        name=spec.element.name,
        tenant=row["tenant"],
        pool=row["pool"],
        seq=row["seq"],
        submitted_at=row["submitted_at"],
        submitter=row["submitter"],
        spec=spec,
        states={JobState(state): count for state, count in zip(row["states"], row["counts"], strict=True)},
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        waiting_for=row["waiting_for"] and _CAUSE.decode(row["waiting_for"]),
    )


def ends_of(row: Row) -> Ends:
    counts = {name: row[name] or 0 for name in ("total", "ended", "ok", "bad", "began")}
    return Ends(id=row["id"], **counts)


def service_of(row: Row) -> OpenService:
    return OpenService(
        id=row["id"],
        tenant=row["tenant"],
        pool=row["pool"],
        name=row["name"],
        seq=row["seq"],
        kind=Kind(row["kind"]),
        rules=_RULES.decode(row["service"]),
        objective=row["objective"] and _OBJECTIVE.decode(row["objective"]),
        wanted=row["wanted"],
        state=JobState(row["state"]),
        epoch=row["epoch"],
        version=row["version"],
        priority=row["priority"],
        placement=row["placement"] and _PLACEMENT.decode(row["placement"]),
        served=row["served"],
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
        drain=None if row["drain"] is None else _DRAIN.decode(row["drain"]),
        seen_at=row["seen_at"],
        rack=row["rack"],
        health=msgspec.json.decode(row["health"], type=tuple[HealthRecord, ...]),
        labels=msgspec.json.decode(row["labels"], type=dict[str, str]),
        taints=msgspec.json.decode(row["taints"], type=dict[str, str]),
        marking=_MARKING.decode(row["marking"]),
    )


def event_of(row: Row) -> Event:
    return Event(
        id=row["id"],
        xid=row["xid"],
        topic=row["topic"],
        event=row["event"],
        subject_id=row["subject_id"],
        version=row["version"],
        tenant=row["tenant"],
        at=row["at"],
        data=msgspec.Raw(row["data"].encode()),
    )


def unsent_of(row: Row) -> Unsent:
    return Unsent(entry=row["entry"], event=event_of(row))


def curve_of(row: Row) -> Curve:
    return Curve(pool=row["pool"], subject=row["subject"], points=_POINTS.decode(row["points"]), at=row["at"])


def penalty_of(row: Row) -> WorkloadPenalty:
    return WorkloadPenalty(**{**row, "points": _GANG_POINTS.decode(row["points"])})


def envelope_of(row: Row) -> Envelope:
    return Envelope(job_id=row["job_id"], pool=row["pool"], epoch=row["epoch"], state=row["state"].encode())


_SPEC = TolerantDecoder(JobSpec)
_CAUSE = TolerantDecoder(Cause)
_DRAIN = TolerantDecoder(Drain)
_MARKING = TolerantDecoder(Marking)
_TUNE = TolerantDecoder(Tune)
_POINTS = TolerantDecoder(tuple[CurvePoint, ...])
_GANG_POINTS = TolerantDecoder(tuple[GangPoint, ...])
_PLACEMENT = TolerantDecoder(Placement)
_SIZE = TolerantDecoder(dict[str, int])
_SCALE = TolerantDecoder(Scale)
_RESHARE = TolerantDecoder(Reshare)
_UPDATE = TolerantDecoder(Update)
_ENTRY = TolerantDecoder(Entrance)
_REVISIONS = TolerantDecoder(tuple[Revision, ...])
_LOANS = TolerantDecoder(tuple[Loan, ...])
_FAILURES = TolerantDecoder(tuple[Failure, ...])
_RULES = TolerantDecoder(ServiceRules)
_OBJECTIVE = TolerantDecoder(Objective)
_CHECKPOINTS = TolerantDecoder(Checkpointing)
_PROGRESS = TolerantDecoder(dict[str, float])
