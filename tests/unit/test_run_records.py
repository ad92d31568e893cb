"""What the process runtime reads from a run's folder, to which the run's own job can write."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from weftd.executor.files.home import Home
from weftd.executor.runs import RunKey
from weftd.executor.runtime.limits import cgroup, groups
from weftd.executor.runtime.process import records
from weftd.executor.runtime.process.pipes import Inodes
from weftd.executor.runtime.process.records import RunRecord

KEY = RunKey("job-1", 1, 0)
PIPES = Inodes(output=1, ended=2, release=3)
FUTURE = 4e9


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / str(KEY)
    made.mkdir()
    return made


def put_pipe(path: Path) -> None:
    os.mkfifo(path)


def put_folder(path: Path) -> None:
    path.mkdir()


def put_link(path: Path) -> None:
    other = path.parent / "elsewhere"
    other.write_bytes(b"7\n")
    path.symlink_to(other)


def put_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def put_huge(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 40)


def put_loop(path: Path) -> None:
    path.symlink_to(path)


ODD = [put_pipe, put_folder, put_link, put_device, put_huge, put_loop]


@pytest.mark.parametrize("put", ODD)
def test_an_odd_file_of_a_run_is_neither_waited_for_nor_believed(folder: Path, put: Callable[[Path], None]) -> None:
    for name in ("exit", "pid", "run.json"):
        put(folder / name)
        (folder / "elsewhere").unlink(missing_ok=True)
    assert records.exit_status(str(folder)) is None
    assert records.shim_pid(str(folder)) is None
    assert records.read(str(folder)) is None
    assert not records.locked(str(folder))
    assert records.leader(str(folder)) is None


@pytest.mark.parametrize("text", [b"256\n", b"99999999999999\n", b"-1\n", b"\xb2\n", b"12", b"", b"1" * 100 + b"\n"])
def test_a_status_that_no_process_ends_with_counts_as_not_written(folder: Path, text: bytes) -> None:
    (folder / "exit").write_bytes(text)
    assert records.exit_status(str(folder)) is None


def test_every_status_of_a_process_is_read(folder: Path) -> None:
    for number in range(256):
        (folder / "exit").write_bytes(b"%d\n" % number)
        status = records.exit_status(str(folder))
        assert status is not None
        assert status.exit_code == number


def test_an_end_is_not_later_than_now(folder: Path) -> None:
    for name in ("exit", "pid"):
        (folder / name).write_bytes(b"7\n")
        os.utime(folder / name, (FUTURE, FUTURE))
    status = records.exit_status(str(folder))
    assert status is not None
    assert status.ended_at < FUTURE
    assert (records.started_at(str(folder)) or 0.0) < FUTURE


@pytest.mark.parametrize("text", [b"0\n", b"1\n", b"99999999999999\n", b"4194305\n"])
def test_a_pid_that_no_run_can_have_counts_as_not_written(folder: Path, text: bytes) -> None:
    """A signal to the group 1 would reach every process."""
    (folder / "pid").write_bytes(text)
    assert records.shim_pid(str(folder)) is None


def test_the_pid_of_a_process_that_does_not_hold_the_lock_is_not_the_runs(folder: Path) -> None:
    (folder / "pid").write_bytes(b"%d\n" % os.getppid())
    assert records.leader(str(folder)) is None
    with open(folder / "pid", "rb"):
        (folder / "pid").write_bytes(b"%d\n" % os.getpid())
        assert records.leader(str(folder)) == os.getpid()


def test_a_record_counts_only_in_the_folder_of_its_own_run(folder: Path) -> None:
    own = RunRecord(job_id="job-1", epoch=1, rank=0, grace=5.0, memory=1, pipes=PIPES)
    records.write(str(folder), own)
    assert records.read(str(folder)) == own
    records.write(str(folder), RunRecord(job_id="job-2", epoch=1, rank=0, grace=5.0, memory=1, pipes=PIPES))
    assert records.read(str(folder)) is None


@pytest.mark.parametrize(
    "fields", ['"grace": 1e308, "memory": 1', '"grace": -1, "memory": 1', '"grace": 1, "memory": 1e300', '"grace": 1']
)
def test_a_record_with_numbers_out_of_range_counts_as_none(folder: Path, fields: str) -> None:
    rest = '"pipes": {"output": 1, "ended": 2, "release": 3}, "job_id": "job-1", "epoch": 1, "rank": 0'
    (folder / "run.json").write_text(f'{{{rest}, "grace": 1, "memory": 1}}')
    assert records.read(str(folder)) is not None
    (folder / "run.json").write_text(f"{{{rest}, {fields}}}")
    assert records.read(str(folder)) is None


@pytest.mark.parametrize("put", [put_pipe, put_link, put_loop])
def test_a_record_is_written_beside_whatever_lies_in_its_way(folder: Path, put: Callable[[Path], None]) -> None:
    put(folder / "run.json.new")
    own = RunRecord(job_id="job-1", epoch=1, rank=0, grace=5.0, memory=1, pipes=PIPES)
    records.write(str(folder), own)
    assert records.read(str(folder)) == own


def test_an_intent_gets_its_pid_in_place_and_half_of_that_is_no_record(folder: Path) -> None:
    intent, path = (
        RunRecord(job_id="job-1", epoch=1, rank=0, grace=5.0, memory=1, pipes=PIPES, cgroups={"cpu": "/c"}),
        "run.json",
    )
    with os.fdopen(records.begin(str(folder), intent), "r+b") as file:
        assert records.read(str(folder)) == intent
        before = (folder / path).read_bytes()
        records.add_pid(file.fileno(), replace(intent, pid=4194304))
    whole = (folder / path).read_bytes()
    assert records.read(str(folder)) == replace(intent, pid=4194304)
    assert len(whole) != len(before)
    for torn in range(len(before.rstrip()), len(whole)):
        (folder / path).write_bytes(whole[:torn] + before[torn:])
        assert records.read(str(folder)) is None


@pytest.mark.parametrize("put", [put_pipe, put_link, put_loop])
def test_an_intent_is_written_in_place_of_whatever_an_earlier_try_left(
    folder: Path, put: Callable[[Path], None]
) -> None:
    put(folder / "run.json")
    own = RunRecord(job_id="job-1", epoch=1, rank=0, grace=5.0, memory=1, pipes=PIPES)
    os.close(records.begin(str(folder), own))
    assert records.read(str(folder)) == own


@pytest.mark.parametrize("put", [put_pipe, put_folder, put_link, put_device, put_loop])
def test_a_log_that_is_no_file_is_missing(tmp_path: Path, put: Callable[[Path], None]) -> None:
    home = Home(tmp_path / "home")
    put(Path(home.log(KEY)))
    home.close_log(KEY)
    assert home.read_log(KEY, offset=0, limit=10, known=False, over=True).missing


@pytest.mark.parametrize("put", [put_pipe, put_folder, put_loop])
def test_a_control_group_that_is_none_is_empty(tmp_path: Path, put: Callable[[Path], None]) -> None:
    put(tmp_path / "cgroup.procs")
    assert groups.get(str(tmp_path), "cgroup.procs") == ""
    assert not cgroup.occupied({"memory": str(tmp_path)})


def test_what_is_no_pid_in_the_list_of_a_control_group_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text("none\n99999999999999\n")
    cgroup.kill({"memory": str(tmp_path)})
