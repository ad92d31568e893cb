"""What a person sees of nodes and of the cluster."""

import msgspec
import pytest

from tests.support.drawn import PIPE, TERMINAL, cells, line_with, seen
from tests.support.views import GIB, NO_ROOM, cluster_view, gpu_view, job_view, node_view
from weft.domain.job import JobState
from weft.domain.shares import Share
from weft.messages.http import GpuHeldBy, GpuView, RunView
from weft.messages.signals import Finding, GpuSample, HostSample
from weftd.cli.cluster.nodes import drawn as nodes_page
from weftd.cli.rendering.cluster import cluster_screen, gpu_blocks
from weftd.cli.rendering.context import RenderContext, job_colour
from weftd.cli.rendering.gpus import table_of_gpus
from weftd.cli.rendering.jobs import (
    gpus_wanted,
    held_emulated,
    held_gpus,
)

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
    assert "a job of another tenant (j-aaaaaaaaaa)" in "\n".join(seen(nodes_page((node,), TERMINAL, gpus=True)))


def test_neighbouring_gpus_of_other_tenants_are_one_line() -> None:
    other, mine = job_view(name="", tenant=""), job_view()
    gpus = (*(gpu_view(index, held_by=other) for index in range(8)), gpu_view(8, held_by=mine), gpu_view(9))
    lines = seen(nodes_page((node_view("node-1", *gpus),), TERMINAL, gpus=True))
    assert cells(line_with("other tenants", lines)) == [
        *("node-1", "0-7", "Emulated GPU", "16GiB", "-", "8 GPUs held by other tenants"),
    ]
    assert sum("Emulated GPU" in line for line in lines) == 4  # the node, the eight, my own, the free one


def test_nodes_are_in_the_order_of_their_numbers() -> None:
    nodes = tuple(node_view(f"node-{number}") for number in (1, 10, 2))
    lines = seen(nodes_page(nodes, TERMINAL, gpus=False))
    assert [line.split()[0] for line in lines[1:4]] == ["node-1", "node-2", "node-10"]


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


def cluster_lines(
    context: RenderContext = TERMINAL, height: int | None = None, note: str = "", jobs: int = 2
) -> list[str]:
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
    return seen(cluster_screen(view, context, height=height, note=note), context)


def test_the_cluster_shows_its_sums_first() -> None:
    first = cluster_lines()[0]
    assert first.startswith("weft   2 nodes   3 of 8 emulated GPUs held   1 running   1 queued")
    assert first.endswith("22:13:20 UTC")


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
    context = msgspec.structs.replace(TERMINAL, width=width)
    lines = cluster_lines(context, height=height, note="the gateway does not answer", jobs=jobs)
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    assert lines[-1] == "the gateway does not answer"
    hidden = jobs - 1 - sum("wait-" in line for line in lines)
    more = [line for line in lines if " more job" in line]
    assert more == ([f"and {hidden} more job{'s' * (hidden > 1)}"] if hidden else [])


def test_without_a_terminal_the_cluster_is_told_in_words() -> None:
    lines = cluster_lines(PIPE)
    assert "train 0-2, free 3" in line_with("3/4 Emulated GPU", lines)
    assert not set("".join(lines)) & set("▐▌■━─…")


def test_an_empty_cluster_says_so() -> None:
    lines = seen(cluster_screen(cluster_view(), TERMINAL))
    assert "no nodes yet" in lines
    assert any("no jobs" in line for line in lines)


def test_what_could_be_better_is_told() -> None:
    finding = Finding(code="starved", sentence="train waits for its CPUs")
    view = msgspec.structs.replace(cluster_view(), findings=(finding,))
    assert "to improve: train waits for its CPUs" in seen(cluster_screen(view, TERMINAL))
