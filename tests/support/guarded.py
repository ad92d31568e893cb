"""Executors with a short fence, jobs that tell by themselves when they ran, and the guard beside them."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support import executors
from tests.support.control_plane import ControlPlane
from tests.support.nats_server import NatsServer
from tests.support.runs import order, until
from weftd.executor.files.home import Home
from weftd.executor.guard.files import BEAT_BYTES, Beat, read_slot
from weftd.executor.guard.watch import end
from weftd.executor.runs import RunKey
from weftd.executor.runtime.process.records import holds

KEY = RunKey("job-1", 1, 0)
FENCE, GRACE, DRIFT, LEASE = 3.0, 1.0, 1.0, 6.0
SHORT = {
    "EXECUTOR_FENCE_SECONDS": str(FENCE),
    "EXECUTOR_FENCE_GRACE_MAX": str(GRACE),
    "EXECUTOR_DRIFT_SECONDS": str(DRIFT),
    "EXECUTOR_LEASE_SECONDS": str(LEASE),
    "EXECUTOR_SYNC_SECONDS": "0.5",
    "SCHEDULER_LEASE_SECONDS": str(LEASE),
}


def tracing(trace: Path, *, heeds: bool = True) -> tuple[str, ...]:
    """A job that tells by the clock of the boot when each epoch of it ran."""
    trap = "" if heeds else "trap '' TERM; "
    told = f'while read -r up idle </proc/uptime; do echo "$WEFT_EPOCH $up" >>{trace}; sleep 0.05; done'
    return ("sh", "-c", trap + told)


def spans(trace: Path) -> dict[int, tuple[float, float]]:
    """Epoch → when it first and last told of itself."""
    found: dict[int, tuple[float, float]] = {}
    for line in trace.read_text().splitlines() if trace.exists() else ():
        words = line.split()
        if len(words) == 2:  # the last line may be half written
            epoch, at = int(words[0]), float(words[1])
            first, last = found.get(epoch, (at, at))
            found[epoch] = (min(first, at), max(last, at))
    return found


def guard_pid(home: Path) -> int | None:
    """The guard of this home, while it lives."""
    beat = read_slot(home / "guard", BEAT_BYTES, Beat)
    return beat.pid if beat is not None and holds(beat.pid, str(home / "guard")) else None


def resident(pid: int) -> int:
    """How many bytes of memory a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def guarded_by(home: Path, *, other_than: int | None = None) -> Callable[[], bool]:
    def told() -> bool:
        pid = guard_pid(home)
        return pid is not None and pid != other_than

    return told


@asynccontextmanager
async def executor(server: NatsServer, home: Path, **settings: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """One whose fence falls soon; its guard ends with it."""
    soon = {name: value for name, value in SHORT.items() if name.startswith("EXECUTOR_")}
    try:
        async with executors.executor(server, home, **{**soon, **settings}) as process:
            yield process
    finally:
        end(Home(home))


async def runs_tracing(control: ControlPlane, trace: Path, *, heeds: bool = True) -> None:
    await control.want(order(command=tracing(trace, heeds=heeds), grace=0.5))
    await control.hears(KEY, "running")
    await until(lambda: spans(trace))
