"""Jobs of a cluster as a trace: what each row says, how long what is not over is taken to last, and that it is read."""

import csv
import io
import math
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.support.builders import job
from tests.support.steps import placement
from weft.domain.classes import CLASS_LABEL, WORKLOAD_LABEL
from weft.domain.job import Job, JobState
from weft.domain.spec import TOKEN_PATTERN
from weft.planning.eta.learnt import Lasted, learn
from weft.planning.policy import Policy
from weft.simulator import traces
from weft.simulator.model import Cluster, World
from weft.simulator.run import simulate
from weft.simulator.whatif.durations import Assumptions
from weft.simulator.whatif.trace import COLUMNS, csv_of, row_of

NOW = 1_800_000_000.0
TRAIN: dict[str, Any] = {"command": ["python", "train.py"]}


def ended(job_id: str, seconds: float, *, ago: float = 10_000.0, **fields: Any) -> Job:
    begin = NOW - ago
    made = job(job_id, state=JobState.SUCCEEDED, started_at=begin + 5, ended_at=begin + 5 + seconds, **fields)
    return structs.replace(made, submitted_at=begin, attained_seconds=seconds)


def running(job_id: str, seconds: float, **fields: Any) -> Job:
    begin = NOW - seconds
    made = job(job_id, state=JobState.RUNNING, placed_at=begin, started_at=begin, since=begin, **fields)
    return structs.replace(made, submitted_at=begin, placement=placement(("node-1", 0)))


def waiting(job_id: str, **fields: Any) -> Job:
    return structs.replace(job(job_id, since=NOW, **fields), submitted_at=NOW - 60)


def assumptions(*over: Job) -> Assumptions:
    lasted = Lasted()
    learn(lasted, over)
    return Assumptions(lasted)


def test_what_is_not_over_lasts_as_estimates_say_in_the_mean() -> None:
    like_it = [ended(f"j-{number}", 100.0 * number, spec=TRAIN) for number in range(1, 10)]
    found = assumptions(*like_it).left(waiting("j-20", spec=TRAIN), NOW)
    assert found.seconds == pytest.approx(500.0)
    assert found.basis == "learnt"
    late = assumptions(*like_it).left(running("j-21", 350.0, spec=TRAIN), NOW)
    assert late.seconds == pytest.approx(300.0), "of those that ran longer: 400 to 900 s"


def test_no_cell_of_a_trace_is_a_formula_in_a_spreadsheet_whatever_a_tenant_submits() -> None:
    labels = {CLASS_LABEL: "=cmd|'/c calc'!A1", WORKLOAD_LABEL: "@SUM(1)", "team": "+1"}
    odd = {"command": ["=1+1"], "env": {"A": "-1"}, "labels": labels, "priority": -5}
    jobs = [ended("j-1", 60.0, spec=odd), waiting("a-1-3", spec=odd)]
    rows = [row for one in jobs if (row := row_of(one, assumptions(), {}, now=NOW)) is not None]
    read = list(csv.DictReader(io.StringIO(csv_of(rows))))
    assert [row.pop("priority") for row in read] == ["-5", "-5"], "a number, which a spreadsheet reads as one"
    assert [
        cell for row in read for cell in row.values() if cell and not (cell[0].isascii() and cell[0].isalnum())
    ] == []
    for tenant in ("=a", "+a", "-a", "@a", "\ta", "\uff1da"):
        assert re.match(TOKEN_PATTERN, tenant) is None, "of a tenant's name"


def test_nothing_is_taken_to_outlast_its_time_limit_and_without_ended_jobs_the_limit_is_all_that_is_known() -> None:
    limited = {**TRAIN, "time_limit": "2m"}
    like_it = [ended(f"j-{number}", 1000.0, spec=TRAIN) for number in range(9)]
    assert assumptions(*like_it).left(waiting("j-20", spec=limited), NOW).seconds == pytest.approx(120.0)
    found = assumptions().left(running("j-3", 50.0, spec=limited), NOW)
    assert (found.seconds, found.basis) == (70.0, "limits")
    assert assumptions().left(running("j-4", 5000.0, spec=limited), NOW).seconds > 0


def test_a_job_of_which_nothing_is_known_is_half_done() -> None:
    half = assumptions().left(running("j-3", 700.0), NOW)
    assert (half.seconds, half.basis) == (700.0, "unknown")
    assert assumptions().left(waiting("j-4"), NOW).seconds > 0


def test_a_service_never_ends_and_is_in_no_trace() -> None:
    service = running("j-1", 50.0, spec={"kind": "inference", "service": {"port": 8000}})
    durations = assumptions()
    assert math.isinf(durations.left(service, NOW).seconds)
    assert row_of(service, durations, {}, now=NOW) is None


def test_a_job_without_gpus_and_one_that_was_over_before_it_ran_are_in_no_trace() -> None:
    durations = assumptions()
    assert row_of(ended("j-1", 100.0, gpus=0), durations, {}, now=NOW) is None
    never = structs.replace(job("j-2", state=JobState.CANCELLED, ended_at=NOW), submitted_at=NOW - 5)
    assert row_of(never, durations, {}, now=NOW) is None


def test_what_is_exported_is_read_and_simulated(tmp_path: Path) -> None:
    jobs = [
        ended("j-1", 100.0, ago=1000.0, gpus=2),
        running("j-2", 500.0, gpus=1, spec={"time_limit": "10m", "priority": 7}),
        waiting("j-3", gpus=2, replicas=2),
    ]
    durations = assumptions()
    rows = [row for one in jobs if (row := row_of(one, durations, {}, now=NOW)) is not None]
    text = csv_of(rows)
    told = list(csv.DictReader(io.StringIO(text)))
    assert [row["state"] for row in told] == ["succeeded", "running", "queued"]
    assert (told[0]["started_s"], told[0]["ended_s"], told[0]["work_s"]) == ("5", "105", "100")
    assert told[1]["remaining_s"] == "100"
    path = tmp_path / "trace.csv"
    path.write_text(text)
    workload = traces.read(path)
    assert not workload.notes, "no column goes unread"
    assert [(one.id, one.arrival_s, one.gpus) for one in workload.jobs] == [
        ("j-1", 0, 2),
        ("j-2", 500, 1),
        ("j-3", 940, 4),
    ]
    assert workload.jobs[0].started_s == 5
    assert workload.jobs[1].work_s == pytest.approx(600.0)
    assert (workload.jobs[1].estimate_s, workload.jobs[1].priority) == (600.0, 7)
    outcome = simulate(workload, Cluster(nodes=1, gpus_per_node=4), Policy(placement="packed-sticky"), World())
    assert len(outcome.jobs) == 3


def test_an_empty_cluster_gives_a_trace_of_which_only_the_header_is_there() -> None:
    assert csv_of([]) == ",".join(COLUMNS) + "\n"
