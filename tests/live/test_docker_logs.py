"""What containers wrote, on a real engine: whole after whatever happened, and the engine's own files do not grow."""

import asyncio
import gc
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path

import docker
import docker.errors
import pytest
from docker.models.containers import Container

from tests.chaos.engine import IMAGE as OWN_IMAGE
from tests.chaos.engine import Engine, EngineMissingError, own_engine
from tests.support.control_plane import ControlPlane
from tests.support.disk import fill, small_disk
from tests.support.engine import need_images
from tests.support.nats_server import NatsServer
from tests.support.runs import in_state, killed_for_memory, order, until, whole_log
from tests.support.tier import some
from weft.bus.nats import NatsBus
from weft.messages.nodes import EndReason, LogRead, ReadLog, RunState, StartRun
from weftd.executor.files.home import Home
from weftd.executor.machine.node import NodeFacts
from weftd.executor.runs import Run, RunKey, RuntimeUnavailableError
from weftd.executor.runtime.docker.runtime import DockerRuntime
from weftd.executor.runtime.docker.settings import ContainerSettings

pytestmark = pytest.mark.docker

IMAGE = "weft-job-busybox:local"
MEBIBYTE = 1 << 20


@pytest.fixture
def node_id() -> Iterator[str]:
    need_images(IMAGE)
    name = f"test-{uuid.uuid4().hex[:8]}"
    yield name
    engine = docker.from_env()
    try:
        for container in engine.containers.list(all=True, filters={"label": f"weft.cluster={name}"}):
            with suppress(docker.errors.APIError):  # gone, or being removed
                container.remove(force=True)
        for network in engine.networks.list(names=[f"{name}-alone"]):
            network.remove()
    finally:
        engine.close()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture(params=["by file", "by asking"])
async def runtime(
    request: pytest.FixtureRequest, node_id: str, tmp_path: Path, home: Home
) -> AsyncIterator[DockerRuntime]:
    facts = NodeFacts(node_id=node_id, checkpoints=str(tmp_path / "checkpoints"), results=str(tmp_path / "results"))
    by_file = request.param == "by file"
    settings = ContainerSettings(cluster=node_id, pull=False, engine_files=by_file)
    try:
        made = await DockerRuntime.open(home, facts, settings)
    except RuntimeUnavailableError as error:
        pytest.skip(str(error))
    if by_file and not made.reaches_engine_files:
        await made.close()
        pytest.skip("the engine's own files are out of reach here")
    yield made
    await made.close()


def job(node_id: str, script: str, **fields: object) -> StartRun:
    return order(job_id=node_id, image=IMAGE, command=("sh", "-c", script), **fields)


async def test_every_byte_is_as_it_was_written(runtime: DockerRuntime, node_id: str) -> None:
    if not runtime.reaches_engine_files:
        pytest.skip("asked over its API, the engine spoils what is no UTF-8")
    long = "ä" * 30_000  # cut by the engine in the middle of a letter
    await runtime.start(job(node_id, f"printf '\\377\\200\\000'; echo; echo {long}; echo; printf end"))
    await in_state(runtime, RunKey(node_id, 1, 0), RunState.EXITED)
    expected = b"\377\200\000\n" + long.encode() + b"\n\nend"
    assert await whole_log(runtime, RunKey(node_id, 1, 0)) == expected


async def test_a_log_is_whole_after_a_stop_a_kill_for_memory_and_a_removal(
    runtime: DockerRuntime, node_id: str, home: Home
) -> None:
    key = RunKey(node_id, 1, 0)
    await runtime.start(job(node_id, "trap 'echo saved; exit 3' TERM; echo up; while :; do sleep 0.05; done"))
    await until(lambda: _text(home, key) == b"up\n")
    await runtime.signal(key, kill=False)
    await in_state(runtime, key, RunState.EXITED)
    assert await whole_log(runtime, key) == b"up\nsaved\n"
    await runtime.remove(key)
    assert await whole_log(runtime, key) == b"up\nsaved\n"

    epochs = count(2)

    async def begin() -> RunKey:
        key = RunKey(node_id, next(epochs), 0)
        await runtime.start(job(node_id, "echo up; exec tail /dev/zero", epoch=key.epoch, memory=48 * MEBIBYTE))
        return key

    key = await killed_for_memory(runtime, begin, engine=True)
    assert await whole_log(runtime, key) == b"up\n"

    key = RunKey(node_id, next(epochs), 0)
    await runtime.start(
        job(node_id, "i=0; while [ $i -lt 5000 ]; do echo line $i; i=$((i+1)); done; sleep 60", epoch=key.epoch)
    )
    await until(lambda: b"line 4999\n" in _text(home, key))
    _container(f"weft-{key}").remove(force=True)
    run = await in_state(runtime, key, RunState.EXITED)
    assert run.reason is EndReason.LOST
    assert await whole_log(runtime, key) == b"".join(b"line %d\n" % number for number in range(5000))


async def test_what_the_engine_keeps_of_a_containers_output_stays_small(
    runtime: DockerRuntime, node_id: str, home: Home
) -> None:
    if not runtime.reaches_engine_files:
        pytest.skip("nothing bounds the engine's files where they are out of reach")
    key, lines = RunKey(node_id, 1, 0), 6000
    script = f"i=0; while [ $i -lt {lines} ]; do printf '%016000d\\n' $i; i=$((i+1)); done; sleep 60"
    await runtime.start(job(node_id, script))
    size = lines * 16001
    log = Path(home.log(key))
    await until(lambda: log.exists() and log.stat().st_size == size, seconds_max=90)
    source = Path(docker_root()) / "containers" / str(_container(f"weft-{key}").id) / "local-logs" / "container.log"
    assert source.stat().st_size > size
    await until(lambda: source.stat().st_blocks * 512 < 10 * MEBIBYTE)
    await runtime.signal(key, kill=True)
    await in_state(runtime, key, RunState.EXITED)
    assert _text(home, key) == b"".join(b"%016000d\n" % number for number in range(lines))


async def test_a_container_that_ended_is_told_of_and_kept_until_a_full_disk_takes_its_log(
    node_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weftd.executor.runtime.docker.runtime.COPY_SECONDS_MAX", 1.0)
    key, go_on = RunKey(node_id, 1, 0), tmp_path / "checkpoints" / node_id / "go-on"
    lines = b"".join(b"line %d\n" % number for number in range(2000))
    script = """
    until [ -e /weft/checkpoints/go-on ]; do sleep 0.05; done
    i=0
    while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done
    exit 3
    """
    with small_disk(tmp_path / "disk") as disk:
        home = Home(disk / "home")
        facts = NodeFacts(node_id=node_id, checkpoints=str(tmp_path / "checkpoints"), results=str(tmp_path / "results"))
        runtime = await DockerRuntime.open(home, facts, ContainerSettings(cluster=node_id, pull=False))
        try:
            await runtime.start(job(node_id, script))
            await in_state(runtime, key, RunState.RUNNING)
            fill(disk)
            go_on.touch()
            run = await in_state(runtime, key, RunState.EXITED)
            assert (run.exit_code, run.reason) == (3, EndReason.EXIT)
            with pytest.raises(RuntimeUnavailableError, match="not all copied"):
                await runtime.remove(key)
            assert not (await runtime.read_log(key, offset=0, limit=10)).ended
            (disk / "filling").unlink()
            assert await whole_log(runtime, key) == lines
            await runtime.remove(key)
        finally:
            await runtime.close()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """One that may be killed. Its folder has a short name: the addresses of sockets have little room."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            made = own_engine(Path(folder) / "engine")
        except EngineMissingError as error:
            pytest.skip(str(error))
        monkeypatch.setenv("DOCKER_HOST", made.host)
        yield made
        made.stop()


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # the client's own, where nobody listens
@pytest.mark.parametrize("by_file", some(1, [True, False]), ids=["by file", "by asking"])
async def test_a_log_is_whole_though_its_container_ended_while_the_engine_was_dead(
    engine: Engine, tmp_path: Path, by_file: bool
) -> None:
    key, checkpoints = RunKey("job-1", 1, 0), tmp_path / "checkpoints"
    home = Home(tmp_path / "home")
    facts = NodeFacts(node_id="node-1", checkpoints=str(checkpoints), results=str(checkpoints.with_name("results")))
    settings = ContainerSettings(pull=False, job_network="host", engine_files=by_file)
    runtime = await DockerRuntime.open(home, facts, settings)
    assert runtime.reaches_engine_files == by_file
    script = """
    echo before; echo also before >&2
    until [ -e /weft/checkpoints/go-on ]; do sleep 0.05; done
    i=0
    while [ $i -lt 1500 ]; do echo line $i; i=$((i+1)); done
    mkdir /weft/checkpoints/ended
    exit 3
    """
    try:
        await runtime.start(order(image=OWN_IMAGE, command=("sh", "-c", script)))
        await in_state(runtime, key, RunState.RUNNING)
        await until(lambda: len(_text(home, key)) == len(b"before\nalso before\n"))
        before = _text(home, key)
        engine.send(signal.SIGKILL)
        (checkpoints / "job-1" / "go-on").touch()
        await until(lambda: (checkpoints / "job-1" / "ended").exists())
        await asyncio.sleep(0.5)
        await asyncio.to_thread(engine.start)
        run = await _ended(runtime, key)
        assert (run.exit_code, run.reason) == (3, EndReason.EXIT)
        assert await whole_log(runtime, key) == before + b"".join(b"line %d\n" % number for number in range(1500))
    finally:
        await runtime.close()
        gc.collect()  # now, while that warning is ignored


async def test_a_log_is_whole_though_the_executor_is_killed_and_stopped_while_it_is_written(
    node_id: str, tmp_path: Path
) -> None:
    (tmp_path / "nats").mkdir()
    server = NatsServer(tmp_path / "nats")
    key, lines = RunKey(node_id, 1, 0), 60_000
    script = f"i=0; while [ $i -lt {lines} ]; do echo line $i of a log; i=$((i+1)); done; echo end"
    log = tmp_path / "home" / "logs" / f"{key}.log"
    try:
        async with NatsBus.connect(server.url, name="control") as bus:
            control = ControlPlane(bus)
            await control.listen()
            await control.want(job(node_id, script))
            for number, size in ((signal.SIGKILL, 10_000), (signal.SIGKILL, 200_000), (signal.SIGSTOP, 400_000)):
                async with executor(server, tmp_path / "home", node_id) as process:
                    await until(lambda size=size: log.exists() and log.stat().st_size > size, seconds_max=90)
                    process.send_signal(number)
            async with executor(server, tmp_path / "home", node_id):
                seen = await control.hears(key, "exited", seconds_max=110)
                assert (seen.exit_code, seen.reason) == (0, EndReason.EXIT)
                assert await read_all(bus, key) == b"".join(b"line %d of a log\n" % n for n in range(lines)) + b"end\n"
    finally:
        server.stop()


async def read_all(bus: NatsBus, key: RunKey) -> bytes:
    data = b""
    while True:
        ask = ReadLog(node_id="node-1", job_id=key.job_id, epoch=key.epoch, rank=key.rank, offset=len(data))
        read = await bus.request(ask, LogRead, seconds_max=10)
        assert not read.missing
        data += read.data
        if read.ended:
            return data


@asynccontextmanager
async def executor(server: NatsServer, home: Path, cluster: str) -> AsyncIterator[asyncio.subprocess.Process]:
    environ = {
        **{name: value for name, value in os.environ.items() if name in ("PATH", "DOCKER_HOST")},
        "WEFT_NATS_URL": server.url,
        "WEFT_EXIT_WITH_PARENT": "1",
        "EXECUTOR_NODE_ID": "node-1",
        "EXECUTOR_HOME": str(home),
        "EXECUTOR_RUNTIME": "docker",
        "EXECUTOR_PULL": "0",
        "EXECUTOR_CLUSTER": cluster,
    }
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "weftd.executor", env=environ)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _ended(runtime: DockerRuntime, key: RunKey) -> Run:
    """The run, also while the engine does not answer at first."""
    while True:
        with suppress(RuntimeUnavailableError):
            return await in_state(runtime, key, RunState.EXITED)
        await asyncio.sleep(0.1)


def _text(home: Home, key: RunKey) -> bytes:
    log = Path(home.log(key))
    return log.read_bytes() if log.exists() else b""


def _container(name: str) -> Container:
    engine = docker.from_env()
    try:
        return engine.containers.get(name)
    finally:
        engine.close()


def docker_root() -> str:
    engine = docker.from_env()
    try:
        return str(engine.info()["DockerRootDir"])
    finally:
        engine.close()
