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


def begins(progress: Path) -> None:
    """Wait until a piece is done."""
    until = time.monotonic() + SECONDS_MAX
    while not progress.exists():
        assert time.monotonic() < until
        time.sleep(0.01)


def free_port() -> str:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return str(bound.getsockname()[1])


def test_work_is_shared_by_ranks_that_come_late_and_what_a_rank_took_away_is_done_by_others(tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WEFT_PROGRESS": str(progress)}
    work = ("--pieces", "100", "--seconds", "0.02", "--idle")
    late, gone = (start("elastic", *work, WEFT_RANK=rank, **meeting) for rank in ("1", "2"))
    for follows in (late, gone):
        assert follows.stdout is not None
        assert follows.stdout.readline().startswith("joins at ")
    lead = start("elastic", *work, WEFT_RANK="0", **meeting)
    begins(progress)
    gone.send_signal(signal.SIGTERM)
    status, output = end(lead)
    assert (status, "all 100 pieces are done" in output) == (0, True), output
    assert end(gone)[0] == 0
    assert re.search(r"did [0-9]+ pieces", end(late)[1])
    assert progress.read_text().splitlines()[-1] == "step=100 steps=100 checkpoint=0 members=1"


def test_elastic_work_that_was_stopped_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    work = ("--pieces", "30", "--seconds", "0.05", "--idle")
    meeting = {"WEFT_CHECKPOINT_DIR": str(tmp_path), "WEFT_RANK": "0", "WEFT_PROGRESS": str(tmp_path / "progress")}
    first = start("elastic", *work, MASTER_PORT=free_port(), **meeting)
    begins(tmp_path / "progress")
    first.send_signal(signal.SIGTERM)
    assert end(first)[0] == 0
    status, output = end(start("elastic", *work, MASTER_PORT=free_port(), **meeting))
    assert (status, "all 30 pieces are done" in output) == (0, True)
    saved, resumed = (tmp_path / "pieces").read_text().splitlines()
    assert saved.split()[1] == resumed.split()[1] != "0"
