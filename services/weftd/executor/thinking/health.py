"""The signs of sickness in the samples of this node's telemetry."""

from collections.abc import Collection

from weft.health.catalogue import (
    DISK_FILLS,
    DISK_FULL,
    DRAIN_WANTED,
    DRIVER_HANGS,
    ECC_UNCORRECTED,
    LINKS_WANTED,
    OFF_BUS,
    REBOOT_WANTED,
    REMAP_FAILED,
    REMAP_PENDING,
    RESET_WANTED,
    code_of_xid,
    verdict_of,
)
from weft.messages.nodes import XIDS_MAX, GpuSigns, NodeSigns
from weft.messages.signals import GpuSample, HostSample, NodeSampled
from weftd.executor.runs import RunKey
from weftd.executor.thinking.trends import GpuTrends

SAMPLE_SECONDS_MAX = 2.0  # the end of a run waits for so long for a sample, which comes each second
HANG_SECONDS = 30.0  # for so long no GPU can be read before the driver counts as hung
DISK_FILLS_PART, DISK_FULL_PART, DISK_SECONDS = 0.95, 0.99, 30.0
RECOVERIES = {1: RESET_WANTED, 2: REBOOT_WANTED, 3: LINKS_WANTED, 4: DRAIN_WANTED}  # NVML's recovery actions


class SignWatch:
    """Keeps what one sample alone does not show: for how long the driver hangs, or the disk is full, and the trends of
    each GPU.

    A GPU that cannot be read fell off the bus only if others of its node can be read: else it is the driver.
    """

    def __init__(self) -> None:
        self.signs: NodeSigns | None = None
        self._sampled_at: float | None = None  # by the time of day of this node
        self._heard_at = 0.0  # on the clock that never jumps, as the ends
        self._ends: dict[RunKey, float] = {}  # when each run that failed was asked about first
        self._silent_since: float | None = None
        self._trends: dict[str, GpuTrends] = {}  # by GPU
        self._full_since: dict[str, float] = {}

    def see(self, told: NodeSampled, now: float, held: Collection[int] = ()) -> bool:
        """Take in a sample; True if the signs are other ones than before. `now` is on a clock that never jumps; `held`:
        the GPUs of runs."""
        self._sampled_at, self._heard_at = told.at, now
        unread = [gpu for gpu in told.gpus if gpu.problem]
        all_unread = bool(told.gpus) and len(unread) == len(told.gpus)
        if not all_unread:
            self._silent_since = None
        elif self._silent_since is None or told.at < self._silent_since:
            self._silent_since = told.at
        levels = self._disk(told.host, now)
        if self._silent_since is not None and told.at - self._silent_since >= HANG_SECONDS:
            levels[DRIVER_HANGS] = HANG_SECONDS
        found = []
        for gpu in told.gpus:
            trends = self._trends.setdefault(gpu.uuid, GpuTrends())
            lasting = trends.see(gpu, at=told.at, now=now, held=gpu.index in held)
            found.append(_of(gpu, lasting, off_bus=bool(gpu.problem) and not all_unread))
        gpus = tuple(each for each in found if each.xids or each.levels or each.resets)
        before, self.signs = self.signs, NodeSigns(boot=told.boot, gpus=gpus, levels=levels)
        return self.signs != before

    def awaits_sample(self, key: RunKey, ended_at: float | None, now: float) -> bool:
        """May the next sample show that a run that failed did so for its GPU? It is waited for if samples come, and for
        SAMPLE_SECONDS_MAX at most: the job would be charged for the failure if the end of its run were reported first.
        `ended_at` is by the time of day of this node."""
        if ended_at is None or self._sampled_at is None or self._sampled_at >= ended_at:
            return False
        first = self._ends.setdefault(key, now)
        return now - first < SAMPLE_SECONDS_MAX and now - self._heard_at < SAMPLE_SECONDS_MAX

    def keep(self, keys: Collection[RunKey]) -> None:
        """Forget the ends of other runs."""
        self._ends = {key: at for key, at in self._ends.items() if key in keys}

    def _disk(self, host: HostSample, now: float) -> dict[str, float]:
        """The signs of a disk that has been almost full, or full, for DISK_SECONDS."""
        part = host.disk_used / host.disk_total if host.disk_total else 0.0
        found: dict[str, float] = {}
        for name, most in ((DISK_FILLS, DISK_FILLS_PART), (DISK_FULL, DISK_FULL_PART)):
            if part < most:
                self._full_since.pop(name, None)
            elif now - self._full_since.setdefault(name, now) >= DISK_SECONDS:
                found[name] = most
        return found


def _of(gpu: GpuSample, lasting: dict[str, float], *, off_bus: bool) -> GpuSigns:
    there: dict[str, float] = {
        OFF_BUS: float(off_bus),
        ECC_UNCORRECTED: float(gpu.ecc_uncorrected_volatile or 0),
        REMAP_FAILED: float(gpu.row_remap_failed or False),
        REMAP_PENDING: float(gpu.row_remap_pending or False),
    }
    if (wanted := RECOVERIES.get(gpu.recovery_action or 0)) is not None:
        there[wanted] = float(gpu.recovery_action or 0)
    xids = {xid: count for xid, count in gpu.xid_errors.items() if verdict_of(code_of_xid(xid)) is not None}
    return GpuSigns(
        index=gpu.index,
        xids=dict(sorted(xids.items())[:XIDS_MAX]),
        resets=gpu.resets,
        levels={name: number for name, number in there.items() if number} | lasting,
        detail=gpu.problem if off_bus else "",
    )
