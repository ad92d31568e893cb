"""The laboratory: hosts, the switch that joins them, and this machine at the switch's last address.

Everything is in namespaces that end with this process: nothing of this machine's own network is changed, but for one
link to the switch, which the kernel removes with the switch.
"""

import contextlib
import ipaddress
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from types import TracebackType

from tests.hosts.host import Host, LaboratoryError, child_of, execute, namespaces

HOSTS_MAX = 50
PROGRAMS = ("ip", "nsenter", "setpriv", "unshare", "bash", "iptables")
ENGINE_PROGRAMS = ("dockerd", "docker")
SWITCH = """
set -e
ip link set lo up
: > "$2/up"
while :; do sleep 3600; done
"""
# Waits for the end of this process, or for `close`, then removes the disks: also when this process was killed.
BROOM = """
read -r _
sweep() { for _ in 1 2 3 4 5 6 7 8 9 10; do rm -rf -- "$1" && return; sleep 1; done; }
sweep "$1" &
for _ in $(seq "$2"0); do kill -0 $! 2>/dev/null || exit 0; sleep 0.1; done
"""
SWEEP_SECONDS_MAX = 10  # then the rest is removed while others go on
# What the kernel must be able to do, tried in namespaces that go with the shell.
TRIAL = """
set -e
ip link add weft-a type veth peer name weft-b
ip link add weft-switch type bridge
ip link add weft-vxlan type vxlan id 7 dev lo dstport 4789
"""


class Way(Enum):
    """Of what a link carries, as its host sees it."""

    IN = "in"
    OUT = "out"


def why_no_laboratory(*, engines: bool = True) -> str | None:
    """Why this machine cannot have one, with Docker engines or without; None: it can."""
    if os.geteuid() != 0:
        return "hosts with network namespaces of their own need root"
    for program in (*PROGRAMS, *(ENGINE_PROGRAMS if engines else ())):
        if shutil.which(program) is None:
            return f"there is no {program} to run"
    try:
        execute("unshare", "--net", "--pid", "--mount", "--uts", "--ipc", "--fork", "--mount-proc", "sh", "-c", TRIAL)
    except LaboratoryError as error:
        return f"this kernel has no namespaces, veth, bridge or vxlan: {error}"
    return None


class Laboratory:
    """`with Laboratory(3) as laboratory: …`; host 1 is `laboratory.hosts[0]`, named host-1.

    Without `engines` the hosts have no Docker, and are up within a second.
    """

    def __init__(self, count: int, *, engines: bool = True) -> None:
        self._engines = engines
        if not 1 <= count <= HOSTS_MAX:
            raise ValueError(f"between 1 and {HOSTS_MAX} hosts, not {count}")
        self.root = Path(tempfile.mkdtemp(prefix="weft-hosts-"))
        self._broom = subprocess.Popen(
            ["bash", "-c", BROOM, "broom", self.root, str(SWEEP_SECONDS_MAX)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._name = f"weft{secrets.token_hex(3)}"
        self._network = free_network()
        self._width = self._network.prefixlen
        addresses = list(self._network.hosts())
        self.address = str(addresses[-1])  # of this machine, as the hosts see it
        self.hosts = tuple(
            Host(f"host-{number}", str(addresses[number - 1]), self.root / f"host-{number}", f"{self._name}-{number}")
            for number in range(1, count + 1)
        )
        self._switch: subprocess.Popen[bytes] | None = None
        self._switch_pid = 0

    def __enter__(self) -> "Laboratory":
        try:
            self._open_switch()
            for host in self.hosts:
                self._plug_in(host)
            for host in self.hosts if self._engines else ():
                host.wait_for_engine()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ── power and links ─────────────────────────────────────────────────────────────────────────────────────────

    def off(self, host: Host) -> None:
        """Switch a host off, as by its plug."""
        host.power_off()

    def on(self, host: Host) -> None:
        """Switch a host on again: its disk is as it was. Raises LaboratoryError."""
        self._plug_in(host)
        if self._engines:
            host.wait_for_engine()

    def cut(self, host: Host) -> None:
        """Cut a host off behind its link, which stays up: it runs on, reaches nothing and is told nothing."""
        self._at_switch("ip", "link", "set", host.name, "nomaster")

    def cut_one_way(self, host: Host, way: Way) -> None:
        """From now on nothing gets into the host, or nothing out of it; the other way goes on. Nobody is told."""
        host.rule("-i" if way is Way.IN else "-o", "eth0", "-j", "DROP")

    def spoil(self, host: Host, *, lost: float) -> None:
        """A bad line: of what goes each way, that part of the packets (0 to 1) is lost, drawn by the kernel."""
        if not 0 < lost <= 1:
            raise ValueError(f"lost: between 0 and 1, not {lost}")
        for way in ("-i", "-o"):
            host.rule(way, "eth0", "-m", "statistic", "--mode", "random", "--probability", f"{lost:f}", "-j", "DROP")

    def slow(self, host: Host, *, bits_per_second: int) -> None:
        """A thin line: each way so much and no more; what waits longer than half a second is lost."""
        thin = ("tbf", "rate", f"{bits_per_second}bit", "burst", "4kb", "latency", "500ms")
        execute(*host.inside("tc", "qdisc", "replace", "dev", "eth0", "root", *thin))
        self._at_switch("tc", "qdisc", "replace", "dev", host.name, "root", *thin)

    def split(self, *groups: Iterable[Host]) -> None:
        """Split the network: hosts of one group reach each other; this machine stays with the first group."""
        for number, group in enumerate(groups):
            bridge = f"part-{number}"
            if number:
                with contextlib.suppress(LaboratoryError):  # There already, from an earlier split.
                    self._at_switch("ip", "link", "add", bridge, "type", "bridge")
                self._at_switch("ip", "link", "set", bridge, "up")
            for host in group:
                self._at_switch("ip", "link", "set", host.name, "master", bridge)

    def mend(self) -> None:
        """Mend every link that was cut or made worse, and every split."""
        for host in self.hosts:
            if host.is_on:
                host.forget_rules()
                with contextlib.suppress(LaboratoryError):  # It is not a thin line.
                    self._at_switch("tc", "qdisc", "delete", "dev", host.name, "root")
                    execute(*host.inside("tc", "qdisc", "delete", "dev", "eth0", "root"))
                self._at_switch("ip", "link", "set", host.name, "master", "part-0", "up")

    def load(self, images: Sequence[str], hosts: Sequence[Host] | None = None) -> None:
        """Copy images of this machine's engine to hosts, all of them at once. Raises LaboratoryError."""
        archive = self.root / "images.tar"
        try:
            execute("docker", "save", "--output", str(archive), *images, seconds_max=300)
            copies = [
                subprocess.Popen(
                    ["docker", "--host", host.engine, "load", "--quiet", "--input", str(archive)],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                for host in hosts or self.hosts
            ]
            for copy in copies:
                _, errors = copy.communicate(timeout=300)
                if copy.returncode:
                    raise LaboratoryError(f"docker load: {errors[-2000:]}")
        finally:
            archive.unlink(missing_ok=True)

    def close(self) -> None:
        """Switch everything off and remove its files, on a slow disk beyond this call. Safe to call again."""
        for host in self.hosts:
            host.pull_plug()
        for host in self.hosts:
            host.power_off()
            host.remove_groups()
        if self._switch is not None:
            self._switch.kill()
            self._switch.wait()
            self._switch = None
        assert self._broom.stdin is not None
        self._broom.stdin.close()
        self._broom.wait(timeout=2 * SWEEP_SECONDS_MAX)

    # ── how ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _open_switch(self) -> None:
        folder = self.root / "switch"
        folder.mkdir()
        self._switch = namespaces("switch", folder, SWITCH, kinds=("--net", "--pid"))
        self._switch_pid = child_of(self._switch.pid)
        self._at_switch("ip", "link", "add", "part-0", "type", "bridge")
        self._at_switch("ip", "link", "set", "part-0", "up")
        pid = str(self._switch_pid)
        execute("ip", "link", "add", self._name, "type", "veth", "peer", "name", "machine", "netns", pid)
        execute("ip", "address", "add", f"{self.address}/{self._width}", "dev", self._name)
        execute("ip", "link", "set", self._name, "up")
        self._at_switch("ip", "link", "set", "machine", "master", "part-0", "up")

    def _plug_in(self, host: Host) -> None:
        """No default route: nothing of a laboratory leaves it."""
        with contextlib.suppress(LaboratoryError):  # The other end of the link of a host that was switched off.
            self._at_switch("ip", "link", "delete", host.name)
        host.power_on()
        end = ("peer", "name", "eth0", "address", card_of(host.address), "netns", str(host.pid))
        self._at_switch("ip", "link", "add", host.name, "type", "veth", *end)
        self._at_switch("ip", "link", "set", host.name, "master", "part-0", "up")
        execute(*host.inside("ip", "address", "add", f"{host.address}/{self._width}", "dev", "eth0"))
        execute(*host.inside("ip", "link", "set", "eth0", "up"))
        if self._engines:
            host.start_engine()

    def _at_switch(self, *command: str) -> None:
        execute("nsenter", "--target", str(self._switch_pid), "--net", "--", *command)


def card_of(address: str) -> str:
    """The hardware address of a host's network card. It is the same after each start, as others remember it."""
    return "02:77:" + ":".join(f"{int(part):02x}" for part in address.split("."))


def free_network() -> ipaddress.IPv4Network:
    """A network that this machine has no route to; the hosts' own engines choose theirs elsewhere."""
    routes = execute("ip", "-4", "route", "show", "table", "all")
    taken = [
        ipaddress.ip_network(word, strict=False)
        for line in routes.splitlines()
        for word in line.split()[:2]
        if "/" in word and word[0].isdecimal()
    ]
    for _ in range(1000):
        network = ipaddress.IPv4Network(f"10.{213 + secrets.randbelow(40)}.{secrets.randbelow(256)}.0/24")
        if not any(network.overlaps(other) for other in taken if isinstance(other, ipaddress.IPv4Network)):
            return network
    raise LaboratoryError("this machine has routes to all networks from 10.213.0.0 to 10.252.255.255")
