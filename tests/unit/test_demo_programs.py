"""The jobs of the demo do what they say, under the bare environment that Weft gives them."""

import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from weftd.cli.demo.parts import program

SECONDS_MAX = 60


def start(name: str, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        program(name, *arguments),
        env={"PATH": os.environ["PATH"], **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end(process: "subprocess.Popen[str]") -> tuple[int, str]:
    output, _ = process.communicate(timeout=SECONDS_MAX)
    return process.returncode, output


def fell(output: str) -> str:
    found = re.search(r"loss fell from .*", output)
    assert found, output
    return found[0]


def test_a_trainer_learns_and_tells_its_progress(tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    status, output = end(start("train", "--steps", "150", WEFT_PROGRESS=str(progress)))
    assert status == 0, output
    assert progress.read_text().splitlines()[-1].startswith("step=150 steps=150 loss=0.")


def test_a_trainer_that_was_stopped_and_resumed_ends_with_the_very_numbers_of_one_that_was_not(tmp_path: Path) -> None:
    arguments = ("--steps", "600", "--points", "60")
    whole = end(start("train", *arguments))
    progress = tmp_path / "progress"
    folder = {"WEFT_CHECKPOINT_DIR": str(tmp_path), "WEFT_PROGRESS": str(progress)}

    first = start("train", *arguments, **folder)
    until = time.monotonic() + SECONDS_MAX
    while not progress.exists() and time.monotonic() < until:
        time.sleep(0.005)
    first.send_signal(signal.SIGTERM)
    status, output = end(first)
    assert status == 128 + signal.SIGTERM, output

    status, output = end(start("train", *arguments, **folder))
    resumed = re.search(r"resumed at step (\d+)", output)
    assert resumed
    assert 0 < int(resumed[1]) < 600
    assert (status, fell(output)) == (0, fell(whole[1]))


def test_a_trainer_that_has_not_learned_fails() -> None:
    status, output = end(start("train", "--steps", "1"))
    assert status == 1
    assert "it has not learned" in output


def test_a_trainer_resumed_after_its_last_step_succeeds_again(tmp_path: Path) -> None:
    for _ in range(2):
        status, output = end(start("train", "--steps", "150", WEFT_CHECKPOINT_DIR=str(tmp_path)))
        assert status == 0, output


def test_the_ranks_of_a_gang_end_with_the_same_weights() -> None:
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WEFT_WORLD_SIZE": "2"}
    ranks = [start("train", "--steps", "300", "--points", "50", WEFT_RANK=rank, **meeting) for rank in ("1", "0")]
    for status, output in map(end, ranks):
        assert status == 0, output
        assert "all ranks have the same weights: True" in output


def test_the_ranks_of_a_gang_stop_after_the_same_step(tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    gang = {"MASTER_PORT": free_port(), "WEFT_WORLD_SIZE": "2", "WEFT_PROGRESS": str(progress)}
    ranks = [start("train", "--steps", "1000000", "--points", "50", WEFT_RANK=rank, **gang) for rank in ("0", "1")]
    until = time.monotonic() + SECONDS_MAX
    while not progress.exists() and time.monotonic() < until:
        time.sleep(0.005)
    ranks[0].send_signal(signal.SIGTERM)
    ends = [end(rank) for rank in ranks]
    assert [status for status, _ in ends] == [128 + signal.SIGTERM] * 2
    assert len({output.splitlines()[-1] for _, output in ends}) == 1


def test_a_model_is_ready_after_its_time_of_loading_and_finishes_its_requests() -> None:
    port = free_port()
    server = start("model", WEFT_PORT=port, LOAD_SECONDS="2", SERVICE_MS="1500", SLOTS="2")

    def get(path: str, data: bytes | None = None) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data, timeout=SECONDS_MAX) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:
            return 0

    seen: list[int] = []
    until = time.monotonic() + SECONDS_MAX
    while 200 not in seen and time.monotonic() < until:
        seen.append(get("/healthz"))
    assert 503 in seen
    assert get("/elsewhere") == 404
    with ThreadPoolExecutor() as threads:
        asked = [threads.submit(get, "/v1/generate", b"{}") for _ in range(4)]
        until = time.monotonic() + SECONDS_MAX
        while len(os.listdir(f"/proc/{server.pid}/task")) < 1 + len(asked) and time.monotonic() < until:
            time.sleep(0.01)  # a thread of the server has each of them
        server.send_signal(signal.SIGTERM)
        assert [answer.result() for answer in asked] == [200] * 4
    assert end(server)[0] == 0


@pytest.mark.parametrize("below", ["100000", "200000"])
def test_the_primes_are_as_many_as_are_known(below: str, tmp_path: Path) -> None:
    status, output = end(start("primes", "--below", below, WEFT_CHECKPOINT_DIR=str(tmp_path)))
    assert status == 0, output


def test_a_first_try_that_should_fail_does_and_the_second_does_not(tmp_path: Path) -> None:
    folder = {"WEFT_CHECKPOINT_DIR": str(tmp_path)}
    statuses = [end(start("primes", "--below", "100000", "--break-first", **folder))[0] for _ in range(2)]
    assert statuses == [3, 0]


def free_port() -> str:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return str(bound.getsockname()[1])


def test_an_elastic_job_goes_on_until_it_has_grown_and_given_ranks_back(tmp_path: Path) -> None:
    members = tmp_path / "members.json"

    def show(changes: int, count: int) -> None:
        ranks = ", ".join(f'{{"rank": {rank}}}' for rank in range(count))
        members.with_suffix(".new").write_text(f'{{"changes": {changes}, "ranks": [{ranks}]}}')
        members.with_suffix(".new").replace(members)

    show(0, 1)
    progress = tmp_path / "progress"
    job = {"WEFT_MEMBERS": str(members), "WEFT_PROGRESS": str(progress), "MASTER_PORT": free_port()}
    lead, other = (start("elastic", WEFT_RANK=rank, **job) for rank in ("0", "1"))
    assert lead.stdout is not None
    output = lead.stdout.readline()
    show(1, 3)
    output += lead.stdout.readline()
    until = time.monotonic() + SECONDS_MAX
    while last_step(progress) <= len(progress.read_text().splitlines()):  # each line is of a piece that the lead did
        assert time.monotonic() < until, "both do some"
        time.sleep(0.05)
    show(2, 2)
    status, rest = end(lead)
    output += rest
    assert status == 0
    assert [int(seen) for seen in re.findall(r"members: ([0-9]+)", output)] == [1, 3, 2]
    assert re.search(r"([0-9]+) pieces are done", output)
    assert end(other)[0] == 0


def last_step(progress: Path) -> int:
    return int(re.findall(r"step=([0-9]+) ", progress.read_text())[-1])


@pytest.mark.parametrize(
    ("option", "counts"), [("--up-to", (2, 6, 8)), ("--down-to", (2, 8, 6, 8, 4))], ids=["grows", "shrinks"]
)
def test_an_elastic_job_goes_on_until_it_has_so_many_ranks(
    option: str, counts: tuple[int, ...], tmp_path: Path
) -> None:
    members, *others = (tmp_path / name for name in ("members.json", "new"))

    def show(changes: int, count: int) -> None:
        ranks = ", ".join(f'{{"rank": {rank}}}' for rank in range(count))
        others[0].write_text(f'{{"changes": {changes}, "ranks": [{ranks}]}}')
        others[0].replace(members)

    show(0, counts[0])
    lead = start("elastic", option, str(counts[-1]), WEFT_MEMBERS=str(members), MASTER_PORT=free_port())
    assert lead.stdout is not None
    for changes, count in enumerate(counts[1:], 1):
        assert lead.stdout.readline().startswith("members: ")
        show(changes, count)
    status, output = end(lead)
    assert status == 0
    assert f"members: {counts[-1]} " in output


def test_a_starved_job_reports_each_step(tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    job = start("starved", WEFT_PROGRESS=str(progress))
    until = time.monotonic() + SECONDS_MAX
    while (not progress.exists() or progress.read_text().count("\n") < 3) and time.monotonic() < until:
        time.sleep(0.01)
    job.kill()
    end(job)
    assert progress.read_text().startswith("step=1\nstep=2\nstep=3\n")
