"""What a person sees of one job, and of why it waits."""

import msgspec

from tests.support.drawn import PIPE, TERMINAL, cells, line_with, seen
from tests.support.views import GIB, NO_ROOM, NOW, event_view, gpu_view, job_view, node_view
from weft.domain.decoding.spec_decoder import decode_spec
from weft.domain.job import Allocation, Cause, CauseCode, JobState, Placement
from weft.messages.eta import Basis, Estimate, EtaOf, Helps, Sooner, TrackRecord
from weft.messages.http import RunView
from weft.messages.http.explanation import ClosedSeen, Explanation, HolderSeen
from weft.messages.signals import RunSample
from weftd.cli.rendering.explanation import explanation
from weftd.cli.rendering.jobs import (
    description,
    emulated_gpus_of,
    jobs_table,
)
from weftd.cli.rendering.story import event_line

# one job


def described() -> list[str]:
    spec = decode_spec(
        b'{"name":"train","command":["python","train.py","--lr","0.1 x"],"env":{"SECRET":"hidden"},"time_limit":"1h",'
        b'"retries":{"max":3},"roles":{"worker":{"gpus":2,"cpus":2,"memory":"4GiB"}},"gpu_model":"Emulated GPU"}'
    )
    allocation = Allocation(rank=0, role="worker", node_id="node-1", gpus=(0, 1), cpus=2.0, memory=4 * GIB)
    placement = Placement(allocations=(allocation,), why="node-1 has the fewest free GPUs that suffice")
    use = RunSample(job_id="j-aaaaaaaaaa", epoch=1, rank=0, source="cgroup", cpus_used=1.24, memory_used=2 * GIB)
    run = RunView(rank=0, role="worker", node_id="node-1", gpus=(0, 1), cpus=2.0, memory=4 * GIB, use=use)
    job = job_view(spec=spec, placement=placement, runs=(run,), epoch=1, attempts=1, started_at=NOW - 190)
    story = [
        event_view("submitted", at=NOW - 300, cause=Cause(code=CauseCode.SUBMITTED, by="alice")),
        event_view("waiting", version=2, at=NOW - 299.7, cause=NO_ROOM),
        event_view("placed", version=3, at=NOW - 200, placement=placement, cause=Cause(code=CauseCode.FITS)),
        event_view(
            *("requeued",),
            version=5,
            at=NOW - 98,
            epoch=1,
            cause=Cause(code=CauseCode.PREEMPTED, sentence="makes room for urgent", by="j-bbbbbbbbbb"),
        ),
    ]
    nodes = [node_view("node-1", gpu_view(0), gpu_view(1))]
    return seen(description(job, story, TERMINAL, emulated=emulated_gpus_of(nodes)))


def test_a_job_is_described_with_what_it_asked_for_and_what_it_uses() -> None:
    lines = described()
    assert lines[0] == "train  j-aaaaaaaaaa  running for 3m12s"
    assert line_with("asks for", lines).endswith("1 x worker: 2 GPUs of Emulated GPU, 2 CPUs, 4GiB of memory")
    assert line_with("command", lines).endswith("python train.py --lr '0.1 x'")
    assert line_with("epoch  ", lines).endswith("1, failed tries 1 of 4")
    assert cells(line_with("0-1 emulated", lines))[-2:] == ["1.2 of 2", "2GiB of 4GiB"]
    assert line_with("why there", lines).endswith("node-1 has the fewest free GPUs that suffice")


def test_the_values_of_variables_are_not_shown() -> None:
    assert line_with("SECRET", described()).split() == ["env", "SECRET"]
    assert not any("hidden" in line for line in described())


def test_a_story_tells_every_event_with_its_time_its_cause_and_who_made_it_so() -> None:
    lines = described()
    assert line_with("submitted      0", lines).split() == ["22:08:20", "+0.0s", "submitted", "0", "alice"]
    assert "no-room: wants 4 GPUs on one node; the most free is 2, on node-2" in line_with(" waiting ", lines)
    assert "fits (node-1 emulated GPU 0-1)" in line_with(" placed ", lines)
    told = line_with(" requeued ", lines)
    assert told.startswith("22:11:42  +3m22s")
    assert "preempted: makes room for urgent" in told
    assert told.endswith("j-bbbbbbbbbb")


def test_an_event_is_one_line() -> None:
    event = event_view("failed", exit_code=3, cause=Cause(code=CauseCode.EXITED, sentence="rank 0 ended"))
    assert seen(event_line(event, PIPE), PIPE) == [
        "22:13:20  train j-aaaaaaaaaa  failed  exited: rank 0 ended (exit status 3)"
    ]


def test_numbers_are_told_where_no_sentence_tells_them() -> None:
    mute = Cause(code=CauseCode.NO_ROOM, numbers={"gpus_free": 4.0, "nodes": 7.0})
    assert seen(event_line(event_view("waiting", cause=mute), PIPE), PIPE)[0].endswith("no-room (gpus free 4, nodes 7)")
    told = msgspec.structs.replace(mute, sentence="wants 8, free 4")
    assert seen(event_line(event_view("waiting", cause=told), PIPE), PIPE)[0].endswith("no-room: wants 8, free 4")


# why


def test_an_explanation_has_the_code_the_sentence_the_numbers_who_holds_and_when() -> None:
    holder = HolderSeen(
        *(),
        job_id="j-bbbbbbbbbb",
        name="bert",
        tenant="bob",
        state=JobState.RUNNING,
        priority=5,
        gpus=3,
        nodes=("node-1", "node-2"),
        since=NOW - 192,
        ends_at=NOW + 754,
    )
    told = Explanation(
        job_id="j-aaaaaaaaaa",
        name="train",
        state=JobState.QUEUED,
        code="no-room",
        sentence=NO_ROOM.sentence,
        numbers={**NO_ROOM.numbers, "ahead": 1.0},
        holders=(holder, msgspec.structs.replace(holder, job_id="j-cccccccccc", gpus=1, ends_at=None)),
        ahead=1,
        estimate_at=NOW + 754,
    )
    lines = seen(explanation(told, TERMINAL, emulated={"j-bbbbbbbbbb": 3}))
    assert lines[:4] == [
        "train  j-aaaaaaaaaa  queued",
        f"no-room: {NO_ROOM.sentence}",
        "wanted 4, most free 2",
        "1 job ahead of it; starts in 12m34s at the latest, according to time limits",
    ]
    assert cells(line_with("j-bbbbbbbbbb", lines))[3:] == [
        *("running", "3 emulated", "5", "3m12s", "within 12m34s", "node-1, node-2"),
    ]
    assert "  ?  " in line_with("j-cccccccccc", lines)


def test_the_person_who_submitted_is_named_where_several_did() -> None:
    ada, grace, program = (
        job_view(f"j-{name}", JobState.RUNNING, submitter=name) for name in ("ada@example.org", "grace", "")
    )
    lines = seen(jobs_table([ada, grace, program], PIPE, emulated={}), PIPE)
    assert "USER" in lines[0]
    assert "ada@example.org" in lines[1]
    assert "USER" not in seen(jobs_table([ada, ada], PIPE, emulated={}), PIPE)[0]
    told = Explanation(
        job_id="j-a", name="train", state=JobState.QUEUED, code="no-room", sentence="it waits", submitter="a\x1b[31mda"
    )
    assert seen(explanation(told, TERMINAL, emulated={}))[0].endswith("queued  submitted by a [31mda")


def test_when_it_starts_is_told_with_how_well_that_held_and_what_would_help() -> None:
    eta = Estimate(
        of=EtaOf.START,
        basis=Basis.LEARNT,
        sentence="starts in about 5m0s: in 1m0s to 9m0s, judging by how long similar jobs took",
        earliest=NOW + 60,
        likely=NOW + 300,
        latest=NOW + 540,
        record=TrackRecord(estimates=40, inside=33),
    )
    helps = Sooner(what=Helps.FEWER_GPUS, sentence="with 2 GPUs in place of 4, it would start now, not in 5m0s")
    told = Explanation(
        job_id="j-a",
        name="train",
        state=JobState.QUEUED,
        code="no-room",
        sentence=NO_ROOM.sentence,
        estimate_at=NOW + 900,  # by limits alone, which is not said beside a better one
        eta=eta,
        sooner=(helps,),
    )
    assert seen(explanation(told, TERMINAL, emulated={}))[2:] == [
        "first in the queue",
        "starts in about 5m0s: in 1m0s to 9m0s, judging by how long similar jobs took (22:14:20 to 22:22:20)",
        "  33 of 40 earlier estimates of this kind came true",
        "what would help:",
        "  with 2 GPUs in place of 4, it would start now, not in 5m0s",
    ]


def test_a_start_that_nobody_can_tell_is_told_without_a_time() -> None:
    eta = Estimate(of=EtaOf.START, basis=Basis.UNKNOWN, sentence="nobody can tell when it starts")
    told = Explanation(
        job_id="j-a", name="train", state=JobState.QUEUED, code="no-room", sentence=NO_ROOM.sentence, eta=eta
    )
    assert seen(explanation(told, TERMINAL, emulated={}))[2:] == [
        "first in the queue",
        "nobody can tell when it starts",
    ]


def test_the_numbers_of_a_placement_are_told_in_words() -> None:
    told = Explanation(
        job_id="j-a",
        name="train",
        state=JobState.RUNNING,
        code="fits",
        sentence="it is on node-1",
        numbers={
            "nodes": 2.0,
            "ranks": 4.0,
            "gpus": 4.0,
            "slowest": 0.9999,
            "locality": 1.7,
            "slowdown": 1.69983,
            "slowdown_packed": 1.7,
        },
    )
    assert " ".join(seen(explanation(told, TERMINAL, emulated={}))[2:]) == (
        "4 ranks with 4 GPUs on 2 nodes, a step there takes 1.70 times as long as on a typical GPU"
        " (1.00 for its slowest GPU, times 1.70 for its distance)"
    )


def test_a_drain_is_told_with_who_drained_and_when() -> None:
    told = Explanation(
        job_id="j-a",
        name="train",
        state=JobState.QUEUED,
        code="no-room",
        sentence="wants 4 GPUs on one node; none is free; node-2 has 8 free GPUs, but is drained",
        closed=(ClosedSeen(node_id="node-2", drained=True, ready=True, gpus_free=8, by="admin", since=NOW - 60),),
        stopped_for=Cause(code=CauseCode.PREEMPTED, sentence="makes room for it", by="bert (j-bbbbbbbbbb)"),
    )
    lines = seen(explanation(told, TERMINAL, emulated={}))
    assert "node-2 was drained by admin at 22:12:20" in lines
    assert "it ran before, and was sent back to the queue: preempted by bert (j-bbbbbbbbbb): makes room for it" in lines


def test_a_job_that_was_preempted_is_told_by_whom_once() -> None:
    cause = Cause(
        code=CauseCode.PREEMPTED, sentence="pre-empted by j-bbbbbbbbbb: priority 5 over 0", by="bert (j-bbbbbbbbbb)"
    )
    told = Explanation(
        job_id="j-a", name="train", state=JobState.QUEUED, code="no-room", sentence="none is free", stopped_for=cause
    )
    why = "it ran before, and was sent back to the queue: preempted by bert (j-bbbbbbbbbb): priority 5 over 0"
    assert why in seen(explanation(told, TERMINAL, emulated={}))


def test_numbers_that_the_sentence_has_are_not_repeated_raw() -> None:
    told = Explanation(
        job_id="j-aaaaaaaaaa",
        name="hpo-3",
        state=JobState.CANCELLED,
        code="stopped-early",
        sentence="loss 0.753 at step 10: 4 of the 8 elements that reached it are better, and the best 4 continue",
        numbers={"of": 8.0, "step": 10.0, "go_on": 4.0, "value": 0.753, "better": 4.0},
    )
    assert len(seen(explanation(told, TERMINAL, emulated={}))) == 2
