"""One emulated GPU, the arbiter, slots, and jobs under the hook; what ran is read from the emulated device's own file.

That file is written by the emulated driver alone: neither the hook nor the arbiter has a part in it.
"""

import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support import compiled
from tests.support.arbiters import remove_slot
from weft.sharing import native, pages, slots
from weft.sharing.pages import Flag
from weft.sharing.records import SlotShare

_HEADER = struct.Struct("<QIIQQQQ")
_PROCESS = struct.Struct("<IIQQQQ")
_PROCESSES_AT = _PROCESS_BYTES = 128
CLIENT = Path(__file__).with_name("client.c")
GPU = "emulated-0"


class Ledger(NamedTuple):
    """What the emulated device did until `at`, in seconds: busy seconds in all, and of each process by its pid."""

    at: float
    busy: float
    of: Mapping[int, float]


class Rig:
    def __init__(self, folder: Path, built: compiled.Built, client: Path) -> None:
        self.root, self.device, self._built, self._client = folder / "s", folder / "d", built, client
        self.root.mkdir()
        self.device.mkdir()
        self.log = folder / "arbiter.log"
        self.arbiter: subprocess.Popen[bytes] | None = None
        self._jobs: list[subprocess.Popen[str]] = []

    def start_arbiter(self) -> None:
        with self.log.open("ab") as log:
            self.arbiter = subprocess.Popen(
                [sys.executable, "-m", "weftd.arbiter", "--root", str(self.root)], stderr=log
            )

    def share(self, name: str, request: int, **more: object) -> None:
        share = SlotShare(**{"gpu": GPU, "job": name, "request": request, "emulated": True, **more})  # type: ignore[arg-type]
        slots.make_slot(self.root, name, share)
        deadline = time.monotonic() + 10
        while not (self.root / name / slots.JOB / slots.SOCKET).exists():
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.01)

    def clear(self) -> None:
        """End all jobs and remove all slots."""
        self.end_jobs()
        for name in slots.slot_names(self.root):
            remove_slot(self.root, name)

    def is_held(self, name: str) -> bool:
        """Whether the page of limits says so."""
        limits = pages.read_limits((self.root / name / slots.JOB / slots.LIMITS).read_bytes())
        return limits is not None and bool(limits.flags & Flag.HOLD)

    def launches(self, name: str, pid: int) -> int:
        """How often this process launched, as its hook counts."""
        use = pages.read_use((self.root / name / slots.JOB / slots.USE).read_bytes())
        return sum(entry.launches for entry in use.entries if entry.pid == pid) if use is not None else 0

    def kernels(self, pid: int) -> int:
        """How many kernels of this process the device ran."""
        return sum(kernels for of, _, kernels in self._processes() if of == pid)

    def environment(self, slot: str | None) -> dict[str, str]:
        """Of a job in that slot, or of one that is not under the hook."""
        environ = {
            **os.environ,
            "LD_LIBRARY_PATH": str(self._built.driver_folder),
            "WEFT_EMULATED_DEVICE": str(self.device),
        }
        if slot is not None:
            environ |= {"LD_PRELOAD": str(self._built.hook), "WEFT_SHARE": str(self.root / slot / slots.JOB)}
        return environ

    def job(
        self, slot: str | None, kind: str, kernel_us: int, *, count: int = 1, every_us: int = 0, seconds: float = 60.0
    ) -> subprocess.Popen[str]:
        """Start the client, see `client.c`; its output is read by `told`."""
        job = subprocess.Popen(
            [str(self._client), kind, str(kernel_us), str(count), str(every_us), str(seconds)],
            env=self.environment(slot),
            stdout=subprocess.PIPE,
            text=True,
        )
        self._jobs.append(job)
        return job

    def ledger(self) -> Ledger:
        """Now. Raises FileNotFoundError before the first process opened the device."""
        data = self._device_file()
        at = time.monotonic()
        of: dict[int, float] = {}
        for pid, busy_ns, _ in self._processes(data):
            of[pid] = of.get(pid, 0.0) + busy_ns / 1e9
        return Ledger(at, _HEADER.unpack_from(data)[5] / 1e9, of)

    def _device_file(self) -> bytes:
        return (self.device / "device-0").read_bytes()

    def _processes(self, data: bytes | None = None) -> Iterator[tuple[int, int, int]]:
        """Of each process that was ever on the device: pid, busy ns, kernels."""
        data = data or self._device_file()
        for offset in range(_PROCESSES_AT, len(data), _PROCESS_BYTES):
            pid, taken, _, busy_ns, kernels, _ = _PROCESS.unpack_from(data, offset)
            if not taken:
                return
            yield pid, busy_ns, kernels

    def watch(self, seconds: float, *, step: float = 0.1) -> list[Ledger]:
        """The ledger every `step`, for that long."""
        found = [self.ledger()]
        end = found[0].at + seconds
        while found[-1].at < end:
            time.sleep(step)
            found.append(self.ledger())
        return found

    def arbiter_cpu_seconds(self) -> float:
        assert self.arbiter is not None
        fields = Path(f"/proc/{self.arbiter.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def forget(self, job: subprocess.Popen[str]) -> None:
        """A job that ended."""
        self._jobs.remove(job)

    def end_jobs(self) -> None:
        for job in self._jobs:
            job.kill()
        for job in self._jobs:
            job.communicate()
        self._jobs.clear()

    def close(self) -> None:
        self.end_jobs()
        if self.arbiter is not None:
            self.arbiter.send_signal(signal.SIGTERM)
            self.arbiter.wait(10)


def told(job: subprocess.Popen[str], *, seconds: float = 60.0) -> list[int]:
    """What a job printed after `ready`, when it has ended."""
    out, _ = job.communicate(timeout=seconds)
    assert job.returncode == 0, job.returncode
    return [int(line) for line in out.splitlines() if line != "ready"]


def ready(*jobs: subprocess.Popen[str]) -> None:
    """Wait until these jobs run."""
    for job in jobs:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"


@contextmanager
def rig() -> Iterator[Rig]:
    """All of it, with an arbiter. Raises RuntimeError where nothing can be compiled."""
    folder = Path(tempfile.mkdtemp(prefix="wsh-"))  # a short path, as sockets need
    try:
        built, client = compiled.build(), folder / "client"
        if isinstance(built, native.NotBuilt):
            raise RuntimeError(built.reason)
        compiler = native.find_compiler()
        if isinstance(compiler, native.NotBuilt):
            raise RuntimeError(compiler.reason)
        if failed := native.compile_file(compiler, client, [CLIENT], ["-Wno-deprecated-non-prototype"]):
            raise RuntimeError(failed.reason)
        made = Rig(folder, built, client)
        made.start_arbiter()
        try:
            yield made
        finally:
            made.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
