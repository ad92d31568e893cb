"""`weft bench-gpu` and `weft emulate`: whose GPUs are measured, what is shown, what is refused."""

import asyncio
import io
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from tests.support.benchmarks import measurement
from tests.support.told_gateway import ToldGateway
from tests.support.views import gpu_view, job_view, node_view
from weft.domain.decoding.spec_decoder import decode_spec
from weft.domain.job import JobState
from weft.messages.http import NodesView, Submitted
from weft.samples.benchmark_result import progress_line
from weftd.cli.__main__ import main
from weftd.cli.rendering.benchmarks import Benched, benchmarks_table
from weftd.cli.rendering.context import RenderContext
from weftd.executor.logs.progress import pairs

Said = pytest.CaptureFixture[str]

HOLDER = job_view("j-holder")


async def weft(gateway: ToldGateway, *typed: str) -> int:
    """The exit status; a thread of its own, since `weft` makes its own event loop."""
    return await asyncio.to_thread(main, [*typed, "--url", gateway.url, "--token", "t"])


def drawn_text(drawn: RenderableType) -> str:
    stream = io.StringIO()
    Console(file=stream, width=1000).print(drawn)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("arguments", "measured"),
    [
        ((), ["node-1/0", "node-2/0"]),
        (("node-1",), ["node-1/0"]),
        (("node-1", "1"), ["node-1/1"]),
    ],
)
async def test_idle_gpus_are_measured_or_the_one_that_is_named(
    gateway: ToldGateway, capsys: Said, arguments: tuple[str, ...], measured: list[str]
) -> None:
    nodes = (node_view("node-1", gpu_view(0), gpu_view(1, held_by=HOLDER)), node_view("node-2", gpu_view(0)))
    gateway.answers["GET /v1/nodes"] = NodesView(nodes=(*nodes, node_view("node-3", gpu_view(0), drained=True)))
    gateway.answers["POST /v1/jobs"] = Submitted(id="j-1", name="bench", created=True)
    assert await weft(gateway, "bench-gpu", *arguments, "--seconds", "3") == 0
    asked = [decode_spec(body) for body in gateway.bodies if body]
    assert [f"{spec.pin.node}/{spec.pin.gpu}" for spec in asked if spec.pin] == measured
    assert {spec.priority for spec in asked} == {-1000}
    assert {spec.command[-1] for spec in asked if spec.command} == {"3"}
    assert len(capsys.readouterr().out.splitlines()) == len(measured)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("node-9",), "there is no node node-9"),
        (("node-1", "4"), "node-1 has no GPU 4; its GPUs are 0-1"),
        (("node-2",), "no GPU of node-2 is idle"),
        (("node-3",), "node-3 is drained and starts no jobs"),
        (("node-4",), "node-4 is lost and starts no jobs"),
        (("node-5",), "node-5 has no GPUs"),
        (("node-6", "0"), "node-6 runs jobs in containers: name Weft's image with --image"),
    ],
)
async def test_what_cannot_be_measured_is_one_clear_error_and_nothing_is_asked(
    gateway: ToldGateway, capsys: Said, arguments: tuple[str, ...], error: str
) -> None:
    gateway.answers["GET /v1/nodes"] = NodesView(
        nodes=(
            node_view("node-1", gpu_view(0), gpu_view(1)),
            node_view("node-2", gpu_view(0, held_by=HOLDER)),
            node_view("node-3", gpu_view(0), drained=True),
            node_view("node-4", gpu_view(0), ready=False),
            node_view("node-5"),
            node_view("node-6", gpu_view(0), runtime="docker"),
        )
    )
    assert await weft(gateway, "bench-gpu", *arguments) == 1
    assert capsys.readouterr() == ("", f"weft: {error}\n")
    assert gateway.asked == ["GET /v1/nodes"]


async def test_no_idle_gpu_anywhere_is_said(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["GET /v1/nodes"] = NodesView(nodes=(node_view("node-1", gpu_view(0, held_by=HOLDER)),))
    assert await weft(gateway, "bench-gpu") == 1
    assert capsys.readouterr().err == "weft: no GPU is idle\n"


def test_what_was_measured_is_shown_against_the_others_of_its_model() -> None:
    def benched(index: int, compute: float, state: JobState = JobState.SUCCEEDED) -> Benched:
        told = pairs(progress_line(measurement(compute, memory=0.5))) if state is JobState.SUCCEEDED else {}
        return Benched(node_id="node-1", gpu=gpu_view(index), job=job_view(state=state, progress=told))

    three = [benched(0, 1.0), benched(1, 1.331), benched(2, 1.0)]
    text = drawn_text(benchmarks_table([*three, benched(3, 1.0, JobState.FAILED)], RenderContext(now=0.0, bars=False)))
    rows = text.splitlines()
    assert "Emulated GPU" in rows[1]
    assert rows[2].split()[-4:] == ["1.33x", "compute,", "1.00x", "memory"]
    assert "1331 ms" in rows[2]
    assert "failed" in rows[4]
    assert "see weft logs" in rows[4]
    few = drawn_text(benchmarks_table(three[:2], RenderContext(now=0.0, bars=False)))
    assert [row.split()[-1] for row in few.splitlines()[1:]] == ["-", "-"]


async def test_only_emulated_gpus_of_this_machine_can_be_made_slow(
    gateway: ToldGateway, capsys: Said, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WEFT_HOME", str(tmp_path))
    nodes = (node_view("node-1", gpu_view(0), gpu_view(1, emulated=False)), node_view("elsewhere", gpu_view(0)))
    gateway.answers["GET /v1/nodes"] = NodesView(nodes=nodes)
    folder = tmp_path / "nodes" / "node-1" / "emulated"
    folder.mkdir(parents=True)
    assert await weft(gateway, "emulate", "node-1", "0", "1.33") == 0
    assert (folder / "0").read_text() == "1.33\n"
    for arguments, error in (
        (("node-9", "0"), "there is no node node-9"),
        (("node-1", "7"), "node-1 has no GPU 7"),
        (("node-1", "1"), "GPU 1 of node-1 is real: only emulated GPUs can be slowed down"),
        (("elsewhere", "0"), f"elsewhere is no node of the cluster in {tmp_path}, which has "),
    ):
        capsys.readouterr()
        assert await weft(gateway, "emulate", *arguments, "2") == 1
        assert capsys.readouterr().err.startswith(f"weft: {error}")
    assert [path.name for path in folder.iterdir()] == ["0"]
