"""The jobs of the demo do what they say, under the bare environment that Weft gives them."""

import os
import re
import signal
import socket
import subprocess
import time
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
    assert progress.read_text().splitlines()[-1].startswith("step=150 steps=150 loss=0.0")


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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WEFT_WORLD_SIZE": "2"}
    ranks = [start("gang", "--steps", "60", "--examples", "50", WEFT_RANK=rank, **meeting) for rank in ("1", "0")]
    for status, output in map(end, ranks):
        assert status == 0, output
        assert "all ranks have the same weights: True" in output


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


def test_work_is_shared_by_ranks_that_come_late_and_what_a_rank_took_away_is_done_by_others(tmp_path: Path) -> None:
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WEFT_PROGRESS": str(tmp_path / "progress")}
    work = ("--pieces", "40", "--seconds", "0.02")
    lead = start("elastic", *work, WEFT_RANK="0", **meeting)
    late = start("elastic", *work, WEFT_RANK="1", **meeting)
    gone = start("elastic", *work, WEFT_RANK="2", **meeting)
    time.sleep(0.5)
    gone.send_signal(signal.SIGTERM)
    status, output = end(lead)
    assert (status, "all 40 pieces are done" in output) == (0, True), output
    assert end(gone)[0] == 0
    assert re.search(r"did [0-9]+ pieces", end(late)[1])
    assert (tmp_path / "progress").read_text().splitlines()[-1] == "step=40 steps=40 checkpoint=0 members=1"


def test_an_elastic_job_goes_on_until_it_has_grown_and_given_ranks_back(tmp_path: Path) -> None:
    members = tmp_path / "members.json"

    def show(changes: int, count: int) -> None:
        ranks = ", ".join(f'{{"rank": {rank}}}' for rank in range(count))
        members.with_suffix(".new").write_text(f'{{"changes": {changes}, "ranks": [{ranks}]}}')
        members.with_suffix(".new").replace(members)

    show(0, 1)
    work = ("--pieces", "1", "--seconds", "0.01", "--until-it-gave-back")
    lead = start("elastic", *work, WEFT_RANK="0", WEFT_MEMBERS=str(members), MASTER_PORT=free_port())
    for changes, count in ((1, 3), (2, 2)):
        time.sleep(1.0)
        assert lead.poll() is None
        show(changes, count)
    status, output = end(lead)
    assert status == 0
    assert [int(seen) for seen in re.findall(r"members: ([0-9]+)", output)] == [1, 3, 2]


def test_elastic_work_that_was_stopped_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    work = ("--pieces", "60", "--seconds", "0.05", "--idle")
    meeting = {"WEFT_CHECKPOINT_DIR": str(tmp_path), "WEFT_RANK": "0"}
    first = start("elastic", *work, MASTER_PORT=free_port(), **meeting)
    time.sleep(1.5)
    first.send_signal(signal.SIGTERM)
    assert end(first)[0] == 0
    status, output = end(start("elastic", *work, MASTER_PORT=free_port(), **meeting))
    assert (status, "all 60 pieces are done" in output) == (0, True)
    saved, resumed = (tmp_path / "pieces").read_text().splitlines()
    assert saved.split()[1] == resumed.split()[1] != "0"
