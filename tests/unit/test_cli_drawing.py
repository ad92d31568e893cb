"""What a person sees of jobs, nodes, events and the cluster."""

import io
import re
from datetime import UTC

import msgspec
import pytest
from rich.console import Console, RenderableType

from libs.domain.job import Allocation, Cause, CauseCode, JobState, Placement
from libs.domain.shares import Share
from libs.domain.sizes import RoleSize
from libs.domain.spec import ResizeHow, decode_spec
from libs.messages.http import GpuHeldBy, GpuScoreView, GpuView, RunView
from libs.messages.signals import Finding, GpuSample, HostSample, RunSample
from libs.planning.explain import ClosedSeen, Explanation, HolderSeen
from services.cli.drawing.cluster import cluster_screen, gpu_blocks
from services.cli.drawing.explanation import explanation
from services.cli.drawing.gpus import table_of_gpus
from services.cli.drawing.jobs import (
    description,
    emulated_gpus_of,
    ended_line,
    gpus_wanted,
    held_emulated,
    held_gpus,
    jobs_table,
    silences,
)
from services.cli.drawing.look import Look, bar, job_colour, progress_text
from services.cli.drawing.story import event_line, story_table
from services.cli.nodes import drawn as nodes_page
from tests.support.views import GIB, NO_ROOM, NOW, cluster_view, event_view, gpu_view, job_view, node_view

TERMINAL = Look(now=NOW, width=120, bars=True, zone=UTC)
PIPE = Look(now=NOW, width=10_000, bars=False, zone=UTC)


def seen(drawn: RenderableType, look: Look = TERMINAL) -> list[str]:
    """The lines as they stand on the screen, without the blanks at their ends."""
    screen = Console(file=io.StringIO(), record=True, width=look.width, force_terminal=look.bars, no_color=True)
    screen.print(drawn)
    return [line.rstrip() for line in screen.export_text().splitlines()]


def line_with(text: str, lines: list[str]) -> str:
    found = [line for line in lines if text in line]
    assert len(found) == 1, f"{text!r} is on {len(found)} lines of {lines}"
    return found[0]


def cells(line: str) -> list[str]:
    return re.split(r" {2,}", line)


# jobs


def test_a_running_job_shows_how_far_it_is_and_where() -> None:
    job = job_view(progress={"step": 120.0, "steps": 400.0, "loss": 0.3123}, nodes=("node-1",))
    line = line_with("train", seen(jobs_table([job], TERMINAL, emulated={})))
    assert "running" in line
    assert "3m12s" in line
    assert "━━━━━───────────  30% 120/400 loss 0.3123 · node-1" in line


SIZE = {"worker": RoleSize(granted=3, wanted=4, least=1, most=8)}


def test_the_size_of_jobs_that_may_have_several_is_told_and_of_others_nothing() -> None:
    grows = job_view(name="grows", size=SIZE, resize=ResizeHow.LIVE)
    waits = job_view(name="waits", state=JobState.QUEUED, size=SIZE, resize=ResizeHow.LIVE)
    lines = seen(jobs_table([grows, waits, job_view(name="fixed")], PIPE, emulated={}), PIPE)
    assert cells(lines[0])[5] == "SIZE"
    assert [cells(line)[5] for line in lines[1:]] == ["3/4 (1-8)", "4 (1-8)", "-"]
    assert "SIZE" not in seen(jobs_table([job_view()], PIPE, emulated={}), PIPE)[0]
    small = msgspec.structs.replace(TERMINAL, width=90)
    assert cells(line_with("grows", seen(jobs_table([grows], small, emulated={}), small)))[5:] == ["3/4"]
    both = {**SIZE, "ps": RoleSize(granted=1, wanted=1, least=1, most=1)}
    line = line_with("grows", seen(jobs_table([job_view(name="grows", size=both)], PIPE, emulated={}), PIPE))
    assert cells(line)[5] == "worker 3/4 (1-8) ps 1/1 (1-1)"


@pytest.mark.parametrize(
    ("size", "how", "text"),
    [
        (SIZE["worker"], ResizeHow.LIVE, "worker 3 of 4 (1 … 8), grows and shrinks live"),
        (
            RoleSize(granted=4, wanted=4, least=1, most=8, leaving=1),
            ResizeHow.LIVE,
            "worker 4 (1 … 8) while 1 rank leaves, grows and shrinks live",
        ),
        (
            RoleSize(granted=2, wanted=4, least=1, most=8, next=4),
            ResizeHow.RESTART,
            "worker 2 of 4 (1 … 8), takes another size by a restart, restarts now with worker 4",
        ),
        (
            RoleSize(granted=2, wanted=2, least=1, most=2),
            ResizeHow.NEVER,
            "worker 2 (1 … 2), keeps its size while it runs",
        ),
    ],
)
def test_a_job_is_described_with_its_size(size: RoleSize, how: ResizeHow, text: str) -> None:
    job = job_view(size={"worker": size}, resize=how)
    assert line_with("size", seen(description(job, [], TERMINAL, emulated={}))).endswith(f"  {text}")


def test_a_rank_that_leaves_is_marked() -> None:
    runs = tuple(RunView(rank=rank, role="worker", node_id="node-1", leaving=rank == 1) for rank in range(2))
    lines = seen(description(job_view(runs=runs), [], TERMINAL, emulated={}))
    assert [line.split()[1:3] for line in lines[-2:]] == [["worker", "node-1"], ["worker,", "leaves"]]


def test_an_explanation_has_the_size_and_why_it_is_what_it_is() -> None:
    told = Explanation(
        job_id="j-1",
        name="train",
        state=JobState.RUNNING,
        code="fits",
        sentence="it is on node-1",
        size=SIZE,
        resize=ResizeHow.LIVE,
    )
    lines = seen(explanation(told, TERMINAL, emulated={}))
    assert lines[2:] == [
        "size: worker 3 of 4 (1 … 8), grows and shrinks live",
        "  it should have that: as it was submitted",
    ]
    asked = Cause(code=CauseCode.SCALE_ASKED, sentence="worker 3 → 4, asked by alice", by="alice")
    grew = Cause(code=CauseCode.GREW, sentence="worker 2 → 3")
    lines = seen(explanation(msgspec.structs.replace(told, sized_for=asked, resized_for=grew), TERMINAL, emulated={}))
    assert lines[3:] == [
        "  it should have that: scale-asked: worker 3 → 4, asked by alice",
        "  it changed last: grew: worker 2 → 3",
    ]
    kept = msgspec.structs.replace(told, resize=ResizeHow.NEVER, keeps_size_for="it is pinned to node-1")
    assert seen(explanation(kept, TERMINAL, emulated={}))[2].endswith(
        "keeps its size while it runs: it is pinned to node-1"
    )


def test_a_waiting_job_shows_its_reason() -> None:
    job = job_view(state=JobState.QUEUED, waiting_for=NO_ROOM)
    assert seen(jobs_table([job], PIPE, emulated={}), PIPE)[1].endswith(
        "no-room: wants 4 GPUs on one node; the most free is 2, on node-2"
    )


def test_a_job_that_failed_and_waits_shows_when_it_is_tried_again() -> None:
    job = job_view(state=JobState.QUEUED, attempts=2, not_before=NOW + 12)
    assert line_with("train", seen(jobs_table([job], TERMINAL, emulated={}))).endswith("try 3 in 12s")


def test_a_job_that_is_over_shows_how_and_how_long_it_ran() -> None:
    job = job_view(state=JobState.FAILED, started_at=NOW - 100, ended_at=NOW - 70, exit_code=3)
    line = line_with("train", seen(jobs_table([job], TERMINAL, emulated={})))
    assert cells(line) == ["j-aaaaaaaaaa", "train", "failed", "30s", "1", "0", "exit status 3, 1m ago"]
    assert seen(ended_line(job)) == ["train j-aaaaaaaaaa failed with exit status 3 after 30s"]


def test_the_gpus_that_a_job_holds_are_called_emulated_if_they_are() -> None:
    job = job_view(gpus=2)
    nodes = [node_view("node-1", gpu_view(0, held_by=job), gpu_view(1, held_by=job))]
    assert "2 emulated" in line_with("train", seen(jobs_table([job], PIPE, emulated=held_emulated(nodes))))
    real = [node_view("node-1", gpu_view(0, held_by=job, emulated=False), gpu_view(1, held_by=job, emulated=False))]
    assert "emulated" not in line_with("train", seen(jobs_table([job], PIPE, emulated=held_emulated(real))))


def test_tenants_are_told_only_where_there_are_several() -> None:
    job = job_view()
    assert "alice" not in "\n".join(seen(jobs_table([job], TERMINAL, emulated={})))
    assert "alice" in "\n".join(seen(jobs_table([job], TERMINAL, emulated={}, tenants=True)))


def test_a_pipe_gets_every_word_on_one_line_without_bars() -> None:
    cause = Cause(code=CauseCode.NO_ROOM, sentence="x" * 500)
    jobs = [job_view(state=JobState.QUEUED, waiting_for=cause), job_view(progress={"step": 1.0, "steps": 2.0})]
    lines = seen(jobs_table(jobs, PIPE, emulated={}), PIPE)
    assert len(lines) == 3
    assert "x" * 500 in lines[1]
    assert "50% 1/2" in lines[2]
    assert not set("".join(lines)) & set("━─╸…")


def test_a_narrow_terminal_breaks_the_reason_and_nothing_else() -> None:
    narrow = msgspec.structs.replace(TERMINAL, width=80)
    job = job_view(state=JobState.QUEUED, waiting_for=NO_ROOM)
    lines = seen(jobs_table([job], narrow, emulated={}), narrow)
    assert len(lines) > 2
    assert lines[1].startswith("j-aaaaaaaaaa  train  queued  3m12s  1")
    assert " ".join(line[-60:].strip() for line in lines).count("node-2") == 1


def test_markup_in_a_name_is_text() -> None:
    job = job_view(state=JobState.QUEUED, waiting_for=Cause(code=CauseCode.NO_ROOM, sentence="[red]x[/red] :smile:"))
    assert line_with("train", seen(jobs_table([job], TERMINAL, emulated={}))).endswith("[red]x[/red] :smile:")


BROKEN = job_view(
    state=JobState.FAILED,
    started_at=NOW - 100,
    ended_at=NOW - 70,
    exit_code=1,
    ended_for=Cause(code=CauseCode.RANK_ENDED, sentence="rank 1 ended with status 1", numbers={"rank": 1.0}),
)


def test_a_failed_job_shows_why_it_failed() -> None:
    line = line_with("train", seen(jobs_table([BROKEN], TERMINAL, emulated={})))
    assert line.endswith("rank 1 ended with status 1, 1m ago")
    assert seen(ended_line(BROKEN)) == ["train j-aaaaaaaaaa failed: rank 1 ended with status 1, after 30s"]


def test_a_cause_without_a_status_is_shown_with_the_status() -> None:
    limit = Cause(code=CauseCode.TIME_LIMIT, sentence="ran longer than its time limit of 1m")
    late = msgspec.structs.replace(BROKEN, exit_code=143, ended_for=limit)
    assert seen(ended_line(late))[0].endswith(
        "failed: ran longer than its time limit of 1m (exit status 143), after 30s"
    )


def test_a_job_that_ran_in_several_epochs_shows_how_long_it_held_what_it_had() -> None:
    again = job_view(state=JobState.FAILED, epoch=2, started_at=None, ended_at=NOW, held_seconds=156.0)
    assert "2m36s" in line_with("train", seen(jobs_table([again], TERMINAL, emulated={})))


def test_a_job_on_a_silent_node_is_marked() -> None:
    job = job_view(nodes=("node-1",), progress={"step": 61.0, "steps": 900.0})
    node = node_view("node-1", gpu_view(0, held_by=job), silent_seconds=40.0)
    line = line_with("train", seen(jobs_table([job], TERMINAL, emulated={}, silent=silences([node]))))
    assert line.endswith("node-1 silent for 40s")
    assert "silent 40s" in line_with("default", seen(nodes_page((node,), TERMINAL, gpus=False)))
    top = seen(cluster_screen(cluster_view(node, running=(job,)), TERMINAL))
    assert any("node-1 silent 40s" in line for line in top)
    assert any("node-1 silent for 40s" in line for line in top)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_what_matters_of_gpus_and_nodes_stands_on_every_terminal(width: int) -> None:
    look = msgspec.structs.replace(TERMINAL, width=width)
    job = job_view(name="bert")
    use = GpuSample(index=0, uuid="GPU-0", model="m", utilisation=0.62, memory_used=3 * GIB, provider="fake")
    scores = tuple(
        GpuScoreView(gpu_index=0, job_class=name, score=1.3, believed=1.2, confidence=0.9, samples=40, source="jobs")
        for name in ("compute", "mixed", "memory")
    )
    gpus = tuple(gpu_view(0, held_by=job, node_id=f"node-{number}", use=use, scores=scores) for number in (1, 2))
    lines = seen(table_of_gpus(gpus, look), look)
    assert all(len(line) <= width for line in lines)
    for title in ("NODE", "GPU", "BUSY", "MEMORY", "HELD BY"):
        assert title in lines[0]
    whole = " ".join(lines)
    assert all(part in whole for part in ("node-1", "node-2", "62%", "3GiB/16GiB", "bert"))
    assert "emulated" in whole.lower()
    nodes = tuple(node_view(f"node-{number}", *gpus, slowest=scores[0]) for number in (1, 2))
    lines = seen(nodes_page(nodes, look, gpus=True), look)
    assert all(len(line) <= width for line in lines)
    for title in ("NODE", "STATE", "GPUS", "HELD"):
        assert title in lines[0]
    assert "node-1" in lines[1]
    assert "2 x Emulated GPU" in lines[1]


@pytest.mark.parametrize("width", [40, 60, 79])
def test_a_tiny_terminal_has_one_line_for_a_job(width: int) -> None:
    look = msgspec.structs.replace(TERMINAL, width=width)
    name = "a-name-that-is-as-long-as-names-may-be-sixty-three-characters"
    job = job_view(state=JobState.QUEUED, name=name, waiting_for=NO_ROOM)
    lines = seen(jobs_table([job, job], look, emulated={}), look)
    assert len(lines) == 3
    assert all(len(line) <= width for line in lines)


@pytest.mark.parametrize("width", [60, 80])
def test_a_long_name_and_a_low_priority_leave_room_for_what_a_job_does_now(width: int) -> None:
    look = msgspec.structs.replace(TERMINAL, width=width)
    jobs = [
        job_view(name="bench-node-2-3", tenant="weft", priority=-1000, gpus=4),
        job_view(state=JobState.QUEUED, waiting_for=NO_ROOM),
    ]
    lines = seen(jobs_table(jobs, look, emulated={"j-aaaaaaaaaa": 4}, tenants=True), look)
    assert "WHAT NOW" in lines[0]
    assert any("no-room: wants" in line for line in lines)


def test_a_story_in_a_pipe_has_nothing_behind_its_longest_column() -> None:
    long = Cause(code=CauseCode.NO_ROOM, sentence="x" * 300, by="j-bbbbbbbbbb")
    short = Cause(code=CauseCode.SUBMITTED, by="alice")
    story = [event_view("submitted", cause=short), event_view("waiting", version=2, cause=long)]
    lines = seen(story_table(story, PIPE, start=NOW, emulated={}), PIPE)
    assert max(len(line) for line in lines[:2]) < 80
    assert lines[0].split() == ["TIME", "AFTER", "EVENT", "EPOCH", "BY", "WHY"]


def test_who_preempted_a_job_is_named() -> None:
    cause = Cause(code=CauseCode.PREEMPTED, sentence="makes room", by="j-bbbbbbbbbb")
    lines = seen(
        story_table(
            [event_view("requeued", cause=cause)], PIPE, start=NOW, emulated={}, names={"j-bbbbbbbbbb": "bert"}
        ),
        PIPE,
    )
    assert "bert (j-bbbbbbbbbb)" in lines[1]


# progress


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        ({"step": 3.0, "steps": 4.0}, "75% 3/4"),
        ({"step": 3.0, "total": 4.0, "loss": 1.5}, "75% 3/4 loss 1.5"),
        ({"step": 9.0, "steps": 4.0}, "100% 9/4"),
        ({"step": 3.0, "steps": 0.0}, "step 3"),
        ({"step": 3.0}, "step 3"),
        ({"epoch": 1.0, "epochs": 10.0}, "10% 1/10"),
        ({"loss": 0.5}, "loss 0.5"),
        ({"samples": 10.0}, ""),
        ({}, ""),
    ],
)
def test_progress_is_told_as_far_as_the_job_told_it(progress: dict[str, float], text: str) -> None:
    assert progress_text(progress, PIPE).plain == text


@pytest.mark.parametrize("part", [-1.0, 0.0, 0.04, 0.5, 0.51, 1.0, 7.0])
@pytest.mark.parametrize("behind", [0.0, 0.3, 2.0])
def test_a_bar_is_as_wide_as_it_was_asked_to_be(part: float, behind: float) -> None:
    assert bar(part, 10, behind=behind).cell_len == 10


def test_a_bar_shows_what_is_given_behind_what_is_used() -> None:
    assert bar(0.25, 8, behind=0.5).plain == "━━━━────"
    assert [(span.start, span.end, span.style) for span in bar(0.25, 8, behind=0.5).spans] == [
        (0, 2, "green"),
        (2, 4, "green dim"),
        (4, 8, "bright_black"),
    ]


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
    assert line_with("asks for", lines).endswith("1 x worker: 2 GPUs of model Emulated GPU, 2 CPUs, 4GiB of memory")
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
        "1 job ahead of it; starts in 12m34s at the latest, as far as time limits tell",
    ]
    assert cells(line_with("j-bbbbbbbbbb", lines))[3:] == [
        *("running", "3 emulated", "5", "3m12s", "in 12m34s", "node-1, node-2"),
    ]
    assert "  ?  " in line_with("j-cccccccccc", lines)


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
        "4 ranks with 4 GPUs on 2 nodes, a step there takes 1.70 times what it takes on a typical GPU"
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


# nodes


def test_nodes_show_their_gpus_who_holds_them_and_what_cannot_be_enforced() -> None:
    job = job_view()
    busy = GpuSample(index=0, uuid="GPU-0", model="m", utilisation=0.62, memory_used=3 * GIB)
    node = node_view("node-1", gpu_view(0, held_by=job, use=busy), gpu_view(1), not_enforced=("memory: no cgroup",))
    lines = seen(nodes_page((node,), TERMINAL, gpus=True))
    assert "2 x Emulated GPU  1/2   6/16  12GiB/64GiB  1s ago" in line_with("default", lines)
    assert cells(line_with("train", lines))[1:] == [
        *("0", "Emulated GPU", "16GiB", "62% 3GiB", "train j-aaaaaaaaaa rank 0"),
    ]
    assert line_with("free", lines).startswith("node-1    1  Emulated GPU")
    assert lines[-1] == "not enforced on node-1: memory: no cgroup"


@pytest.mark.parametrize(("used", "told"), [(970, False), (990, True)])
def test_a_node_with_a_full_disk_is_told_of(used: int, told: bool) -> None:
    node = node_view("node-1", use=HostSample(cpus=1.0, memory_total=1, memory_used=0, disk_total=1000, disk_used=used))
    assert (
        "the disk of the runs is full on node-1" in "".join(seen(nodes_page((node,), TERMINAL, gpus=False)))
    ) is told


def test_an_emulated_gpu_of_a_named_model_is_still_called_emulated() -> None:
    node = node_view("node-1", gpu_view(0, model="NVIDIA H200"))
    assert "1 x emulated NVIDIA H200" in line_with("default", seen(nodes_page((node,), TERMINAL, gpus=False)))


def test_a_gpu_of_somebody_elses_job_does_not_tell_its_name() -> None:
    node = node_view("node-1", gpu_view(0, held_by=job_view(name="", tenant="")))
    assert "a job of somebody else (j-aaaaaaaaaa)" in "\n".join(seen(nodes_page((node,), TERMINAL, gpus=True)))


def shared_gpu() -> GpuView:
    parts = {"j-a": ("infer", 700, 1000), "j-b": ("train", 200, 200), "j-c": ("", 100, 500)}
    sharing = tuple(
        GpuHeldBy(
            job_id=job_id,
            name=name,
            share=Share(request=request, limit=limit, memory=GIB),
            used=0.125 if name == "train" else None,
        )
        for job_id, (name, request, limit) in parts.items()
    )
    return gpu_view(0, held_by=job_view("j-a", name="infer"), sharing=sharing, node_id="node-1")


def test_those_who_share_a_gpu_are_named_with_their_parts() -> None:
    line = line_with("node-1", seen(table_of_gpus([shared_gpu()], msgspec.structs.replace(TERMINAL, width=160))))
    assert "infer 0.7 to 1 · train 0.2, used 12% · j-c 0.1 to 0.5" in line
    assert gpu_blocks([shared_gpu()], 30).plain.strip("▐▌ ") == "infer + tr"
    assert held_emulated([node_view("node-1", shared_gpu(), gpu_view(1, held_by=job_view("j-b")))]) == {
        "j-a": 0.7,
        "j-b": 1.2,
        "j-c": 0.1,
    }


def test_a_job_with_a_share_shows_its_part_of_a_gpu() -> None:
    run = RunView(
        rank=0, role="worker", node_id="node-1", gpus=(3,), share=Share(request=250, limit=500, memory=2 * GIB)
    )
    assert held_gpus(run, {("node-1", 3): True}) == "3 (0.25 to 0.5, 2GiB) emulated"
    assert gpus_wanted(job_view(gpus=0.25), 0.25) == "0.25 emulated"
    assert gpus_wanted(job_view(gpus=0.75), 0.25) == "0.75, 0.25 emulated"
    assert gpus_wanted(job_view(gpus=1), 0) == "1"


def test_a_lost_and_a_drained_node_are_marked() -> None:
    nodes = (node_view("node-1", ready=False), node_view("node-2", drained=True))
    lines = seen(nodes_page(nodes, TERMINAL, gpus=False))
    assert "lost" in line_with("node-1", lines)
    assert "drained" in line_with("node-2", lines)


# the cluster


def cluster_lines(look: Look = TERMINAL, height: int | None = None, note: str = "", jobs: int = 2) -> list[str]:
    train = job_view(gpus=3, progress={"step": 1.0, "steps": 4.0}, nodes=("node-1",))
    use = HostSample(cpus=16.0, cpus_used=1.6, memory_total=64 * GIB, memory_used=8 * GIB)
    nodes = (
        node_view("node-1", *(gpu_view(index, held_by=train) for index in range(3)), gpu_view(3), use=use),
        node_view("node-2", *(gpu_view(index) for index in range(4)), drained=True),
    )
    queued = tuple(
        job_view(f"j-queued{number:04}", JobState.QUEUED, name=f"wait-{number}", waiting_for=NO_ROOM)
        for number in range(jobs - 1)
    )
    view = cluster_view(*nodes, running=(train,), queued=queued)
    return seen(cluster_screen(view, look, height=height, note=note), look)


def test_the_cluster_shows_its_sums_first() -> None:
    first = cluster_lines()[0]
    assert first.startswith("weft   2 nodes   3 of 8 emulated GPUs held   1 running   1 queued")
    assert first.endswith("22:13:20")


def test_the_gpus_of_one_job_are_one_block_with_its_name() -> None:
    line = line_with("node-1  ", [line for line in cluster_lines() if "Emulated GPU" in line])
    assert line.split("▌")[0] == "node-1          ▐" + "train".center(3 * 10 - 2)
    assert "3/4 Emulated GPU" in line
    assert "━━━─────── 6/16" not in line
    assert "━━━━────── 6/16" in line  # 1.6 used, 6 given


def test_where_gpus_are_many_each_is_one_dot() -> None:
    gpus = [gpu_view(index, held_by=job_view() if index < 2 else None) for index in range(64)]
    assert gpu_blocks(gpus, 60).plain == "■■" + "·" * 62


def test_two_jobs_side_by_side_are_two_blocks() -> None:
    gpus = [gpu_view(0, held_by=job_view(name="one")), gpu_view(1, held_by=job_view("j-b", name="two")), gpu_view(2)]
    assert gpu_blocks(gpus, 21).plain == "▐ one ▌▐ two ▌   ·   "


def test_a_job_has_the_same_colour_in_its_block_and_in_the_list() -> None:
    block = gpu_blocks([gpu_view(0, held_by=job_view())], 12)
    assert job_colour("j-aaaaaaaaaa") in {str(span.style) for span in block.spans}


def test_the_queue_is_in_order_with_reasons() -> None:
    lines = cluster_lines(jobs=4)
    assert [line.split()[1] for line in lines if line.startswith("j-queued")] == ["wait-0", "wait-1", "wait-2"]
    assert "no-room: wants 4 GPUs" in line_with("wait-0", lines)


@pytest.mark.parametrize("height", [14, 20, 24, 50])
@pytest.mark.parametrize("jobs", [1, 5, 40])
@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_screen_is_never_higher_than_the_terminal(height: int, jobs: int, width: int) -> None:
    look = msgspec.structs.replace(TERMINAL, width=width)
    lines = cluster_lines(look, height=height, note="the gateway does not answer", jobs=jobs)
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    assert lines[-1] == "the gateway does not answer"
    hidden = jobs - 1 - sum("wait-" in line for line in lines)
    more = [line for line in lines if " more job" in line]
    assert more == ([f"and {hidden} more job{'s' * (hidden > 1)}"] if hidden else [])


def test_without_a_terminal_the_cluster_is_told_in_words() -> None:
    lines = cluster_lines(PIPE)
    assert "train 0+1+2, free 3" in line_with("3/4 Emulated GPU", lines)
    assert not set("".join(lines)) & set("▐▌■━─…")


def test_an_empty_cluster_says_so() -> None:
    lines = seen(cluster_screen(cluster_view(), TERMINAL))
    assert "no nodes yet" in lines
    assert any("no jobs" in line for line in lines)


def test_what_could_be_better_is_told() -> None:
    finding = Finding(code="starved", sentence="train waits for its CPUs")
    view = msgspec.structs.replace(cluster_view(), findings=(finding,))
    assert "to improve: train waits for its CPUs" in seen(cluster_screen(view, TERMINAL))
