"""Records of what was read: a run and its first process, a process, and the counters of a run and of the node.

The modules beside `thinking` fill them, and thinking compares them.
"""

from collections.abc import Mapping

from msgspec import Struct

from weft.cgroups.counters import Traffic


class FoundRun(Struct, frozen=True, kw_only=True):
    """One run and its first process. `cgroups`: its own folders by controller; None: those of its first process."""

    job_id: str
    epoch: int
    rank: int
    pid: int
    cgroups: Mapping[str, str] | None = None
    leads_session: bool = False  # its first process always leads a session: that tells a reused pid apart

    @property
    def key(self) -> tuple[str, int, int]:
        return (self.job_id, self.epoch, self.rank)


class Process(Struct, frozen=True):
    """One process of /proc. `ticks` and `major_faults`: its own and those of the children that it has reaped.

    `ended`: a zombie, which its parent has not reaped; until then its CPU time is counted here and nowhere else.
    """

    pid: int
    parent: int
    group: int
    session: int
    ticks: int
    pages: int
    ended: bool = False
    started: int = 0  # in ticks since the machine booted; it tells a reused pid apart
    major_faults: int = 0


class ThreadUse(Struct, frozen=True):
    """`busiest`: cores used by the thread that used most; `blocked`: the part of the threads in state D, 0–1."""

    busiest: float | None = None
    blocked: float | None = None


class RunReading(Struct, frozen=True, kw_only=True):
    """Counters of one run at one moment, `at` on a monotonic clock. CPU and stalled times in seconds."""

    run: FoundRun
    at: float
    source: str
    cpu_seconds: float | None = None
    cpus_limit: float | None = None
    periods: tuple[int, int] | None = None  # CPU periods in which it was throttled, and all periods
    threads: ThreadUse = ThreadUse()
    memory_used: int | None = None
    memory_limit: int | None = None
    memory_failures: int | None = None
    oom_kills: int | None = None
    major_faults: int | None = None
    disk: Traffic = Traffic()
    network: Traffic = Traffic()
    segments_resent: int | None = None
    cpu_stalled: float | None = None
    memory_stalled: float | None = None
    disk_stalled: float | None = None


class HostReading(Struct, frozen=True, kw_only=True):
    """Counters of the node at one moment, `at` on a monotonic clock. CPU and stalled times in seconds."""

    at: float
    cpus: int
    cpu_seconds: float | None
    memory_total: int
    memory_used: int
    disk_total: int
    disk_used: int
    disk: Traffic = Traffic()
    network: Traffic = Traffic()
    cpu_stalled: float | None = None
    memory_stalled: float | None = None
    disk_stalled: float | None = None
