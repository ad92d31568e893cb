"""`python -m tests.gpu [--minutes 8] [--out DIR] [--only PART]`: tests that only real hardware can pass.

They write one JSON report. Without an NVIDIA GPU they say so and exit 0. With one they exit 1 if a part finds something
that must not be. The parts share the minutes, so that the last one still comes. A part that cannot run here, for
example without PyTorch, is skipped with the reason.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import msgspec

from tests.gpu.found import Found, SkippedError, WrongError
from tests.gpu.parts import PARTS, Machine
from weft.gpus.inventory import INVENTORY_SECONDS_MAX, inventory
from weft.gpus.nvml import DRIVER, Nvml
from weft.threads import aside
from weft.version import version

REPORT = "gpu-report.json"
VERSION = Path(__file__).parent / "VERSION"  # in a kit, which is no checkout


def main(
    arguments: Sequence[str], *, nvml: Nvml = DRIVER, machine: Machine | None = None, out: TextIO = sys.stdout
) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--minutes", type=_minutes, default=8.0, help="the time for all parts, default 8")
    parser.add_argument("--out", type=Path, default=Path("gpu-report"), help="folder of the report and the session")
    parser.add_argument("--only", choices=tuple(PARTS), action="append", help="this part; may be given several times")
    asked = parser.parse_args(arguments)
    try:
        gpus = aside(lambda: inventory(nvml), name="gpu-day").result(INVENTORY_SECONDS_MAX)
    except TimeoutError:
        out.write(f"the NVIDIA driver has not answered in {INVENTORY_SECONDS_MAX:g} s: look into dmesg\n")
        return 1
    if not gpus:
        out.write("no NVIDIA GPU here: nothing was measured\n")
        return 0
    asked.out.mkdir(parents=True, exist_ok=True)
    machine = machine or Machine(gpus, asked.out, nvml)
    names = list(dict.fromkeys(asked.only or PARTS))
    report: Found = {
        "devices": [gpu.model for gpu in gpus],
        "uuids": [gpu.uuid for gpu in gpus],
        "weft": VERSION.read_text().strip() if VERSION.exists() else version(),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "parts": {},
    }
    ends = time.monotonic() + asked.minutes * 60.0
    for place, name in enumerate(names):
        began = time.monotonic()
        until = began + (ends - began) / (len(names) - place)
        told: Found
        try:
            told = {"ok": True, "found": PARTS[name](machine, until)}
        except SkippedError as skipped:
            told = {"ok": True, "skipped": str(skipped)}
        except WrongError as wrong:
            told = {"ok": False, "why": str(wrong)}
        except Exception as error:  # a fault of ours in one part must not cost the others on a machine that is lent
            told = {"ok": False, "why": f"{type(error).__name__}: {error}"}
        report["parts"][name] = told | {"seconds": round(time.monotonic() - began, 1)}
        out.write(f"{name}: {_said(told)}\n")
        path = asked.out / REPORT  # after each part: a machine may go away
        path.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    out.write(f"{asked.out / REPORT}\n")
    return 0 if all(part["ok"] for part in report["parts"].values()) else 1


def _said(told: Found) -> str:
    if "skipped" in told:
        return f"skipped: {told['skipped']}"
    return "ok" if told["ok"] else str(told["why"])


def _minutes(text: str) -> float:
    minutes = float(text)
    if not 0 < minutes <= 120:
        raise argparse.ArgumentTypeError(f"expected up to 120 minutes, got {text}")
    return minutes


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
