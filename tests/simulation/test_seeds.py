"""Lives of a cluster, each with its own troubles: whatever happens, Weft keeps its promises.

One that fails is lived again, with all that happens in it, by `python -m tests.simulation --seed N --trace`.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 600
SEEDS = 10  # `make nightly` runs `make sim` with a thousand


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
