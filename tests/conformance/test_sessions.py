"""Sessions beside a run: the same for processes and containers, and none of their processes outlives them."""

import asyncio
import os
import socket
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.engine import need_images
from tests.support.rig import IMAGE_WITH_PYTHON, Rig
from tests.support.runs import in_state
from weft.messages.nodes import RunState, StartRun
from weft.messages.sessions import SessionKind
from weftd.executor.channel import Channel, SessionRefusedError, SessionWanted
from weftd.executor.runs import RunKey

SECONDS_MAX = 60.0
LISTENS = """
import socket, time
listening = socket.create_server(("127.0.0.1", {port}))
print("listens", flush=True)
while True:
    connection, _ = listening.accept()
    while data := connection.recv(1000):
        connection.sendall(data.upper())
    connection.close()
"""


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def exec_(*command: str, mark: str = "m1", tty: bool = False) -> SessionWanted:
    return SessionWanted(kind=SessionKind.EXEC, mark=mark, command=command, tty=tty, rows=33, columns=99, term="vt100")


async def press_ctrl_c(channel: Channel) -> None:
    """Again and again, as a person does: the shell may just be between two of its commands."""
    while True:
        await channel.write(b"\x03")
        await asyncio.sleep(1.0)


async def everything(channel: Channel) -> dict[int, bytes]:
    """All output by stream, to its end."""
    found = {1: b"", 2: b""}
    async with asyncio.timeout(SECONDS_MAX):
        while (piece := await channel.read(4096))[1]:
            found[piece[0]] += piece[1]
    return found


async def until_output(channel: Channel, wanted: bytes) -> bytes:
    found = b""
    async with asyncio.timeout(SECONDS_MAX):
        while wanted not in found:
            _, data = await channel.read(4096)
            assert data, found
            found += data
    return found


async def running(rig: Rig, **fields: object) -> RunKey:
    return await runs(rig, rig.order("stays", **fields))


async def runs(rig: Rig, order: StartRun) -> RunKey:
    rig.needs("commands")
    await rig.runtime.start(order)
    key = RunKey.of(order)
    await in_state(rig.runtime, key, RunState.RUNNING)
    return key


def marked(mark: str) -> list[str]:
    """The processes that any session of this mark has left, as far as they are seen from here."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            environment = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(one.startswith(b"WEFT_SESSION=") and one.endswith(mark.encode()) for one in environment):
            found.append(name)
    return found


async def until(so: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not so():  # noqa: ASYNC110 -- the end of a process elsewhere is no event
            await asyncio.sleep(0.05)


async def test_a_command_gets_its_input_and_gives_its_output_errors_and_status(rig: Rig) -> None:
    key = await running(rig, env={"MINE": "a  b", "ODD": "é\n"})
    script = 'echo "$MINE$ODD"; cat; echo wrong >&2; exit 7'
    channel = await rig.runtime.enter(key, exec_("sh", "-c", script))
    await channel.write(b"typed\x00\xff\n")
    await channel.close_input()
    assert await everything(channel) == {1: b"a  b\xc3\xa9\n\ntyped\x00\xff\n", 2: b"wrong\n"}
    assert await channel.status() == 7
    await channel.end()


async def test_a_command_on_a_terminal_may_end_before_the_terminal_has_a_size(rig: Rig) -> None:
    key = await running(rig)
    for _ in range(10):
        channel = await rig.runtime.enter(key, exec_("sh", "-c", "echo over; exit 3", tty=True))
        assert await everything(channel) == {1: b"over\r\n", 2: b""}
        assert await channel.status() == 3
        await channel.end()


async def test_a_terminal_has_a_size_a_type_and_its_own_ctrl_c(rig: Rig) -> None:
    key = await running(rig)
    sized = "until stty size 2>/dev/null | grep -q '[1-9]'; do sleep 0.1; done"  # an engine tells it after the start
    script = f"{sized}; stty size; echo $TERM; read x; stty size; cat"
    channel = await rig.runtime.enter(key, exec_("sh", "-c", script, tty=True))
    assert b"99" in (found := await until_output(channel, b"vt100")), found
    assert b"33 99" in found
    await channel.resize(44, 111)
    await channel.write(b"\n")
    await until_output(channel, b"44 111")
    pressing = asyncio.create_task(press_ctrl_c(channel))
    await everything(channel)
    pressing.cancel()
    assert await channel.status() == 130
    await channel.end()


async def test_what_a_session_began_ends_with_it_also_what_left_its_group(rig: Rig) -> None:
    key, mark = await running(rig), uuid.uuid4().hex
    script = "(trap '' HUP TERM; sleep 1000) & setsid sleep 1000 & echo begun; trap '' HUP; while :; do sleep 1; done"
    channel = await rig.runtime.enter(key, exec_("sh", "-c", script, mark=mark))
    await until_output(channel, b"begun")
    await until(lambda: len(marked(mark)) >= 3)
    await channel.end()
    await until(lambda: not marked(mark))
    assert (await in_state(rig.runtime, key, RunState.RUNNING)).live  # the run itself goes on


async def test_a_session_ends_with_its_run_at_the_latest(rig: Rig) -> None:
    key, mark = await running(rig), uuid.uuid4().hex
    channel = await rig.runtime.enter(key, exec_("sh", "-c", "echo begun; sleep 1000", mark=mark))
    await until_output(channel, b"begun")
    await rig.runtime.signal(key, kill=True)
    await in_state(rig.runtime, key, RunState.EXITED)
    await until(lambda: not marked(mark))
    await everything(channel)
    await channel.end()
    with pytest.raises(SessionRefusedError):
        await rig.runtime.enter(key, exec_("true"))


async def test_a_new_executor_ends_what_the_one_before_left_and_no_run(rig: Rig) -> None:
    key, mark = await running(rig), uuid.uuid4().hex
    channel = await rig.runtime.enter(key, exec_("sh", "-c", "echo begun; exec sleep 1000", mark=mark))
    await until_output(channel, b"begun")
    await rig.runtime.end_sessions()
    await until(lambda: not marked(mark))
    await everything(channel)
    await channel.end()
    assert (await in_state(rig.runtime, key, RunState.RUNNING)).live


async def test_a_port_is_reached_if_the_run_itself_listens_there_and_no_other_is(rig: Rig, free_port: int) -> None:
    if rig.docker:
        need_images(IMAGE_WITH_PYTHON)
    python = "python3" if rig.docker else sys.executable
    image = {"image": IMAGE_WITH_PYTHON} if rig.docker else {}
    key = await runs(rig, rig.shell((python, "-c", LISTENS.format(port=free_port)), **image))
    async with asyncio.timeout(SECONDS_MAX):
        while b"listens" not in (await rig.runtime.read_log(key, offset=0, limit=100)).data:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    wanted = SessionWanted(kind=SessionKind.PORT, mark="p", port=free_port)
    channel = await rig.runtime.enter(key, wanted)
    await channel.write(b"abc")
    assert (await until_output(channel, b"ABC")) == b"ABC"
    await channel.close_input()
    assert await everything(channel) == {1: b"", 2: b""}
    await channel.end()
    own = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)  # of this host, and of no run
    async with own:
        other = SessionWanted(kind=SessionKind.PORT, mark="p", port=own.sockets[0].getsockname()[1])
        with pytest.raises(SessionRefusedError):
            await rig.runtime.enter(key, other)
