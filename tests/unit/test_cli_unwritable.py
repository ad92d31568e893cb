"""A command whose output cannot be written says so in one sentence."""

import os
import subprocess
import sys

from tests.support.tree import PYTHONPATH

WEFT = [sys.executable, "-m", "weftd.cli"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": PYTHONPATH}


def test_a_full_disk_is_one_sentence_and_exit_status_1() -> None:
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [*WEFT, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=ENVIRONMENT
        )
    assert (ran.returncode, ran.stderr) == (1, "weft: the output cannot be written: No space left on device\n")


def test_a_closed_standard_output_is_no_error() -> None:
    ran = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *WEFT, "--help"],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env=ENVIRONMENT,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
