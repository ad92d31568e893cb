"""Lives of a cluster, each with its own troubles: whatever happens, Weft keeps its promises.

One that fails is lived again, with all that happens in it, by `python -m tests.simulation --seed N --trace`.
"""

import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 600
WAIT_SECONDS_MAX = 60
SEEDS = 6  # `make nightly` runs `make sim` with a thousand


@pytest.mark.timeout(SECONDS_MAX)
def test_the_first_seeds() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--seeds", str(SEEDS), "--from", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.startswith(f"{SEEDS} seeds, 0 failed: "), ran.stdout


@pytest.mark.nightly
def test_no_worker_outlives_a_simulation_that_is_killed() -> None:
    command = [sys.executable, "-m", "tests.simulation", "--seeds", "10000", "--workers", "2"]
    with subprocess.Popen(command, cwd=ROOT) as simulation:
        workers: list[Path] = []
        until = time.monotonic() + WAIT_SECONDS_MAX
        while len(workers) < 2:
            assert time.monotonic() < until
            time.sleep(0.05)
            children = Path(f"/proc/{simulation.pid}/task/{simulation.pid}/children").read_text().split()
            workers = [
                Path("/proc", child)
                for child in children
                if b"spawn_main" in Path("/proc", child, "cmdline").read_bytes()
            ]
        simulation.kill()
    until = time.monotonic() + WAIT_SECONDS_MAX
    while any(worker.exists() for worker in workers):
        assert time.monotonic() < until
        time.sleep(0.05)
