"""Progress from lines, from the end of files, and from patterns."""

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.messages.nodes import EndReason, RunState
from services.executor.home import Home
from services.executor.matching import Matcher
from services.executor.progress import READ_BYTES_MAX, ProgressReader, Tail, pairs
from services.executor.runtime import Run, RunKey
from tests.support.runs import until

KEY = RunKey("job-1", 1, 0)
LIVE = Run(key=KEY, state=RunState.RUNNING, started_at=1.0)
ENDED = Run(key=KEY, state=RunState.EXITED, started_at=1.0, exit_code=0, reason=EndReason.EXIT)


def write(path: str, text: str) -> None:
    Path(path).write_text(text)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path)
    os.mkdir(made.run(KEY))
    return made


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("step=120 samples=3840 loss=0.31", {"step": 120.0, "samples": 3840.0, "loss": 0.31}),
        ("epoch 3: step=5, loss=1.5e-3; lr=-.5", {"step": 5.0, "loss": 0.0015, "lr": -0.5}),
        ("step=1 step=2", {"step": 2.0}),
        ("loss=nan best=inf step=7", {"step": 7.0}),
        ("loss=1e999", {}),
        ("path=/tmp/x name=7b version=1.2.3", {}),
        ("nothing to see", {}),
        ("=5 5=6 a= b", {}),
        ("train/loss=0.5 val.loss=0.25", {"loss": 0.5, "val.loss": 0.25}),
    ],
)
def test_a_line_is_read_as_names_and_numbers(line: str, found: dict[str, float]) -> None:
    assert pairs(line) == found


@settings(deadline=None)
@given(st.text(max_size=300))
def test_no_line_is_too_strange(line: str) -> None:
    assert all(value == value and abs(value) != float("inf") for value in pairs(line).values())


def test_only_what_is_new_is_read(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    tail = Tail(str(path))
    assert tail.news() == []
    path.write_text("step=1\nstep=2\n")
    assert tail.news() == ["step=1", "step=2"]
    assert tail.news() == []
    with path.open("a") as file:
        file.write("step=3\n")
    assert tail.news() == ["step=3"]


def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    tail = Tail(str(path))
    path.write_text("step=1\nstep=12")
    assert tail.news() == ["step=1"]
    with path.open("a") as file:
        file.write("0\n")
    assert tail.news() == ["step=120"]


def test_a_last_line_without_an_end_counts_when_the_file_rests(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    path.write_text("step=12")
    tail = Tail(str(path))
    assert tail.news() == []
    assert tail.news() == ["step=12"]
    assert tail.news() == []


def test_a_file_that_is_written_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    tail = Tail(str(path))
    path.write_text("step=100\n")
    assert tail.news() == ["step=100"]
    path.write_text("step=2\n")
    assert tail.news() == ["step=2"]
    other = tmp_path / "other"
    other.write_text("step=33333333333\n")
    other.replace(path)
    assert tail.news() == ["step=33333333333"]
    os.utime(path, ns=(1, 1))
    assert tail.news() == ["step=33333333333"]


def test_of_a_lot_of_news_only_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    path.write_text("".join(f"step={step}\n" for step in range(100_000)))
    news = Tail(str(path)).news()
    assert news[-1] == "step=99999"
    assert len(news) < READ_BYTES_MAX
    assert news[0].startswith("step=")


def test_a_line_without_an_end_does_not_grow_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    path.write_text("x" * 1_000_000)
    assert max(len(line) for line in Tail(str(path)).news()) <= 4096


async def test_news_are_told_once_and_the_newest_value_wins(home: Home) -> None:
    reader = ProgressReader(home)
    write(home.progress(KEY), "step=1 total=10\nstep=2\n")
    assert await reader.look([LIVE]) == {KEY: {"step": 2.0, "total": 10.0}}
    assert await reader.look([LIVE]) == {}
    assert reader.latest == {KEY: {"step": 2.0, "total": 10.0}}
    assert await reader.look([]) == {}
    assert reader.latest == {}
    await reader.close()


async def test_the_last_words_of_a_run_are_read_once(home: Home) -> None:
    reader = ProgressReader(home)
    path = home.progress(KEY)
    write(path, "step=1\n")
    await reader.look([LIVE])
    write(path, "step=1\nstep=2")
    await reader.settle([ENDED])
    assert reader.latest[KEY] == {"step": 2.0}
    write(path, "step=1\nstep=3")
    await reader.settle([ENDED])
    assert reader.latest[KEY] == {"step": 2.0}
    await reader.close()


async def test_a_run_may_tell_its_progress_by_datagram(home: Home) -> None:
    reader = ProgressReader(home)
    await reader.look([LIVE])
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as telling:
        telling.sendto(b"step=5 loss=0.5", home.progress_socket(KEY))
        telling.sendto(b"step=6", home.progress_socket(KEY))
    await until(lambda: reader.latest.get(KEY) == {"step": 6.0, "loss": 0.5})
    await reader.close()


async def test_a_pattern_finds_progress_in_the_output(home: Home) -> None:
    reader = ProgressReader(home)
    reader.patterns = {KEY: r"iter (?P<step>\d+) .* acc (?P<accuracy>[\d.]+)(?P<note>!?)"}
    write(home.log(KEY), "iter 1 of 9 acc 0.1\nnoise\niter 2 of 9 acc 0.2!\n")
    assert await reader.look([LIVE]) == {KEY: {"step": 2.0, "accuracy": 0.2}}
    await reader.close()


async def test_a_pattern_that_takes_for_ever_is_given_up_and_others_go_on() -> None:
    matcher = Matcher(seconds_max=0.3)
    evil = r"(?P<step>(a+)+)$"
    assert await matcher.latest(evil, ["a" * 40 + "!"]) == {}
    assert await matcher.latest(evil, ["a"]) == {}
    assert await matcher.latest(r"step (?P<step>\d+)", ["step 4"]) == {"step": 4.0}
    await matcher.close()


def test_a_path_too_long_for_a_socket_is_not_offered(tmp_path: Path) -> None:
    assert Home(tmp_path / ("d" * 100)).progress_socket(KEY) == ""


@pytest.mark.timeout(20)
async def test_a_job_that_makes_its_progress_a_pipe_holds_up_nobody(home: Home) -> None:
    os.mkfifo(home.progress(KEY))
    reader = ProgressReader(home)
    assert await reader.look([LIVE]) == {}
    await reader.settle([ENDED])
    await reader.close()


async def test_a_job_that_makes_its_progress_a_link_is_not_followed(home: Home, tmp_path: Path) -> None:
    write(str(tmp_path / "secret"), "pin=1234\n")
    os.symlink(tmp_path / "secret", home.progress(KEY))
    reader = ProgressReader(home)
    assert await reader.look([LIVE]) == {}
    await reader.close()


async def test_a_link_where_the_socket_will_be_changes_nobody_elses_rights(home: Home, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    os.symlink(secret, home.progress_socket(KEY))
    reader = ProgressReader(home)
    await reader.look([LIVE])
    assert (secret.stat().st_mode & 0o777, os.stat(home.progress_socket(KEY)).st_mode & 0o777) == (0o600, 0o666)
    await reader.close()
