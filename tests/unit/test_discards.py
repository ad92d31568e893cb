"""What jobs leave in their folders is removed, whatever it is, beside everything else that an executor does."""

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.odd_folders import make_deep, swept
from tests.support.runs import until
from weftd.executor.files.discards import Discards

DEPTH = 3000  # more than Python's recursion, and a longer path than the kernel takes
LINKS = 100_000
LATENCY_MAX = 0.25  # seconds: the removal itself takes more


@pytest.fixture
def aside(tmp_path: Path) -> Iterator[Path]:
    with swept(tmp_path / "discarded", tmp_path / "run"):
        yield tmp_path / "discarded"


@pytest.fixture
def discards(aside: Path) -> Iterator[Discards]:
    made = Discards(str(aside))
    yield made
    made.close()


def gone(path: Path) -> bool:
    return not os.path.lexists(path)


def emptied(aside: Path) -> bool:
    return aside.is_dir() and not os.listdir(aside)


async def test_a_folder_deeper_than_python_recurses_is_removed(tmp_path: Path, aside: Path, discards: Discards) -> None:
    folder = tmp_path / "run"
    make_deep(folder, DEPTH)
    assert discards.take(str(folder))
    assert gone(folder)
    await until(lambda: emptied(aside))


async def test_names_modes_and_kinds_of_every_sort_are_removed(tmp_path: Path, aside: Path, discards: Discards) -> None:
    folder = tmp_path / "run"
    (folder / "closed" / "inner").mkdir(parents=True)
    (folder / "closed" / "inner" / "file").write_text("kept from others")
    os.mkfifo(folder / "pipe")
    os.symlink("/", folder / "root")
    os.symlink(folder, folder / "loop")
    (folder / "run.json").mkdir()
    (folder / "run.json" / "full").touch()
    for name in (b"line\nbreak", b"\xff\xfe", b"-rf", b"x" * 255):
        os.close(os.open(os.path.join(os.fsencode(folder), name), os.O_CREAT | os.O_WRONLY))
    os.chmod(folder / "closed" / "inner", 0)
    os.chmod(folder / "closed", 0)
    os.chmod(folder, 0)
    assert discards.take(str(folder))
    await until(lambda: emptied(aside))
    assert os.path.isdir("/etc")  # noqa: ASYNC240 - a link is removed, not what it leads to


async def test_a_folder_of_very_many_names_delays_nobody(tmp_path: Path, aside: Path, discards: Discards) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "first").touch()
    many = [folder / str(number) for number in range(4)]
    for part in many:
        part.mkdir()
        (part / "first").touch()
        for number in range(LINKS // len(many)):
            os.link(part / "first", part / str(number))
    slowest = 0.0
    assert discards.take(str(folder))
    async with asyncio.timeout(60):
        while not emptied(aside):
            began = time.thread_time()  # the thread of the loop alone: the CPU time of others does not count
            await asyncio.sleep(0)
            slowest = max(slowest, time.thread_time() - began)
            await asyncio.sleep(0.001)
    assert slowest < LATENCY_MAX


def test_moving_a_folder_aside_takes_no_time_however_much_is_in_it(tmp_path: Path, discards: Discards) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "first").touch()
    for number in range(20_000):
        os.link(folder / "first", folder / str(number))
    began = time.thread_time()
    assert discards.take(str(folder))
    assert time.thread_time() - began < 0.1


def test_what_is_not_there_is_removed_already(tmp_path: Path, discards: Discards) -> None:
    assert discards.take(str(tmp_path / "never"))


def test_a_folder_that_cannot_be_moved_stays_and_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    in_the_way = tmp_path / "discarded"
    in_the_way.write_text("a file where the folder should be")
    discards = Discards(str(in_the_way))
    (tmp_path / "run").mkdir()
    for _ in range(3):
        assert not discards.take(str(tmp_path / "run"))
    assert (tmp_path / "run").is_dir()
    assert len([record for record in caplog.records if "cannot be removed" in record.message]) == 1


async def test_the_next_executor_removes_what_the_last_one_left_aside(aside: Path) -> None:
    make_deep(aside, 20)
    discards = Discards(str(aside))
    discards.sweep()
    await until(lambda: emptied(aside))
    discards.close()
