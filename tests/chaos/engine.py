"""A Docker engine of our own, which may be killed under its containers: nobody else's is touched."""

import os
import shutil
import signal
import subprocess
import tarfile
from contextlib import suppress
from io import BytesIO
from pathlib import Path

from weft.servers.process import command_of, wait_until

IMAGE = "weft-chaos-busybox:local"
START_SECONDS_MAX, STARTS_TRIED = 30.0, 4
CALL_SECONDS_MAX = 30
END_SECONDS_MAX = 20.0
APPLETS = ("sh", "tr", "head", "sleep", "mkdir")


class EngineMissingError(Exception):
    """There can be no engine of ours here; says why."""


class Engine:
    """All of it blocks: call it in a thread."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.host = f"unix://{root}/docker.sock"
        self._pidfile = root / "docker.pid"
        self._log = root / "dockerd.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Have it answer, also after it was killed; then it may fail a few times. Raises EngineMissingError."""
        self.root.mkdir(mode=0o700, exist_ok=True)
        for _ in range(STARTS_TRIED):
            self._reap()
            process = self._process = self._spawn()

            def settled(process: "subprocess.Popen[bytes]" = process) -> bool:
                return process.poll() is not None or self._docker("version").returncode == 0

            if wait_until(settled, START_SECONDS_MAX) and process.poll() is None:
                return
            process.kill()
            process.wait()
        raise EngineMissingError(f"dockerd does not answer: {self._log.read_text(errors='replace')[-500:]}")

    def _spawn(self) -> "subprocess.Popen[bytes]":
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [
                    *("unshare", "--net", "dockerd"),  # to have no bridge it removes docker0, whosever that is
                    *("--data-root", self.root / "data"),
                    *("--exec-root", self.root / "exec"),
                    *("--pidfile", self._pidfile),
                    *("--host", self.host),
                    *("--live-restore", "--iptables=false", "--bridge=none"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )

    def send(self, number: signal.Signals) -> None:
        if (pid := self.pid) is not None:
            os.kill(pid, number)

    def _reap(self) -> None:
        if self._process is not None and self.pid is None:
            self._process.wait(END_SECONDS_MAX)

    @property
    def pid(self) -> int | None:
        with suppress(OSError, ValueError):
            pid = int(self._pidfile.read_text())
            if str(self._pidfile) in command_of(pid):
                return pid
        return None

    def make_image(self) -> None:
        """Of a static busybox: a shell and what it needs."""
        busybox = shutil.which("busybox")
        if busybox is None:
            raise EngineMissingError("there is no busybox to make an image of")
        made = BytesIO()
        with tarfile.open(fileobj=made, mode="w") as tar:
            tar.add(busybox, "bin/busybox")
            for applet in APPLETS:
                link = tarfile.TarInfo(f"bin/{applet}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(link)
        done = self._docker("import", "-c", "ENV PATH=/bin", "-", IMAGE, stdin=made.getvalue())
        if done.returncode:
            raise EngineMissingError(f"no image could be made: {done.stdout.decode()[-500:]}")

    def stop(self) -> None:
        """Its containers go first: it is told to let them live when it ends."""
        if self.pid is None and (self.root / "data").exists():
            self.start()
        ids = self._docker("ps", "--all", "--quiet").stdout.decode().split()
        if ids:
            self._docker("rm", "--force", *ids)
        self.send(signal.SIGTERM)
        wait_until(lambda: self.pid is None, END_SECONDS_MAX)
        self.send(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(END_SECONDS_MAX)
        for line in Path("/proc/mounts").read_text().splitlines():
            if (place := line.split()[1]).startswith(str(self.root)):
                subprocess.run(["umount", "--lazy", place], check=False, timeout=10)

    def _docker(self, *arguments: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(
            ["docker", "--host", self.host, *arguments],
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=CALL_SECONDS_MAX,
        )


def own_engine(root: Path) -> Engine:
    """Started, with the image that jobs need. Raises EngineMissingError, and leaves nothing then."""
    if os.geteuid() != 0:
        raise EngineMissingError("an engine of our own needs root")
    if not (shutil.which("dockerd") and shutil.which("docker")):
        raise EngineMissingError("there is no dockerd")
    engine = Engine(root)
    try:
        engine.start()
        engine.make_image()
    except BaseException:
        engine.stop()
        raise
    return engine
