"""docs/hosts.md, command by command, on three hosts of the laboratory: a swarm, and a gang over two of them."""

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.hosts.host import Host, LaboratoryError
from tests.hosts.laboratory import Laboratory, why_no_laboratory
from tests.hosts.page import EVERY_HOST, MACHINE, Step, at, steps
from tests.support.engine import need_compose, need_images, skip_unless_promised

ROOT = Path(__file__).parents[2]
SERVERS = ("weft-nats:local", "weft-postgres:local")
UP_SECONDS_MAX = 240.0
STEP_SECONDS_MAX = 180.0
# Outside of the page: what an engine without a registry and a machine without GPUs need; and one replica of each
# service, because all three hosts are this machine.
SURROUNDINGS = {
    "NATS_IMAGE": SERVERS[0],
    "POSTGRES_IMAGE": SERVERS[1],
    "WEFT_EMULATED_GPUS": "2",
    "WEFT_BENCHMARKS": "off",
    "WEFT_REPLICAS": "1",
}
# Each part of the page goes on in the shell of the part before it on that host.
SHELL = "[ ! -f ~/.shell ] || . ~/.shell\n{script}\n{{ export -p; declare -f; }} >~/.shell\n"
CHATTER = "while :; do echo beat; sleep 1; done"

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]


class Walk:
    """Goes through the page on the hosts of a laboratory."""

    def __init__(self, laboratory: Laboratory) -> None:
        self._laboratory = laboratory
        self.hosts = {host.name: host for host in laboratory.hosts}
        self._left = steps()
        self.instead: dict[str, str] = {}  # what the page's own words are to mean here

    def do(self, section: str) -> str:
        """Execute the next parts of the page, which have to be those of this section; returns what they print."""
        assert self._left[0].section.startswith(section), self._left[0]
        printed = ""
        while self._left and self._left[0].section.startswith(section):
            printed += self._execute(self._left.pop(0))
        return printed

    def finished(self) -> bool:
        return not self._left

    def _execute(self, step: Step) -> str:
        script = at(step.script, [host.address for host in self._laboratory.hosts])
        for words, others in self.instead.items():
            script = script.replace(words, others)
        if step.where == MACHINE:
            done = subprocess.run(
                ["bash", "-euc", script],
                cwd=self._laboratory.root,
                check=True,
                capture_output=True,
                text=True,
                timeout=STEP_SECONDS_MAX,
            )
            self._copy(self._laboratory.root / "weft-image.tar")
            return done.stdout
        hosts = list(self.hosts.values()) if step.where == EVERY_HOST else [self.hosts[step.where]]
        with ThreadPoolExecutor(len(hosts)) as at_once:
            printed = "".join(at_once.map(lambda host: self.shell(host, script), hosts))
        if ">join-token" in script:
            self._copy(hosts[0].folder / "home/join-token")
        return printed

    def _copy(self, file: Path) -> None:
        """As `scp` would: all disks are this machine's, so the copies share the file."""
        for host in self._laboratory.hosts:
            with contextlib.suppress(FileExistsError):
                (host.folder / "home" / file.name).hardlink_to(file)

    def shell(self, host: Host, script: str) -> str:
        return host.run(SHELL.format(script=script), seconds_max=STEP_SECONDS_MAX, **SURROUNDINGS)


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    need_images(*SERVERS)
    need_compose()
    if why := why_no_laboratory():
        skip_unless_promised(why)
    built = subprocess.run(
        ["docker", "compose", "build", "--quiet", "setup"],
        cwd=ROOT,
        env={**os.environ, "DOCKER_BUILDKIT": "0"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    if built.returncode:
        skip_unless_promised(f"the image cannot be built here: {built.stderr[-300:]}")
    with Laboratory(3) as made:
        yield made


def _until(what: Callable[[], bool], *, seconds_max: float, told: Callable[[], str]) -> None:
    deadline = time.monotonic() + seconds_max
    while not what():
        assert time.monotonic() < deadline, told()
        time.sleep(1)


def test_a_host_is_cut_off_split_off_and_switched_off_and_comes_back(laboratory: Laboratory) -> None:
    first, second, third = laboratory.hosts

    def reaches(one: Host, other: Host) -> bool:
        """Every engine's host refuses a connection to a port without a server; a cut link answers nothing."""
        return "refused" in one.run(f"timeout 2 bash -c 'exec 3<>/dev/tcp/{other.address}/9' 2>&1 || true")

    def links() -> list[bool]:
        return [reaches(first, second), reaches(second, third), reaches(third, first)]

    def become(*expected: bool) -> None:
        """In time: a host that could not be reached is not looked for anew at once, and this machine has other work."""
        _until(lambda: links() == [*expected], seconds_max=60, told=lambda: f"{links()}, not {expected}")

    become(True, True, True)
    laboratory.cut(second)
    become(False, False, True)
    laboratory.mend()
    become(True, True, True)
    laboratory.split([first], [second, third])
    become(False, True, False)
    laboratory.mend()
    become(True, True, True)

    (third.folder / "var-lib/weft/kept").write_text("on its disk")
    laboratory.off(third)
    _until(lambda: not reaches(first, third), seconds_max=60, told=lambda: "a host without power answers")
    laboratory.on(third)
    become(True, True, True)
    assert third.run("hostname; cat /var/lib/weft/kept; ls /run/weft 2>/dev/null || true") == "host-3\non its disk"


def test_a_stranger_goes_from_three_machines_to_a_cluster_whose_gang_meets_over_two_hosts(
    laboratory: Laboratory,
) -> None:
    walk = Walk(laboratory)
    first, second, third = laboratory.hosts
    shutil.copytree(ROOT / "deploy", first.folder / "home/deploy", ignore=shutil.ignore_patterns("wheels"))
    laboratory.load(SERVERS, [first])
    walk.do("1.")
    walk.do("2.")
    walk.do("3.")
    walk.do("4.")

    def told() -> str:
        services = (
            "docker service ps --no-trunc --format '{{.Name}} {{.CurrentState}} {{.Error}}' $(docker service ls -q)"
        )
        return first.run(
            f"{services}; for each in gateway executor scheduler; do docker service logs --tail 9 weft_$each; done 2>&1"
        )

    def nodes() -> set[str]:
        weft = "docker run --rm --network host --env WEFT_URL --env WEFT_TOKEN weft:local weft"
        script = f"{weft} nodes --json 2>/dev/null || echo {{}}"
        token = (first.folder / "home/credentials/admin-token").read_text().strip()
        answer = first.run(script, WEFT_URL=f"http://{_gateway(laboratory)}:8470", WEFT_TOKEN=token)
        return {node["id"] for node in json.loads(answer).get("nodes", ()) if node["ready"]}

    _until(lambda: nodes() == {"host-2", "host-3"}, seconds_max=UP_SECONDS_MAX, told=told)
    # With one replica the gateway is on any of the hosts; the page asks host-1, which with two may be without, too.
    walk.instead = {f"http://{first.address}:8470": f"http://{_gateway(laboratory)}:8470"}
    printed = walk.do("5.")
    assert "hello" in printed
    assert "rank 0 met rank 1 of 2" in printed

    # Each executor was given its own password and no other's.
    given = second.docker(
        "exec", "weft-beside-executor", "sh", "-c", "cat /secrets/password; ls /run/secrets 2>&1 || true"
    )
    own, other = (
        (first.folder / f"home/credentials/nats/executor-{name}").read_text() for name in (second.name, third.name)
    )
    assert own.strip() in given
    assert other.strip() not in given

    endless = f"weft run --image weft:local --gpus 2 --cpus 0.1 --memory 64MiB -- sh -c '{CHATTER}'"
    job = walk.shell(first, endless).split()[0]
    _until(lambda: len(_containers(laboratory)) == 1, seconds_max=60, told=told)
    running = _containers(laboratory)
    before = {host.name: _executor(host) for host in (second, third)}
    walk.do("Another version")
    _until(
        lambda: all(_executor(host) not in ("", before[host.name]) for host in (second, third)),
        seconds_max=120,
        told=told,
    )
    _until(lambda: nodes() == {"host-2", "host-3"}, seconds_max=60, told=told)
    assert _containers(laboratory) == running, "an update of the executors ended a job, or started it again"
    walk.shell(first, f"weft cancel {job}")
    _until(lambda: not _containers(laboratory), seconds_max=60, told=told)

    walk.do("Another host")
    walk.do("The end")
    assert walk.finished()


def test_a_gang_of_another_tenant_is_not_reached_over_its_network(laboratory: Laboratory) -> None:
    """Two overlay networks, as the page makes them for tenants, and containers as the executor puts into them."""
    first, second, third = laboratory.hosts
    for tenant in ("red", "blue"):
        first.run(f"docker network create --driver overlay --attachable weft-jobs-{tenant}")
    listen = 'import socket; s = socket.create_server(("", 7000)); [s.accept() for _ in range(9)]'
    second.run(f"docker run --detach --name red-0 --network weft-jobs-red weft:local python -c '{listen}'")
    address = second.run(
        "docker inspect --format '{{(index .NetworkSettings.Networks \"weft-jobs-red\").IPAddress}}' red-0"
    ).strip()

    def reached(network: str, name: str) -> bool:
        connect = f'import socket; socket.create_connection(("{name}", 7000), 3)'
        try:
            third.run(f"docker run --rm --network {network} weft:local python -c '{connect}' 2>&1")
        except LaboratoryError:
            return False
        return True

    _until(lambda: reached("weft-jobs-red", "red-0"), seconds_max=60, told=lambda: "red does not reach itself")
    assert not reached("weft-jobs-blue", "red-0")
    assert not reached("weft-jobs-blue", address)


def _gateway(laboratory: Laboratory) -> str:
    """The address of a host that has a gateway; the first host's as long as there is none."""
    for host in laboratory.hosts:
        if host.docker("ps", "--quiet", "--filter", "label=com.docker.swarm.service.name=weft_gateway"):
            return host.address
    return laboratory.hosts[0].address


def _containers(laboratory: Laboratory) -> set[str]:
    """Of jobs, by id."""
    found: set[str] = set()
    for host in laboratory.hosts:
        found |= set(host.docker("ps", "--quiet", "--no-trunc", "--filter", "label=weft.job").split())
    return found


def _executor(host: Host) -> str:
    return host.docker("ps", "--quiet", "--filter", "name=^weft-beside-executor$").strip()
