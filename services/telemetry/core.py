"""Two readings make a sample. Pure: what was read, and when, is an argument."""

from collections.abc import Iterable

from msgspec import Struct

from libs.messages.signals import GpuSample, NodeSampled, RunSample
from services.telemetry.counters import part, rate
from services.telemetry.host import HostReading, host_sample
from services.telemetry.usage import RunReading


class Reading(Struct, frozen=True, kw_only=True):
    """All counters of the node at one moment."""

    host: HostReading
    runs: tuple[RunReading, ...] = ()


class Sampler:
    """Remembers the last reading; without one there are no rates yet, which are then unknown and not 0."""

    def __init__(self, *, node_id: str, pool: str) -> None:
        self._node_id = node_id
        self._pool = pool
        self._before: Reading | None = None

    def sampled(self, reading: Reading, gpus: tuple[GpuSample, ...], *, at: float) -> NodeSampled:
        """What happened since the reading before this one. `at`: seconds since the epoch, UTC."""
        before, self._before = self._before, reading
        return NodeSampled(
            node_id=self._node_id,
            pool=self._pool,
            at=at,
            host=host_sample(before.host if before else None, reading.host),
            gpus=gpus,
            runs=run_samples(before.runs if before else (), reading.runs),
        )


def run_samples(before: Iterable[RunReading], after: Iterable[RunReading]) -> tuple[RunSample, ...]:
    """One of each run that is there now, in order."""
    earlier = {_identity(reading): reading for reading in before}
    return tuple(
        run_sample(earlier.get(_identity(reading)), reading)
        for reading in sorted(after, key=lambda reading: reading.run.key)
    )


def _identity(reading: RunReading) -> tuple[str, int, int, int]:
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
        memory_used=after.memory_used,
        memory_limit=after.memory_limit,
        disk_read_rate=rate(old.disk.inbound, after.disk.inbound, seconds),
        disk_write_rate=rate(old.disk.outbound, after.disk.outbound, seconds),
        network_receive_rate=rate(old.network.inbound, after.network.inbound, seconds),
        network_send_rate=rate(old.network.outbound, after.network.outbound, seconds),
        cpu_pressure=rate(old.cpu_stalled, after.cpu_stalled, seconds),
        memory_pressure=rate(old.memory_stalled, after.memory_stalled, seconds),
        disk_pressure=rate(old.disk_stalled, after.disk_stalled, seconds),
    )
