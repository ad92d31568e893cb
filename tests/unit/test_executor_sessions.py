"""The sessions of a node: how many there may be, which line each is served on, and when they end."""

import asyncio
from collections.abc import Callable
from typing import Any

from tests.support.doubles.runtime import FakeHost, FakeRuntime
from weft.messages.sessions import WINDOW_BYTES, OpenSession, ReadSession, WriteSession
from weftd.executor.channel import Channel, SessionWanted
from weftd.executor.runs import RunKey
from weftd.executor.sessions.sessions import (
    KEPT_SECONDS,
    UNASKED_SECONDS_MAX,
    UNTOLD_KEPT_SECONDS,
    UNTOLD_SECONDS,
    Sessions,
)
from weftd.executor.sessions.settings import SessionSettings

KEY = RunKey("j-1", 0, 0)


class Echo:
    """A channel that gives back what is written to it, and is over once its input is."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue()
        self.ended = False

    async def read(self, limit: int) -> tuple[int, bytes]:
        return 1, await self._waiting.get()

    async def write(self, data: bytes) -> None:
        self._waiting.put_nowait(data)

    async def close_input(self) -> None:
        self._waiting.put_nowait(b"")

    async def resize(self, rows: int, columns: int) -> None: ...

    async def status(self) -> int | None:
        return 0

    async def end(self) -> None:
        self.ended = True


class Entered(FakeRuntime):
    """Of the fake runtime, with runs that can be entered."""

    def __init__(self) -> None:
        super().__init__(FakeHost(now=lambda: 0.0))
        self.channels: list[Echo] = []
        self.made: type[Echo] = Echo

    async def enter(self, key: RunKey, wanted: SessionWanted) -> Channel:
        self.channels.append(self.made())
        return self.channels[-1]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def opens(session_id: str, key: RunKey = KEY, **fields: Any) -> OpenSession:
    run = {"job_id": key.job_id, "epoch": key.epoch, "rank": key.rank}
    return OpenSession(node_id="n", session_id=session_id, command=("x",), **run, **fields)


def reads(session_id: str, line: int = 1, **fields: Any) -> ReadSession:
    return ReadSession(node_id="n", session_id=session_id, line=line, **{"limit": 1000, **fields})


def writes(session_id: str, data: bytes, offset: int = 0, line: int = 1, **fields: Any) -> WriteSession:
    return WriteSession(node_id="n", session_id=session_id, line=line, offset=offset, data=data, **fields)


def made(**settings: Any) -> tuple[Sessions, Entered, Clock]:
    runtime, clock = Entered(), Clock()
    return Sessions(runtime, SessionSettings(**settings), clock=clock), runtime, clock


async def soon(so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not so():  # noqa: ASYNC110 -- what other tasks do is no event
            await asyncio.sleep(0)


async def test_a_node_that_lets_nobody_in_says_so() -> None:
    sessions, runtime, _ = made(sessions=False)
    assert "EXECUTOR_SESSIONS" in (await sessions.open(opens("a"))).refused
    assert runtime.channels == []


async def test_a_node_and_a_job_have_so_many_sessions_and_no_more() -> None:
    sessions, _, _ = made(sessions_max=3, sessions_per_job_max=2)
    answers = [await sessions.open(opens(name)) for name in "abc"]
    assert [bool(answer.refused) for answer in answers] == [False, False, True]
    assert answers[2].full
    other = RunKey("j-2", 0, 0)
    assert not (await sessions.open(opens("d", other))).refused
    assert (await sessions.open(opens("e", RunKey("j-3", 0, 0)))).full
    assert (await sessions.open(opens("a"))).line == 1  # the same again is the same session
    await sessions.write(writes("a", b"", end=True))
    assert not (await sessions.open(opens("f"))).refused
    await sessions.close()


async def test_a_byte_that_comes_twice_is_taken_once_and_one_that_is_ahead_is_not() -> None:
    sessions, _, _ = made()
    await sessions.open(opens("a"))
    assert (await sessions.write(writes("a", b"abc"))).taken == 3
    assert (await sessions.write(writes("a", b"abcde"))).taken == 5
    assert (await sessions.write(writes("a", b"zz", offset=9))).taken == 5
    assert (await sessions.write(writes("a", b"zz", offset=-4))).taken == 5
    assert (await sessions.write(writes("a", b"f", offset=5, over=True))).taken == 6
    found = b""
    while not (answer := await sessions.read(reads("a", offset=len(found), wait=5.0))).ended:
        found += answer.data
    assert (found, answer.status) == (b"abcdef", 0)
    await sessions.close()


async def test_input_for_a_connection_that_is_closed_goes_nowhere_and_the_session_goes_on() -> None:
    class Closed(Echo):
        async def write(self, data: bytes) -> None:
            raise RuntimeError("the handler is closed")  # as uvloop's writers say it

    sessions, runtime, _ = made()
    runtime.made = Closed
    await sessions.open(opens("a"))
    taken = 0
    for _ in range(4):  # more than what may wait to be read
        taken = (await sessions.write(writes("a", b"x" * WINDOW_BYTES, offset=taken))).taken
    assert taken == 4 * WINDOW_BYTES
    await sessions.close()


async def test_a_session_is_served_on_its_newest_line_and_with_its_own_run_only() -> None:
    sessions, _, _ = made()
    await sessions.open(opens("a"))
    await sessions.write(writes("a", b"abc"))
    assert (await sessions.open(opens("a", RunKey("j-2", 0, 0), resumes=True))).refused == "this session is over"
    assert (await sessions.open(opens("never", resumes=True))).refused == "this session is over"
    again = await sessions.open(opens("a", resumes=True))
    assert (again.line, again.taken) == (2, 3)
    assert (await sessions.read(reads("a"))).elsewhere
    assert (await sessions.write(writes("a", b"x"))).gone
    assert (await sessions.read(reads("a", line=2, wait=5.0))).data == b"abc"
    await sessions.close()


async def test_a_reader_who_acknowledges_nothing_has_its_process_wait() -> None:
    sessions, _, _ = made()
    await sessions.open(opens("a"))
    taken = 0
    for _ in range(6):
        taken = (await sessions.write(writes("a", b"x" * WINDOW_BYTES, offset=taken))).taken
        for _ in range(200):
            await asyncio.sleep(0)
        if taken > 4 * WINDOW_BYTES:
            break
    assert sessions._open["a"].window.ends <= 2 * WINDOW_BYTES + 64 * 1024
    await sessions.close()


async def test_a_session_ends_with_its_run_with_a_dead_line_and_when_nothing_moves() -> None:
    sessions, runtime, clock = made(session_idle_seconds=500.0)
    for name in ("run", "dead", "idle"):
        await sessions.open(opens(name, RunKey(name, 0, 0)))
    live = {RunKey(name, 0, 0) for name in ("dead", "idle")}
    await sessions.tick(live)
    assert [one.ended for one in runtime.channels] == [True, False, False]
    assert (await sessions.read(reads("run"))).reason == "its run has ended"
    for _ in range(60):
        clock.now += 10
        await sessions.read(reads("idle"))
        await sessions.read(reads("dead", looks=True))  # to look is not to ask
        await sessions.tick(live)
        if clock.now - 100 <= UNASKED_SECONDS_MAX:
            assert not runtime.channels[1].ended
    assert [one.ended for one in runtime.channels] == [True, True, True]
    assert [one.id for one in sessions.untold] == ["run", "dead", "idle"]
    clock.now += KEPT_SECONDS + 1
    for session in sessions.untold:
        session.told = True
    await sessions.tick(None)
    assert (await sessions.read(reads("idle"))).gone
    assert sessions.kept == 0
    await sessions.close()


async def test_how_a_session_ended_is_kept_for_a_gateway_that_comes_back_and_not_for_ever() -> None:
    sessions, runtime, clock = made()
    for name in ("closed", "lost"):
        await sessions.open(opens(name))
    await sessions.write(writes("closed", b"", end=True))
    clock.now += UNASKED_SECONDS_MAX + 1
    await sessions.tick({KEY})
    assert all(one.ended for one in runtime.channels)
    assert sessions.untold == [], "a gateway that lives tells it first"
    clock.now += UNTOLD_SECONDS + 1
    (lost,) = sessions.untold
    assert (lost.id, lost.reason) == ("lost", "its connection was dead for 30 s")
    clock.now += UNTOLD_KEPT_SECONDS
    await sessions.tick({KEY})
    assert (sessions.untold, sessions.kept) == ([], 0)
    await sessions.close()
