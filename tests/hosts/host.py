"""One host of the laboratory: namespaces of its own (network, processes, mounts, name) and, in them, a Docker engine.

Its first process is the parent of everything in it: when that process is killed, the kernel kills all others, takes the
mounts away and takes the link out of the switch, as when a host loses its power. What lies on its disk stays.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from weft.servers.process import wait_until

T = TypeVar("T")

SECONDS_MAX = 60.0
COMMAND_SECONDS_MAX = 300.0
CGROUPS = Path("/sys/fs/cgroup")
CLONE_NEWNET = 0x4000_0000  # linux/sched.h

LINK_RULES = "weft-link"  # the chain of rules that make a link worse

# `/run` and shared memory are empty after each start, and it is another boot, as on a real host. bash reaps what its
# children leave behind.
FIRST_PROCESS = """
set -e
hostname "$1"
mount --make-rprivate /
mount --bind "$2/var-lib" /var/lib
mount -t tmpfs -o mode=0755 tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
cat /proc/sys/kernel/random/uuid > "$2/boot-id"
mount --bind "$2/boot-id" /proc/sys/kernel/random/boot_id
ip link set lo up
: > "$2/up"
while :; do sleep 3600; done
"""


class LaboratoryError(Exception):
    """The laboratory could not do what was asked: the command, and what it said."""


def execute(*command: str, seconds_max: float = SECONDS_MAX) -> str:
    """Run a command of this machine and return its output. Raises LaboratoryError."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=seconds_max
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaboratoryError(f"{' '.join(command)}: {error}") from error
    if done.returncode:
        raise LaboratoryError(f"{' '.join(command)}: status {done.returncode}: {(done.stderr or done.stdout)[-3000:]}")
    return done.stdout


def namespaces(name: str, folder: Path, script: str, *, kinds: tuple[str, ...]) -> "subprocess.Popen[bytes]":
    """Start a first process in new namespaces. It dies with this process, however this process ends.

    `script` gets the name and the folder, and makes the file `up` in the folder. Raises LaboratoryError.
    """
    up = folder / "up"
    up.unlink(missing_ok=True)
    with open(folder / "log", "ab") as log:
        started = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig", "KILL", "unshare", *kinds),
                *("--fork", "--kill-child=KILL", "bash", "-c", script, "host", name, str(folder)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    if not wait_until(lambda: up.exists() or started.poll() is not None, SECONDS_MAX) or not up.exists():
        started.kill()
        started.wait()
        raise LaboratoryError(f"{name} does not start: {(folder / 'log').read_text()[-2000:]}")
    return started


def child_of(pid: int) -> int:
    """The one child of a process: the first process in the namespaces that `unshare` made."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


class Host:
    """`name`: its host name. `address`: in the network of the laboratory. `folder`: its disk."""

    def __init__(self, name: str, address: str, folder: Path, group: str) -> None:
        self.name = name
        self.address = address
        self.folder = folder
        self._group = group  # the control group of its containers
        self._unshare: subprocess.Popen[bytes] | None = None
        self.pid = 0  # of its first process, as this machine sees it; 0: the host is off
        self._engine: subprocess.Popen[bytes] | None = None
        for part in ("var-lib/weft", "var-lib/docker", "home"):
            (folder / part).mkdir(parents=True, exist_ok=True)

    @property
    def engine(self) -> str:
        """The engine's address for programs of this machine, as DOCKER_HOST takes it."""
        return f"unix://{self.folder}/docker.sock"

    @property
    def is_on(self) -> bool:
        return self.pid != 0

    def power_on(self) -> None:
        """Start the namespaces; no engine yet. Raises LaboratoryError."""
        kinds = ("--net", "--pid", "--mount", "--uts", "--ipc", "--mount-proc")
        self._unshare = namespaces(self.name, self.folder, FIRST_PROCESS, kinds=kinds)
        self.pid = child_of(self._unshare.pid)

    def start_engine(self) -> None:
        """Begin to start the engine; see `engine_answers`."""
        with open(self.folder / "dockerd.log", "ab") as log:
            self._engine = subprocess.Popen(
                self.inside(
                    *("dockerd", "--host", "unix:///run/docker.sock", "--host", self.engine),
                    *("--cgroup-parent", f"/{self._group}"),
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                # Without a registry an image that is here is not asked for anywhere else.
                env={**_environment(), "DOCKER_SERVICE_PREFER_OFFLINE_IMAGE": "1"},
            )

    def wait_for_engine(self) -> None:
        """Raises LaboratoryError."""
        if not wait_until(self._answers, SECONDS_MAX):
            raise LaboratoryError(f"{self.name}: no engine: {(self.folder / 'dockerd.log').read_text()[-2000:]}")

    def _answers(self) -> bool:
        with contextlib.suppress(LaboratoryError):
            self.docker("version", "--format", "{{.Server.Version}}", seconds_max=10)
            return True
        return False

    def pull_plug(self) -> None:
        """Kill the first process, and with it everything in the host. `power_off` waits for that."""
        if self._unshare is not None:
            self._unshare.kill()  # its child, the first process, is killed with it

    def power_off(self) -> None:
        """At once, without a word to anything in it: its engine, its containers, its link."""
        self.pull_plug()
        if self._unshare is not None:
            self._unshare.wait()
            wait_until(lambda: not os.path.exists(f"/proc/{self.pid}"), SECONDS_MAX)
        if self._engine is not None:
            self._engine.wait(timeout=SECONDS_MAX)
        self._unshare = self._engine = None
        self.pid = 0
        (self.folder / "docker.sock").unlink(missing_ok=True)

    def kill_engine(self) -> None:
        """The engine alone, by SIGKILL; containers go on. `start_engine` starts another."""
        assert self._engine is not None
        pid = child_of(self._engine.pid)  # `nsenter` is the parent of what it starts in a namespace of processes
        os.kill(pid, signal.SIGKILL)
        self._engine.wait(timeout=SECONDS_MAX)
        (self.folder / "docker.sock").unlink(missing_ok=True)

    def inside(self, *command: str) -> list[str]:
        """The command that runs a command on this host."""
        if not self.is_on:
            raise LaboratoryError(f"{self.name} is off")
        spaces = ("--mount", "--uts", "--ipc", "--net", "--pid")
        return ["nsenter", "--target", str(self.pid), *spaces, "--", *command]

    def there(self, work: Callable[[], T]) -> T:
        """Do it in a thread of its own that is in this host's network, and in nothing else of it."""
        done: Future[T] = Future()

        def go() -> None:
            try:
                _enter_network(self.pid)
                done.set_result(work())
            except BaseException as error:  # the caller's to handle
                done.set_exception(error)

        thread = threading.Thread(target=go, name=self.name)
        thread.start()
        thread.join()
        return done.result()

    def run(self, script: str, *, seconds_max: float = COMMAND_SECONDS_MAX, **variables: str) -> str:
        """Run lines of bash on this host, in its home folder; returns what they print. Raises LaboratoryError."""
        names = [f"{name}={value}" for name, value in variables.items()]
        where = ("env", f"HOME={self.folder}/home", "DOCKER_HOST=unix:///run/docker.sock", *names)
        return execute(
            *self.inside(*where, "bash", "-euo", "pipefail", "-c", f"cd ~\n{script}"), seconds_max=seconds_max
        )

    def docker(self, *words: str, seconds_max: float = SECONDS_MAX) -> str:
        """The Docker client of this machine with this host's engine. Raises LaboratoryError."""
        return execute("docker", "--host", self.engine, *words, seconds_max=seconds_max)

    def rule(self, *words: str) -> None:
        """Add a rule to what the host's card takes and sends. Raises LaboratoryError."""
        with contextlib.suppress(LaboratoryError):  # It is there, from an earlier rule.
            self._filter("-N", LINK_RULES)
            for way in ("INPUT", "OUTPUT"):
                self._filter("-I", way, "-j", LINK_RULES)
        self._filter("-A", LINK_RULES, *words)

    def forget_rules(self) -> None:
        """What `rule` added; nothing of the engine's."""
        with contextlib.suppress(LaboratoryError):  # There never was one.
            self._filter("-F", LINK_RULES)

    def _filter(self, *words: str) -> None:
        execute(*self.inside("iptables", "-w", "10", *words))

    def remove_groups(self) -> None:
        """The empty control groups that containers of a host that was switched off leave behind."""
        for root in (CGROUPS, *(part for part in CGROUPS.glob("*/") if part.is_dir())):
            for folder, _, _ in os.walk(root / self._group, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)


def _enter_network(pid: int) -> None:
    """Of this thread alone, and of what it starts. Raises OSError."""
    with open(f"/proc/{pid}/ns/net") as network:
        if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"}
