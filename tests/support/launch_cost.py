"""What a launch costs, in ns: on the bare emulated driver, under an idle hook, and with the turn in hand.

`python -m tests.support.launch_cost` prints them. The kernel takes no device time: what is left is the call.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.support.compiled import Built, build
from tests.support.scripted_arbiter import GATED, ScriptedArbiter, environment
from weft.sharing.native import NotBuilt, compile_file, find_compiler

LAUNCHES, ROUNDS = 20_000, 15
SOURCE = Path(__file__).with_suffix(".c")


class Costs(NamedTuple):
    """ns for each launch, the driver's own included."""

    bare: float
    idle: float  # the hook is there, and nothing is limited
    gated: float  # with the turn in hand


def measure(built: Built, home: Path) -> Costs:
    """Raises RuntimeError if it cannot be measured."""
    compiler = find_compiler()
    if isinstance(compiler, NotBuilt):
        raise RuntimeError(compiler.reason)
    program = home / "launch-cost"
    if failed := compile_file(compiler, program, [SOURCE], ("-Wno-deprecated-non-prototype",)):
        raise RuntimeError(failed.reason)
    device = home / "device"
    device.mkdir()
    bare = _run(program, environment(built, device))
    with ScriptedArbiter(home / "idle", flags=0) as arbiter:
        idle = _run(program, arbiter.environment(built, device))
    with ScriptedArbiter(home / "gated", flags=GATED) as arbiter:
        arbiter.quota_us = 1_000_000
        gated = _run(program, arbiter.environment(built, device))
        if not arbiter.launches or len(arbiter.said) < 2:
            raise RuntimeError("the program was not gated")
    return Costs(bare, idle, gated)


def _run(program: Path, environ: dict[str, str]) -> float:
    done = subprocess.run(
        [program, str(LAUNCHES), str(ROUNDS)], env=environ, capture_output=True, timeout=60, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{program.name} ended with {done.returncode}: {done.stderr.decode(errors='replace')}")
    return float(done.stdout)


def main() -> None:
    built = build()
    if isinstance(built, NotBuilt):
        sys.exit(built.reason)
    with tempfile.TemporaryDirectory(prefix="weft-cost-") as home:
        costs = measure(built, Path(home))
    sys.stdout.write(f"emulated driver, ns for each launch: bare {costs.bare:.0f}, idle hook {costs.idle:.0f}, ")
    sys.stdout.write(f"gated {costs.gated:.0f}\n")


if __name__ == "__main__":
    main()
