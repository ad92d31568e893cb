"""The guard as a process: `python -m weftd.executor.guard HOME [--standing]`.

Its standard input is a pipe from its executor, and ends with it. The guard then stays for as long as runs are left; a
standing one, which another process started, stays for good. It exits with 3 if another guard holds the home.
"""

import fcntl
import os
import select
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path

import msgspec

from weftd.executor.files.home import Home
from weftd.executor.guard.containers import Containers
from weftd.executor.guard.files import (
    BEAT_BYTES,
    FENCED_BYTES,
    SYNCED_BYTES,
    Beat,
    Fenced,
    GuardOrders,
    SavedMemory,
    Slot,
    Synced,
    read_orders,
    read_slot,
)
from weftd.executor.guard.processes import Processes
from weftd.executor.guard.thinking import Guard
from weftd.executor.machine.boot import boot_clock
from weftd.executor.runs import RunKey

TICK_SECONDS = 0.5
FALLEN_TICK_SECONDS = 0.1
TAKE_SECONDS_MAX = 5.0
STATUS_NO_ORDERS = 2
STATUS_TAKEN = 3


class Life:
    """One guard from its start to its end."""

    def __init__(self, home: Home, orders: GuardOrders, slot: Slot, *, standing: bool) -> None:
        self._home, self._orders, self._slot, self._standing = home, orders, slot, standing
        self._boot = orders.boot_id
        self._fenced = Slot(home.root / "fenced", FENCED_BYTES)
        kept = self._fenced.read(Fenced)
        self._noted = frozenset(kept.runs if kept and kept.boot_id == self._boot else ())
        self._guard = Guard(orders.timings, began=boot_clock(), ended=self._noted)
        self._host: Processes | Containers = Containers(home, orders) if orders.runtime == "docker" else Processes(home)
        self._synced_at: float | None = None
        self._orphaned = False  # its executor is gone
        self._busy = False  # a run is to be ended

    def run(self) -> None:
        """Run until nothing is left to guard, or a standing guard has new orders. It beats only if it could look."""
        while not (self._standing and read_orders(self._home.root / "guard.json") != self._orders):
            now = boot_clock()
            try:
                over = self._look(now)
            except Exception:
                say(traceback.format_exc())
            else:
                self._beat(now)
                if over:
                    break
            self._pause(boot_clock())
        self._fenced.close()

    def _look(self, now: float) -> bool:
        """End the runs that must end. True when nothing is left to guard."""
        synced_at, stops = self._memory()
        falls_at = self._guard.falls_at(synced_at)
        fallen = self._orders.fencing and now > falls_at
        needed = fallen or self._guard.ended or self._orphaned
        runs = self._host.look() if needed else []
        if needed:
            known = {str(run.key) for run in runs} | self._host.known()
            self._guard.keep({key for key in self._guard.ended if str(key) in known})
        actions = self._guard.decide(runs, synced_at=synced_at, stops=stops, now=now) if self._orders.fencing else []
        self._note()
        for action in actions:
            say(f"{type(action).__name__.lower()} {action.key}: the last good sync was sent {_ago(synced_at, now)}")
            self._host.carry_out(action)
        self._host.follow(self._guard.ended)
        self._busy = bool(runs) and fallen
        last = falls_at + self._orders.timings.grace_max
        return self._orphaned and not self._standing and not runs and (self._host.sure or now > last)

    def _memory(self) -> tuple[float | None, dict[RunKey, float]]:
        """The last good sync and the runs that the executor has asked to end, from the newest readable file."""
        times = [self._synced_at]
        synced = read_slot(self._home.root / "synced", SYNCED_BYTES, Synced)
        if synced is not None and synced.boot_id == self._boot:
            times.append(synced.synced_at)
        stops: dict[RunKey, float] = {}
        try:
            kept = msgspec.json.decode(self._home.state.read_bytes(), type=SavedMemory)
        except (OSError, msgspec.DecodeError):
            kept = None
        if kept is not None and kept.boot_id == self._boot:
            times.append(kept.memory.synced_at)
            stops = {stop.key: stop.kill_at for stop in kept.memory.stops}
        self._synced_at = max((at for at in times if at is not None), default=None)
        return self._synced_at, stops

    def _note(self) -> None:
        """Note the stops before the kill, for the executor's next report; if the write fails, the runs end anyway."""
        if (ended := self._guard.ended) != self._noted:
            try:
                self._fenced.write(Fenced(boot_id=self._boot, runs=tuple(sorted(ended))))
                self._noted = ended
            except OSError as error:
                say(f"cannot record the runs that it ended: {error}")

    def _beat(self, now: float) -> None:
        try:
            self._slot.write(Beat(pid=os.getpid(), at=now, stays=self._orphaned, standing=self._standing))
        except OSError as error:
            say(f"cannot beat: {error}")

    def _pause(self, now: float) -> None:
        until_it_falls = self._guard.falls_at(self._synced_at) - now
        seconds = FALLEN_TICK_SECONDS if self._busy else TICK_SECONDS
        if 0 < until_it_falls < seconds:
            seconds = until_it_falls + 0.01
        if self._standing or self._orphaned:
            time.sleep(seconds)
        elif select.select([0], [], [], seconds)[0]:
            self._orphaned = not os.read(0, 64)


def main(arguments: list[str]) -> int:
    home = Home(Path(arguments[0]))
    standing = "--standing" in arguments
    slot = Slot(home.root / "guard", BEAT_BYTES)
    if not _take(slot, seconds_max=float("inf") if standing else TAKE_SECONDS_MAX):
        return STATUS_TAKEN
    _spare_from_oom()
    while True:
        orders = read_orders(home.root / "guard.json")
        if orders is not None:
            Life(home, orders, slot, standing=standing).run()
        if not standing:
            return 0 if orders is not None else STATUS_NO_ORDERS
        time.sleep(TICK_SECONDS)


def _take(slot: Slot, *, seconds_max: float) -> bool:
    deadline = time.monotonic() + seconds_max
    while True:
        try:
            fcntl.flock(slot.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        else:
            return True


def _spare_from_oom() -> None:
    """Protect the guard from the OOM killer, if we may: a host that runs out of memory needs its guard."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("-900")


def say(line: str) -> None:
    """Write a line to stderr, if that works."""
    with suppress(OSError):
        os.write(2, f"{time.strftime('%Y-%m-%dT%H:%M:%S')} guard: {line}\n".encode())


def _ago(synced_at: float | None, now: float) -> str:
    return "never" if synced_at is None else f"{now - synced_at:.1f} s ago"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
