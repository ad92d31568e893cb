"""Makes a sample from two readings. Pure: the readings and their times are arguments."""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from msgspec import Struct, structs

from weft.messages.signals import GpuSample, HostSample, NodeSampled, RunSample
from weftd.telemetry.counters import part, rate
from weftd.telemetry.thinking.readings import HostReading, RunReading
from weftd.telemetry.thinking.shares import RunKey, ShareRates, ShareReading

_MEASURES = ("cpu_seconds", "memory_used", "periods", "memory_failures", "oom_kills", "cpu_stalled")
"""The measures that stay available while a run runs."""

_Identity: TypeAlias = tuple[str, int, int, int]


class NodeCounters(Struct, frozen=True, kw_only=True):
    """All counters of the node at one moment."""

    host: HostReading
    runs: tuple[RunReading, ...] = ()
    shares: Mapping[RunKey, ShareReading] = {}


class Sampler:
    """Keeps the last reading; until there is one, rates are unknown, and not 0.

    `boot`: a new one each time telemetry starts. `lost`: how many known measures of runs could not be read any more,
    such as those of a cgroup that vanished.
    """

    def __init__(self, *, node_id: str, pool: str, boot: str = "") -> None:
        self._node_id = node_id
        self._pool = pool
        self._boot = boot
        self._seq = 0
        self._before: NodeCounters | None = None
        self._shares = ShareRates()
        self.lost = 0

    def sampled(self, reading: NodeCounters, gpus: tuple[GpuSample, ...], *, at: float) -> NodeSampled:
        """The sample since the last reading. `at`: seconds since the epoch, UTC."""
        before, self._before = self._before, reading
        runs_before = {_identity(run): run for run in before.runs} if before else {}
        self.lost += sum(
            measures_lost(runs_before[_identity(run)], run) for run in reading.runs if _identity(run) in runs_before
        )
        self._seq += 1
        shares = self._shares.sampled(reading.shares)
        return NodeSampled(
            node_id=self._node_id,
            pool=self._pool,
            at=at,
            host=host_sample(before.host if before else None, reading.host),
            gpus=gpus,
            runs=tuple(
                structs.replace(run, share=shares.get((run.job_id, run.epoch, run.rank)))
                for run in run_samples(runs_before, reading.runs)
            ),
            boot=self._boot,
            seq=self._seq,
        )


def host_sample(before: HostReading | None, after: HostReading) -> HostSample:
    """The node's use between two readings; without the first, only the values that need one reading."""
    seconds = after.at - before.at if before else 0.0
    old = before or after
    return HostSample(
        cpus=float(after.cpus),
        cpus_used=rate(old.cpu_seconds, after.cpu_seconds, seconds),
        memory_total=after.memory_total,
        memory_used=after.memory_used,
        disk_total=after.disk_total,
        disk_used=after.disk_used,
        disk_read_rate=rate(old.disk.inbound, after.disk.inbound, seconds),
        disk_write_rate=rate(old.disk.outbound, after.disk.outbound, seconds),
        network_receive_rate=rate(old.network.inbound, after.network.inbound, seconds),
        network_send_rate=rate(old.network.outbound, after.network.outbound, seconds),
        cpu_pressure=rate(old.cpu_stalled, after.cpu_stalled, seconds),
        memory_pressure=rate(old.memory_stalled, after.memory_stalled, seconds),
        disk_pressure=rate(old.disk_stalled, after.disk_stalled, seconds),
    )


def run_samples(before: Mapping[_Identity, RunReading], after: Iterable[RunReading]) -> tuple[RunSample, ...]:
    """One sample of each run that is there now, in order."""
    return tuple(
        run_sample(before.get(_identity(reading)), reading)
        for reading in sorted(after, key=lambda reading: reading.run.key)
    )


def measures_lost(before: RunReading, after: RunReading) -> int:
    return sum(getattr(before, name) is not None and getattr(after, name) is None for name in _MEASURES)


def _identity(reading: RunReading) -> _Identity:
    return (*reading.run.key, reading.run.pid)


def run_sample(before: RunReading | None, after: RunReading) -> RunSample:
    old = before if before is not None and before.source == after.source else after
    seconds = after.at - old.at
    return RunSample(
        job_id=after.run.job_id,
        epoch=after.run.epoch,
        rank=after.run.rank,
        source=after.source,
        cpus_used=rate(old.cpu_seconds, after.cpu_seconds, seconds),
        cpu_throttled=part(old.periods, after.periods),
        cpus_limit=after.cpus_limit,
        busiest_thread=after.threads.busiest,
        blocked=after.threads.blocked,
        memory_used=after.memory_used,
        memory_limit=after.memory_limit,
        memory_failures_rate=rate(old.memory_failures, after.memory_failures, seconds),
        oom_kills=after.oom_kills,
        major_faults_rate=rate(old.major_faults, after.major_faults, seconds),
        network_resent_rate=rate(old.segments_resent, after.segments_resent, seconds),
        disk_read_rate=rate(old.disk.inbound, after.disk.inbound, seconds),
        disk_write_rate=rate(old.disk.outbound, after.disk.outbound, seconds),
        network_receive_rate=rate(old.network.inbound, after.network.inbound, seconds),
        network_send_rate=rate(old.network.outbound, after.network.outbound, seconds),
        cpu_pressure=rate(old.cpu_stalled, after.cpu_stalled, seconds),
        memory_pressure=rate(old.memory_stalled, after.memory_stalled, seconds),
        disk_pressure=rate(old.disk_stalled, after.disk_stalled, seconds),
    )
