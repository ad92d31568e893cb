"""Reads the engine's description of containers as runs."""

import errno
import os
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from weft.messages.nodes import EndReason, RunState
from weftd.executor.files.home import Home
from weftd.executor.runs import Run, RunKey
from weftd.executor.runtime.docker.labels import FIRST_PROCESS, grace_of, key_of, named_of, stop_signal_of
from weftd.executor.runtime.noted import process_killed
from weftd.executor.runtime.process.records import STATUS_MAX

INIT_FAILED = re.compile(rb"(?:\[FATAL tini \(\d+\)\]|weft-init:) exec (.+) failed: (.+)\n")
INIT_FAILED_STATUSES = (126, 127)


class Container(Struct, frozen=True, kw_only=True):
    id: str
    state: str  # created, running, paused, exited, …
    grace: float
    named: bool = False
    stop_signal: str = "SIGTERM"
    ours: bool = False  # its first process is ours


def read_list(listed: list[dict[str, Any]]) -> dict[RunKey, Container]:
    """Parse the list. Raises TypeError if it is no list: an empty answer would mean that every container is gone."""
    if not isinstance(listed, list):
        raise TypeError("not a list of containers")
    found: dict[RunKey, Container] = {}
    for one in listed:
        labels = one["Labels"] or {}
        key = key_of(labels)
        if key is not None:
            found[key] = Container(
                id=str(one["Id"]),
                state=str(one["State"]),
                grace=grace_of(labels),
                named=named_of(labels),
                stop_signal=stop_signal_of(labels),
                ours=FIRST_PROCESS in labels,
            )
    return found


def outcome_of(key: RunKey, grace: float, state: Mapping[str, Any]) -> Run:
    """The run, as the engine describes the state of its container. `grace` in seconds."""
    started_at = _seconds(state["StartedAt"])
    if state["Status"] not in ("exited", "dead"):
        return Run(key=key, state=RunState.RUNNING, grace=grace, started_at=started_at)
    status = int(state["ExitCode"])
    oom = bool(state.get("OOMKilled")) and status != 0
    finished_at = _seconds(state["FinishedAt"])
    return Run(
        key=key,
        state=RunState.EXITED,
        grace=grace,
        started_at=started_at,
        # A run that ends at once may have ended before the engine noted its start.
        ended_at=finished_at if finished_at is None else max(finished_at, started_at or 0.0),
        exit_code=status if 0 <= status <= STATUS_MAX else STATUS_MAX,
        reason=EndReason.OOM if oom else EndReason.EXIT,
        detail="it used more than its memory" if oom else str(state.get("Error", "")),
        noted=(process_killed(1, None),) if state.get("OOMKilled") and not oom else (),
    )


def _seconds(text: str) -> float | None:
    """Parse the engine's time stamp; the year 1 stands for never."""
    return None if text.startswith("0001") else datetime.fromisoformat(text).timestamp()


def explained(run: Run, home: Home) -> Run:
    """The run, corrected if its first process could not start it: the engine reports an exit, the log why."""
    if run.reason is not EndReason.EXIT or run.exit_code not in INIT_FAILED_STATUSES:
        return run
    found = INIT_FAILED.match(home.read_log(run.key, offset=0, limit=4096, known=True, over=True).data)
    if found is None:
        return run
    program, why = (group.decode(errors="replace") for group in found.groups())
    missing = why == os.strerror(errno.ENOENT)
    denied = why == os.strerror(errno.EACCES)
    reason = "is not executable, or is a folder" if denied else f"cannot be run: {why}"
    detail = f"command not found: {program}" if missing else f"{program} {reason}"
    return replace(run, reason=EndReason.START_FAILED, detail=detail, for_good=True)


def lost(run: Run, *, at: float) -> Run:
    """A run whose container is gone. `at` in seconds since the epoch."""
    detail = "its container was removed by another program"
    return replace(run, state=RunState.EXITED, ended_at=at, reason=EndReason.LOST, detail=detail)
