"""A job's event history as an OpenTelemetry trace: its waits, its epochs and their phases as spans, in OTLP's JSON. Ids
are derived from the job's id, so a history that is sent twice gives the same trace.
"""

import hashlib
from typing import Any

import msgspec
from msgspec import Struct

from weft.domain.job import FINAL, JobEvent, JobState
from weft.messages.events import Event, JobEventData

SPANS_MAX = 1000  # of one job; the later ones are left out
_INTERNAL = 1  # the kind of a span
_OK, _ERROR = 1, 2
_PHASES = {
    JobState.PLACED: "place",
    JobState.STARTING: "start",
    JobState.RUNNING: "run",
    JobState.STOPPING: "stop",
}


class _Open(Struct):
    """A span that has not ended; times in microseconds since 1970."""

    name: str
    begins: int
    of: str
    attributes: dict[str, Any]


def trace_id(job_id: str) -> str:
    return hashlib.sha256(f"weft/{job_id}".encode()).hexdigest()[:32]


def span_id(job_id: str, name: str, begins: int) -> str:
    return hashlib.sha256(f"weft/{job_id}/{name}/{begins}".encode()).hexdigest()[:16]


class Trace:
    """Builds the trace of an ended job from its events in order."""

    def __init__(self, first: Event) -> None:
        self._job = first.subject_id
        self._begins = self._at = round(first.at * 1e6)
        self._root = span_id(self._job, "job", self._begins)
        self._wait: _Open | None = None
        self._epoch: _Open | None = None
        self._phase: _Open | None = None
        self._why = "wait"
        self.spans: list[dict[str, Any]] = []

    def body(self) -> dict[str, Any]:
        """The body of a request to `/v1/traces`."""
        return {
            "resourceSpans": [
                {
                    "resource": {"attributes": _attributes({"service.name": "weft"})},
                    "scopeSpans": [{"scope": {"name": "weft.jobs"}, "spans": self.spans[:SPANS_MAX]}],
                }
            ]
        }

    def take(self, event: Event) -> None:
        at = self._at = max(self._at, round(event.at * 1e6))
        data = msgspec.json.decode(event.data, type=JobEventData)
        state, cause = JobState(data.state), data.cause
        told = {"weft.cause": cause.code.value, "weft.sentence": cause.sentence}
        if event.event in (JobEvent.REQUEUED, JobEvent.RESTARTED) or state in FINAL or state is JobState.QUEUED:
            self._end_epoch(at, told if event.event != JobEvent.SUBMITTED else {})
        if state is JobState.QUEUED and self._wait is None:
            why = "move" if cause.code == "moved" else "wait"
            self._wait = _Open(why, at, self._root, {"weft.epoch": data.epoch, **told})
        elif state is JobState.QUEUED and self._wait is not None and event.event == JobEvent.WAITING:
            self._wait.attributes.update(told)
        elif state is not JobState.QUEUED:
            self._holds(event, data, state, at)
        if state in FINAL:
            self._over(data, state, at)

    def _holds(self, event: Event, data: JobEventData, state: JobState, at: int) -> None:
        if self._wait is not None:
            self._close(self._wait, at)
            self._wait = None
        if state in FINAL:
            return
        if self._epoch is None:
            nodes = sorted({one.node_id for one in data.placement.allocations}) if data.placement else []
            self._epoch = _Open(f"epoch {data.epoch}", at, self._root, {"weft.epoch": data.epoch, "weft.nodes": nodes})
        name = _PHASES[state]
        if self._phase is None or self._phase.name != name:
            if self._phase is not None:
                self._close(self._phase, at)
            of = span_id(self._job, self._epoch.name, self._epoch.begins)
            self._phase = _Open(name, at, of, {"weft.event": event.event, "weft.cause": data.cause.code.value})

    def _end_epoch(self, at: int, told: dict[str, Any]) -> None:
        for one in (self._phase, self._epoch):
            if one is not None:
                self._close(one, at, told if one is self._epoch else {})
        self._phase = self._epoch = None

    def _over(self, data: JobEventData, state: JobState, at: int) -> None:
        """A job that is requeued after its end has a trace of its whole life when it ends again."""
        good = state is JobState.SUCCEEDED
        attributes = {
            "weft.job": self._job,
            "weft.name": data.name,
            "weft.tenant": data.tenant,
            "weft.pool": data.pool,
            "weft.state": state.value,
            "weft.epochs": data.epoch + 1,
            "weft.exit_code": data.exit_code,
        }
        root = self._span("job", self._begins, at, "", attributes)
        status = {"code": _OK} if good else {"code": _ERROR, "message": data.cause.sentence[:1000]}
        self.spans = [{**root, "status": status}, *(one for one in self.spans if one["spanId"] != self._root)]

    def _close(self, one: _Open, at: int, told: dict[str, Any] | None = None) -> None:
        if len(self.spans) < SPANS_MAX:
            self.spans.append(self._span(one.name, one.begins, at, one.of, {**one.attributes, **(told or {})}))

    def _span(self, name: str, begins: int, ends: int, of: str, attributes: dict[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = {
            "traceId": trace_id(self._job),
            "spanId": span_id(self._job, name, begins),
            "name": name,
            "kind": _INTERNAL,
            "startTimeUnixNano": str(begins * 1000),
            "endTimeUnixNano": str(ends * 1000),
            "attributes": _attributes(attributes),
        }
        return {**made, "parentSpanId": of} if of else made


def _attributes(given: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in given.items() if value not in (None, "", [])]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(one) for one in value[:100]]}}
    return {"stringValue": str(value)[:1000]}
