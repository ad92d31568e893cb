"""All sessions of this node: how many there may be, which line each is served on, and when they end."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Collection

from msgspec import Struct

from weft.messages.sessions import (
    SIDE_MAX,
    OpenSession,
    ReadSession,
    SessionKind,
    SessionOpened,
    SessionRead,
    SessionWritten,
    WriteSession,
)
from weftd.executor.channel import SessionRefusedError, SessionWanted
from weftd.executor.runs import RunKey, Runtime, RuntimeUnavailableError
from weftd.executor.sessions.session import Session
from weftd.executor.sessions.settings import SessionSettings

logger = logging.getLogger(__name__)

UNASKED_SECONDS_MAX = 30.0  # without a request from a gateway: the person's line is dead, and nothing came back
UNTOLD_SECONDS = 30.0  # after its end: by then the story has it, if the gateway that read of it lives
UNTOLD_KEPT_SECONDS = 600.0  # for which a gateway is looked for that notes its end
KEPT_SECONDS = 60.0  # after its end, so that it can be read to its end and how it ended
READ_SECONDS_MAX = 5.0
ANSWER_BYTES_MAX = 128 << 10
SECOND = 1.0


class _Flow(Struct):
    """The bytes that a session moved in the present second."""

    since: float = 0.0
    moved: int = 0


class Sessions:
    def __init__(self, runtime: Runtime, settings: SessionSettings, *, clock: Callable[[], float]) -> None:
        self._runtime, self._settings, self._clock = runtime, settings, clock
        self._open: dict[str, Session] = {}
        self._opening: dict[str, RunKey] = {}
        self._flows: dict[str, _Flow] = {}
        self._closing = False

    @property
    def count(self) -> int:
        return sum(not one.over for one in self._open.values()) + len(self._opening)

    @property
    def kept(self) -> int:
        return len(self._open)

    async def begin(self) -> None:
        """End the sessions of an earlier executor: nobody can reach them any more."""
        try:
            await self._runtime.end_sessions()
        except (OSError, RuntimeUnavailableError) as error:
            logger.warning("earlier sessions are not cleaned up: %s", error)

    async def open(self, ask: OpenSession) -> SessionOpened:
        found = self._open.get(ask.session_id)
        if ask.resumes or found is not None:
            if found is None or found.key != RunKey(ask.job_id, ask.epoch, ask.rank):
                return SessionOpened(refused="this session is over")
            if ask.resumes:
                found.line += 1
                found.asked_at = self._clock()
            return SessionOpened(line=found.line, taken=found.taken)
        key = RunKey(ask.job_id, ask.epoch, ask.rank)
        if refused := self._refusal(key):
            return refused
        if ask.session_id in self._opening:
            return SessionOpened(refused="it is being opened", full=True)
        self._opening[ask.session_id] = key
        try:
            return await self._begin(ask, key)
        except SessionRefusedError as refusal:
            return SessionOpened(refused=str(refusal))
        except (OSError, RuntimeUnavailableError) as error:
            return SessionOpened(refused=f"this node cannot begin it now: {error}", full=True)
        finally:
            del self._opening[ask.session_id]

    async def read(self, ask: ReadSession) -> SessionRead:
        session = self._open.get(ask.session_id)
        if session is None:
            return SessionRead(gone=True)
        if session.line != ask.line:
            return SessionRead(elsewhere=True)
        if not ask.looks:
            session.asked_at = self._clock()
        limit, wait = min(ask.limit, ANSWER_BYTES_MAX), min(ask.wait, READ_SECONDS_MAX)
        stream, data = await session.read(ask.offset, 0 if ask.looks else ask.acked, limit, wait)
        if session.line != ask.line:
            return SessionRead(elsewhere=True)
        ended = session.over and not data and (ask.looks or ask.offset >= session.window.ends)
        if ended and session.port:  # a gateway tells of all connections to a port together, when the last is over
            session.told = True
        return SessionRead(
            data=data,
            stream=stream,
            ended=ended,
            status=session.exit_status if ended else None,
            reason=session.reason if ended else "",
        )

    async def write(self, ask: WriteSession) -> SessionWritten:
        session = self._open.get(ask.session_id)
        if session is None or session.line != ask.line:
            return SessionWritten(gone=True)
        if ask.rows:
            session.resize(ask.rows, ask.columns)
        if ask.data or ask.over:
            await session.write(ask.offset, ask.data, over=ask.over)
        if ask.end:
            session.told = True
            await session.end("it was closed")
        return SessionWritten(taken=session.taken)

    async def tick(self, live: Collection[RunKey] | None) -> None:
        """End sessions without a run, a gateway or use. `live`: None if the runs are not known now."""
        now, idle = self._clock(), self._settings.session_idle_seconds
        ends: list[tuple[Session, str]] = []
        for session in list(self._open.values()):
            if session.over_at is not None:
                if now - session.over_at > (KEPT_SECONDS if session.told else UNTOLD_KEPT_SECONDS):
                    session.drop()
                    del self._open[session.id]
                    self._flows.pop(session.id, None)
            elif live is not None and session.key not in live:
                ends.append((session, "its run has ended"))
            elif now - session.asked_at > UNASKED_SECONDS_MAX:
                ends.append((session, f"its connection was dead for {UNASKED_SECONDS_MAX:g} s"))
            elif idle and now - session.moved_at > idle:
                ends.append((session, f"nothing was typed or written for {idle:g} s"))
        await asyncio.gather(*(session.end(why) for session, why in ends))

    @property
    def untold(self) -> list[Session]:
        """Those that were over a while ago, and of which no gateway has said that the story has it: the one that read
        how it ended may have been killed, also with the answer on its way."""
        before = self._clock() - UNTOLD_SECONDS
        return [one for one in self._open.values() if one.over_at is not None and one.over_at < before and not one.told]

    async def close(self) -> None:
        """End all, as the executor leaves."""
        self._closing = True
        await asyncio.gather(*(session.end("its node's executor stops") for session in self._open.values()))
        for session in self._open.values():
            session.drop()

    def _refusal(self, key: RunKey) -> SessionOpened | None:
        settings = self._settings
        if not settings.sessions:
            return SessionOpened(refused="this node allows no sessions in its runs (EXECUTOR_SESSIONS)")
        if self._closing:
            return SessionOpened(refused="its node's executor stops", full=True)
        if self.count >= settings.sessions_max:
            return SessionOpened(refused=f"this node has {self.count} sessions, its maximum", full=True)
        of_job = [*(one.key for one in self._open.values() if not one.over), *self._opening.values()]
        if sum(one.job_id == key.job_id for one in of_job) >= settings.sessions_per_job_max:
            most = settings.sessions_per_job_max
            return SessionOpened(refused=f"this job has {most} sessions on this node, its maximum", full=True)
        return None

    async def _begin(self, ask: OpenSession, key: RunKey) -> SessionOpened:
        wanted = SessionWanted(
            kind=ask.kind,
            mark=secrets.token_hex(16),
            command=ask.command,
            tty=ask.tty and ask.kind is not SessionKind.PORT,
            rows=min(max(1, ask.rows or 24), SIDE_MAX),
            columns=min(max(1, ask.columns or 80), SIDE_MAX),
            term=ask.term or "xterm",
            port=ask.port,
        )
        channel = await self._runtime.enter(key, wanted)
        session = Session(ask.session_id, key, channel, clock=self._clock, pace=self._pace)
        session.port = ask.port if ask.kind is SessionKind.PORT else 0
        self._open[ask.session_id] = session
        return SessionOpened(line=1)

    def _pace(self, session: Session, moved: int) -> float:
        """For how long this session rests after it moved these bytes, so that all together move no more than they may,
        and each that wants to as much as the others."""
        now = self._clock()
        flow = self._flows.setdefault(session.id, _Flow(since=now))
        if now - flow.since >= SECOND:
            flow.since, flow.moved = now, 0
        flow.moved += moved
        busy = sum(now - one.since < SECOND for one in self._flows.values())
        share = self._settings.sessions_bytes_per_second / max(1, busy)
        return max(0.0, flow.since + flow.moved / share - now - 0.05)
