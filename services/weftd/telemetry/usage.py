"""Reads the use of each run so far: from its cgroup if it has one, else from its processes."""

import time
from collections.abc import Callable, Iterable
from functools import cached_property

from msgspec import Struct

from weft.cgroups import places
from weft.cgroups.counters import Traffic
from weft.cgroups.files import KeptOpen, read_text
from weft.cgroups.places import Mount
from weft.cgroups.use import cgroup_use
from weftd.telemetry.counters import interfaces, segments_resent
from weftd.telemetry.files import link_of
from weftd.telemetry.processes import (
    ProcessUse,
    members,
    processes_use,
    read_all,
    read_groups,
    read_process,
    read_traffic,
)
from weftd.telemetry.thinking.readings import FoundRun, Process, RunReading
from weftd.telemetry.threads import ThreadWatch, threads_of

RENEW_SECONDS = 10.0  # a run that just started may still move to its cgroups and its network


class _Place(Struct, frozen=True):
    """The facts of a run that seldom change. `started`: when its first process started, to tell a reused pid apart."""

    started: int
    found_at: float
    folders: places.Folders
    own_network: bool


class UsageReader:
    """Reads runs, and caches the facts that never change of this host and seldom of its runs."""

    def __init__(self, *, proc: str = "/proc", clock: Callable[[], float] = time.monotonic) -> None:
        self._proc = proc
        self._clock = clock
        self._mounts: dict[str, Mount] = places.mounts(read_text(f"{proc}/self/mountinfo") or "")
        own = (link_of(f"{proc}/self/ns/net"), link_of(f"{proc}/1/ns/net"))
        self._host_networks = frozenset(network for network in own if network)
        self._places: dict[int, _Place] = {}
        self._files = KeptOpen()
        self._threads = ThreadWatch(proc)

    def read(self, runs: Iterable[FoundRun]) -> list[RunReading]:
        """A reading of each run whose first process lives, in the order of `runs`."""
        runs = list(runs)
        everyone = _Everyone(self._proc)
        self._threads.begin({(run.key, run.pid) for run in runs})
        turns = sorted(range(len(runs)), key=lambda place: self._threads.looked_at((runs[place].key, runs[place].pid)))
        found = {place: self._reading(runs[place], everyone) for place in turns}
        readings = [reading for place in range(len(runs)) if (reading := found[place]) is not None]
        self._places = {reading.run.pid: self._places[reading.run.pid] for reading in readings}
        self._files.sweep()
        return readings

    def _reading(self, run: FoundRun, everyone: "_Everyone") -> RunReading | None:
        first = read_process(run.pid, self._proc)
        if first is None or first.ended or (run.leads_session and first.session != run.pid):
            return None  # the process ended; its pid may belong to another process now
        at = self._clock()
        place = self._places[run.pid] = self._place(run, first, at)
        group = cgroup_use(place.folders, self._files.read)
        inside: list[Process] = []
        use: ProcessUse | None = None
        if group.cpu_seconds is None or group.memory_used is None or group.disk.inbound is None:
            inside = self._processes(run, place.folders, everyone)
            use = processes_use(inside)

        def threads() -> list[int]:
            found = places.threads_in(place.folders)
            if found:
                return found
            return threads_of([one.pid for one in inside or self._processes(run, place.folders, everyone)], self._proc)

        sources = set(group.sources)
        cpu_seconds, memory_used, major_faults = group.cpu_seconds, group.memory_used, group.major_faults
        if use and (cpu_seconds is None or memory_used is None):
            sources.add("processes")
            cpu_seconds = use.cpu_seconds if cpu_seconds is None else cpu_seconds
            if memory_used is None:
                memory_used, major_faults = use.memory_used, use.major_faults
        pids = [process.pid for process in inside]
        return RunReading(
            run=run,
            at=at,
            source="+".join(sorted(sources)),
            cpu_seconds=cpu_seconds,
            cpus_limit=group.cpus_limit,
            periods=group.periods,
            threads=self._threads.use((run.key, run.pid), threads, at=at),
            memory_used=memory_used,
            memory_limit=group.memory_limit,
            memory_failures=group.memory_failures,
            oom_kills=group.oom_kills,
            major_faults=major_faults,
            disk=group.disk if group.disk.inbound is not None else read_traffic(pids, self._proc),
            network=self._network(run.pid) if place.own_network else Traffic(),
            segments_resent=self._resent(run.pid) if place.own_network else None,
            cpu_stalled=group.cpu_stalled,
            memory_stalled=group.memory_stalled,
            disk_stalled=group.disk_stalled,
        )

    def _place(self, run: FoundRun, first: Process, at: float) -> _Place:
        known = self._places.get(run.pid)
        if known is not None and known.started == first.started and at < known.found_at + RENEW_SECONDS:
            return known
        # Only a run with its own network has a known traffic; in a shared network the bytes cannot be attributed.
        network = link_of(f"{self._proc}/{run.pid}/ns/net")
        own_network = network is not None and network not in self._host_networks
        return _Place(first.started, at, self._folders(run), own_network)

    def _folders(self, run: FoundRun) -> places.Folders:
        if run.cgroups is not None:
            return run.cgroups
        return places.folders(read_groups(run.pid, self._proc), self._mounts)

    def _processes(self, run: FoundRun, where: places.Folders, everyone: "_Everyone") -> list[Process]:
        pids = places.processes_in(where)
        if pids:
            found = (read_process(pid, self._proc) for pid in pids)
            return [process for process in found if process is not None]
        return members(everyone.processes, run.pid)

    def _network(self, pid: int) -> Traffic:
        seen = interfaces(read_text(f"{self._proc}/{pid}/net/dev"))
        return Traffic.sum([traffic for name, traffic in seen if name != "lo"])

    def _resent(self, pid: int) -> int | None:
        return segments_resent(read_text(f"{self._proc}/{pid}/net/snmp"))


class _Everyone:
    """All processes of the host, read once a run needs them."""

    def __init__(self, proc: str) -> None:
        self._proc = proc

    @cached_property
    def processes(self) -> list[Process]:
        return read_all(self._proc)
