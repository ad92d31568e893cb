"""A run's use, added up over its processes: for runs without a cgroup, and for measures that its cgroup lacks."""

import os
from collections.abc import Iterable, Sequence

from msgspec import Struct

from weft.cgroups import places
from weft.cgroups.counters import Traffic, number
from weft.cgroups.files import read_text
from weftd.telemetry.files import names_in
from weftd.telemetry.thinking.readings import Process

PROC = "/proc"
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessUse(Struct, frozen=True, kw_only=True):
    cpu_seconds: float
    memory_used: int
    major_faults: int


def parse_process(stat: str) -> Process | None:
    """Parse /proc/<pid>/stat. A program's name may hold anything, also parentheses, so count from the last one."""
    head, closing, rest = stat.rpartition(")")
    fields = rest.split()
    if not closing or len(fields) < 22:
        return None
    try:
        return Process(
            pid=int(head.partition(" ")[0]),
            parent=int(fields[1]),
            group=int(fields[2]),
            session=int(fields[3]),
            ticks=sum(int(field) for field in fields[11:15]),
            pages=int(fields[21]),
            ended=fields[0] in ("Z", "X"),
            started=int(fields[19]),
            major_faults=int(fields[9]) + int(fields[10]),
        )
    except ValueError:
        return None


def read_process(pid: int, proc: str = PROC) -> Process | None:
    stat = read_text(f"{proc}/{pid}/stat")
    return parse_process(stat) if stat else None


def started_at(pid: int, proc: str = PROC) -> float | None:
    """The seconds from the host's boot to the start of a process; None if it has ended."""
    found = read_process(pid, proc)
    return None if found is None or found.ended else found.started / TICKS_PER_SECOND


def read_groups(pid: int, proc: str = PROC) -> dict[str, str]:
    """The control groups of a process by controller; none if the process cannot be seen."""
    return places.memberships(read_text(f"{proc}/{pid}/cgroup") or "")


def read_all(proc: str) -> list[Process]:
    """Every process of the host: some 10 microseconds each, so only for hosts that give runs no cgroups."""
    found = (read_process(int(name), proc) for name in names_in(proc) if name.isdecimal())
    return [process for process in found if process is not None]


def members(everyone: Iterable[Process], pid: int) -> list[Process]:
    """The processes of the run with the first process `pid`: its session, its group, and all their descendants."""
    mine: dict[int, Process] = {}
    children: dict[int, list[Process]] = {}
    for process in everyone:
        children.setdefault(process.parent, []).append(process)
        if pid in (process.pid, process.session, process.group):
            mine[process.pid] = process
    waiting = list(mine)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child.pid not in mine:
                mine[child.pid] = child
                waiting.append(child.pid)
    return [mine[number] for number in sorted(mine)]


def processes_use(processes: Sequence[Process]) -> ProcessUse:
    """The use of all processes together. Resident memory is added up: a shared page counts for each process."""
    return ProcessUse(
        cpu_seconds=sum(process.ticks for process in processes) / TICKS_PER_SECOND,
        memory_used=sum(process.pages for process in processes) * _PAGE_BYTES,
        major_faults=sum(process.major_faults for process in processes),
    )


def process_traffic(io: str) -> Traffic:
    """Bytes to and from disks, from /proc/<pid>/io. A parent's include those of the children that it has reaped."""
    numbers = dict(line.partition(": ")[::2] for line in io.splitlines())
    if not {"read_bytes", "write_bytes"} <= numbers.keys():
        return Traffic()
    return Traffic(number(numbers["read_bytes"]), number(numbers["write_bytes"]))


def read_traffic(pids: Iterable[int], proc: str) -> Traffic:
    """The traffic of all; unknown if we may not read it for any of them."""
    return Traffic.sum([process_traffic(read_text(f"{proc}/{pid}/io") or "") for pid in pids])
