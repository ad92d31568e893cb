"""docs/hosts.md, command by command, on three hosts of the laboratory: a swarm, and a gang over two of them."""

import base64
import contextlib
import json
import os
import shlex
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
SERVERS = ("weft-nats:local", "weft-postgres:local", "weft-registry:local")
UP_SECONDS_MAX = 240.0
STEP_SECONDS_MAX = 180.0
GATEWAY_SECONDS_MAX = 90.0
# Outside of the page: what an engine without a registry and a machine without GPUs need; and one replica of each
# service, because all three hosts are this machine.
SURROUNDINGS = {
    "NATS_IMAGE": SERVERS[0],
    "POSTGRES_IMAGE": SERVERS[1],
    "REGISTRY_IMAGE": SERVERS[2],
    "WEFT_EMULATED_GPUS": "2",
    "WEFT_BENCHMARKS": "off",
    "WEFT_REPLICAS": "1",
}
# Each part of the page goes on in the shell of the part before it on that host.
SHELL = "[ ! -f ~/.shell ] || . ~/.shell\n{script}\n{{ export -p; declare -f; }} >~/.shell\n"
TORCH_IMAGE = os.environ.get("WEFT_TORCH_IMAGE", "")  # with PyTorch, which is none of our dependencies
TRAINING = """
import os
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
weights = torch.cat([each.detach().flatten() for each in model.parameters()])
everywhere = [torch.zeros_like(weights) for _ in range(size)]
dist.all_gather(everywhere, weights)
replicas = [torch.zeros(1) for _ in range(size)]
dist.all_gather(replicas, torch.tensor([float(os.environ["GROUP_RANK"])]))
if rank == 0:
    equal = all(torch.equal(each, weights) for each in everywhere)
    print("trained by", size, "in", len({each.item() for each in replicas}), "containers, equal", equal)
dist.destroy_process_group()
"""
CHATTER = "while :; do echo beat; sleep 1; done"

pytestmark = [pytest.mark.docker, pytest.mark.nightly, pytest.mark.timeout(1800)]


class Walk:
    """Goes through the page on the hosts of a laboratory."""

    def __init__(self, laboratory: Laboratory) -> None:
        self._laboratory = laboratory
        self.hosts = {host.name: host for host in laboratory.hosts}
        self._left = steps()
        self.instead: dict[str, str] = {}  # what the page's own words are to mean here
        self.told: Callable[[], str] = str  # what else to say of a step that fails

    def do(self, section: str, *, parts_max: int | None = None) -> str:
        """Execute the next parts of the page, which have to be those of this section; returns what they print."""
        assert self._left[0].section.startswith(section), self._left[0]
        printed, parts = "", 0
        while self._left and self._left[0].section.startswith(section) and parts != parts_max:
            try:
                printed += self._execute(self._left.pop(0))
            except LaboratoryError as error:
                raise LaboratoryError(f"{error}\n{self.told()}") from error
            parts += 1
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

    def at_a_gateway(self, host: Host, script: str) -> str:
        """Execute what asks a gateway, wherever one is: a deployment may still be starting it on another host."""
        deadline = time.monotonic() + GATEWAY_SECONDS_MAX
        while True:
            try:
                return self.shell(host, f"export WEFT_URL=http://{_gateway(self._laboratory)}:8470; {script}")
            except LaboratoryError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(2)


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
        names = "gateway executor scheduler postgres postgres-2"
        logs = f"for each in {names}; do docker service logs --tail 9 weft_$each; done 2>&1 || true"
        return (first if first.is_on else second).run(f"{services}; {logs}")

    walk.told = told
    token = Path(first.folder / "home/credentials/admin-token")

    def nodes() -> set[str]:
        weft = "docker run --rm --network host --env WEFT_URL --env WEFT_TOKEN weft:local weft"
        script = f"{weft} nodes --json 2>/dev/null || echo {{}}"
        url = f"http://{_gateway(laboratory)}:8470"
        answer = second.run(script, WEFT_URL=url, WEFT_TOKEN=token.read_text().strip())
        return {node["id"] for node in json.loads(answer).get("nodes", ()) if node["ready"]}

    _until(lambda: nodes() == {"host-2", "host-3"}, seconds_max=UP_SECONDS_MAX, told=told)
    # With one replica the gateway is on any of the hosts; the page asks host-1, which with two may be without, too.
    walk.instead = {f"http://{first.address}:8470": f"http://{_gateway(laboratory)}:8470"}
    printed = walk.do("5.")
    assert "hello" in printed
    assert "rank 0 met rank 1 of 2" in printed

    assert "made on host-" in walk.do("6.")  # rank 0 says it, and rank 1 on the other host ends well

    if TORCH_IMAGE:
        laboratory.load([TORCH_IMAGE], [second, third])
        assert "trained by 4 in 2 containers, equal True" in walk.shell(first, _training())

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

    walk.do("Hosts at several sites")
    _until(lambda: _sites_with_a_gateway(first, second, third) == 2, seconds_max=120, told=told)

    # The host with NATS and Postgres is lost, and comes back.
    laboratory.load(SERVERS, [second, third])
    _until(lambda: nodes() == {"host-2", "host-3"}, seconds_max=120, told=told)
    job = walk.at_a_gateway(first, endless).split()[0]
    _until(lambda: len(_containers(laboratory)) == 1, seconds_max=60, told=told)
    running = _containers(laboratory)
    walk.do("A store that outlives its host")
    for folder in ("credentials", "deploy"):
        shutil.copytree(first.folder / "home" / folder, second.folder / "home" / folder)
    walk.shell(second, "export WEFT_REPLICAS=2")
    _until(lambda: nodes() == {"host-2", "host-3"}, seconds_max=UP_SECONDS_MAX, told=told)
    _until(lambda: _servers_met(second) == 3, seconds_max=120, told=told)

    laboratory.off(first)
    walk.do("The first host is lost", parts_max=1)
    _until(lambda: nodes() == {"host-2", "host-3"}, seconds_max=UP_SECONDS_MAX, told=told)
    walk.instead = {f"http://{second.address}:8470": f"http://{_gateway(laboratory)}:8470"}
    assert "hello again" in walk.do("The first host is lost")
    assert _containers(laboratory) == running, "the loss of a host without GPUs ended a job, or started it again"

    laboratory.on(first)
    walk.do("The first host comes back")
    _until(lambda: nodes() == {"host-2", "host-3"}, seconds_max=UP_SECONDS_MAX, told=told)
    _until(lambda: _servers_met(first) == 3, seconds_max=120, told=told)
    walk.at_a_gateway(second, f"weft cancel {job}")
    _until(lambda: not _containers(laboratory), seconds_max=60, told=told)
    assert walk.shell(second, "sql postgres-2 'SELECT sync_state FROM pg_stat_replication'") == "sync\n"

    walk.do("The end")
    assert walk.finished()


def test_a_gang_of_another_tenant_is_not_reached_over_its_network(laboratory: Laboratory) -> None:
    """Two overlay networks, as the page makes them for tenants, and containers as the executor puts into them."""
    first, second, third = laboratory.hosts
    for tenant in ("red", "blue"):
        first.run(f"docker network create --driver overlay --attachable weft-jobs-{tenant}")
    listen = 'import socket; s = socket.create_server(("", 7000)); [s.accept() for _ in range(9)]'

    def listens() -> bool:
        """Managers that have just lost and found one may take longer than the engine waits for a network."""
        try:
            second.run(f"docker run --detach --name red-0 --network weft-jobs-red weft:local python -c '{listen}'")
        except LaboratoryError:
            second.run("docker rm --force red-0")
            return False
        return True

    _until(listens, seconds_max=180, told=lambda: "no container of red is attached to its network")
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


def _training() -> str:
    """A gang of two on two hosts, of which `torchrun` starts two processes each, without arguments."""
    text = base64.b64encode(TRAINING.encode()).decode()
    write = "import base64, os; open('/tmp/train.py', 'wb').write(base64.b64decode(os.environ['TRAINING']))"
    command = f'python3 -c "{write}" && exec python3 -m torch.distributed.run /tmp/train.py'
    options = f"--image {TORCH_IMAGE} --gpus 2 --replicas 2 --cpus 0.5 --memory 1GiB --env TRAINING={text}"
    run = f"weft run --follow --name trains {options} -- sh -c {shlex.quote(command)}"
    return f"{run} || {{ weft logs trains >&2; false; }}"


def _gateway(laboratory: Laboratory) -> str:
    """The address of a host that has a gateway; some living host's as long as there is none."""
    living = [host for host in laboratory.hosts if host.is_on]
    for host in living:
        if host.docker("ps", "--quiet", "--filter", "label=com.docker.swarm.service.name=weft_gateway"):
            return host.address
    return living[0].address


def _sites_with_a_gateway(west: Host, also_west: Host, east: Host) -> int:
    gateways = [
        host.docker("ps", "--quiet", "--filter", "label=com.docker.swarm.service.name=weft_gateway")
        for host in (west, also_west, east)
    ]
    return bool(gateways[0] or gateways[1]) + bool(gateways[2])


def _containers(laboratory: Laboratory) -> set[str]:
    """Of jobs, by id."""
    found: set[str] = set()
    for host in (host for host in laboratory.hosts if host.is_on):
        found |= set(host.docker("ps", "--quiet", "--no-trunc", "--filter", "label=weft.job").split())
    return found


def _executor(host: Host) -> str:
    return host.docker("ps", "--quiet", "--filter", "name=^weft-beside-executor$").strip()


def _servers_met(host: Host) -> int:
    """How many NATS servers the one of this host counts in its cluster; 0 if it cannot tell."""
    look = "docker exec $(docker ps --quiet --filter name=weft_nats) wget -q -O - http://127.0.0.1:8222/jsz || echo {}"
    told = json.loads(host.run(look))
    return int(told.get("meta_cluster", {}).get("cluster_size", 0)) if told.get("meta_cluster", {}).get("leader") else 0
