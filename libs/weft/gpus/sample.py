"""Samples the state of GPUs, once a period. The calls block; `watch.py` runs them beside the event loop."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from weft.domain.cluster import Gpu
from weft.gpus.asking import Asker
from weft.gpus.gpm import Gpm
from weft.gpus.links import Links, field_value
from weft.gpus.nvml import DRIVER, MIG_PREFIX, PCIE_RECEIVED, PCIE_SENT, RECOVERY_ACTION, Handle, Nvml, provider_of
from weft.gpus.processes import GpuProcessReader
from weft.gpus.values import Values, quick_values, slow_values
from weft.messages.signals import GpuSample

SLOW_SECONDS: Final = 30.0
"""How often limits, error counts and links are read again."""

THROUGHPUT_SECONDS: Final = 10.0
"""How often PCIe throughput is measured on one GPU without counters, in turns: each measurement blocks for 40 ms."""

Xids = tuple[Mapping[str, int], int | None]
"""The XID errors of one GPU: the number of each, and the last one."""

NO_XIDS: Final[Xids] = ({}, None)


def sample(gpus: Iterable[Gpu], *, nvml: Nvml = DRIVER) -> tuple[GpuSample, ...]:
    """One sample for each of `gpus`, whatever goes wrong, without rates: rates need a `GpuReader`.

    The driver must be initialised if any of them is real.
    """
    reader = GpuReader(tuple(gpus), nvml=nvml)
    try:
        return reader.read(now=0.0)
    finally:
        reader.free()


def unknown(gpu: Gpu, problem: str = "", *, provider: str = "nvml", xids: Xids = NO_XIDS) -> GpuSample:
    """A sample without measurements. Of an emulated GPU only the memory size is known: there is nothing to measure.

    The sample of a GPU that fell off the bus still has its XID errors: they are the reason why the rest is missing.
    """
    errors, last = xids
    return GpuSample(
        index=gpu.index,
        uuid=gpu.uuid,
        model=gpu.model,
        emulated=gpu.emulated,
        memory_total=gpu.memory or None,
        xid_errors=dict(errors),
        last_xid=last,
        problem=problem,
        provider="emulated" if gpu.emulated else provider,
    )


class ResetCounts:
    """The number of resets of each GPU: a driver counts energy from the last reset on, so a lower value is after one.

    It outlives a reader, as the driver is opened again after a GPU was lost."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, int]] = {}

    def after(self, uuid: str, energy: float | None) -> int:
        """The resets so far. `energy` in joules, as it is read now; None: not known."""
        before, count = self._seen.get(uuid, (0.0, 0))
        if energy is not None:
            self._seen[uuid] = (energy, count + (energy < before))
        return self._seen.get(uuid, (0.0, 0))[1]


class GpuReader:
    """Reads GPUs repeatedly while the driver stays open; after the driver was reopened a new reader is needed."""

    def __init__(
        self,
        gpus: tuple[Gpu, ...],
        *,
        nvml: Nvml = DRIVER,
        driver: str = "",
        xids: Callable[[str], Xids] = lambda _: NO_XIDS,
        resets: ResetCounts | None = None,
    ) -> None:
        resets = resets or ResetCounts()
        self._ones = [
            _One(gpu, nvml, driver=driver, place=place / len(gpus), xids=xids, resets=resets)
            for place, gpu in enumerate(gpus)
        ]
        self._turn = 0
        self._throughput_at = -THROUGHPUT_SECONDS

    def read(self, *, now: float) -> tuple[GpuSample, ...]:
        """One sample of each GPU, whatever goes wrong. `now`: seconds on a monotonic clock."""
        self._grant_throughput(now)
        return tuple(one.read(now=now) for one in self._ones)

    def errors(self) -> dict[str, dict[str, str]]:
        """The errors of the last reading, by uuid and function."""
        return {one.gpu.uuid: one.asker.errors for one in self._ones}

    def free(self) -> None:
        for one in self._ones:
            one.free()

    def _grant_throughput(self, now: float) -> None:
        needing = [one for one in self._ones if one.needs_throughput]
        if needing and now >= self._throughput_at + THROUGHPUT_SECONDS:
            self._throughput_at = now
            self._turn += 1
            needing[self._turn % len(needing)].may_measure_throughput = True


class _One:
    """One GPU, with its state between two readings."""

    def __init__(
        self,
        gpu: Gpu,
        nvml: Nvml,
        *,
        driver: str,
        place: float,
        xids: Callable[[str], Xids],
        resets: ResetCounts,
    ) -> None:
        self.gpu = gpu
        self.asker = Asker()
        self.needs_throughput = False
        self.may_measure_throughput = False
        self._nvml = nvml
        self._provider = provider_of(nvml)
        self._driver = driver
        self._place = place  # 0–1: spreads the GPUs' slow readings, so that they do not all fall in one second
        self._xids = xids
        self._slow: Values = {}
        self._slow_due: float | None = None
        self._links = Links()
        self._processes = GpuProcessReader()
        self._gpm: Gpm | None = None
        self._gpm_instance: int | None = None
        self._throughput: tuple[float, Values] | None = None
        self._resets = resets

    def read(self, *, now: float) -> GpuSample:
        if self.gpu.emulated:
            return unknown(self.gpu)
        nvml, asker = self._nvml, Asker()
        self.asker = asker
        # By uuid each time: it is cheap, and an old handle means nothing once its GPU was reset or lost.
        handle = asker.ask(nvml.nvmlDeviceGetHandleByUUID, self.gpu.uuid)
        if handle is None:
            said = next(iter(asker.errors.values()), "the driver does not name it")
            return unknown(self.gpu, problem=said, provider=self._provider, xids=self._xids(self.gpu.uuid))
        quick = quick_values(nvml, handle, asker)
        if quick["memory_total"] is None:
            quick["memory_total"] = self.gpu.memory or None
        slow = self._slow_values(handle, asker, now)
        counted = self._counted(handle, asker, now)
        processes = self._processes.read(nvml, handle, asker, now=now)
        errors, last = self._xids(self.gpu.uuid)
        return GpuSample(
            index=self.gpu.index,
            uuid=self.gpu.uuid,
            model=self.gpu.model,
            provider=self._provider,
            driver=self._driver,
            xid_errors=dict(errors),
            last_xid=last,
            processes=processes,
            problem=asker.problem,
            resets=self._resets.after(self.gpu.uuid, quick["energy_joules"]),
            **quick,
            **slow,
            **counted,
        )

    def free(self) -> None:
        if self._gpm is not None:
            self._gpm.free(Asker())

    def _slow_values(self, handle: Handle, asker: Asker, now: float) -> Values:
        if self._slow_due is None or now >= self._slow_due:
            seconds = SLOW_SECONDS if self._slow_due is not None else SLOW_SECONDS * (0.5 + self._place / 2)
            self._slow = slow_values(self._nvml, handle, asker)
            self._slow["recovery_action"] = self._recovery(handle, asker)
            self._slow_due = now if asker.problem else now + seconds
        return self._slow

    def _recovery(self, handle: Handle, asker: Asker) -> int | None:
        """The recovery that the driver asks for; drivers before 570 do not know it."""
        (value,) = asker.ask(self._nvml.nvmlDeviceGetFieldValues, handle, [(RECOVERY_ACTION, 0)]) or (None,)
        wanted = None if value is None else field_value(value)
        return None if wanted is None else int(wanted)

    def _counted(self, handle: Handle, asker: Asker, now: float) -> Values:
        """Rates and GPM values. Rates come from counters of bytes; without these from GPM, else from a measurement."""
        counted = self._counts(handle, asker, now)
        rates = self._links.rates(self._nvml, handle, asker, now=now, nvlinks=self._slow.get("nvlinks_active"))
        self.needs_throughput = not self._links.pcie_counted and not (self._gpm and self._gpm.works)
        if self.needs_throughput:
            counted = self._measured(handle, asker, now) | counted
        return counted | rates

    def _counts(self, handle: Handle, asker: Asker, now: float) -> Values:
        if self._gpm is None:
            if self.gpu.uuid.startswith(MIG_PREFIX):
                self._gpm_instance = asker.ask(self._nvml.nvmlDeviceGetGpuInstanceId, handle)
                if self._gpm_instance is None:
                    return {}
            self._gpm = Gpm(self._nvml, instance=self._gpm_instance)
        if self._gpm_instance is not None:
            handle = asker.ask(self._nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)
            if handle is None:
                return {}
        return self._gpm.read(handle, asker, now=now)

    def _measured(self, handle: Handle, asker: Asker, now: float) -> Values:
        if self.may_measure_throughput:
            self.may_measure_throughput = False
            sent = asker.number(self._nvml.nvmlDeviceGetPcieThroughput, handle, PCIE_SENT)
            received = asker.number(self._nvml.nvmlDeviceGetPcieThroughput, handle, PCIE_RECEIVED)
            found = {"pcie_send_rate": sent, "pcie_receive_rate": received}
            self._throughput = now, {name: kib * 1024.0 for name, kib in found.items() if kib is not None}
        if self._throughput is None or now - self._throughput[0] >= THROUGHPUT_SECONDS:
            return {}
        return self._throughput[1]
