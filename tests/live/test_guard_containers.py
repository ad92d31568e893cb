"""The guard ends containers: through the engine, and by their processes where the engine was killed under them."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.control_plane import ControlPlane
from tests.support.guarded import KEY, LEASE, executor, guard_pid, spans, tracing
from tests.support.nats_server import NatsServer
from tests.support.private_engine import IMAGE, PrivateEngine, need_private_engine
from tests.support.runs import order, until
from weft.messages.nodes import EndReason
from weftd.executor.machine.boot import boot_clock

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def engine() -> Iterator[PrivateEngine]:
    need_private_engine()
    made = PrivateEngine()
    try:
        made.start()
        made.load(IMAGE)
        yield made
    finally:
        made.erase()


def in_containers(engine: PrivateEngine) -> dict[str, str]:
    return {
        "EXECUTOR_RUNTIME": "docker",
        "EXECUTOR_JOB_NETWORK": "host",
        "EXECUTOR_PULL": "0",
        "DOCKER_HOST": engine.address,
    }


async def runs_tracing(control: ControlPlane, home: Path) -> Path:
    """Where it traces, once it does."""
    trace = home / "checkpoints" / KEY.job_id / "trace"
    command = tracing(Path("/weft/checkpoints/trace"), heeds=False)
    await control.want(order(command=command, image=IMAGE, grace=0.5))
    await control.hears(KEY, "running")
    await until(lambda: spans(trace))
    return trace


async def test_a_stopped_executors_containers_are_ended_through_the_engine(
    server: NatsServer, control: ControlPlane, engine: PrivateEngine, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    async with executor(server, home, **in_containers(engine)) as process:
        trace = await runs_tracing(control, home)
        process.send_signal(signal.SIGSTOP)
        stopped = boot_clock()
        await until(lambda: boot_clock() > stopped + LEASE)
        assert spans(trace)[1][1] < stopped + LEASE
        process.send_signal(signal.SIGCONT)
        seen = await control.hears(KEY, "exited")
        assert (seen.reason, seen.exit_code) == (EndReason.FENCED, 137)
        process.terminate()
        assert await process.wait() == 0
        assert guard_pid(home) is None


async def test_the_guard_asks_a_program_below_a_shell_after_the_shell(
    server: NatsServer, control: ControlPlane, engine: PrivateEngine, tmp_path: Path
) -> None:
    home, saved = tmp_path / "home", tmp_path / "home" / "checkpoints" / KEY.job_id / "saved"
    longer = {"EXECUTOR_FENCE_GRACE_MAX": "4", "EXECUTOR_LEASE_SECONDS": "10"}
    train = "trap 'sleep 0.3; echo saved >/weft/checkpoints/saved; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    async with executor(server, home, **longer, **in_containers(engine)) as process:
        command = ("sh", "-c", 'sh -c "$TRAIN"; echo after')
        await control.want(order(command=command, env={"TRAIN": train}, image=IMAGE, grace=4.0))
        await control.hears(KEY, "running")
        log = home / "logs" / f"{KEY}.log"
        await until(lambda: log.exists() and b"up" in log.read_bytes())
        process.send_signal(signal.SIGSTOP)
        await until(saved.exists)
        assert "kill" not in (home / "guard.log").read_text()
    gone = await asyncio.to_thread(engine.docker, "rm", "--force", f"weft-{KEY}")  # the next executor would adopt it
    assert gone.returncode == 0, gone.stderr


async def test_a_container_that_was_made_and_not_started_is_removed_when_the_fence_has_fallen(
    server: NatsServer, control: ControlPlane, engine: PrivateEngine, tmp_path: Path
) -> None:
    """What an executor stopped between the two leaves: going on much later it finds nothing to start."""
    home = tmp_path / "home"
    labels = {"job": "job-9", "epoch": "1", "rank": "0", "node": "node-1", "cluster": "weft", "grace": "0.0"}
    words = [word for name, value in labels.items() for word in ("--label", f"weft.{name}={value}")]
    async with executor(server, home, **in_containers(engine)) as process:
        await until(lambda: control.reports)
        process.send_signal(signal.SIGSTOP)
        made = await asyncio.to_thread(engine.docker, "create", *words, IMAGE, "true")
        assert made.returncode == 0, made.stderr
        container = made.stdout.strip()
        async with asyncio.timeout(30):
            while (await asyncio.to_thread(engine.docker, "inspect", container)).returncode == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        late = await asyncio.to_thread(engine.docker, "start", container)
        assert "No such container" in late.stderr


async def test_containers_whose_engine_was_killed_are_ended_by_their_processes(
    server: NatsServer, control: ControlPlane, engine: PrivateEngine, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    async with executor(server, home, **in_containers(engine)) as process:
        trace = await runs_tracing(control, home)
        process.send_signal(signal.SIGSTOP)
        stopped = boot_clock()
        await asyncio.to_thread(engine.kill)
        killed = boot_clock()
        await until(lambda: spans(trace)[1][1] > killed + 0.2)  # it lives on
        await until(lambda: boot_clock() > stopped + LEASE)
        assert spans(trace)[1][1] < stopped + LEASE
        assert "terminate job-1-1-0" in (home / "guard.log").read_text(), "it was asked first"
        await asyncio.to_thread(engine.start)
        process.send_signal(signal.SIGCONT)
        seen = await control.hears(KEY, "exited")
        assert (seen.reason, seen.exit_code) == (EndReason.FENCED, 137)
