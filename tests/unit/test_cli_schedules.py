"""Recurring jobs on the command line, from what is typed to what is asked and printed."""

import json
from typing import Any

import pytest

from tests.support.told_gateway import ToldGateway, weft
from weft.domain.job import JobState
from weft.domain.schedules import Overlap, ScheduledRun
from weft.messages.http import Submitted
from weft.messages.http.schedules import SchedulesView, ScheduleView
from weft.planning.reasons.explain import Explanation

Said = pytest.CaptureFixture[str]
DUE = 1_767_236_400.0


def view(**fields: Any) -> ScheduleView:
    usual: dict[str, Any] = {
        "id": "r-1",
        "name": "nightly",
        "tenant": "alice",
        "cron": "0 3 * * *",
        "timezone": "Europe/Berlin",
        "overlap": Overlap.SKIP,
        "start_within": "1h",
        "pool": "default",
        "created_at": DUE,
        "next_run_at": DUE + 86400,
    }
    return ScheduleView(**usual | fields)


async def test_run_asks_for_a_schedule_and_prints_its_id(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["POST /v1/jobs"] = Submitted(id="r-1", name="nightly", created=True, next_run_at=DUE)
    typed = ("--schedule", "0 3 * * *", "--timezone", "Europe/Berlin", "--overlap", "replace", "--start-within", "5m")
    assert await weft(gateway, "run", *typed, "--", "./nightly.sh") == 0
    assert capsys.readouterr().out == "r-1\n"
    assert json.loads(gateway.bodies[0])["schedule"] == {
        "cron": "0 3 * * *",
        "timezone": "Europe/Berlin",
        "overlap": "replace",
        "start_within": "5m",
    }


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (("--schedule", "61 * * * *"), "weft: --schedule: minute: expected 0 to 59, not '61'"),
        (("--schedule", "@daily", "--timezone", "Mars/Olympus"), "weft: --timezone: no time zone Mars/Olympus"),
        (("--timezone", "UTC"), "weft: --schedule: give the times"),
        (("--schedule", "@daily", "--start-within", "1s"), "weft: --start-within: must be at least 60s"),
    ],
)
async def test_a_mistake_is_told_by_its_option(
    gateway: ToldGateway, capsys: Said, typed: tuple[str, ...], told: str
) -> None:
    assert await weft(gateway, "run", *typed, "--", "x") == 1
    assert capsys.readouterr().err.startswith(told)
    assert not gateway.asked


async def test_schedules_are_listed_with_their_last_run_and_why_the_newest_did_not_start(
    gateway: ToldGateway, capsys: Said
) -> None:
    gateway.answers["GET /v1/schedules"] = SchedulesView(
        schedules=(
            view(last_run_at=DUE, last_job="j-1", last_state="failed", note="missed", noted_at=DUE - 60),
            view(id="r-2", name="late", note="skipped: j-9 is not over", noted_at=DUE, last_run_at=DUE - 60),
            view(id="r-3", name="still", next_run_at=None, paused_at=DUE),
        )
    )
    assert await weft(gateway, "schedules") == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "TIMES", "ZONE", "NEXT", "RUN", "LAST", "RUN", "STATE", "NOTE"]
    assert "j-1" in lines[0]
    assert "failed" in lines[0]
    assert "missed" not in lines[0]
    assert lines[1].endswith("skipped: j-9 is not over")
    assert "paused" in lines[2]
    assert await weft(gateway, "schedules", "list", "--json") == 0
    assert json.loads(capsys.readouterr().out)["schedules"][0]["last_job"] == "j-1"


async def test_every_page_of_schedules_is_read(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["GET /v1/schedules"] = SchedulesView(schedules=(view(),), after="r-1")
    gateway.answers["GET /v1/schedules?after=r-1"] = SchedulesView(schedules=(view(id="r-2", name="more"),))
    assert await weft(gateway, "schedules") == 0
    assert "more" in capsys.readouterr().out


async def test_schedules_are_paused_resumed_and_removed(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["POST /v1/schedules/nightly/pause"] = view(next_run_at=None)
    gateway.answers["POST /v1/schedules/nightly/resume"] = view()
    gateway.answers["DELETE /v1/schedules/nightly"] = view()
    assert await weft(gateway, "schedules", "pause", "nightly") == 0
    assert await weft(gateway, "schedules", "resume", "nightly") == 0
    assert await weft(gateway, "schedules", "remove", "nightly") == 0
    paused, resumed, removed = capsys.readouterr().out.splitlines()
    assert paused == "nightly is paused"
    assert resumed.startswith("nightly goes on: its next run is due ")
    assert removed == "nightly is removed"
    assert await weft(gateway, "schedules", "pause") == 2
    assert await weft(gateway, "schedules", "list", "nightly") == 2


async def test_explain_names_the_schedule_of_a_run(gateway: ToldGateway, capsys: Said) -> None:
    run = ScheduledRun(schedule="r-1", due_at=DUE)
    gateway.answers["GET /v1/jobs/nightly/explain"] = Explanation(
        job_id="j-1", name="nightly", state=JobState.QUEUED, code="no-room", sentence="no GPU is free", scheduled=run
    )
    assert await weft(gateway, "explain", "nightly") == 0
    assert "run of schedule nightly, due at " in capsys.readouterr().out
