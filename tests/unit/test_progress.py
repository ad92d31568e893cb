"""Progress from lines, from the end of files, and from patterns."""

import asyncio
import math
import os
import signal
import socket
import sys
import time
from pathlib import Path
from string import ascii_lowercase

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.runs import until
from weft.messages.nodes import EndReason, RunState
from weftd.executor.files.home import Home
from weftd.executor.logs.lines import READ_BYTES_MAX, Tail, pairs
from weftd.executor.logs.matching import REFUSED_SECONDS, Matcher
from weftd.executor.logs.progress import SETTLE_SECONDS, ProgressReader
from weftd.executor.runs import Run, RunKey

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
        ("best=inf step=7 worst=-Infinity", {"best": math.inf, "step": 7.0, "worst": -math.inf}),
        ("loss=1e999", {"loss": math.inf}),
        ("loss=nano info=information", {}),
        ("path=/tmp/x name=7b version=1.2.3", {}),
        ("nothing to see", {}),
        ("=5 5=6 a= b", {}),
        ("train/loss=0.5 val.loss=0.25", {"loss": 0.5, "val.loss": 0.25}),
        ("verlustgröße=1 lr_größe=2 größe: x=3", {"x": 3.0}),
    ],
)
def test_a_line_is_read_as_names_and_numbers(line: str, found: dict[str, float]) -> None:
    assert pairs(line) == found


@settings(deadline=None)
@given(st.text(max_size=300))
def test_no_line_is_too_strange(line: str) -> None:
    assert all(isinstance(value, float) for value in pairs(line).values())


@pytest.mark.parametrize("evil", ["a=" + "1" * 70 + " ", "a=" + "1" * 64 + "e111x ", "a" * 70 + " ", "a=1x "])
def test_no_line_takes_much_longer_than_others_of_its_length(evil: str) -> None:
    line = "step=123456 loss=0.5 t_compute=0.001 " * 150
    assert _seconds(evil * 2000) < 5 * _seconds(line)


def _seconds(line: str) -> float:
    """Of CPU, for 30 times; what disturbed it once does not count."""
    took = []
    for _ in range(5):
        began = time.process_time()
        for _ in range(30):
            pairs(line)
        took.append(time.process_time() - began)
    return min(took)


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


async def numbers(reader: ProgressReader) -> dict[str, float]:
    """What it knows of the run at its next look."""
    told = (await reader.look([LIVE])).get(KEY)
    return told.progress if told else {}


async def test_the_newest_value_of_each_name_wins(home: Home) -> None:
    reader = ProgressReader(home)
    write(home.progress(KEY), "step=1 total=10\nstep=2\n")
    began = time.time()
    told = (await reader.look([LIVE]))[KEY]
    assert told.progress == {"step": 2.0, "total": 10.0}
    assert began <= told.at <= time.time()
    assert (await reader.look([LIVE]))[KEY] == told
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
    await numbers(reader)
    await until(lambda: reader.latest == {KEY: {"step": 2.0, "accuracy": 0.2}})
    await reader.close()


async def test_a_pattern_that_takes_for_ever_is_given_up_and_others_go_on() -> None:
    matcher = Matcher(seconds_max=0.3)
    evil = r"(?P<step>(a+)+)$"
    assert await matcher.latest(evil, ["a" * 40 + "!"]) == {}
    assert await matcher.latest(evil, ["a"]) == {}
    assert await matcher.latest(r"step (?P<step>\d+)", ["step 4"]) == {"step": 4.0}
    await matcher.close()


async def test_a_pattern_that_took_too_long_is_tried_again_after_a_while() -> None:
    now = 1000.0
    matcher = Matcher(seconds_max=0.3, clock=lambda: now)
    slow_here = r"(?:a+)+(?P<step>\d+)$"
    assert await matcher.latest(slow_here, ["a" * 40 + "!"]) == {}
    now += REFUSED_SECONDS - 1
    assert await matcher.latest(r"(?P<step>\d+)", ["4"]) == {"step": 4.0}
    assert await matcher.latest(slow_here, ["a4"]) == {}
    now += 2
    assert await matcher.latest(slow_here, ["a4"]) == {"step": 4.0}
    await matcher.close()


async def test_a_pattern_is_not_refused_because_its_helper_was_killed() -> None:
    matcher = Matcher()
    pattern = r"step (?P<step>\d+)"
    for step in range(3):
        assert await matcher.latest(pattern, [f"step {step}"]) == {"step": step}
        for helper in helpers():
            os.kill(helper, signal.SIGKILL)
    await matcher.close()


async def test_a_pattern_is_not_refused_because_no_helper_could_be_begun(tmp_path: Path) -> None:
    python = tmp_path / "python"
    matcher = Matcher(python=str(python))
    pattern = r"step (?P<step>\d+)"
    assert await matcher.latest(pattern, ["step 4"]) == {}
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o700)
    assert await matcher.latest(pattern, ["step 4"]) == {}
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    assert await matcher.latest(pattern, ["step 4"]) == {"step": 4.0}
    await matcher.close()


async def test_what_is_no_pattern_costs_no_helper() -> None:
    matcher = Matcher()
    assert await matcher.latest(r"(?P<step>\d+)", ["4"]) == {"step": 4.0}
    begun = helpers()
    assert await matcher.latest("(", ["4"]) == {}
    assert await matcher.latest(r"(?P<step>\d+)", ["5"]) == {"step": 5.0}
    assert helpers() == begun
    await matcher.close()


def helpers() -> list[int]:
    """The processes of ours that match patterns."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(child) for child in children if b"groupdict" in Path(f"/proc/{child}/cmdline").read_bytes()]


async def test_a_pattern_that_takes_for_ever_does_so_once_for_all_who_wait_with_it() -> None:
    matcher = Matcher(seconds_max=1.0)
    began = time.monotonic()
    tried = [matcher.latest(r"(?P<step>(a+)+)$", ["a" * 40 + "!"]) for _ in range(30)]
    *hopeless, found = await asyncio.gather(*tried, matcher.latest(r"step (?P<step>\d+)", ["step 4"]))
    assert (hopeless, found) == ([{}] * 30, {"step": 4.0})
    assert time.monotonic() - began < 15.0
    await matcher.close()


def test_a_path_too_long_for_a_socket_is_not_offered(tmp_path: Path) -> None:
    assert Home(tmp_path / ("d" * 100)).progress_socket(KEY) == ""


@pytest.mark.timeout(20)
async def test_a_job_that_makes_its_progress_a_pipe_holds_up_nobody(home: Home) -> None:
    os.mkfifo(home.progress(KEY))
    reader = ProgressReader(home)
    assert await numbers(reader) == {}
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


async def test_a_run_tells_how_fast_it_goes_and_when_that_was_written_counts_and_not_when_it_was_read(
    home: Home,
) -> None:
    """Two steps a second, told by a file that is looked at in moments of no rhythm."""
    now = 1000.0
    reader = ProgressReader(home, clock=lambda: now, now=lambda: now + 5e8)
    told = ""
    for step in range(60):
        told += f"step={step} samples={step * 32} t_compute=0.3 t_data=0.1\n"
        write(home.progress(KEY), told)
        os.utime(home.progress(KEY), (0, now + 5e8))
        now += 0.5
        if step % 3 == 1 or step % 7 == 0:
            await reader.look([LIVE])
    seen = (await reader.look([LIVE]))[KEY]
    pace = seen.pace
    assert pace is not None
    assert pace.steps_rate == pytest.approx(2.0, rel=1e-3)
    assert pace.samples_rate == pytest.approx(64.0, rel=1e-3)
    assert (pace.step_seconds, pace.phases) == (0.3, {"t_compute": 0.3, "t_data": 0.1})
    assert (seen.at, seen.disbelieved) == (pytest.approx(now + 5e8, abs=0.6), 0)
    await reader.close()


async def test_what_makes_no_sense_is_counted_and_not_told(home: Home) -> None:
    reader = ProgressReader(home)
    write(home.progress(KEY), "step=7 loss=0.5\nstep=-3 loss=nan\nsamples=-1 lr=inf\nstep=1e300\n\x00\xff=\n")
    told = (await reader.look([LIVE]))[KEY]
    assert (told.progress, told.disbelieved) == ({"step": 7.0, "loss": 0.5}, 5)
    await reader.close()


async def test_a_run_that_sends_datagrams_as_fast_as_it_can_is_held_up_and_nobody_else_is(home: Home) -> None:
    reader = ProgressReader(home)
    await reader.look([LIVE])
    step = 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as telling:
        telling.setblocking(False)
        telling.connect(home.progress_socket(KEY))
        worked, began, turns = time.process_time(), time.monotonic(), 0
        flooding = 0.0
        while turns < 200:
            flood = time.process_time()
            for _ in range(1000):
                step += 1
                try:
                    telling.send(f"step={step}".encode())
                except BlockingIOError:
                    break
            flooding += time.process_time() - flood
            await asyncio.sleep(0.001)
            turns += 1
        worked = (time.process_time() - worked - flooding) / (time.monotonic() - began)
        await until(lambda: _sent(telling, f"step={step + 1}"))
    assert worked < 0.9
    await until(lambda: reader.latest[KEY] == {"step": step + 1.0})
    await reader.close()


async def test_runs_that_flood_their_node_with_long_lines_hold_up_nobody(home: Home) -> None:
    flooding, quiet = [RunKey("job-1", 1, rank) for rank in range(20)], RunKey("job-2", 1, 0)
    reader = ProgressReader(home)
    for key in (*flooding, quiet):
        os.makedirs(home.run(key), exist_ok=True)
    await reader.look([Run(key=key, state=RunState.RUNNING, started_at=1.0) for key in (*flooding, quiet)])
    sockets = {key: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for key in (*flooding, quiet)}
    for key, telling in sockets.items():
        telling.setblocking(False)
        telling.connect(home.progress_socket(key))
    padding = " ".join(f"{first}{second}=1" for first in ascii_lowercase for second in ascii_lowercase)
    step, own, longest, late = 0, 0.0, 0.0, 0
    began = time.monotonic()
    while time.monotonic() < began + 2.0:
        step += 1
        for key in flooding:
            while _sent(sockets[key], f"step={step} {padding}"):
                pass
        late = max(late, step - 1 - int(reader.latest.get(quiet, {}).get("step", 0.0)))
        assert _sent(sockets[quiet], f"step={step}")
        worked = time.process_time()
        await asyncio.sleep(0.01)
        worked = time.process_time() - worked
        own, longest = own + worked, max(longest, worked)
    assert own / (time.monotonic() - began) < 0.75, (
        "some 0.2 s each second, and as much at once; all of it without a bound"
    )
    assert longest < 0.1
    assert late <= 2
    for key in flooding:
        await until(lambda: _sent(sockets[key], f"step={step + 1}"))  # noqa: B023 -- at once
    await until(lambda: all(reader.latest[key]["step"] == step + 1 for key in flooding))
    for telling in sockets.values():
        telling.close()
    await reader.close()


async def test_the_last_of_many_datagrams_of_an_ended_run_is_heard(home: Home) -> None:
    reader = ProgressReader(home)
    await reader.look([LIVE])
    step = 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as telling:
        telling.setblocking(False)
        telling.connect(home.progress_socket(KEY))
        while _sent(telling, f"step={step + 1} note=" + "x" * 4000):
            step += 1
    await reader.settle([ENDED])
    assert reader.latest[KEY] == {"step": step}
    await reader.close()


def _sent(telling: socket.socket, line: str) -> bool:
    try:
        telling.send(line.encode())
    except BlockingIOError:
        return False
    return True


async def test_a_slow_pattern_holds_up_no_other_run(home: Home) -> None:
    other = RunKey("job-2", 1, 0)
    os.mkdir(home.run(other))
    runs = [LIVE, Run(key=other, state=RunState.RUNNING, started_at=1.0)]
    reader = ProgressReader(home)
    reader._matcher = Matcher(seconds_max=60.0)
    reader.patterns = {KEY: r"(?P<step>(a+)+)$"}
    write(home.log(KEY), "a" * 40 + "!\n")
    write(home.progress(other), "step=5\n")
    began = time.monotonic()
    assert (await reader.look(runs))[other].progress == {"step": 5.0}
    assert time.monotonic() - began < 30.0
    await reader.close()


async def test_ended_runs_with_slow_patterns_hold_up_the_sync_of_their_node_for_a_bounded_time(home: Home) -> None:
    """Each of these takes a second; what the last one told is found later."""
    keys = [RunKey("job-1", 1, rank) for rank in range(9)]
    reader = ProgressReader(home)
    slow = {key: f"(?P<step{key.rank}>(a+)+)$" for key in keys[:-1]}
    reader.patterns = slow | {keys[-1]: r"iter (?P<iter>\d+)"}
    for key in keys:
        os.makedirs(home.run(key), exist_ok=True)
        write(home.log(key), "a" * 40 + "!\niter 7")
        write(home.progress(key), "loss=0.5\n")
    ended = [Run(key=key, state=RunState.EXITED, started_at=1.0, exit_code=0) for key in keys]
    began = time.monotonic()
    await reader.settle(ended)
    assert time.monotonic() - began < SETTLE_SECONDS + 4.0
    assert reader.latest == {key: {"loss": 0.5} for key in keys}
    await reader.settle(ended)
    assert time.monotonic() - began < SETTLE_SECONDS + 4.0
    await until(lambda: reader.latest[keys[-1]] == {"loss": 0.5, "iter": 7.0})
    await reader.close()


async def test_the_last_output_of_a_run_is_matched_after_what_is_being_matched(home: Home) -> None:
    reader = ProgressReader(home)
    reader.patterns = {KEY: r"iter (?P<step>\d+)"}
    write(home.log(KEY), "iter 1\niter 2\n")
    looking = asyncio.ensure_future(reader.look([LIVE]))
    await asyncio.sleep(0)  # its helper is being begun
    write(home.log(KEY), "iter 1\niter 2\niter 3")
    await reader.settle([ENDED])
    assert reader.latest[KEY] == {"step": 3.0}
    await looking
    await reader.close()


async def test_of_a_file_that_grows_by_a_million_lines_the_newest_is_told_and_little_is_read(home: Home) -> None:
    reader = ProgressReader(home)
    write(home.progress(KEY), "".join(f"step={step} loss=0.5 t_compute=0.001\n" for step in range(1_000_000)))
    worked = time.process_time()
    assert await numbers(reader) == {"step": 999_999.0, "loss": 0.5, "t_compute": 0.001}
    assert time.process_time() - worked < 0.1
    await reader.close()
