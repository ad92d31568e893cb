"""A Docker engine of a test's own, which it may kill: its data, sockets and processes lie in one folder."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.support.engine import need_images
from weft.servers.process import wait_until

IMAGE = os.environ.get("WEFT_JOB_IMAGE_SMALL", "weft-job-busybox:local")
START_SECONDS_MAX = 60.0


def need_private_engine() -> None:
    """Skip the test where none can be had, and where there is no engine to take the job's image from."""
    need_images(IMAGE)
    if os.geteuid() != 0:
        pytest.skip("an engine of our own needs root")
    for program in ("dockerd", "docker", "unshare"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} to run")


class PrivateEngine:
    """In a network namespace of its own, without networks there. Containers live on when it is killed.

    The namespace matters: an engine that is to have no bridge removes `docker0`, whosever it is.
    """

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="weft-engine-"))
        self.address = f"unix://{self.root}/docker.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with open(self.root / "log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    *("unshare", "--net", "dockerd"),
                    *("--data-root", str(self.root / "data"), "--exec-root", str(self.root / "exec")),
                    *("--host", self.address, "--pidfile", str(self.root / "pid")),
                    *("--iptables=false", "--bridge=none", "--live-restore"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        up = wait_until(lambda: self.docker("version").returncode == 0, START_SECONDS_MAX)
        assert up, (self.root / "log").read_text()[-4000:]

    def load(self, image: str) -> None:
        """From the engine that everybody uses."""
        archive = self.root / "image.tar"
        subprocess.run(["docker", "save", "--output", str(archive), image], check=True, capture_output=True)
        loaded = self.docker("load", "--input", str(archive))
        assert loaded.returncode == 0, loaded.stderr

    def docker(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["docker", "--host", self.address, *words], capture_output=True, text=True, timeout=START_SECONDS_MAX
        )

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def erase(self) -> None:
        """Whatever is left of it: processes that name its folder, mounts below it, the folder."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in self._processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            wait_until(lambda: not self._processes(), 10.0)
        if self._process is not None:
            self._process.wait()
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in reversed([mount for mount in mounts if mount.startswith(f"{self.root}/")]):
            subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)
        shutil.rmtree(self.root, ignore_errors=True)

    def _processes(self) -> list[int]:
        found = []
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if name.isdecimal() and str(self.root).encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                    found.append(int(name))
        return found
