"""What no runtime starts, and what it says of that: programs, images, GPUs, volumes and ports that it cannot give."""

import asyncio
from pathlib import Path

import pytest

from tests.support.rig import Rig
from tests.support.runs import find, in_state, whole_log
from weft.domain.spec import Volume
from weft.messages.nodes import EndReason, RunState
from weftd.executor.runs import RunKey


async def test_a_command_that_is_not_there_fails_to_start(rig: Rig) -> None:
    rig.needs("refusals")
    asked = rig.shell(("no-such-program", "--help"))
    await rig.runtime.start(asked)
    run = await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
    assert (run.reason, run.detail) == (EndReason.START_FAILED, "command not found: no-such-program")
    assert run.for_good
    await rig.runtime.remove(RunKey.of(asked))
    assert await find(rig.runtime, RunKey.of(asked)) is None


@pytest.mark.parametrize("name", ["./run.sh", "run.sh"])
async def test_a_script_without_the_execute_bit_is_named_so(rig: Rig, tmp_path: Path, name: str) -> None:
    if not rig.name.startswith("process"):
        pytest.skip("a container has the files of its image")
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o644)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    asked = rig.shell((name,), workdir=str(tmp_path), env=env)
    await rig.runtime.start(asked)
    run = await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
    shown = name if name.startswith(".") else str(script)
    assert run.detail == f"{shown} is not executable (mode 0644): `chmod +x` makes it so"
    assert (run.reason, run.for_good) == (EndReason.START_FAILED, True)


async def test_a_folder_is_not_taken_for_a_command(rig: Rig) -> None:
    rig.needs("refusals")
    asked = rig.shell(("/etc/",))
    await rig.runtime.start(asked)
    run = await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
    assert (run.reason, run.for_good) == (EndReason.START_FAILED, True)
    assert run.detail.startswith("/etc/ is ")
    assert "a folder" in run.detail


async def test_a_start_that_its_caller_knows_to_fail_fails_with_that_reason(rig: Rig) -> None:
    asked = rig.order("ends well")
    await rig.runtime.start(asked, why_not="no such secret: hf-token")
    run = await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
    assert (run.reason, run.detail) == (EndReason.START_FAILED, "no such secret: hf-token")
    await rig.runtime.remove(RunKey.of(asked))
    assert await find(rig.runtime, RunKey.of(asked)) is None


async def test_an_image_that_is_not_there_fails_to_start(rig: Rig) -> None:
    rig.needs("refusals")
    asked = rig.shell(("true",), image="no-such-image:ever")
    await rig.runtime.start(asked)
    run = await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
    assert run.reason is EndReason.START_FAILED
    assert "no-such-image:ever" in run.detail


async def test_a_gpu_that_is_not_there_fails_to_start(rig: Rig) -> None:
    rig.needs("refusals")
    asked = rig.shell(("true",), gpus=(9,))
    await rig.runtime.start(asked)
    run = await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
    assert (run.reason, run.detail) == (EndReason.START_FAILED, "this node has no GPU 9")


async def test_a_volume_outside_the_allow_list_is_refused(rig: Rig, tmp_path: Path) -> None:
    rig.needs("refusals")
    (tmp_path / "allowed" / "way-out").symlink_to("/etc")
    for source in ("/etc", str(tmp_path / "allowed" / "way-out")):
        asked = rig.shell(("true",), volumes=(Volume(source=source, target=source),))
        await rig.runtime.start(asked)
        run = await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
        assert run.reason is EndReason.START_FAILED
        assert "not among the volumes that this node's owner allows" in run.detail


async def test_a_volume_is_mounted_where_it_was_asked_for(rig: Rig, tmp_path: Path) -> None:
    rig.needs("refusals", "volumes")
    source = tmp_path / "allowed" / "data"
    source.mkdir()
    (source / "greeting").write_text("hello")
    volume = Volume(source=str(source), target="/data", read_only=True)
    asked = rig.shell(("sh", "-c", "cat /data/greeting; touch /data/new 2>/dev/null || echo kept"), volumes=(volume,))
    await rig.runtime.start(asked)
    await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
    log = await whole_log(rig.runtime, RunKey.of(asked))
    assert log.startswith(b"hello")
    assert b"kept" in log


async def test_a_process_gets_a_volume_only_where_it_is(rig: Rig, tmp_path: Path) -> None:
    if not rig.name.startswith("process"):
        pytest.skip("the others mount")
    source = str(tmp_path / "allowed")
    here = rig.shell(("ls", source), volumes=(Volume(source=source, target=source),))
    elsewhere = rig.shell(("true",), volumes=(Volume(source=source, target="/data"),))
    for asked in (here, elsewhere):
        await rig.runtime.start(asked)
    assert (await in_state(rig.runtime, RunKey.of(here), RunState.EXITED)).exit_code == 0
    run = await in_state(rig.runtime, RunKey.of(elsewhere), RunState.EXITED)
    assert run.reason is EndReason.START_FAILED
    assert "cannot mount" in run.detail


async def test_a_volume_that_the_node_offers_by_name_is_found_by_its_variable(rig: Rig) -> None:
    rig.needs("refusals")
    (Path(rig.node.volumes["sets"].path) / "greeting").write_text("hello")
    asked = rig.shell(
        ("sh", "-c", 'cat "$WEFT_VOLUME_SETS/greeting"; touch "$WEFT_VOLUME_SCRATCH/new" && echo made'),
        named_volumes=(Volume(name="sets", read_only=True), Volume(name="scratch")),
    )
    await rig.runtime.start(asked)
    run = await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
    assert (await whole_log(rig.runtime, RunKey.of(asked)), run.exit_code) == (b"hellomade\n", 0)
    assert (Path(rig.node.volumes["scratch"].path) / "new").exists()


async def test_a_container_has_a_named_volume_at_its_target_and_cannot_write_what_it_may_read_alone(rig: Rig) -> None:
    rig.needs("refusals", "volumes")
    if not rig.docker:
        pytest.skip("processes have nothing mounted")
    asked = rig.shell(
        ("sh", "-c", "touch /data/new 2>/dev/null || echo kept; echo $WEFT_VOLUME_SETS; ls -d /volumes/scratch"),
        named_volumes=(Volume(name="sets", target="/data", read_only=True), Volume(name="scratch")),
    )
    await rig.runtime.start(asked)
    await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
    assert await whole_log(rig.runtime, RunKey.of(asked)) == b"kept\n/data\n/volumes/scratch\n"
    assert not (Path(rig.node.volumes["sets"].path) / "new").exists()


async def test_a_named_volume_is_refused_where_its_owner_does_not_offer_it_so(rig: Rig) -> None:
    rig.needs("refusals")
    for volume, tenant, says in (
        (Volume(name="other"), "alice", "does not offer the volume other to alice"),
        (Volume(name="sets"), "alice", "read-only"),
        (Volume(name="of-bob"), "alice", "does not offer the volume of-bob to alice"),
    ):
        asked = rig.shell(("true",), named_volumes=(volume,), tenant=tenant)
        await rig.runtime.start(asked)
        run = await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
        assert run.reason is EndReason.START_FAILED
        assert says in run.detail


async def test_a_process_gets_no_named_volume_at_a_target(rig: Rig) -> None:
    if not rig.name.startswith("process"):
        pytest.skip("the others mount")
    asked = rig.shell(("true",), named_volumes=(Volume(name="scratch", target="/data"),))
    await rig.runtime.start(asked)
    run = await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
    assert run.reason is EndReason.START_FAILED
    assert "WEFT_VOLUME_SCRATCH" in run.detail


async def test_a_taken_port_of_rank_0_fails_the_start_unless_it_meets_no_other_rank(rig: Rig) -> None:
    if not rig.name.startswith("process"):
        pytest.skip("containers have ports of their own")
    server = await asyncio.start_server(lambda _, writer: writer.close(), "0.0.0.0", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        first, alone = rig.shell(("true",), master_port=port, world_size=2), rig.shell(("true",), master_port=port)
        for asked in (first, alone):
            await rig.runtime.start(asked)
        run = await in_state(rig.runtime, RunKey.of(first), RunState.EXITED)
        assert (await in_state(rig.runtime, RunKey.of(alone), RunState.EXITED)).exit_code == 0
    assert run.reason is EndReason.PORT_TAKEN
    assert run.detail.startswith(f"port taken: {port}")


async def test_a_process_whose_workdir_does_not_exist_is_refused_by_that_name(rig: Rig) -> None:
    if not rig.name.startswith("process"):
        pytest.skip("an engine makes the folder")
    asked = rig.shell(("true",), workdir="/nowhere/at/all")
    await rig.runtime.start(asked)
    run = await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
    assert run.reason is EndReason.START_FAILED
    assert run.detail == "the workdir /nowhere/at/all does not exist on this node"
