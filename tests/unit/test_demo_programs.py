"""The jobs of the demo do what they say, under the bare environment that Weft gives them."""

import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from services.cli.demo.parts import program

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
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    ranks = [start("gang", "--steps", "60", "--examples", "50", RANK=rank, **meeting) for rank in ("1", "0")]
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
