"""The executor as a process, with a real NATS server: what is only true of the whole."""

import asyncio
import re
import signal
import time
from pathlib import Path

from tests.support.control_plane import ControlPlane
from tests.support.executors import executor
from tests.support.nats_server import NatsServer
from tests.support.runs import order, until
from weft.messages.nodes import EndReason, LogRead, Member, Members, ReadLog, StartRun
from weftd.executor.runs import RunKey

KEY = RunKey("job-1", 1, 0)
TRAINING = "trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done"


async def test_a_job_runs_and_its_log_is_read_over_the_bus(
    server: NatsServer, control: ControlPlane, tmp_path: Path
) -> None:
    async with executor(server, tmp_path / "home"):
        await control.want(order(command=("sh", "-c", "echo hello; exit 3"), gpus=(1,)))
        seen = await control.hears(KEY, "exited")
        assert (seen.exit_code, seen.reason) == (3, EndReason.EXIT)
        ask = ReadLog(node_id="node-1", job_id="job-1", epoch=1, rank=0)
        read = await control.bus.request(ask, LogRead, seconds_max=5)
        assert read == LogRead(offset=0, data=b"hello\n", ended=True, size=6)
        assert len(control.reports[-1].capacity.gpus) == 2


async def test_a_killed_executor_neither_loses_nor_repeats_its_jobs(
    server: NatsServer, control: ControlPlane, tmp_path: Path
) -> None:
    home, keys = tmp_path / "home", [RunKey(f"job-{number}", 1, 0) for number in range(40)]
    script = f'mkdir "{tmp_path}/$WEFT_JOB_ID" || echo again >>"{tmp_path}/twice"; sleep 0.7; exit 5'
    await control.want(*(order(key.job_id, command=("sh", "-c", script)) for key in keys))
    for moment in (0.0, 0.02, 0.05, 0.1, 0.3):
        async with executor(server, home, keeping=True) as process:
            await until(lambda: (home / "runs").exists() and any((home / "runs").iterdir()), every=0.005)
            await asyncio.sleep(moment)
            process.kill()
            await process.wait()
    async with executor(server, home):
        for key in keys:
            seen = await control.hears(key, "exited")
            assert (seen.exit_code, seen.reason) == (5, EndReason.EXIT)
    assert not (tmp_path / "twice").exists()


async def test_a_node_without_nats_fences_itself_though_its_executor_restarts(
    server: NatsServer, control: ControlPlane, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    fence = "12"  # seconds: on a busy machine an executor takes some of them to end
    short = {"EXECUTOR_FENCE_SECONDS": fence, "EXECUTOR_FENCE_GRACE_MAX": "1", "EXECUTOR_SYNC_SECONDS": "0.5"}
    saved = home / "logs" / "job-1-1-0.log"
    async with executor(server, home, **short) as process:
        await control.want(order(command=("sh", "-c", TRAINING)))
        await control.hears(KEY, "running")
        server.kill()
        process.terminate()
        assert await process.wait() == 0
    assert "saved" not in saved.read_text()


async def test_an_executor_without_nats_ends_what_it_adopted(
    server: NatsServer, control: ControlPlane, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    fence = 12  # seconds: on a busy machine the next executor takes some of them to start
    short = {"EXECUTOR_FENCE_SECONDS": f"{fence}", "EXECUTOR_FENCE_GRACE_MAX": "1", "EXECUTOR_SYNC_SECONDS": "0.5"}
    log = home / "logs" / "job-1-1-0.log"
    async with executor(server, home, **short) as first:
        await control.want(order(command=("sh", "-c", TRAINING)))
        await control.hears(KEY, "running")
        server.kill()
        began = time.monotonic()
        first.send_signal(signal.SIGTERM)
        assert await first.wait() == 0
        assert "saved" not in log.read_text()
        async with executor(server, home, **short):
            await until(lambda: "saved" in log.read_text(), seconds_max=30)
            assert fence - 2 < time.monotonic() - began < 30


async def test_a_second_executor_in_one_home_is_turned_away(
    server: NatsServer, control: ControlPlane, tmp_path: Path
) -> None:
    async with executor(server, tmp_path / "home"):
        await until(lambda: control.reports)
        async with executor(server, tmp_path / "home") as second:
            assert await second.wait() == 1


async def test_settings_that_would_let_a_job_run_twice_are_refused(server: NatsServer, tmp_path: Path) -> None:
    async with executor(server, tmp_path / "home", EXECUTOR_FENCE_SECONDS="140") as process:
        assert await process.wait() == 2


LISTENING = """
trap 'echo "heard $(cat "$WEFT_MEMBERS")"' USR1
echo up
while :; do sleep 0.05; done
"""


async def test_a_rank_hears_once_of_each_change_of_members_though_its_executor_is_killed(
    server: NatsServer, control: ControlPlane, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    log = home / "logs" / "job-1-1-0.log"

    def asked(changes: int) -> StartRun:
        ranks = tuple(Member(role="worker", rank=rank, address="127.0.0.1", port=2345) for rank in range(changes + 1))
        members = Members(changes=changes, ranks=ranks, least=1, most=8, signal="SIGUSR1")
        return order(command=("sh", "-c", LISTENING), members=members)

    def heard() -> list[int]:
        return [int(number) for number in re.findall(r'heard {"changes":(\d+)', log.read_text())]

    async def settled() -> None:
        """Wait until the executor has kept that it sent the signal: it reports after each action."""
        reports = len(control.reports)
        await until(lambda: len(control.reports) > reports + 1)

    async with executor(server, home, keeping=True, EXECUTOR_SYNC_SECONDS="0.5") as process:
        await control.want(asked(0))
        await control.hears(KEY, "running")
        await until(lambda: log.exists() and "up" in log.read_text())
        await control.want(asked(1))
        await until(lambda: heard() == [1])
        await settled()
        process.kill()
        await process.wait()
    await control.want(asked(1))
    async with executor(server, home, keeping=True, EXECUTOR_SYNC_SECONDS="0.5") as process:
        await settled()
        await control.want(asked(2))
        await until(lambda: 2 in heard())
        await settled()
        process.kill()
        await process.wait()
    await control.want(asked(3))  # It changed while no executor was there.
    async with executor(server, home):
        await until(lambda: 3 in heard())
        assert heard() == [1, 2, 3]
        assert control.seen[KEY].not_applied == ""


async def test_a_node_announces_its_end_while_the_file_for_that_exists(
    server: NatsServer, control: ControlPlane, tmp_path: Path
) -> None:
    notice = tmp_path / "ending"
    settings = {"EXECUTOR_ENDING_FILE": str(notice), "EXECUTOR_SYNC_SECONDS": "0.5"}
    async with executor(server, tmp_path / "home", **settings):
        await until(lambda: bool(control.reports) and not control.reports[-1].ending)
        notice.touch()
        await until(lambda: control.reports[-1].ending)
        notice.unlink()
        await until(lambda: not control.reports[-1].ending)
