"""The stand-in for training: its steps take what they are told, times the slowdown of its GPU at that moment."""

import os
import subprocess
import time
from pathlib import Path
from statistics import median

from tests.support.programs import program
from weft.emulation.slowdowns import slow_down
from weftd.executor.logs.progress import pairs

SECONDS_MAX = 60.0


def test_a_gpu_that_turns_slow_shows_in_the_steps_and_so_does_its_recovery(tmp_path: Path) -> None:
    folder, told = tmp_path / "emulated", tmp_path / "progress"
    folder.mkdir()
    env = {
        "PATH": os.environ["PATH"],
        "WEFT_PROGRESS": str(told),
        "WEFT_GPUS": "3",
        "WEFT_GPUS_EMULATED": "1",
        "WEFT_EMULATED_SLOWDOWNS": str(folder),
    }
    command = [*program("paced"), "--base", "0.05", "--samples", "8"]
    process = subprocess.Popen(command, env=env, cwd=tmp_path)

    def after(more: int) -> list[dict[str, float]]:
        """What it tells of the next steps; the first may still be of before."""
        begin = len(read(told))
        until = time.monotonic() + SECONDS_MAX
        while len(read(told)) < begin + more:
            assert time.monotonic() < until
            assert process.poll() is None
            time.sleep(0.02)
        return read(told)[begin + 1 :]

    try:
        normal = after(8)
        slow_down(folder, 3, 2.0)
        slow = after(8)
        slow_down(folder, 3, 1.0)
        again = after(8)
    finally:
        process.kill()
        process.wait()
    times = [median(step["t_compute"] for step in steps) for steps in (normal, slow, again)]
    assert 1.4 < times[1] / times[0] < 2.8
    assert 1.4 < times[1] / times[2] < 2.8
    assert times[0] >= 0.045
    assert all(step["samples"] == 8 * step["step"] for step in [*normal, *slow, *again])


def read(told: Path) -> list[dict[str, float]]:
    text = told.read_text() if told.exists() else ""
    return [pairs(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
