"""What the audit finds of services, and which services a run has."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.chaos.audit import FAULTY, audit, counts
from tests.chaos.customers import Submission
from tests.chaos.services import CALLED, COMMAND, MARK, VERSION, Replica, Request, ServiceSeen, replicas
from tests.chaos.serving import service_wishes
from tests.chaos.test_audit import event, evidence, view
from weft.domain.job import Allocation, JobState, Placement
from weft.messages.http.services import LoanView, ServiceView

GOOD = Request(job_id="s", at=30.0, status=200, answered_by="s", rank=0)
LOAN = LoanView(lender="j", name="k", rank=1, gpus=1.0, ranks=1, since=0.0)


def allocation(rank: int, **fields: Any) -> Allocation:
    return Allocation(rank=rank, role="worker", node_id="n", cpus=1.0, memory=1, extra=True, revision=1, **fields)


def replica(rank: int, **fields: Any) -> Replica:
    return Replica(**{"pid": 10 + rank, "job_id": "s", "rank": rank, "version": "4", **fields})


def seen(
    *ranks: int,
    state: JobState = JobState.RUNNING,
    wanted: int = 2,
    loans: tuple[LoanView, ...] = (LOAN,),
    held: tuple[Allocation, ...] | None = None,
    **fields: Any,
) -> ServiceSeen:
    """A service with replicas of these ranks, of which one is on loan; as it should be with ranks 0 and 1."""
    service = ServiceView(
        wanted=wanted, granted=wanted, ready=wanted, least=0, most=3, url="", public=False, revision=1, loans=loans
    )
    placement = Placement(allocations=tuple(map(allocation, ranks)) if held is None else held)
    usual: dict[str, Any] = {"job_id": "s", "view": view(state, id="s", placement=placement, service=service)}
    usual |= {"replicas": tuple(map(replica, ranks)), "lenders": {"j": "running"}, "version": "4", "answer": GOOD}
    return ServiceSeen(**{**usual, **fields})


def kinds(*services: ServiceSeen, requests: tuple[Request, ...] = ()) -> set[str]:
    found = counts(audit(evidence(services=list(services), requests=list(requests))))
    return {kind for kind, count in found.items() if count}


def test_a_service_as_it_should_be_is_no_fault() -> None:
    assert kinds(seen(0, 1), requests=(GOOD,)) == set()
    assert kinds(seen(wanted=0, loans=(), answer=None)) == set()
    assert kinds(seen(state=JobState.CANCELLED, cancelled=True)) == set()
    assert kinds(ServiceSeen(job_id="s", view=None)) == set()


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("replicas_lost", seen(1)),
        ("replicas_lost", seen(0, 1, replicas=(replica(1),))),
        ("replicas_lost", seen(0, 1, held=(allocation(0, leaving=True), allocation(1)))),
        ("replicas_lost", seen(0, 1, state=JobState.FAILED)),
        ("replicas_lost", seen(state=JobState.CANCELLED)),
        ("replicas_beyond", seen(0, 1, 2)),
        ("replicas_beyond", seen(0, 1, replicas=(replica(0), replica(1), replica(2)))),
        ("replicas_beyond", seen(0, 1, replicas=(replica(0), replica(1), replica(1, pid=99)))),
        ("replicas_beyond", seen(0, state=JobState.CANCELLED, cancelled=True)),
        ("replicas_beyond", ServiceSeen(job_id="s", view=None, replicas=(replica(0),))),
        ("revision_wrong", seen(0, 1, replicas=(replica(0), replica(1, version="3")))),
        ("revision_wrong", seen(0, 1, held=(allocation(0), replace(allocation(1), revision=0)))),
        ("loans_astray", seen(0, 1, lenders={"j": None})),
        ("loans_astray", seen(0, 1, loans=(replace(LOAN, rank=2),))),
        ("misdirected", seen(0, 1, answer=replace(GOOD, answered_by="j"))),
        ("unserved", seen(0, 1, answer=replace(GOOD, status=503, answered_by=""))),
        ("unserved", seen(0, 1, answer=None)),
    ],
)
def test_what_is_wrong_with_a_service_is_found(kind: str, found: ServiceSeen) -> None:
    assert kind in FAULTY
    assert kinds(found) == {kind}


def test_an_answer_of_another_jobs_replica_is_found_also_while_there_is_trouble() -> None:
    assert kinds(requests=(replace(GOOD, answered_by="another"),)) == {"misdirected"}
    assert kinds(requests=(replace(GOOD, status=503, answered_by="", rank=None),)) == set()


def grown_by(ranks: int) -> set[str]:
    """What is found of a service that had its most replicas, those that an update may add, and so many more."""
    (wish, *_) = service_wishes(2, 60, folder=Path("/f"), run="r")
    most = wish.spec.roles["worker"].replicas.most
    surge = wish.spec.service.max_surge if wish.spec.service else 0
    story = tuple(
        replace(one, data=replace(one.data, name=wish.spec.name))
        for one in (
            event(1, "placed", "placed", 1),
            event(2, "resized", "running", *range(1, 1 + most + surge + ranks)),
        )
    )
    submission = Submission(wish=wish, asked_at=4.0, acked_at=5.0, ids=["j"], tries=1)
    made = evidence([], submissions=[submission], jobs={"j": view(JobState.CANCELLED)}, stories={"j": story})
    return {kind for kind, count in counts(audit(made)).items() if count}


def test_more_replicas_than_the_most_and_the_surge_are_found() -> None:
    assert grown_by(0) == set()
    assert grown_by(1) == {"unlawful_size"}


def test_a_seed_gives_the_same_services_and_every_run_scales_updates_and_cancels_some() -> None:
    for seed in range(20):
        wishes = service_wishes(seed, 60, folder=Path("/f"), run="r")
        assert wishes == service_wishes(seed, 60, folder=Path("/f"), run="r")
        assert len(wishes) == 3
        assert all(wish.spec.is_service and wish.sizes and wish.updates for wish in wishes)
        assert [wish.cancelled_after is not None for wish in wishes] == [False, False, True]
        assert [wish.spec.roles["worker"].gpus for wish in wishes] == [1, 0, 0]
        assert wishes[1].spec.roles["worker"].share is not None
    assert service_wishes(7, 60, folder=Path("/f"), run="r") != service_wishes(8, 60, folder=Path("/f"), run="r")


def test_a_replica_is_found_by_its_own_environment_and_no_other_process_is(tmp_path: Path) -> None:
    env = {**os.environ, MARK: str(tmp_path), "WEFT_JOB_ID": "s", "WEFT_RANK": "3", VERSION: "2"}
    shell = ["sh", "-c", f"{' '.join(COMMAND)}; true"]  # as a shim: the same environment and words, another program
    with subprocess.Popen(
        shell, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            (found,) = replicas(tmp_path)
            assert (found.job_id, found.rank, found.version) == ("s", 3, "2")
            assert found.pid != process.pid
            assert Path(f"/proc/{found.pid}/cmdline").read_bytes() == CALLED
            assert list(replicas(tmp_path / "other")) == []
        finally:
            os.killpg(process.pid, signal.SIGKILL)
