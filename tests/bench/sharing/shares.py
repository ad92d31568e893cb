"""Saturated jobs: what each has of the GPU in every second, what it costs, and how soon a change of terms holds."""

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.bench.figures import Aim, quantile
from tests.bench.sharing.rig import Ledger, Rig, ready

SPLITS = ((100, 900), (300, 700), (500, 500), (200, 300, 500))
POINTS = 2.0
TOTAL_PERCENT = 97.0
SETTLE_SECONDS = 1.0
KERNEL_US = 1_000
GRAPH_KERNELS, GRAPH_KERNEL_US = 10, 100


class Second(NamedTuple):
    """One second: when it ended, the part of each job in all device time used, and the part of it that was used."""

    end: float
    parts: tuple[float, ...]
    total: float


def seconds_of(found: Sequence[Ledger], pids: Sequence[int], *, length: float = 1.0) -> Iterator[Second]:
    """Every stretch of that length between two looks at the ledger."""
    for first in found:
        last = next((later for later in found if later.at >= first.at + length - 0.01), None)
        if last is None:
            return
        busy = last.busy - first.busy
        parts = tuple((last.of[pid] - first.of[pid]) / max(busy, 1e-9) for pid in pids)
        yield Second(last.at, parts, busy / (last.at - first.at))


def saturated(rig: Rig, *, quick: bool) -> dict[str, Aim]:
    """The worst error of any job in any second, in points, and the least total of a run."""
    errors: dict[str, list[float]] = {"launches": [], "graphs": []}
    totals: list[float] = []
    cpu: list[float] = []
    for kind in errors:
        for split in SPLITS[:: 2 if quick else 1]:
            seconds, used = _split(rig, split, graphs=kind == "graphs", seconds=4 if quick else 10)
            worst = [max(abs(part - due / 1000) for part, due in zip(s.parts, split, strict=True)) for s in seconds]
            errors[kind].append(max(worst) * 100)
            totals.append(sum(s.total for s in seconds) / len(seconds) * 100)
            cpu.append(used)
            name = f"{kind} at {'/'.join(f'{due / 1000:g}' for due in split)}"
            print(
                f"emulated, {name}: off by {max(worst) * 100:.1f} points in the worst second, "
                f"{quantile(worst, 0.5) * 100:.1f} in the median; {totals[-1]:.1f} % used; "
                f"arbiter {used * 100:.1f} % of a core"
            )
    return {
        "emulated.share_error_points_launches": Aim(value=round(max(errors["launches"]), 2), aim=POINTS),
        "emulated.share_error_points_graphs": Aim(value=round(max(errors["graphs"]), 2), aim=POINTS),
        "emulated.total_percent": Aim(value=round(min(totals), 2), aim=TOTAL_PERCENT, at_least=True),
    }


def _split(rig: Rig, split: Sequence[int], *, graphs: bool, seconds: float) -> tuple[list[Second], float]:
    for number, request in enumerate(split):
        rig.share(f"s{number}", request)
    kind, kernel, count = ("graph", GRAPH_KERNEL_US, GRAPH_KERNELS) if graphs else ("saturate", KERNEL_US, 1)
    jobs = [rig.job(f"s{number}", kind, kernel, count=count) for number in range(len(split))]
    ready(*jobs)
    time.sleep(SETTLE_SECONDS)
    began = rig.arbiter_cpu_seconds()
    found = list(seconds_of(rig.watch(seconds), [job.pid for job in jobs]))
    cpu = (rig.arbiter_cpu_seconds() - began) / seconds
    rig.clear()
    return found, cpu


def changes(rig: Rig, *, quick: bool) -> dict[str, Aim]:
    """A split that is turned round while both jobs run: how long until the last half second is at its target."""
    rig.share("a", 700)
    rig.share("b", 300)
    jobs = rig.job("a", "saturate", KERNEL_US), rig.job("b", "saturate", KERNEL_US)
    ready(*jobs)
    time.sleep(SETTLE_SECONDS)
    took: list[float] = []
    for number in range(3 if quick else 10):
        due = 200 if number % 2 == 0 else 700
        at = time.monotonic()
        rig.share("a", due)
        rig.share("b", 1000 - due)
        found = seconds_of(rig.watch(2.0, step=0.02), [job.pid for job in jobs], length=0.5)
        reached = next((s.end for s in found if abs(s.parts[0] - due / 1000) <= POINTS / 100), at + 10)
        took.append(reached - at)
    print(f"emulated, resized while it runs: {quantile(took, 0.5):.2f} s, at most {max(took):.2f} s")
    held = _holds(rig, jobs[0].pid, 5 if quick else 30)
    rig.clear()
    print(f"emulated, hold: last launch {quantile(held, 0.5):.2f} ms after it, at most {max(held):.2f} ms")
    return {
        "emulated.resize_seconds": Aim(value=round(max(took), 3), aim=1.0),
        "emulated.hold_last_launch_ms_p50": Aim(value=round(quantile(held, 0.5), 2), aim=1.0),
    }


def _holds(rig: Rig, pid: int, times: int) -> list[float]:
    """How long after the flag of a hold is seen in the page the job still launched, in ms.

    The use page counts launches; the last time at which the count moved is the last launch.
    """
    found: list[float] = []
    for _ in range(times):
        count = rig.launches("a", pid)
        time.sleep(0.1)
        assert rig.launches("a", pid) > count, "the job launches nothing"
        rig.share("a", 700, hold=True)
        while not rig.is_held("a"):
            time.sleep(0.0001)
        flagged = last = time.monotonic()
        count = rig.launches("a", pid)
        while time.monotonic() < flagged + 0.05:
            if (now := rig.launches("a", pid)) != count:
                count, last = now, time.monotonic()
        found.append((last - flagged) * 1000)
        rig.share("a", 700)
        time.sleep(0.2)
    return found


def lending(rig: Rig, *, quick: bool) -> dict[str, Aim]:
    """An owner that computes 40 ms of every 250 ms; the other job may use the rest."""
    rig.share("owner", 700)
    rig.share("other", 300)
    other = rig.job("other", "saturate", KERNEL_US)
    ready(other)
    owner = rig.job("owner", "burst", KERNEL_US, count=40, every_us=250_000)
    ready(owner)
    time.sleep(SETTLE_SECONDS)
    found = rig.watch(4.0 if quick else 15.0)
    first, last = found[0], found[-1]
    passed = last.at - first.at
    left = passed - (last.of[owner.pid] - first.of[owner.pid])
    used = (last.of[other.pid] - first.of[other.pid]) / left * 100
    rig.clear()
    print(f"emulated, what an idle owner leaves: {used:.1f} % is used")
    return {"emulated.lent_used_percent": Aim(value=round(used, 1), aim=90.0, at_least=True)}
