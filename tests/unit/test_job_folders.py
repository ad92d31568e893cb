"""How long the folders in which jobs keep their results and checkpoints stay."""

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from weftd.executor.files.job_folders import OF_ANY_USER, OWN, JobFolders, make_folder

DAY = 86400.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the checkpoints of two jobs."""
    made = tmp_path / "checkpoints"
    for job_id in ("gone", "held"):
        make_folder(str(made), job_id, mode=OF_ANY_USER)
        (made / job_id / "last").write_text("weights")
    return made


@pytest.fixture
def checkpoints(folder: Path) -> Iterator[JobFolders]:
    made = JobFolders(str(folder), kept_seconds=30 * DAY)
    yield made
    made.close()


def jobs(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if not name.startswith("."))


def test_checkpoints_stay_for_ever_unless_a_node_is_set_to_remove_them(folder: Path) -> None:
    JobFolders(str(folder), kept_seconds=0).sweep(set(), now=time.time() + 9000 * DAY)
    assert jobs(folder) == ["gone", "held"]


def test_the_checkpoints_of_a_job_go_when_no_node_had_a_run_of_it_for_long(
    folder: Path, checkpoints: JobFolders
) -> None:
    now = time.time()
    checkpoints.sweep({"held"}, now=now + 29 * DAY)
    assert jobs(folder) == ["gone", "held"]
    checkpoints.sweep({"held"}, now=now + 31 * DAY)
    assert jobs(folder) == ["held"]
    checkpoints.sweep(set(), now=now + 60 * DAY)
    assert jobs(folder) == ["held"]  # 29 days after its last run
    checkpoints.sweep(set(), now=now + 62 * DAY)
    assert jobs(folder) == []


def test_a_run_that_begins_keeps_its_jobs_checkpoints(folder: Path, checkpoints: JobFolders) -> None:
    os.utime(folder / "gone", (0, 0))
    make_folder(str(folder), "gone", mode=OF_ANY_USER)
    checkpoints.sweep(set(), now=time.time())
    assert jobs(folder) == ["gone", "held"]


def test_no_other_user_of_the_host_reaches_a_jobs_checkpoints_also_where_the_folder_was_open_before(
    tmp_path: Path,
) -> None:
    above = tmp_path / "checkpoints"
    above.mkdir()
    above.chmod(0o755)
    make_folder(str(above), "in-a-container", mode=OF_ANY_USER)
    make_folder(str(above), "a-process", mode=OWN)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (above, *above.iterdir())}
    assert modes == {"checkpoints": 0o700, "in-a-container": 0o777, "a-process": 0o700}


def test_the_oldest_folders_go_once_all_have_more_bytes_than_they_may(folder: Path) -> None:
    make_folder(str(folder), "newest", mode=OWN)
    for age, job_id in enumerate(("newest", "held", "gone"), 1):
        (folder / job_id / "large").write_bytes(bytes(1 << 20))
        os.utime(folder / job_id, (1000 - age, 1000 - age))
    JobFolders(str(folder)).shrink(set())
    assert jobs(folder) == ["gone", "held", "newest"]
    limited = JobFolders(str(folder), bytes_max=3 << 19)
    limited.shrink({"held"})
    assert jobs(folder) == ["held"]
    limited.close()
