"""The elastic work of the benchmarks: it loses no piece, whatever becomes of a rank."""

import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

from tests.support.programs import program

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
