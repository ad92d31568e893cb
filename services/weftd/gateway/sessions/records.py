"""Records sessions in a job's history: one command to its scheduler when a session begins, and one at its end.

A person can use a session only after the first command is stored. Connections to one port of a run form one visit,
which ends after a while without an open connection, because a page in a browser opens many. A broken connection does
not end a session: the gateway watches it until its node ends it or another connection resumes it.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import msgspec
from msgspec import Struct

from weft.bus import Bus, BusError
from weft.domain.job import Cause, CauseCode, Job, JobEvent
from weft.domain.tenants import actor_text, tenant_of_actor
from weft.messages.asks import AskKind, Entrance
from weft.messages.http import EventData
from weft.messages.sessions import ReadSession, SessionKind, SessionLeft, SessionLeftNoted, SessionRead
from weft.store import GatewayStore, StoreUnavailableError
from weft.store.tenants import Access
from weftd.gateway.readmodel.event_history import story_pages
from weftd.gateway.secret_provider import held
from weftd.gateway.sessions.relayed import SessionEnd
from weftd.gateway.sessions.runs import RankRun
from weftd.gateway.wakeup import Wakeups

logger = logging.getLogger(__name__)

COMMAND_CHARACTERS, PART_CHARACTERS = 200, 80
PORT_REST_SECONDS = 30.0
LOOK_SECONDS = 5.0
LOOKS_MAX = 24
NOTED_MAX = 1000
STORE_TRIES, STORE_PAUSE_SECONDS = 10, 1.0
WORDS = {SessionKind.SHELL: "a shell", SessionKind.EXEC: "a command", SessionKind.COPY: "a copy of files"}


_data = msgspec.json.Decoder(EventData).decode


class Wish(Protocol):
    """The requested session, as the job's history shows it."""

    @property
    def kind(self) -> SessionKind: ...
    @property
    def port(self) -> int: ...
    @property
    def session(self) -> str: ...


class Stay(Struct, kw_only=True):
    """A session, or all connections of one person to one port, as the event history shows it."""

    by: str  # the person of a tenant, or the tenant
    job_id: str
    pool: str
    epoch: int
    rank: int
    what: str
    number: int
    began: float
    connections: int = 0
    open: int = 0


class Records:
    def __init__(
        self, store: GatewayStore, bus: Bus, wakeups: Wakeups, *, now: Callable[[], float], clock: Callable[[], float]
    ) -> None:
        self._store, self._bus, self._wakeups = store, bus, wakeups
        self._now, self._clock = now, clock
        self._visits: dict[str, Stay] = {}  # by session, and by job, run, tenant and port
        self._tasks: set[asyncio.Task[None]] = set()
        self._noted: dict[
            tuple[int, float], None
        ] = {}  # reported by nodes, and perhaps not stored by the scheduler yet

    def begun(
        self, who: Access, job: Job, run: RankRun, wish: Wish, session_id: str, command: tuple[str, ...]
    ) -> "StayRecord":
        name, by = session_id, actor_text(who.tenant, who.named)
        what = f"{WORDS.get(wish.kind, '')} in rank {run.rank}"
        if wish.kind is SessionKind.PORT:
            name = _port_name(job.id, run.epoch, run.rank, wish.port, by)
            what = f"connections to port {wish.port} of rank {run.rank}"
        elif command:
            what += f": {shown(command)}"
        visit = Stay(
            by=by,
            job_id=job.id,
            pool=job.pool,
            epoch=run.epoch,
            rank=run.rank,
            what=what,
            number=number_of(name),
            began=self._clock(),
        )
        is_new = name not in self._visits and not wish.session
        visit = self._visits.setdefault(name, visit)
        return StayRecord(self, name, visit, run, session_id, is_new=is_new, is_port=wish.kind is SessionKind.PORT)

    async def tell(self, visit: Stay, code: CauseCode, sentence: str, **numbers: float) -> None:
        """Raises StoreUnavailableError."""
        cause = Cause(
            code=code,
            sentence=sentence,
            by=visit.by,
            numbers={"rank": visit.rank, "session": visit.number, **numbers},
        )
        await self._store.ask(
            AskKind.ENTER,
            subject_id=visit.job_id,
            pool=visit.pool,
            tenant=tenant_of_actor(visit.by),
            at=self._now(),
            entry=Entrance(epoch=visit.epoch, cause=cause),
        )
        self._wakeups.asked(visit.pool)

    def forget(self, name: str) -> None:
        self._visits.pop(name, None)

    def later(self, doing: "asyncio.Task[None]") -> None:
        self._tasks.add(doing)
        doing.add_done_callback(self._tasks.discard)

    async def left(self, name: str, visit: Stay, status: int | None, reason: str) -> None:
        self.forget(name)
        for _ in range(STORE_TRIES):
            try:
                await self._tell_left(visit, status, reason)
                return
            except StoreUnavailableError:
                await asyncio.sleep(STORE_PAUSE_SECONDS)
        logger.warning("the story of %s lacks the end of a session: the store is away", visit.job_id)

    async def reported(self, ask: SessionLeft) -> SessionLeftNoted:
        """Record a session that a node reports as ended when no gateway had it any more. Only missing events are
        recorded, and only for runs of that node. Raises StoreUnavailableError."""
        job = await held(self._store, ask)
        if job is None or ask.session_id in self._visits:
            return SessionLeftNoted()
        for number, (cause, at) in (await self._open_stays(job.id)).items():
            port = number_of(_port_name(job.id, ask.epoch, ask.rank, ask.port, cause.by)) if ask.port else -1
            if number not in (number_of(ask.session_id), port) or (number, at) in self._noted:
                continue
            visit = Stay(
                by=cause.by,
                job_id=job.id,
                pool=job.pool,
                epoch=ask.epoch,
                rank=ask.rank,
                what=cause.sentence.removeprefix(f"{cause.by} opened "),
                number=number,
                began=self._clock() - max(0.0, self._now() - at),
            )
            await self._tell_left(visit, ask.status, ask.reason)
            self._noted[number, at] = None
            while len(self._noted) > NOTED_MAX:
                del self._noted[next(iter(self._noted))]
        return SessionLeftNoted()

    async def _open_stays(self, job_id: str) -> dict[int, tuple[Cause, float]]:
        """The open sessions by number, with their begin, as far as the event history shows."""
        found: dict[int, tuple[Cause, float]] = {}
        async for page in story_pages(self._store, job_id, events=[JobEvent.ENTERED]):
            for event in page:
                cause = _data(event.data).cause
                if cause is None:
                    continue
                number = int(cause.numbers["session"])
                if cause.code is CauseCode.ENTERED:
                    found[number] = (cause, event.at)
                else:
                    found.pop(number, None)
        return found

    async def _tell_left(self, visit: Stay, status: int | None, reason: str) -> None:
        """Raises StoreUnavailableError."""
        seconds = self._clock() - visit.began
        ended = f"{visit.what}: {visit.by} left after {_duration(seconds)}"
        if status is not None:
            ended += f", with status {status}"
        if reason:
            ended += f", {reason}"
        numbers = {"seconds": round(seconds, 1)} | ({} if status is None else {"status": float(status)})
        if visit.connections:
            numbers["connections"] = float(visit.connections)
        await self.tell(visit, CauseCode.LEFT, ended, **numbers)

    async def watch(self, name: str, visit: Stay, asked: ReadSession) -> None:
        """Watch a session whose connection broke, until its node has ended it or another connection has resumed it."""
        for _ in range(LOOKS_MAX):
            await asyncio.sleep(LOOK_SECONDS)
            with suppress(BusError):
                found = await self._bus.request(asked, SessionRead, seconds_max=LOOK_SECONDS)
                if found.elsewhere:
                    return
                if found.gone or found.ended:
                    await self.left(name, visit, found.status, found.reason)
                    return
        await self.left(name, visit, None, "its node did not answer any more")

    async def rest(self, name: str, visit: Stay) -> None:
        await asyncio.sleep(PORT_REST_SECONDS)
        if not visit.open and self._visits.get(name) is visit:
            await self.left(name, visit, None, "")

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class StayRecord:
    """The record of one session, or of one connection of a visit."""

    def __init__(
        self, records: Records, name: str, visit: Stay, run: RankRun, session_id: str, *, is_new: bool, is_port: bool
    ) -> None:
        """`is_new`: it does not continue an earlier session or visit."""
        self._records, self._name, self._visit, self._run = records, name, visit, run
        self._session_id, self.is_new, self._is_port = session_id, is_new, is_port

    @property
    def what(self) -> str:
        return self._visit.what

    async def entered(self) -> None:
        """Record the begin. After StoreUnavailableError the session must not open."""
        visit = self._visit
        visit.open += 1
        visit.connections += self._is_port
        if self.is_new:
            try:
                await self._records.tell(visit, CauseCode.ENTERED, f"{visit.by} opened {visit.what}")
            except BaseException:
                self._records.forget(self._name)
                raise

    def over(self, over: SessionEnd, status: int | None, reason: str, *, number: int) -> None:
        """Record the end of a connection; its events are published in the background, so closing is not delayed."""
        visit, records = self._visit, self._records
        visit.open -= 1
        if self._is_port:
            if not visit.open:
                records.later(asyncio.create_task(records.rest(self._name, visit)))
        elif over in (SessionEnd.ENDED, SessionEnd.CLOSED):
            records.later(asyncio.create_task(records.left(self._name, visit, status, reason)))
        elif over is SessionEnd.BROKEN:
            assert self._run.node_id is not None
            asked = ReadSession(node_id=self._run.node_id, session_id=self._session_id, line=number, looks=True)
            records.later(asyncio.create_task(records.watch(self._name, visit, asked)))


def number_of(name: str) -> int:
    """The number of a session in the job's history. It does not reveal the name, with which a session is resumed."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6])


def _port_name(job_id: str, epoch: int, rank: int, port: int, by: str) -> str:
    return f"{job_id} {epoch} {rank} {port} {by}"


def shown(command: tuple[str, ...]) -> str:
    """A command for the event history: on one line, and short."""
    text = " ".join(part if len(part) <= PART_CHARACTERS else f"{part[:PART_CHARACTERS]}…" for part in command)
    plain = "".join(char if char.isprintable() else "·" for char in text[: COMMAND_CHARACTERS * 2])
    return plain if len(plain) <= COMMAND_CHARACTERS else f"{plain[:COMMAND_CHARACTERS]}…"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
