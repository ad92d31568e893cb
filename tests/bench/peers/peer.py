"""A scheduler to compare with: how it is installed and started, and what its driver measures."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from msgspec import Struct

from tests.bench import cpu

DRIVERS = Path(__file__).parent / "drivers"
INSTALL_SECONDS_MAX, ANSWER_SECONDS_MAX = 900, 600


class SkippedError(Exception):
    """The peer cannot be had on this machine, as a sentence."""


class Peer(Struct, frozen=True, kw_only=True):
    """`package`: from the Python index, into an environment of its own. `debian`: packages, where apt and root are.
    `unfair`: a remark for readers of its figures."""

    name: str
    driver: str
    package: str = ""
    debian: tuple[str, ...] = ()
    needs: str = ""
    unfair: str = ""


PEERS = (
    Peer(
        name="slurm",
        driver="slurm_driver",
        debian=("slurm-wlm", "munge"),
        needs="slurmctld",
        unfair="22.05, four years old; its job is a script, and submission is a process",
    ),
    Peer(
        name="hyperqueue",
        driver="hyperqueue_driver",
        package="hyperqueue==0.27.0",
        unfair="one user, no containers; its wheel cannot switch the journal on: nothing is durable; its client looks"
        " once a second whether a job has ended",
    ),
    Peer(name="ray", driver="ray_driver", package="ray==2.60.0", unfair="workers are used again, state is in memory"),
    Peer(
        name="dask",
        driver="dask_driver",
        package="distributed==2026.8.0",
        unfair="one process of threads, state is in memory, no tenants",
    ),
)


def installed(peer: Peer, home: Path) -> Path:
    """The Python that has the peer. Raises SkippedError."""
    if peer.needs and shutil.which(peer.needs) is None:
        if shutil.which("apt-get") is None or os.geteuid() != 0:
            raise SkippedError(f"{peer.needs} is not here, and apt or root is missing")
        _run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *peer.debian])
    if not peer.package:
        return Path(sys.executable)
    environment = home / peer.name
    _run([sys.executable, "-m", "venv", str(environment)])
    _run([str(environment / "bin" / "pip"), "install", "-q", "--disable-pip-version-check", peer.package])
    return environment / "bin" / "python"


def _run(command: list[str]) -> None:
    """Raises SkippedError."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX, check=False)
    except subprocess.TimeoutExpired as error:
        raise SkippedError(f"{command[0]} took more than {INSTALL_SECONDS_MAX} s") from error
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] or ["no output"]
        raise SkippedError(f"`{' '.join(command)[:100]}` failed: {last[0][:200]}")


class Driver:
    """A started peer. All that it starts are its descendants."""

    def __init__(self, process: "subprocess.Popen[str]", said: dict[str, Any]) -> None:
        self._process, self.durable = process, bool(said.get("durable"))

    def ask(self, do: str, count: int) -> dict[str, Any]:
        """Return the figures of the driver, with the `cpu` seconds that all processes of the peer and its jobs used."""
        before = self._used()
        found = _exchange(self._process, {"do": do, "count": count})
        return {**found, "cpu": self._used() - before, "memory": self._memory()}

    def _used(self) -> float:
        return cpu.used_by({"peer": self._process.pid}).get("peer", 0.0)

    def _memory(self) -> float:
        return sum(cpu.memory_of(pid) for pid in cpu.family_of(self._process.pid))


def _exchange(process: "subprocess.Popen[str]", asked: dict[str, Any] | None) -> dict[str, Any]:
    """Raises SkippedError if the driver has ended."""
    stdin, stdout = process.stdin, process.stdout
    assert stdin is not None
    assert stdout is not None
    if asked is not None:
        stdin.write(json.dumps(asked) + "\n")
        stdin.flush()
    if not (line := stdout.readline()):
        raise SkippedError(f"its driver ended with status {process.wait()}")
    answer: dict[str, Any] = json.loads(line)
    return answer


@contextmanager
def driving(peer: Peer, python: Path, log: IO[str]) -> Iterator[Driver]:
    """The peer, started and ready."""
    process = subprocess.Popen(
        ["timeout", "-k", "5", str(ANSWER_SECONDS_MAX), str(python), str(DRIVERS / f"{peer.driver}.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env={**os.environ, "PYTHONPATH": str(DRIVERS)},  # nothing of Weft, and the mark of its processes
    )
    family: list[int] = []
    try:
        driver = Driver(process, _exchange(process, None))
        family = cpu.family_of(process.pid)
        yield driver
    finally:
        family += cpu.family_of(process.pid)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        process.wait()
        _end(family)


def _end(family: list[int]) -> None:
    """End those of a peer's processes that outlived its driver: it may have been killed for the time that it took."""
    for pid in family:
        with suppress(OSError):  # it has ended
            if str(DRIVERS) in Path(f"/proc/{pid}/environ").read_text(errors="replace"):
                os.kill(pid, signal.SIGKILL)
