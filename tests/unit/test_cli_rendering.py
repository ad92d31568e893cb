"""What a person sees of jobs and how far they are."""

import msgspec
import pytest

from tests.support.drawn import PIPE, TERMINAL, cells, line_with, seen
from tests.support.views import GIB, NO_ROOM, NOW, cluster_view, event_view, gpu_view, job_view, node_view
from weft.domain.job import Cause, CauseCode, JobState
from weft.domain.sizes import RoleSize
from weft.domain.spec import ResizeHow
from weft.messages.http import GpuScoreView, RunView
from weft.messages.http.explanation import Explanation
from weft.messages.signals import GpuSample
from weftd.cli.cluster.nodes import drawn as nodes_page
from weftd.cli.rendering.cluster import cluster_screen
from weftd.cli.rendering.context import bar, progress_text
from weftd.cli.rendering.explanation import explanation
from weftd.cli.rendering.gpus import table_of_gpus
from weftd.cli.rendering.jobs import (
    description,
    ended_line,
    held_emulated,
    jobs_table,
    silences,
)
from weftd.cli.rendering.story import story_table

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
        "  reason for this size: as it was submitted",
    ]
    asked = Cause(code=CauseCode.SCALE_ASKED, sentence="worker 3 → 4, asked by alice", by="alice")
    grew = Cause(code=CauseCode.GREW, sentence="worker 2 → 3")
    lines = seen(explanation(msgspec.structs.replace(told, sized_for=asked, resized_for=grew), TERMINAL, emulated={}))
    assert lines[3:] == [
        "  reason for this size: scale-asked: worker 3 → 4, asked by alice",
        "  last change: grew: worker 2 → 3",
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
