"""Telemetry sees what real processes of this machine do: no clock or file here is pretended."""

import asyncio
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import docker.errors
import pytest

from tests.support.doubles.bus import MemoryBus
from tests.support.engine import need_engine
from tests.support.runs import until
from weft.emulation.gpus import emulated_gpus
from weft.gpus import GpuWatch
from weft.messages.signals import GpuProcess, GpuSample, NodeSampled, RunSample
from weftd.telemetry.processes import read_groups, read_process
from weftd.telemetry.runs import ProcessRuns, docker_runs
from weftd.telemetry.service import Telemetry, run
from weftd.telemetry.settings import TelemetrySettings
from weftd.telemetry.thinking.attribution import Attribution
from weftd.telemetry.thinking.readings import FoundRun
from weftd.telemetry.threads import LOOK_SECONDS

BUSY = """
import os
print(os.getpid(), flush=True)
while True: pass
"""
BUSY_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"
IDLE = "import time; time.sleep(3600)"
GROWS_WHEN_TOLD = """
import sys, time
print("ready", flush=True)
sys.stdin.readline()
kept = b"x" * (64 << 20)
print("grown", flush=True)
time.sleep(3600)
"""
MEBIBYTE = 2**20

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def start(home: Path) -> Iterator[Start]:
    """Start a program as the process runtime would: leading its own session, told of in run.json."""
    started = []

    def begin(job_id: str, program: str, cgroups: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        for group in (cgroups or {}).values():
            Path(group, "cgroup.procs").write_text(str(process.pid))
        folder = home / "runs" / f"{job_id}-1-0"
        folder.mkdir(parents=True)
        record = {"job_id": job_id, "epoch": 1, "rank": 0, "pid": process.pid, "cgroups": cgroups or {}}
        (folder / "run.json").write_text(json.dumps(record))
        return process

    yield begin
    for process in started:
        with process, suppress(ProcessLookupError):
            os.killpg(process.pid, 9)


def telemetry(home: Path) -> Telemetry:
    return Telemetry(
        node_id="node-1",
        pool="default",
        finder=ProcessRuns(home),
        gpus=GpuWatch(emulated_gpus(2, node_id="node-1")),
        disk=home,
    )


async def sampled_over(seconds: float, telemetry: Telemetry) -> NodeSampled:
    """What the node did in the next `seconds`."""
    await telemetry.look()
    await telemetry.sample(at=time.time())
    await asyncio.sleep(seconds)
    return await telemetry.sample(at=time.time())


def run_of(sampled: NodeSampled, job_id: str) -> RunSample:
    return next(one for one in sampled.runs if one.job_id == job_id)


def cpu_seconds(pid: int) -> float:
    """What the kernel's own clock of that process says, which telemetry does not use."""
    return time.clock_gettime((~pid << 3) | 2)


@pytest.mark.parametrize("program", [BUSY, BUSY_CHILD])
async def test_a_busy_loop_is_about_one_core_and_an_idle_run_is_none(home: Path, start: Start, program: str) -> None:
    process = start("busy", program)
    start("idle", IDLE)
    assert process.stdout is not None
    pid = int(await asyncio.to_thread(process.stdout.readline))
    node = telemetry(home)
    await node.look()
    await node.sample(at=0.0)
    worked, began = cpu_seconds(pid), time.monotonic()
    await until(lambda: cpu_seconds(pid) > worked + 1.0)
    sampled = await node.sample(at=time.monotonic() - began)
    cpus = (cpu_seconds(pid) - worked) / (time.monotonic() - began)  # 1.0, but others may want this machine's CPUs too
    busy, idle = run_of(sampled, "busy"), run_of(sampled, "idle")
    assert cpus < 1.05
    assert busy.cpus_used == pytest.approx(cpus, abs=0.1)
    assert idle.cpus_used == pytest.approx(0.0, abs=0.1)
    assert sampled.host.cpus_used is not None
    assert sampled.host.cpus_used > cpus - 0.1
    assert busy.source == "processes"


async def test_memory_that_a_run_takes_is_seen(home: Path, start: Start) -> None:
    process = start("grows", GROWS_WHEN_TOLD)
    assert process.stdin is not None
    assert process.stdout is not None
    await asyncio.to_thread(process.stdout.readline)
    node = telemetry(home)
    await node.look()
    before = run_of(await node.sample(at=0.0), "grows").memory_used
    process.stdin.write("go\n")
    process.stdin.flush()
    await asyncio.to_thread(process.stdout.readline)
    after = run_of(await node.sample(at=1.0), "grows").memory_used
    assert before is not None
    assert after is not None
    assert 60 * MEBIBYTE < after - before < 80 * MEBIBYTE


async def test_a_run_that_ended_is_told_of_no_more(home: Path, start: Start) -> None:
    node = telemetry(home)
    process = start("short", IDLE)
    await node.look()
    assert [one.job_id for one in (await node.sample(at=0.0)).runs] == ["short"]
    process.kill()
    process.wait()
    assert (await node.sample(at=1.0)).runs == ()


async def test_the_host_tells_its_size_and_the_emulated_gpus_nothing_but_theirs(home: Path) -> None:
    sampled = await sampled_over(0.2, telemetry(home))
    assert sampled.host.cpus == os.cpu_count()
    assert sampled.host.memory_total > sampled.host.memory_used > 0
    assert sampled.host.disk_total > sampled.host.disk_used > 0
    assert sampled.host.network_receive_rate is not None
    assert [(gpu.emulated, gpu.utilisation) for gpu in sampled.gpus] == [(True, None)] * 2


@pytest.fixture
def cgroups() -> Iterator[dict[str, str]]:
    """A cgroup of the run's own, with a fifth of a core, where this machine lets us make one."""
    root, name = Path("/sys/fs/cgroup"), f"weft-telemetry-test-{os.getpid()}"
    if (root / "cgroup.controllers").exists():
        pytest.skip("making one in version 2 would change the cgroup that the tests run in")
    made = {controller: root / controller / name for controller in ("cpu", "cpuacct", "memory")}
    try:
        for folder in made.values():
            folder.mkdir(exist_ok=True)
        (made["cpu"] / "cpu.cfs_quota_us").write_text("20000")
        (made["memory"] / "memory.limit_in_bytes").write_text(str(256 * MEBIBYTE))
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    yield {controller: str(folder) for controller, folder in made.items()}
    for folder in set(made.values()):
        deadline = time.monotonic() + 5
        while folder.exists() and time.monotonic() < deadline:  # its last process may still be leaving
            try:
                folder.rmdir()
            except OSError:
                time.sleep(0.01)


@pytest.mark.alone
async def test_a_run_held_to_a_fifth_of_a_core_by_its_cgroup_is_seen_throttled(
    cgroups: dict[str, str], home: Path, start: Start
) -> None:
    start("held", BUSY, cgroups)
    held = run_of(await sampled_over(2.0, telemetry(home)), "held")
    assert held.source == "cgroup1"
    assert held.cpus_used is not None
    assert 0.1 < held.cpus_used < 0.3
    assert held.cpu_throttled is not None
    assert held.cpu_throttled > 0.5
    assert held.cpus_limit == 0.2
    assert held.memory_limit == 256 * MEBIBYTE


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


async def test_the_service_says_a_sample_each_period_and_shows_it(home: Path, start: Start) -> None:
    start("idle", IDLE)
    bus, stop, port = MemoryBus(), asyncio.Event(), free_port()
    heard: list[NodeSampled] = []
    enough = asyncio.Event()

    async def hear(sampled: NodeSampled) -> None:
        heard.append(sampled)
        if len(heard) >= 3:
            enough.set()

    await bus.subscribe(NodeSampled, hear)
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        settings = TelemetrySettings(node_id="node-1", home=home, period_seconds=0.2, admin_port=port)
        tasks.create_task(run(settings, telemetry(home), bus=bus, stop=stop))
        await enough.wait()
        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/metrics") as answer:
            shown = await answer.text()
        stop.set()
    assert [(one.node_id, one.pool) for one in heard] == [("node-1", "default")] * len(heard)
    assert [one.seq for one in heard] == list(range(1, len(heard) + 1))
    assert "weft_telemetry_lost 0.0" in shown
    assert heard[-1].at > heard[0].at
    assert [one.job_id for one in heard[-1].runs] == ["idle"]
    assert heard[-1].runs[0].cpus_used is not None
    assert 'weft_run_cpus_used{epoch="1",job_id="idle",node="node-1",rank="0",source="processes"}' in shown
    assert 'weft_gpu_memory_total_bytes{emulated="true",gpu="0"' in shown
    assert "weft_gpu_utilisation_ratio" not in shown


IMAGE = "weft-telemetry-test"


@pytest.fixture
def container() -> Iterator[Callable[..., Any]]:
    """Start a shell's program in a labelled container as the docker runtime would; the image is one static program."""
    need_engine()
    busybox = shutil.which("busybox")
    try:
        engine = docker.from_env(timeout=30)
        engine.ping()
    except (docker.errors.DockerException, OSError) as error:
        pytest.skip(f"no Docker engine answers: {error}")
    if busybox is None:
        pytest.skip("needs a static busybox to make an image of")
    image = io.BytesIO()
    with tarfile.open(fileobj=image, mode="w") as archive:
        archive.add(os.path.realpath(busybox), arcname="bin/busybox")
        for applet in ("sh", "dd", "nc", "sleep", "tail"):
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
    engine.api.import_image_from_data(image.getvalue(), repository=IMAGE)
    started = []

    def begin(job_id: str, program: str, *, cpus: float = 0.5, **limits: Any) -> Any:
        made = engine.containers.run(
            IMAGE,
            ["/bin/sh", "-c", program],
            detach=True,
            environment={"PATH": "/bin"},
            nano_cpus=round(cpus * 1e9),
            mem_limit=64 * MEBIBYTE,
            labels={"weft.job": job_id, "weft.epoch": "1", "weft.rank": "0", "weft.node": "telemetry-test"},
            **limits,
        )
        started.append(made)
        made.reload()
        return made

    yield begin
    for one in started:
        one.remove(force=True)
    engine.images.remove(IMAGE, force=True)
    engine.close()


@pytest.fixture
def boxes(home: Path) -> Telemetry:
    """A node of the docker runtime."""
    return Telemetry(
        node_id="telemetry-test",
        pool="default",
        finder=docker_runs("telemetry-test"),
        gpus=GpuWatch(()),
        disk=home,
    )


@pytest.mark.docker
@pytest.mark.alone
async def test_a_container_is_measured_by_its_cgroup_and_its_own_network(
    container: Callable[..., Any], boxes: Telemetry
) -> None:
    container("boxed", "while true; do :; done", cpus=0.2)  # so little that it is held back on a busy machine, too
    await sampled_over(2.0, boxes)
    boxed = run_of(await sampled_over(2.0, boxes), "boxed")
    assert boxed.source in ("cgroup1", "cgroup2")
    assert boxed.cpus_used == pytest.approx(0.2, abs=0.1)
    assert boxed.cpu_throttled is not None
    assert boxed.cpu_throttled > 0.5
    assert boxed.cpus_limit == 0.2
    assert boxed.busiest_thread == pytest.approx(0.2, abs=0.1)
    assert boxed.blocked == 0.0
    assert boxed.memory_limit == 64 * MEBIBYTE
    assert boxed.memory_used is not None
    assert 0 < boxed.memory_used < 32 * MEBIBYTE
    assert (boxed.memory_failures_rate, boxed.oom_kills, boxed.network_resent_rate) == (0.0, 0, 0.0)
    assert boxed.network_receive_rate is not None
    assert boxed.disk_read_rate is not None


@pytest.mark.docker
async def test_a_container_that_meets_its_memory_limit_and_one_that_is_killed_for_it_are_told_apart(
    container: Callable[..., Any], boxes: Telemetry
) -> None:
    """The page cache of a large file meets the limit again and again; what only grows is killed."""
    container("meets", "while true; do dd if=/dev/zero of=/large bs=1M count=256; done")
    container("killed", "tail /dev/zero; sleep 3600", memswap_limit=64 * MEBIBYTE)
    container("quiet", "sleep 3600")
    await boxes.look()
    for _ in range(100):
        if run_of(await boxes.sample(at=time.time()), "killed").oom_kills:
            break
        await asyncio.sleep(0.2)
    sampled = await sampled_over(2.0, boxes)
    meets, killed, quiet = (run_of(sampled, name) for name in ("meets", "killed", "quiet"))
    assert meets.memory_failures_rate is not None
    assert meets.memory_failures_rate > 1
    assert (meets.oom_kills, killed.oom_kills) == (0, 1)
    assert (quiet.oom_kills, quiet.memory_failures_rate, quiet.major_faults_rate) == (0, 0.0, 0.0)


@pytest.mark.docker
async def test_what_a_container_sends_is_seen_at_both_ends_and_nowhere_else(
    container: Callable[..., Any], boxes: Telemetry
) -> None:
    """About 1 MiB a second, in a network of their own each."""
    hears = container("hears", "while true; do sleep 3600 | nc -l -p 5000 > /dev/null; done")
    address = hears.attrs["NetworkSettings"]["IPAddress"]
    stream = "while dd if=/dev/zero bs=1M count=1; do sleep 1; done"
    container("sends", f"while true; do ({stream}) | nc {address} 5000; sleep 0.1; done")
    container("quiet", "sleep 3600")
    await sampled_over(2.0, boxes)
    await asyncio.sleep(4.0)
    sampled = await boxes.sample(at=time.time())
    hears, sends, quiet = (run_of(sampled, name) for name in ("hears", "sends", "quiet"))
    assert sends.network_send_rate is not None
    assert 0.25 * MEBIBYTE < sends.network_send_rate < 1.4 * MEBIBYTE  # less where the sender waits for a CPU
    assert hears.network_receive_rate == pytest.approx(sends.network_send_rate, rel=0.3)
    assert quiet.network_send_rate is not None
    assert quiet.network_send_rate < 10_000
    assert (sends.network_resent_rate is None, quiet.network_resent_rate) == (False, 0.0)


@pytest.mark.docker
async def test_a_container_that_vanishes_while_it_is_read_is_told_of_no_more(
    container: Callable[..., Any], boxes: Telemetry
) -> None:
    made = [container(f"short-{number}", "sleep 3600") for number in range(3)]
    await boxes.look()
    assert len((await boxes.sample(at=0.0)).runs) == 3
    killing = asyncio.create_task(asyncio.to_thread(lambda: [one.kill() for one in made]))
    while not killing.done():
        await boxes.sample(at=0.0)  # what was known is read while it goes
    await killing
    assert (await boxes.sample(at=0.0)).runs == ()


@pytest.mark.docker
async def test_a_process_in_a_container_is_known_to_be_its_runs(container: Callable[..., Any]) -> None:
    made = container("boxed", "sleep 3600 & sleep 3600 & wait")
    runs = await docker_runs("telemetry-test").find()
    pids = [int(fields[1]) for fields in made.top()["Processes"]]
    assert len(pids) == 3
    assert owners(runs, [*pids, os.getpid()]) == ["boxed"] * 3 + [""]


async def test_a_process_that_a_run_began_is_known_to_be_its_own_even_in_another_session(
    home: Path, start: Start
) -> None:
    begins = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[0]], start_new_session=True)"
    process = start("busy", begins.replace("sys.argv[0]", repr(BUSY)))
    assert process.stdout is not None
    pid = int(await asyncio.to_thread(process.stdout.readline))
    runs = await ProcessRuns(home).find()
    try:
        assert owners(runs, [pid, process.pid, os.getpid()]) == ["busy", "busy", ""]
    finally:
        os.kill(pid, 9)


def owners(runs: list[FoundRun], pids: list[int]) -> list[str]:
    gpu = GpuSample(index=0, uuid="u", model="m", processes=tuple(GpuProcess(pid=pid) for pid in pids))
    attribution = Attribution(look=read_process, groups=read_groups)
    (attributed,) = attribution.attributed((gpu,), runs)
    return [process.job_id for process in attributed.processes]


async def test_threads_are_told_apart(home: Path, start: Start) -> None:
    """One that works a fifth of the time beside many that sleep; no quota, no container."""
    program = """
import threading, time
for _ in range(20):
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
print("ready", flush=True)
while True:
    until = time.monotonic() + 0.02
    while time.monotonic() < until: pass
    time.sleep(0.08)
"""
    process = start("threads", program)
    assert process.stdout is not None
    await asyncio.to_thread(process.stdout.readline)
    worked, began = cpu_seconds(process.pid), time.monotonic()
    one = run_of(await sampled_over(LOOK_SECONDS + 0.2, telemetry(home)), "threads")
    cpus = (cpu_seconds(process.pid) - worked) / (time.monotonic() - began)  # 0.2, or less where others want it
    assert one.busiest_thread == pytest.approx(cpus, abs=0.1)
    assert one.busiest_thread > cpus / 2
    assert one.blocked == 0.0
    assert one.cpus_limit is None


@pytest.mark.alone
async def test_a_cgroup_that_is_removed_while_its_run_lives_leaves_what_its_processes_tell(
    cgroups: dict[str, str], home: Path, start: Start
) -> None:
    process = start("held", IDLE, cgroups)
    node = telemetry(home)
    assert run_of(await sampled_over(0.5, node), "held").source == "cgroup1"
    for folder in map(Path, cgroups.values()):
        (folder.parent / "cgroup.procs").write_text(str(process.pid))
        os.rmdir(folder)
    after = run_of(await sampled_over(0.5, node), "held")
    assert (after.source, after.oom_kills, after.memory_limit) == ("processes", None, None)
    assert after.cpus_used is not None
    assert node.sampler.lost > 0
