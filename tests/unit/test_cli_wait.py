"""`weft wait`, for jobs and for arrays."""

import argparse
import json

import pytest

from tests.support.told_gateway import ToldGateway, weft
from tests.support.views import NOW, array_view, job_view
from weft.domain.job import JobState
from weft.messages.http import (
    JobsView,
)
from weftd.cli.jobs.wait import seconds

Said = pytest.CaptureFixture[str]


@pytest.mark.parametrize(("state", "status"), [(JobState.SUCCEEDED, 0), (JobState.FAILED, 1), (JobState.CANCELLED, 1)])
async def test_wait_exits_as_the_job_ended(gateway: ToldGateway, capsys: Said, state: JobState, status: int) -> None:
    gateway.answers["GET /v1/jobs/train"] = gateway.answers["GET /v1/jobs/j-aaaaaaaaaa"] = job_view(state=state)
    assert await weft(gateway, "wait", "train") == status
    assert capsys.readouterr().out == f"train j-aaaaaaaaaa {state}\n"


async def test_wait_ends_in_time_and_names_who_is_late(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["GET /v1/jobs/train"] = gateway.answers["GET /v1/jobs/j-aaaaaaaaaa"] = job_view()
    gateway.refuse("GET /v1/jobs/j-aaaaaaaaaa/events", 503, "", "the store is away for a moment")
    assert await weft(gateway, "wait", "train", "--timeout", "0.2") == 124
    assert capsys.readouterr().err == "weft: not over after 0.2 s: train\n"


def test_a_timeout_is_seconds_or_a_duration() -> None:
    assert (seconds("90"), seconds("1h30m"), seconds("0.5")) == (90.0, 5400.0, 0.5)
    with pytest.raises(argparse.ArgumentTypeError, match="expected a duration"):
        seconds("soon")


async def test_wait_any_returns_with_the_first_that_has_ended(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["GET /v1/jobs/long"] = gateway.answers["GET /v1/jobs/j-2"] = job_view("j-2", name="long")
    gateway.refuse("GET /v1/jobs/j-2/events", 503, "", "the store is away for a moment")
    over = job_view("j-1", JobState.FAILED, name="short", ended_at=NOW, exit_code=1)
    gateway.answers["GET /v1/jobs/short"] = gateway.answers["GET /v1/jobs/j-1"] = over
    assert await weft(gateway, "wait", "long", "short", "--any", "--timeout", "20") == 1
    assert "short" in capsys.readouterr().out


def told_array(gateway: ToldGateway, **states: int) -> None:
    """An array of the name parts, and no job that is called so."""
    gateway.refuse("GET /v1/jobs/parts", 404, "job", "no job has the id or the name parts; a job is kept for 90 days")
    gateway.answers["GET /v1/arrays/parts"] = gateway.answers["GET /v1/arrays/a-parts"] = array_view("parts", **states)


async def test_wait_for_an_array_is_done_when_all_its_elements_have_succeeded(
    gateway: ToldGateway, capsys: Said
) -> None:
    told_array(gateway, succeeded=3)
    assert await weft(gateway, "wait", "parts") == 0
    assert capsys.readouterr().out == "parts a-parts 3 succeeded\n"


async def test_wait_for_an_array_exits_with_the_highest_status_of_its_elements(
    gateway: ToldGateway, capsys: Said
) -> None:
    told_array(gateway, succeeded=2, failed=2)
    gateway.answers["GET /v1/arrays/a-parts/elements"] = JobsView(
        jobs=(job_view("j-parts-1", JobState.SUCCEEDED), job_view("j-parts-2", JobState.FAILED, exit_code=9))
    )
    assert await weft(gateway, "wait", "parts") == 9
    told_array(gateway, succeeded=2, cancelled=1)
    gateway.answers["GET /v1/arrays/a-parts/elements"] = JobsView(jobs=(job_view(state=JobState.CANCELLED),))
    assert await weft(gateway, "wait", "parts", "--json") == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["states"] == {"succeeded": 2, "cancelled": 1}


async def test_wait_for_an_array_that_is_not_over_ends_in_time(gateway: ToldGateway, capsys: Said) -> None:
    told_array(gateway, succeeded=2, running=1)
    assert await weft(gateway, "wait", "parts", "--timeout", "0.2") == 124
    assert capsys.readouterr().err == "weft: not over after 0.2 s: parts\n"


async def test_wait_for_what_is_neither_job_nor_array_says_that_there_is_no_such_job(
    gateway: ToldGateway, capsys: Said
) -> None:
    gateway.refuse("GET /v1/jobs/parts", 404, "job", "no job has the id or the name parts")
    assert await weft(gateway, "wait", "parts") == 1
    assert capsys.readouterr().err == "weft: no job has the id or the name parts\n"
