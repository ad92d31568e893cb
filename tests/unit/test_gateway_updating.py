"""An update of a service is judged by the job that would follow."""

from typing import Any

import pytest

from tests.support.builders import job, node
from weft.domain.job import REVISIONS_MAX, Allocation, Job, JobState, Placement, Revision
from weft.messages.asks import Update
from weft.messages.http.services import UpdateWanted
from weftd.gateway.errors import RejectedError
from weftd.gateway.thinking.admission import Admission
from weftd.gateway.thinking.updating import ENV_MAX, check_update

DOCKER = Admission([node(runtime="docker")], default_pool="default", volumes_allowed=(), shares=True)


def service(*, state: JobState = JobState.QUEUED, says: dict[str, Any] | None = None, **fields: Any) -> Job:
    usual = {"kind": "inference", "service": {}, "image": "a:1", "env": {"A": "1"}, **(says or {})}
    return job("j-s", state=state, spec=usual, **fields)


def refused(of: Job, wanted: UpdateWanted) -> tuple[int, str]:
    with pytest.raises(RejectedError) as error:
        check_update(of, wanted, DOCKER)
    return error.value.status, error.value.field


def test_what_is_asked_of_the_scheduler_is_what_was_sent() -> None:
    wanted = UpdateWanted(image="a:2", command=("serve",), env={"B": ""})
    assert check_update(service(), wanted, DOCKER).update == Update(image="a:2", command=("serve",), env={"B": ""})


def test_variables_are_counted_with_those_that_there_are_now_and_without_those_taken_away() -> None:
    newest = Revision(number=2, env={f"B{number}": "x" for number in range(600)})
    older = Revision(number=1, env={f"C{number}": "x" for number in range(1000)})
    of = service(revisions=(older, newest))
    most = ENV_MAX - 601
    check_update(of, UpdateWanted(env={f"D{number}": "x" for number in range(most)}), DOCKER)
    assert refused(of, UpdateWanted(env={f"D{number}": "x" for number in range(most + 1)})) == (400, "env")
    swapped = {"A": "", **{f"D{number}": "x" for number in range(most + 1)}}
    check_update(of, UpdateWanted(env=swapped), DOCKER)


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.STOPPING])
def test_a_service_that_is_over_or_stops_is_not_updated(state: JobState) -> None:
    assert refused(service(state=state), UpdateWanted(env={})) == (409, "job")


def test_an_inference_job_without_a_service_is_not_updated() -> None:
    assert refused(service(says={"service": None}), UpdateWanted(env={})) == (409, "job")


def test_a_role_with_an_image_of_its_own_is_updated_too() -> None:
    says = {"image": None, "role": {"image": "b:1"}}
    processes = Admission([node(runtime="process")], default_pool="default", volumes_allowed=(), shares=True)
    with pytest.raises(RejectedError) as error:
        check_update(service(says=says), UpdateWanted(image="b:2"), processes)
    assert (error.value.status, error.value.field) == (422, "image")


def still_running(*revisions: Revision) -> Job:
    """A service with a replica of each of these revisions."""
    held = tuple(
        Allocation(rank=rank, role="worker", node_id="node-1", cpus=1.0, memory=1, extra=True, revision=one.number)
        for rank, one in enumerate(revisions)
    )
    return service(state=JobState.RUNNING, revisions=revisions, placement=Placement(allocations=held))


def test_revisions_that_still_run_are_together_no_larger_than_an_event_may_be() -> None:
    large = [Revision(number=number, env={f"A{at}": "x" * 32_000 for at in range(27)}) for number in range(1, 5)]
    wanted = UpdateWanted(env={"B": "x"})
    check_update(still_running(*large[:3]), wanted, DOCKER)
    assert refused(still_running(*large), wanted) == (409, "env")
    gone = service(state=JobState.RUNNING, revisions=tuple(large), placement=still_running(*large[:2]).placement)
    check_update(gone, wanted, DOCKER)


def test_an_update_is_refused_while_too_many_revisions_run() -> None:
    few = [Revision(number=number) for number in range(1, REVISIONS_MAX - 1)]
    check_update(still_running(*few), UpdateWanted(env={"B": "x"}), DOCKER)
    assert refused(still_running(*few, Revision(number=40)), UpdateWanted(env={"B": "x"})) == (409, "job")
