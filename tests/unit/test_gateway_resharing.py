"""What the gateway refuses of another share before it stores it."""

from typing import Any

import msgspec
import pytest
from msgspec import structs

from tests.support.builders import job, spec
from weft.domain.job import Job, JobState
from weft.messages.asks import Reshare
from weft.messages.http import ShareWanted
from weftd.gateway.errors import RejectedError
from weftd.gateway.thinking.updating import check_share

SHARE = {"request": 0.3, "memory": "1GiB"}
RUNS = structs.replace(job(spec={"role": {"share": SHARE}}, gpus=0), state=JobState.RUNNING)
BOTH = structs.replace(RUNS.spec, roles=dict.fromkeys(("worker", "eval"), RUNS.spec.roles["worker"]))


def wanted(body: dict[str, Any]) -> ShareWanted:
    return msgspec.json.decode(msgspec.json.encode(body), type=ShareWanted)


def refusal(asked: Job, body: dict[str, Any]) -> tuple[int, str]:
    with pytest.raises(RejectedError) as caught:
        check_share(asked, wanted(body))
    return caught.value.status, caught.value.field


def test_parts_become_thousandths() -> None:
    assert check_share(RUNS, wanted({"request": 0.5, "limit": 0.8})) == Reshare(request=500, limit=800)
    assert check_share(RUNS, wanted({"limit": 0.001, "role": "worker"})) == Reshare(limit=1, role="worker")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "set request or limit"),
        ({"request": 0.8, "limit": 0.5}, "less than request"),
        ({"request": 0}, "> 0"),
        ({"request": 1.1}, "<= 1"),
        ({"request": 0.0005}, "finer than a thousandth"),
        ({"limit": 0.1234}, "finer than a thousandth"),
        ({"request": "0.5"}, "Expected `float"),
        ({"request": 0.5, "memory": "1GiB"}, "unknown field"),
        ({"request": 0.5, "role": "No Role"}, "matching regex"),
    ],
)
def test_what_is_no_share_is_refused_with_its_reason(body: dict[str, Any], says: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=says):
        wanted(body)


def test_what_makes_no_sense_for_the_job_is_refused_and_names_what() -> None:
    assert refusal(structs.replace(RUNS, spec=spec()), {"request": 0.5}) == (409, "job")
    assert refusal(structs.replace(RUNS, state=JobState.QUEUED), {"request": 0.5}) == (409, "job")
    assert refusal(structs.replace(RUNS, state=JobState.SUCCEEDED), {"request": 0.5}) == (409, "job")
    assert refusal(RUNS, {"request": 0.5, "role": "ps"}) == (400, "role")
    two = structs.replace(RUNS, spec=BOTH)
    assert refusal(two, {"request": 0.5}) == (400, "role")
    assert check_share(two, wanted({"request": 0.5, "role": "eval"})) == Reshare(request=500, role="eval")
