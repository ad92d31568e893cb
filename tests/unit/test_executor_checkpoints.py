"""A node copies the checkpoint with which a job starts; another node names the files, and may lie."""

import asyncio
from pathlib import Path

import pytest
from msgspec import structs

from tests.support.doubles.bus import MemoryBus
from tests.support.runs import order
from weft.messages.files import CheckpointRead, JobFile, ReadCheckpoint
from weftd.executor.files.checkpoints import BadCheckpointError, Checkpoints
from weftd.executor.files.job_files import JobFiles
from weftd.executor.files.job_folders import JobFolders

DATA = b"weights"
ASKED = structs.replace(order("job-2"), from_checkpoint="job-1")


async def brought(home: Path, path: str) -> Path:
    """The folder of the job, once it has the checkpoint of another node, whose only file has this path."""
    bus = MemoryBus()

    async def answer(asked: ReadCheckpoint) -> CheckpointRead:
        if not asked.source:
            return CheckpointRead(job_id="job-1", nodes=("node-2",))
        if not asked.path:
            return CheckpointRead(job_id="job-1", files=(JobFile(path=path, bytes=len(DATA), modified_at=0.0),))
        return CheckpointRead(data=DATA, size=len(DATA), mark="1")

    await bus.answer(ReadCheckpoint, answer)
    files = JobFiles(*(JobFolders(f"{home}/{area}") for area in ("results", "checkpoints", "metrics")))
    await Checkpoints(files, bus, node_id="node-1").bring(ASKED)
    return home / "checkpoints" / "job-2"


async def test_the_files_that_another_node_names_are_in_the_folder_of_the_job(tmp_path: Path) -> None:
    folder = await brought(tmp_path / "home", "checkpoints/step-500/model.bin")
    assert (folder / "step-500" / "model.bin").read_bytes() == DATA


@pytest.mark.parametrize(
    "path",
    [
        "checkpoints/../../../../outside",
        "checkpoints/a/../../../../../outside",
        "/outside",
        "outside",
        "results/outside",
        "checkpoints//outside",
        "checkpoints/",
        "checkpoints",
        "",
    ],
)
def test_another_node_cannot_have_a_file_written_elsewhere(tmp_path: Path, path: str) -> None:
    with pytest.raises(BadCheckpointError, match="from_checkpoint: node node-2 has a file"):
        asyncio.run(brought(tmp_path / "home", path))
    assert not list(tmp_path.rglob("outside"))
    assert not (tmp_path / "home" / "checkpoints" / "job-2").exists()
