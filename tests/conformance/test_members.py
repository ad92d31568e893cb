"""What holds for every runtime that runs a job which resizes live: its ranks find its members, and hear of changes."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.doubles.runtime import FakeRuntime
from tests.support.rig import Rig, opened
from tests.support.runs import find, in_state, logged, whole_log
from weft.messages.nodes import Member, Members, RunState, StartRun
from weftd.executor.files.home import Home
from weftd.executor.runs import RunKey

HEARS = """
sleep 345 &
trap 'echo heard; cat "$WEFT_MEMBERS"' USR1
echo up
cat "$WEFT_MEMBERS"
while :; do kill -0 $! || echo a child was signalled; sleep 0.05; done
"""


@pytest.fixture(
    params=["fake", "simulated", "process", "process-cgroups", pytest.param("docker", marks=pytest.mark.docker)]
)
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    async with opened(request.param, tmp_path) as built:
        yield built


def of(rig: Rig, *ranks: int, changes: int = 0, signal: str = "") -> Members:
    found = tuple(Member(role="worker", rank=rank, address=rig.node.address, port=2345 + rank) for rank in ranks)
    return Members(changes=changes, ranks=found, least=1, most=8, signal=signal)


def live(rig: Rig, script: str, members: Members, **fields: object) -> StartRun:
    return rig.shell(("sh", "-c", script), members=members, master_port=2345, **fields)


def changed(asked: StartRun, members: Members) -> StartRun:
    return replace(asked, members=members)


async def count(rig: Rig, key: RunKey, text: bytes) -> int:
    return (await rig.runtime.read_log(key, offset=0, limit=1 << 20)).data.count(text)


def changes_in(tmp_path: Path, key: RunKey) -> int:
    return int(json.loads(Path(Home(tmp_path / "home").members(key)).read_text())["changes"])


def expected(rig: Rig, asked: StartRun, members: Members) -> bytes:
    """The file as the run reads it: containers of one network have names, and each has all ports to itself."""

    def place(member: Member) -> tuple[str, int]:
        if rig.docker:
            return f"weft-{RunKey(asked.job_id, asked.epoch, member.rank)}", 2345
        return member.address, member.port

    ranks = [
        {"role": member.role, "rank": member.rank, "address": place(member)[0], "port": place(member)[1]}
        for member in members.ranks
    ]
    content = {"changes": members.changes, "ranks": ranks, "least": members.least, "most": members.most}
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"


async def test_a_run_finds_its_members_when_it_starts(rig: Rig) -> None:
    rig.needs("commands")
    asked = live(rig, 'cat "$WEFT_MEMBERS"; echo "$PET_NNODES $PET_RDZV_CONF"', of(rig, 0, 4))
    await rig.runtime.start(asked)
    await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
    log = await whole_log(rig.runtime, RunKey.of(asked))
    assert log.startswith(expected(rig, asked, of(rig, 0, 4)))
    assert b"1:8 is_host=1," in log


async def test_a_change_is_in_the_file_before_the_main_process_alone_hears_of_it_and_it_hears_once(rig: Rig) -> None:
    rig.needs("commands")
    asked = live(rig, HEARS, of(rig, 0, signal="SIGUSR1"))
    key, now = RunKey.of(asked), of(rig, 0, 1, changes=1, signal="SIGUSR1")
    await rig.runtime.start(asked)
    await logged(rig.runtime, key, expected(rig, asked, of(rig, 0)))
    assert await rig.runtime.show_members(asked, signal_due=False) == ""
    assert await rig.runtime.show_members(changed(asked, now), signal_due=False) == ""
    await logged(rig.runtime, key, b"heard\n" + expected(rig, asked, now))
    rig.runtime = await rig.reopen()
    await in_state(rig.runtime, key, RunState.RUNNING)
    assert await rig.runtime.show_members(changed(asked, now), signal_due=False) == ""
    await asyncio.sleep(0.3)
    assert await count(rig, key, b"heard") == 1
    assert await rig.runtime.show_members(changed(asked, now), signal_due=True) == ""
    await logged(rig.runtime, key, (b"heard\n" + expected(rig, asked, now)) * 2)
    assert await count(rig, key, b"a child was signalled") == 0


async def test_without_a_signal_the_file_alone_changes(rig: Rig) -> None:
    rig.needs("commands")
    asked = live(rig, 'while ! grep changes.:1 "$WEFT_MEMBERS"; do sleep 0.05; done', of(rig, 0))
    await rig.runtime.start(asked)
    await in_state(rig.runtime, RunKey.of(asked), RunState.RUNNING)
    assert await rig.runtime.show_members(changed(asked, of(rig, 0, 1, changes=1)), signal_due=False) == ""
    assert (await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)).exit_code == 0


async def test_a_signal_that_would_end_the_main_process_waits_until_it_is_handled(rig: Rig, tmp_path: Path) -> None:
    rig.needs("commands")
    script = """
    echo up
    while [ ! -e "$WEFT_CHECKPOINT_DIR/ready" ]; do sleep 0.05; done
    trap 'echo heard; exit 0' USR1
    echo ready
    while :; do sleep 0.05; done
    """
    asked = live(rig, script, of(rig, 0))
    key, now = RunKey.of(asked), of(rig, 0, 1, changes=1, signal="SIGUSR1")
    await rig.runtime.start(asked)
    await logged(rig.runtime, key, b"up")
    why = await rig.runtime.show_members(changed(asked, now), signal_due=False)
    assert why == "SIGUSR1: the main process does not handle it, and would end"
    assert changes_in(tmp_path, key) == 1
    await asyncio.to_thread((Path(rig.node.checkpoints) / asked.job_id / "ready").touch)
    await logged(rig.runtime, key, b"ready")
    assert await rig.runtime.show_members(changed(asked, now), signal_due=True) == ""
    assert (await in_state(rig.runtime, key, RunState.EXITED)).exit_code == 0
    assert b"heard" in await whole_log(rig.runtime, key)


async def test_what_a_job_puts_in_the_files_place_harms_neither_the_node_nor_the_run(rig: Rig, tmp_path: Path) -> None:
    rig.needs("commands")
    script = """
    cd "$(dirname "$WEFT_MEMBERS")"
    wait_for() { while [ ! -e "$WEFT_CHECKPOINT_DIR/$1" ]; do sleep 0.05; done; }
    rm members.json; mkfifo members.json; echo pipe; wait_for 1
    rm members.json; ln -s "$WEFT_CHECKPOINT_DIR/other" members.json; echo link; wait_for 2
    rm members.json; mkdir members.json; echo folder; wait_for 3
    rmdir members.json; echo gone; sleep 345
    """
    asked = live(rig, script, of(rig, 0))
    key, checkpoints = RunKey.of(asked), Path(rig.node.checkpoints) / asked.job_id
    await rig.runtime.start(asked)
    for changes, placed in enumerate((b"pipe", b"link", b"folder", b"gone"), start=1):
        await logged(rig.runtime, key, placed)
        async with asyncio.timeout(30):
            why = await rig.runtime.show_members(changed(asked, of(rig, 0, changes=changes)), signal_due=False)
        assert why == ("members: Is a directory" if placed == b"folder" else "")
        assert (await in_state(rig.runtime, key, RunState.RUNNING)).live
        await asyncio.to_thread((checkpoints / str(changes)).touch)
    assert not (checkpoints / "other").exists()
    assert changes_in(tmp_path, key) == 4


async def test_a_run_that_is_not_there_or_has_ended_is_shown_nothing(rig: Rig) -> None:
    asked = rig.order("ends well", members=of(rig, 0))
    assert await rig.runtime.show_members(asked, signal_due=True) == "it does not run"
    await rig.runtime.start(asked)
    await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
    assert await rig.runtime.show_members(asked, signal_due=True) == "it does not run"


async def test_the_fake_hears_once_of_each_change(rig: Rig) -> None:
    if not isinstance(rig.runtime, FakeRuntime):
        pytest.skip("the others are asked for what their runs hear")
    asked = rig.order("stays", members=of(rig, 0, signal="SIGHUP"))
    await rig.runtime.start(asked)
    now = changed(asked, of(rig, 0, 1, changes=1, signal="SIGHUP"))
    for order, due in ((asked, False), (now, False), (now, False), (now, True)):
        assert await rig.runtime.show_members(order, signal_due=due) == ""
    assert rig.runtime.host.signals == [(RunKey.of(asked), "SIGHUP")] * 2


async def test_a_rank_that_joins_containers_later_reaches_those_that_are_there_by_name(rig: Rig) -> None:
    if not rig.docker:
        pytest.skip("processes share their host's network")
    serving = "while :; do echo met | nc -l -p 2345; done"
    first = live(rig, serving, of(rig, 0))
    await rig.runtime.start(first)  # Alone so far, with a world of 1.
    await in_state(rig.runtime, RunKey.of(first), RunState.RUNNING)
    meet = 'for i in 1 2 3 4 5 6 7 8 9; do nc "$MASTER_ADDR" "$MASTER_PORT" </dev/null && exit; sleep 0.3; done'
    both = of(rig, 0, 5, changes=1)
    joined = live(rig, meet, both, job_id=first.job_id, rank=5, world_size=2)
    await rig.runtime.start(joined)
    await in_state(rig.runtime, RunKey.of(joined), RunState.EXITED)
    assert await whole_log(rig.runtime, RunKey.of(joined)) == b"met\n"
    assert await find(rig.runtime, RunKey.of(first)) is not None
