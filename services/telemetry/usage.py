"""Reads what each run has used so far: from its cgroup where it has one, else from its processes."""

import time
from collections.abc import Callable, Iterable
from functools import cached_property

from msgspec import Struct

from services.telemetry import cgroups
from services.telemetry.cgroups import CgroupUse, Mount, cgroup_use
from services.telemetry.counters import Traffic, interfaces
from services.telemetry.files import link_of, read_text
from services.telemetry.processes import (
    Process,
    ProcessUse,
    members,
    processes_use,
    read_all,
    read_process,
    read_traffic,
)
from services.telemetry.runs import FoundRun


class RunReading(Struct, frozen=True, kw_only=True):
    """Counters of one run at one moment, `at` on a clock that does not jump. CPU and stalled times in seconds."""

    run: FoundRun
    at: float
    source: str
    cpu_seconds: float | None = None
    periods: tuple[int, int] | None = None  # those in which it was held back, and all
    memory_used: int | None = None
    memory_limit: int | None = None
    disk: Traffic = Traffic()
    network: Traffic = Traffic()
    cpu_stalled: float | None = None
    memory_stalled: float | None = None
    disk_stalled: float | None = None


class UsageReader:
    """Knows what of this host does not change while it runs."""

    def __init__(self, *, proc: str = "/proc", clock: Callable[[], float] = time.monotonic) -> None:
        self._proc = proc
        self._clock = clock
        self._mounts: dict[str, Mount] = cgroups.mounts(read_text(f"{proc}/self/mountinfo") or "")
        own = (link_of(f"{proc}/self/ns/net"), link_of(f"{proc}/1/ns/net"))
        self._host_networks = frozenset(network for network in own if network)

    def read(self, runs: Iterable[FoundRun]) -> list[RunReading]:
        """Of each run whose first process lives."""
        everyone = _Everyone(self._proc)
        readings = (self._reading(run, everyone) for run in runs)
        return [reading for reading in readings if reading is not None]

    def _reading(self, run: FoundRun, everyone: "_Everyone") -> RunReading | None:
        first = read_process(run.pid, self._proc)
        if first is None or first.ended or (run.leads_session and first.session != run.pid):
            return None  # it ended; perhaps its number is somebody else's by now
        where = self._folders(run)
        group = cgroup_use(where)
        pids: list[int] = []
        use: ProcessUse | None = None
        if group.cpu_seconds is None or group.memory_used is None or group.disk.inbound is None:
            processes = self._processes(run, where, everyone)
            pids = [process.pid for process in processes]
            use = processes_use(processes)
        return self._put_together(run, group, use, pids)

    def _put_together(self, run: FoundRun, group: CgroupUse, use: ProcessUse | None, pids: list[int]) -> RunReading:
        sources = set(group.sources)
        cpu_seconds, memory_used = group.cpu_seconds, group.memory_used
        if use and (cpu_seconds is None or memory_used is None):
            sources.add("processes")
            cpu_seconds = use.cpu_seconds if cpu_seconds is None else cpu_seconds
            memory_used = use.memory_used if memory_used is None else memory_used
        return RunReading(
            run=run,
            at=self._clock(),
            source="+".join(sorted(sources)),
            cpu_seconds=cpu_seconds,
            periods=group.periods,
            memory_used=memory_used,
            memory_limit=group.memory_limit,
            disk=group.disk if group.disk.inbound is not None else read_traffic(pids, self._proc),
            network=self._network(run.pid),
            cpu_stalled=group.cpu_stalled,
            memory_stalled=group.memory_stalled,
            disk_stalled=group.disk_stalled,
        )

    def _folders(self, run: FoundRun) -> cgroups.Folders:
        if run.cgroups is not None:
            return run.cgroups
        paths = cgroups.memberships(read_text(f"{self._proc}/{run.pid}/cgroup") or "")
        return cgroups.folders(paths, self._mounts)

    def _processes(self, run: FoundRun, where: cgroups.Folders, everyone: "_Everyone") -> list[Process]:
        pids = cgroups.processes_in(where)
        if pids:
            found = (read_process(pid, self._proc) for pid in pids)
            return [process for process in found if process is not None]
        return members(everyone.processes, run.pid)

    def _network(self, pid: int) -> Traffic:
        """Only of a run that has a network of its own; of a shared one nobody can tell whose the bytes are."""
        network = link_of(f"{self._proc}/{pid}/ns/net")
        if network is None or network in self._host_networks:
            return Traffic()
        seen = interfaces(read_text(f"{self._proc}/{pid}/net/dev"))
        return Traffic.sum([traffic for name, traffic in seen if name != "lo"])


class _Everyone:
    """All processes of the host, read when the first run needs them."""

    def __init__(self, proc: str) -> None:
        self._proc = proc

    @cached_property
    def processes(self) -> list[Process]:
        return read_all(self._proc)
