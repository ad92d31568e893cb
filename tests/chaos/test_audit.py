"""The audit finds what it is there to find, and nothing in evidence that is sound."""

from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from tests.chaos.audit import FAULTY, audit, counts
from tests.chaos.customers import Submission
from tests.chaos.deeds import Done
from tests.chaos.evidence import Evidence, Living, Said
from tests.chaos.faults import GPU_FAULTS, LABORATORY, OF_HOSTS, Means, cut_offs, faults, touches
from tests.chaos.member import Exit
from tests.chaos.sick import closed_of
from tests.chaos.slots import Accounted
from tests.chaos.traces import Run
from tests.chaos.wishes import Wish
from tests.support.builders import spec
from weft.domain.job import Allocation, JobState, Placement
from weft.domain.spec import Kind
from weft.messages.http import EventData, EventView, JobView

OVER_HOSTS = Means(nodes=("node-1", "node-2", "node-3"), failover=True, hosts=True)
MEANS = Means(nodes=("node-1", "node-2", "node-3"), full_disk="node-3", engine=True, guards=True, router=True)


def run(rank: int = 0, *, epoch: int = 0, began: float = 10.0, last: float = 20.0, **fields: Any) -> Run:
    usual: dict[str, Any] = {"key": "k", "job_id": "j", "instance": f"{rank}-{began}", "node": f"node-{rank}"}
    return Run(rank=rank, epoch=epoch, began=began, last=last, **{**usual, "world": 2, "status": 0, **fields})


def view(state: JobState = JobState.SUCCEEDED, **fields: Any) -> JobView:
    usual: dict[str, Any] = {"id": "j", "name": "k", "tenant": "admin", "kind": Kind.TRAINING, "pool": "default"}
    usual |= {"epoch": 0, "version": 1, "priority": 0, "preemptible": True, "gpus": 2, "replicas": 2, "seq": 1}
    return JobView(state=state, submitted_at=0.0, since=0.0, **{**usual, **fields})


def evidence(runs: list[Run] | None = None, **fields: Any) -> Evidence:
    """A gang of two that ran and succeeded, unless told otherwise."""
    wish = Wish(key="k", at=0.0, kind="gang", ranks=2, spec=spec("k", replicas=2))
    usual: dict[str, Any] = {
        "submissions": [Submission(wish=wish, asked_at=4.0, acked_at=5.0, ids=["j"], tries=1)],
        "runs": [run(0), run(1)] if runs is None else runs,
        "faults": [],
        "restores": [],
        "jobs": {"j": view()},
        "stories": {},
        "ids_of_key": {"k": {"j"}},
        "said": [],
        "living": [],
        "exits": [],
        "unready": [],
        "hostile_runs": [],
        "boot_to_unix": 0.0,
    }
    return Evidence(**{**usual, **fields})


def kinds(found: Evidence) -> dict[str, int]:
    return {kind: count for kind, count in counts(audit(found)).items() if count}


def started(epoch: int, at: str) -> dict[str, tuple[EventView, ...]]:
    event = EventView(
        specversion="1.0",
        id="1",
        source="weft",
        type="weft.jobs.started",
        subject="j",
        time=at,
        datacontenttype="application/json",
        data=EventData(version=1, pool="default", epoch=epoch),
    )
    return {"j": (event,)}


def said(*written: bytes, log: bytes) -> list[Said]:
    runs = tuple(run(0, began=10.0 + number) for number in range(len(written)))
    return [Said(runs=runs, written=written, log=log)]


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    assert kinds(evidence()) == {}


NO_RANK_1 = [run(0)]
MOVED = [run(0, status=None), run(1, status=None), run(0, epoch=1, began=19.0, last=30.0), run(1, epoch=1, began=21.0)]
AGAIN = [run(0, last=12.0), run(0, began=15.0), run(1)]


def sized(runs: list[Run], *, steps: int = 10, story: tuple[EventView, ...] = (), **resize: str) -> Evidence:
    """A job of one to three ranks that works by steps, and resizes live unless told otherwise."""
    role = {"replicas": {"min": 1, "want": 2, "max": 3}}
    how: dict[str, Any] = {"checkpoints": {"on_stop": True}} if resize else {"resize": {"how": "live"}}
    wish = Wish(key="k", at=0.0, kind="live", ranks=2, steps=steps, spec=spec("k", role=role, **how))
    made = evidence(runs, stories={"j": story})
    return replace(made, submissions=[replace(made.submissions[0], wish=wish)])


def event(version: int, what: str, state: str, *ranks: int, leaving: tuple[int, ...] = (), epoch: int = 0) -> EventView:
    allocations = tuple(
        Allocation(
            rank=rank,
            role="worker",
            node_id="n",
            cpus=1.0,
            memory=1,
            extra=rank > 0,
            gpus=(rank,),
            leaving=rank in leaving,
        )
        for rank in ranks
    )
    data = EventData(
        version=version,
        pool="default",
        job_id="j",
        name="k",
        epoch=epoch,
        state=state,
        placement=Placement(allocations=allocations) if ranks else None,
    )
    return replace(started(0, "1970-01-01T00:00:10Z")["j"][0], type=f"weft.jobs.{what}", data=data)


PLACED = event(1, "placed", "placed", 0, 1)
DONE = run(0, steps_from=0, steps_done=12, checkpoints=((15.0, 8), (20.0, 12)))
CRASH = Exit(name="scheduler-1", at=50.0, status=1, crashed=True, words="scheduler crashed")


def sharing(*held: tuple[float, str], **fields: Any) -> Evidence:
    """A job for each share, all on one GPU at one time."""
    runs, submissions, jobs = [], [], {}
    for number, (request, memory) in enumerate(held):
        job_id, share = f"j-{number}", {"request": request, "memory": memory}
        wish = Wish(key=job_id, at=0.0, kind="sharing", ranks=1, spec=spec(job_id, gpus=0, role={"share": share}))
        submissions.append(Submission(wish=wish, asked_at=4.0, acked_at=5.0, ids=[job_id], tries=1))
        runs.append(run(job_id=job_id, node="n", gpus=(0,), world=1, instance=f"{job_id}", **fields))
        jobs[job_id] = view(id=job_id)
    return evidence(runs, submissions=submissions, jobs=jobs)


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("over_packed", sharing((0.5, "1GiB"), (0.501, "1GiB"))),
        ("over_packed", sharing((0.2, "8GiB"), (0.2, "9GiB"))),
        ("lost", evidence(jobs={"j": None})),
        ("stuck", evidence(jobs={"j": view(JobState.RUNNING)})),
        ("stuck", evidence(submissions=[Submission(wish=evidence().submissions[0].wish, asked_at=4.0)])),
        ("untrue", evidence(NO_RANK_1)),
        ("untrue", evidence([run(0), run(1, status=1)])),
        ("twice", evidence(AGAIN)),
        ("overlaps", evidence(MOVED, jobs={"j": view(JobState.CANCELLED, epoch=1)})),
        ("over_packed", evidence([run(0, node="n", gpus=(1, 2)), run(1, node="n", gpus=(2, 3))])),
        ("half_placed", evidence([run(0, status=3, last=11.0), run(1, last=40.0)], jobs={"j": view(JobState.FAILED)})),
        (
            "half_placed",
            evidence(NO_RANK_1, jobs={"j": view(JobState.FAILED)}, stories=started(0, "1970-01-01T00:00:10Z")),
        ),
        ("log_bytes_missing", evidence(said=said(b"one\ntwo\n", log=b"one\n"))),
        ("log_bytes_missing", evidence(said=said(b"one\n", log=b"other\n"))),
        ("log_bytes_missing", evidence(said=said(b"one\n", log=b"one\n" + b"x" * 200))),
        ("orphans", evidence(living=[Living(pid=1, job_id="j", epoch=0, rank=0)])),
        ("two_jobs", evidence(ids_of_key={"k": {"j", "i"}})),
        ("interrupted", evidence([run(0), run(1, interrupted=True)])),
        ("interrupted", evidence(hostile_runs=[run(0, interrupted=True)])),
        ("unlawful_size", sized([DONE], story=(PLACED, event(2, "resized", "running", 0, 1, 2, 3)))),
        ("unlawful_size", sized([DONE], story=(PLACED, event(2, "resized", "running", 1)))),
        (
            "unlawful_size",
            sized([DONE], story=(PLACED, event(2, "resized", "running", 0), event(3, "resized", "running", 0, 1))),
        ),
        ("work_lost", sized([replace(DONE, steps_done=9)])),
        ("work_lost", sized([DONE, run(0, epoch=1, began=21.0, steps_from=8)])),
        ("crashed", evidence(exits=[CRASH])),
        ("crashed", evidence(exits=[replace(CRASH, crashed=False)])),
        ("crashed", evidence(unready=["executor-node-1"])),
        ("unanswered", evidence(submissions=[replace(evidence().submissions[0], acked_at=4.0 + 21.0)])),
    ],
)
def test_what_is_wrong_is_found(kind: str, found: Evidence) -> None:
    assert kind in FAULTY
    assert set(kinds(found)) == {kind}


def test_a_gang_of_which_a_rank_ran_before_a_restore_and_again_after_it_is_not_half_placed() -> None:
    cut_off = run(1, last=15.0, status=143)
    together = [run(0, began=65.0, last=75.0), run(1, began=65.1, last=75.0)]
    restored = [(16.0, 30.0)]
    assert kinds(evidence([cut_off, *together], restores=restored)) == {"again_by_restore": 1}
    late = [run(0, began=16.0, last=75.0), run(1, began=65.1, last=75.0)]
    assert kinds(evidence([cut_off, *late], restores=restored)) == {"again_by_restore": 1, "half_placed": 1}


def test_a_live_job_whose_ranks_come_and_go_is_no_fault() -> None:
    leaves = run(1, began=11.0, last=14.0, status=143, interrupted=True)
    story = (
        PLACED,
        event(2, "resized", "running", 0, 1, leaving=(1,)),
        event(3, "resized", "running", 0),
        event(4, "resized", "running", 0, 2),
    )
    assert kinds(sized([DONE, leaves, run(2, began=15.0, status=0)], story=story)) == {}
    assert kinds(sized([replace(DONE, status=1, last=11.0), run(2, last=40.0)])) == {"untrue": 1, "half_placed": 1}


def test_a_job_that_went_on_from_its_checkpoint_with_another_size_is_no_fault() -> None:
    first = [run(rank, status=0, interrupted=True, last=12.0) for rank in range(2)]
    first[0] = replace(first[0], steps_from=0, checkpoints=((12.0, 6),))
    then = [run(rank, epoch=1, began=13.0, world=3) for rank in range(3)]
    then[0] = replace(then[0], steps_from=6, steps_done=11)
    story = (PLACED, event(2, "restarted", "placed", 0, 1, 2, epoch=1))
    made = replace(sized([*first, *then], story=story, how="restart"), jobs={"j": view(epoch=1)})
    assert kinds(made) == {}
    assert kinds(replace(made, runs=[*first, *then[:2]])) == {"untrue": 1}


def test_a_line_that_the_job_had_no_time_to_note_is_no_fault() -> None:
    assert kinds(evidence(said=said(b"one\n", log=b"one\ntwo\n"))) == {}


def test_a_rank_whose_program_had_not_yet_begun_when_it_ended_was_there() -> None:
    never = evidence(NO_RANK_1, jobs={"j": view(JobState.FAILED)}, stories=started(0, "1970-01-01T00:00:10Z"))
    assert kinds(replace(never, came=frozenset({("j", 0, 1)}))) == {}
    assert kinds(replace(never, came=frozenset({("j", 0, 0), ("j", 1, 1), ("i", 0, 1)}))) == {"half_placed": 1}


def test_a_rank_that_did_not_begin_is_no_fault_while_its_executor_is_away_that_would_tell_of_it() -> None:
    never = evidence(NO_RANK_1, jobs={"j": view(JobState.FAILED)}, stories=started(0, "1970-01-01T00:00:10Z"))
    node = NO_RANK_1[0].node
    for target, ended, found in (
        (f"executor-{node}", 20.0, {}),
        (f"executor-{node}", 12.0, {"half_placed": 1}),
        ("executor-node-9", 20.0, {"half_placed": 1}),
        (f"guard-{node}", 20.0, {"half_placed": 1}),
    ):
        fault = Done(what="kill", target=target, began=10.5, ended=ended)
        assert kinds(replace(never, faults=[fault])) == found


def test_an_interrupted_epoch_of_a_job_that_succeeded_later_is_no_fault() -> None:
    runs = [run(0, interrupted=True), run(1), run(0, epoch=1, began=21.0, last=30.0), run(1, epoch=1, began=21.0)]
    assert kinds(evidence(runs, jobs={"j": view(epoch=1)})) == {}


def test_an_interrupted_run_that_a_restore_undid_and_that_was_started_again_is_no_fault() -> None:
    assert kinds(evidence(hostile_runs=[run(0, interrupted=True, last=12.0), run(0, began=21.0, last=30.0)])) == {}
    assert kinds(evidence(hostile_runs=[run(0, last=12.0), run(0, interrupted=True, began=21.0, last=30.0)])) == {
        "interrupted": 1
    }


def test_an_interrupted_job_that_was_cancelled_is_no_fault() -> None:
    assert kinds(evidence([run(0, interrupted=True), run(1)], jobs={"j": view(JobState.CANCELLED)})) == {}


def test_who_ends_because_a_server_is_away_has_not_crashed() -> None:
    away = [Done(what="kill", target="postgres", began=45.0, ended=48.0)]
    assert kinds(evidence(exits=[replace(CRASH, crashed=False)], faults=away)) == {}
    assert kinds(evidence(exits=[CRASH], faults=away)) == {"crashed": 1}
    elsewhere = [Done(what="cut", target="store-scheduler-2", began=45.0, ended=48.0)]
    assert kinds(evidence(exits=[replace(CRASH, crashed=False)], faults=elsewhere)) == {"crashed": 1}


def test_a_submission_that_waits_while_its_gateway_is_in_trouble_is_no_fault() -> None:
    waited = [replace(evidence().submissions[0], acked_at=4.0 + 21.0)]
    troubled = [Done(what="kill", target="gateway", began=4.0, ended=6.0)]
    assert kinds(evidence(submissions=waited, faults=troubled)) == {}
    longer = [replace(waited[0], acked_at=4.0 + 23.0)]
    assert kinds(evidence(submissions=longer, faults=troubled)) == {"unanswered": 1}


def test_a_submission_that_waits_while_a_host_is_off_is_no_fault_and_one_that_waits_on_is() -> None:
    waited = [replace(evidence().submissions[0], acked_at=4.0 + 25.0)]
    off = [Done(what="switch off (primary)", target="host-1", began=4.0, ended=12.0)]
    assert kinds(evidence(submissions=waited, faults=off)) == {}
    assert kinds(evidence(submissions=waited, faults=[replace(off[0], ended=5.0)])) == {"unanswered": 1}


def test_what_a_restore_undid_is_counted_apart() -> None:
    undone = evidence(jobs={"j": None}, restores=[(4.5, 30.0)])
    assert kinds(undone) == {"undone_by_restore": 1}
    assert kinds(evidence(AGAIN, restores=[(4.5, 13.0)])) == {"again_by_restore": 1}


def test_who_is_alone_while_its_peers_node_is_in_trouble_is_no_fault_yet() -> None:
    runs = [run(0, status=None, last=11.0), run(1, last=40.0)]
    troubled = evidence(
        runs,
        jobs={"j": view(JobState.FAILED)},
        faults=[Done(what="freeze", target="executor-node-0", began=10.0, ended=25.0)],
    )
    assert kinds(troubled) == {}
    elsewhere = replace(troubled, faults=[Done(what="freeze", target="executor-node-9", began=10.0, ended=25.0)])
    assert kinds(elsewhere) == {"half_placed": 1}


def test_a_seed_gives_the_same_faults_and_another_seed_others() -> None:
    assert faults(7, 600, MEANS) == faults(7, 600, MEANS)
    assert faults(7, 600, MEANS) != faults(8, 600, MEANS)


def test_no_target_has_two_faults_at_once() -> None:
    busy: dict[str, float] = {}
    for fault in faults(7, 600, MEANS):
        touched = touches(fault.target)
        assert busy.get(touched, 0.0) <= fault.at
        busy[touched] = fault.until


@pytest.mark.parametrize("seed", [7, *range(20)])
def test_a_long_run_meets_every_kind_of_fault(seed: int) -> None:
    met = {(fault.what, fault.target.partition("-")[0]) for fault in faults(seed, 600, MEANS)}
    services = ("gateway", "scheduler", "scorer", "reallocator", "executor", "telemetry", "nats", "postgres")
    assert met >= {(what, name) for what in ("kill", "freeze", "restart") for name in services}
    others = [("lose stream", "nats"), ("restore", "postgres"), ("fill", "disk"), ("kill", "engine"), ("kill", "guard")]
    links = [(what, name) for what in ("cut", "break") for name in ("link", "store")]
    of_services = [("kill", "router"), ("restart", "router"), ("kill", "caddy"), ("kill", "gate"), ("kill", "replica")]
    assert met >= {*others, *links, *of_services, *((what, "gpu") for what in GPU_FAULTS)}


@pytest.mark.parametrize("seed", range(20))
def test_a_long_run_over_hosts_meets_every_fault_of_hosts_one_at_a_time(seed: int) -> None:
    dealt = [fault for fault in faults(seed, 900, OVER_HOSTS) if touches(fault.target, hosts=True) == LABORATORY]
    assert {(fault.what, fault.target) for fault in dealt} >= {(card.what, card.target) for card in OF_HOSTS}
    assert {fault.what for fault in dealt} >= {"kill one", "kill two", "fail over"}
    assert all(before.until <= after.at for before, after in pairwise(dealt))


def test_a_run_over_hosts_has_no_link_of_one_client() -> None:
    met = {fault.target.partition("-")[0] for fault in faults(7, 600, OVER_HOSTS)}
    assert not met & {"link", "store", "bus", "router", "engine", "disk"}


def test_a_run_without_a_router_has_no_fault_of_it() -> None:
    met = {fault.target for fault in faults(7, 600, replace(MEANS, router=False))}
    assert not met & {"router", "gate", "caddy", "replica"}


def test_a_router_and_its_children_are_troubled_one_at_a_time() -> None:
    assert touches("caddy") == touches("gate") == touches("router") == "router"


def test_cut_offs_are_longer_than_the_lease() -> None:
    assert all(fault.seconds > 9 for fault in cut_offs(1, 60, MEANS))
    assert cut_offs(1, 21, MEANS)


def test_jobs_that_share_a_gpu_within_its_time_and_memory_are_sound() -> None:
    assert kinds(sharing((0.5, "8GiB"), (0.3, "4GiB"), (0.2, "4GiB"))) == {}


def test_a_job_that_was_placed_on_a_quarantined_gpu_is_found() -> None:
    places = Placement(allocations=(Allocation(rank=0, role="worker", node_id="node-1", gpus=(2,), cpus=1, memory=1),))
    placed = [
        replace(event, type="weft.jobs.placed", data=replace(event.data, placement=places))
        for event in started(0, "1970-01-01T00:00:20+00:00")["j"]
    ]

    def found(*noted: tuple[str, float, list[int]], **fields: Any) -> dict[str, int]:
        return kinds(evidence(stories={"j": tuple(placed)}, closed=list(closed_of(noted)), **fields))

    assert found(("node-1", 15.0, [2]), ("node-1", 25.0, [2, 3])) == {"on_quarantined_gpu": 1}
    assert found(("node-1", 15.0, [1, 2]), ("node-1", 18.0, [1])) == {}, "it was in use again"
    assert found(("node-1", 20.0, [2])) == {}, "decided in the same moment"
    assert found(("node-1", 15.0, [2]), ("node-1", 20.0009, [])) == {}, (
        "that moment too, of which the story cuts a part"
    )
    assert found(("node-2", 15.0, [2])) == {}
    assert found(("node-1", 15.0, [2]), restores=[(14.0, 30.0)]) == {}


def test_an_account_that_is_a_microsecond_off_is_found() -> None:
    same = Accounted(by_weft={"j": 2_000_000_000}, by_slots={"j": 2_000_000_000})
    assert kinds(evidence(accounted=same)) == {}
    assert kinds(evidence(accounted=replace(same, by_weft={"j": 2_000_001_000}))) == {"unaccounted": 1}
    assert kinds(evidence(accounted=replace(same, by_weft={}))) == {"unaccounted": 2}
    assert kinds(evidence(accounted=replace(same, by_weft={"j": 2_000_000_000, "k": 1}))) == {"unaccounted": 1}
    assert kinds(evidence(accounted=replace(same, capacity=-0.000001))) == {"unaccounted": 1}
