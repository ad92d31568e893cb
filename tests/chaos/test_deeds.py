"""A fault may take longer than was planned: none is done to a target that another still troubles."""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.chaos.deeds import Deeds, sick
from tests.chaos.faults import GPU_FAULTS, Fault
from tests.chaos.services import COMMAND, MARK
from tests.chaos.world import World
from weft.credentials import provision
from weft.emulation.faults import Fault as GpuFault
from weft.emulation.faults import read_fault
from weftd.cli.local.ports import free_port


@pytest.fixture
async def only_stores() -> AsyncIterator[World]:
    """A world of which nothing but NATS and Postgres runs."""
    root = Path(tempfile.mkdtemp(prefix="weft-chaos-"))
    os.chmod(root, 0o711)  # so that Postgres' own user reaches its folder
    try:
        made = World(root, fencing=True)
        os.mkdir(made.home.root, 0o711)
        made.home.make()
        provision(made.home.credentials, nodes=[])
        await made.stores.start()
        try:
            yield made
        finally:
            await made.stop()
    finally:
        shutil.rmtree(root)


def postgres(what: str, at: float) -> Fault:
    return Fault(at=at, what=what, target="postgres", seconds=0.0)


@pytest.mark.timeout(120)
async def test_a_kill_waits_until_what_was_restored_is_up_and_the_restore_is_known(only_stores: World) -> None:
    deeds = Deeds(only_stores, print)
    await deeds.play([postgres("back up", 0.0), postgres("restore", 0.1), postgres("kill", 0.2)])
    assert [(one.what, one.failed) for one in deeds.done] == [("back up", ""), ("restore", ""), ("kill", "")]
    assert all(before.ended <= after.began for before, after in zip(deeds.done, deeds.done[1:], strict=False))
    assert len(deeds.restores) == 1


async def test_nothing_is_restored_where_nothing_was_backed_up(only_stores: World) -> None:
    deeds = Deeds(only_stores, print)
    before = await only_stores.stores.pid("postgres")
    await deeds.play([postgres("restore", 0.0)])
    assert [one.failed for one in deeds.done] == ["LookupError: no copy to restore"]
    assert deeds.restores == []
    assert await only_stores.stores.pid("postgres") == before


async def test_a_replica_of_a_service_is_killed_whichever_lives_and_nothing_else_is(tmp_path: Path) -> None:
    made = World(tmp_path, fencing=True)  # of which nothing runs
    kill = Fault(at=0.0, what="kill", target="replica", seconds=0.0)
    serves, other = ({**os.environ, MARK: str(folder)} for folder in (made.folder, tmp_path / "other"))
    replica, bystander = [
        await asyncio.create_subprocess_exec(
            *COMMAND, env={**env, "WEFT_PORT": str(free_port())}, stdout=asyncio.subprocess.PIPE
        )
        for env in (serves, other)
    ]
    try:
        for process in (replica, bystander):
            assert process.stdout is not None
            await process.stdout.readline()
        deeds = Deeds(made, print)
        await deeds.play([kill])
        assert await asyncio.wait_for(replica.wait(), 10) == -signal.SIGKILL
        await deeds.play([kill])
        assert [one.failed for one in deeds.done] == ["", "LookupError: no replica lives"]
        assert bystander.returncode is None
    finally:
        for process in (replica, bystander):
            if process.returncode is None:
                process.kill()
            await process.wait()


async def test_a_gpu_with_a_run_shows_a_sign_of_sickness_and_is_reset_afterwards(tmp_path: Path) -> None:
    made = World(tmp_path, fencing=True)  # nothing of it runs
    traces, emulated = made.folder / "traces", made.home.node("node-1") / "emulated"
    for folder in (traces, emulated):
        folder.mkdir(parents=True)
    (traces / "k").write_text("start 5.0 j 0 0 1-1 node-1 3 1\n")
    deeds = Deeds(made, print)
    for what in ("xid 79", "off bus"):
        await deeds.play([Fault(at=0.0, what=what, target="gpu-node-1", seconds=0.0)])
    assert [one.failed for one in deeds.done] == ["", ""]
    assert read_fault(emulated, 3) == GpuFault(xids={"79": 1}, resets=2)


@pytest.mark.parametrize("what", GPU_FAULTS)
def test_every_fault_of_a_gpu_is_shown_as_a_driver_would(what: str) -> None:
    before = GpuFault(xids={"79": 1}, resets=3)
    shown = sick(what, before)
    assert shown != before
    assert shown.resets == before.resets
    assert sick("xid 79", before).xids == {"79": 2}
