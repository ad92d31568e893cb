"""The progress of each run: from the file or datagram socket the run writes to, or from a pattern on its output.

Lines are `step=120 samples=3840 loss=0.31`; the newest value of each name wins. Only new lines are read, and of many
only the last, so a chatty job costs little more than a quiet one, and no run waits for another's pattern.
"""

import asyncio
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from typing import Protocol

from weftd.executor.files.home import Home
from weftd.executor.logs.lines import LINE_BYTES_MAX, LINES_MAX, READ_BYTES_MAX, Tail, pairs
from weftd.executor.logs.matching import Matcher
from weftd.executor.logs.metrics import MetricsFiles
from weftd.executor.runs import Run, RunKey
from weftd.executor.thinking.pace import Pacer
from weftd.executor.thinking.telling import Told

logger = logging.getLogger(__name__)

BYTES_PER_COST = 32.0  # a datagram costs 1, and 1 more for each so many bytes: some 2 µs of CPU each
COST_PER_SECOND = 4000.0  # of one run, 2000 short lines; a job that sends more waits, or loses some lines
COST_PER_SECOND_ALL = 40_000.0  # of all runs, which share it evenly
COST_AT_WAKE = 64.0  # of one run, before other work has its turn
PAUSE_SECONDS = 0.05
QUEUED_MAX = 1024  # datagrams of an ended run that are read; the kernel keeps fewer
MATCH_SECONDS = 0.1  # how long one look waits for patterns; later results are reported at the next look
SETTLE_SECONDS = 2.0  # how long all ended runs together wait for patterns: a node that does not sync is fenced


@contextmanager
def _for_everybody() -> Iterator[None]:
    """Create files writable for all. A later chmod could be redirected by a link: the job can write to the folder."""
    before = os.umask(0o111)
    try:
        yield
    finally:
        os.umask(before)


class ProgressSource(Protocol):
    """Reads the progress of runs."""

    patterns: Mapping[RunKey, str]
    """The patterns of the runs that report progress on their output."""

    @property
    def latest(self) -> Mapping[RunKey, dict[str, float]]:
        """The newest numbers of each run, ended ones too until they are gone."""

    async def look(self, runs: Iterable[Run]) -> dict[RunKey, Told]:
        """The progress of live runs that reported any; forgets the runs that are gone."""

    async def settle(self, ended: Sequence[Run]) -> None:
        """Read the last progress of ended runs once, before their end is reported; slow patterns come later."""

    async def close(self) -> None: ...


class _Watched:
    def __init__(self, home: Home, key: RunKey) -> None:
        self.key = key
        self.file = Tail(home.progress(key), lines_max=LINES_MAX)
        self.log = Tail(home.log(key))
        self.pacer = Pacer()
        self.read_at = 0.0  # seconds since the epoch, UTC
        self.socket: socket.socket | None = None
        self.allowance = 0.0
        self.heard_at: float | None = None
        self.matching: asyncio.Task[None] | None = None
        self.settled = False


class ProgressReader:
    """Progress from the files and sockets of a home. `clock` is monotonic; `now` is seconds since the epoch, UTC."""

    def __init__(
        self, home: Home, *, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time
    ) -> None:
        self._home = home
        self._clock = clock
        self._now = now
        self._looked_at = clock()
        self._watched: dict[RunKey, _Watched] = {}
        self._matcher = Matcher(clock=clock)
        self._metrics = MetricsFiles(str(home.metrics))
        self._writing = asyncio.Lock()
        self._matching: set[asyncio.Task[None]] = set()
        self.patterns: Mapping[RunKey, str] = {}

    @property
    def latest(self) -> dict[RunKey, dict[str, float]]:
        return {key: dict(watched.pacer.values) for key, watched in self._watched.items() if watched.pacer.values}

    async def look(self, runs: Iterable[Run]) -> dict[RunKey, Told]:
        runs = list(runs)
        for run in runs:
            if run.live:
                self._read(run.key)
                await asyncio.sleep(0)  # so that a run with many lines does not block the rest of the executor
        self._looked_at = self._clock()
        for key in self._watched.keys() - {run.key for run in runs}:
            self._close(self._watched.pop(key))
            self._metrics.forget(key)
        await self._write()
        if self._matching:
            await asyncio.wait(self._matching, timeout=MATCH_SECONDS)
        now = self._clock()
        return {run.key: told for run in runs if run.live and (told := self._told(run.key, now)) is not None}

    async def settle(self, ended: Sequence[Run]) -> None:
        matching = set()
        for run in ended:
            watched = self._watched.get(run.key)
            if run.started_at is None or (watched is not None and watched.settled):
                continue
            if watched is None:
                watched = self._watched[run.key] = _Watched(self._home, run.key)
            watched.settled = True
            if watched.socket is not None:
                self._hear_last(watched, watched.socket)
            self._close(watched)
            self._take(watched, watched.file, last=True)
            self._match(run.key, watched, last=True)
            if watched.matching is not None:
                matching.add(watched.matching)
            await asyncio.sleep(0)
        if matching:
            await asyncio.wait(matching, timeout=SETTLE_SECONDS)
        if ended:
            await self._write()

    async def _write(self) -> None:
        """Store the series. A disk that takes nothing now ends nothing: it is tried again."""
        async with self._writing:
            try:
                await asyncio.to_thread(self._metrics.write)
            except OSError as error:
                logger.warning("metrics cannot be written now: %s", error)

    async def close(self) -> None:
        for watched in self._watched.values():
            self._close(watched)
        for matching in self._matching:
            matching.cancel()
        if self._matching:
            await asyncio.wait(self._matching)
        await self._matcher.close()

    def _told(self, key: RunKey, now: float) -> Told | None:
        watched = self._watched.get(key)
        if watched is None or not (watched.pacer.values or watched.pacer.disbelieved):
            return None
        pacer = watched.pacer
        return Told(
            progress=dict(pacer.values), at=watched.read_at, pace=pacer.pace(now), disbelieved=pacer.disbelieved
        )

    def _read(self, key: RunKey) -> None:
        watched = self._watched.get(key)
        if watched is None:
            watched = self._watched[key] = _Watched(self._home, key)
            watched.socket = self._listen(watched, key)
        self._take(watched, watched.file)
        self._match(key, watched)

    def _take(self, watched: _Watched, file: Tail, *, last: bool = False) -> None:
        self._learn(watched, [pairs(line) for line in file.news(last=last)], at=self._written(file))

    def _match(self, key: RunKey, watched: _Watched, *, last: bool = False) -> None:
        """Begin to match a run's new output. While older output is being matched only the `last` is read."""
        pattern = self.patterns.get(key)
        before = watched.matching if watched.matching is not None and not watched.matching.done() else None
        if pattern is None or (before is not None and not last):
            return
        if lines := watched.log.news(last=last):
            matching = self._matched(watched, pattern, lines, self._written(watched.log), after=before)
            watched.matching = asyncio.create_task(matching, name=f"progress-pattern-{key}")
            self._matching.add(watched.matching)
            watched.matching.add_done_callback(self._matching.discard)

    async def _matched(
        self, watched: _Watched, pattern: str, lines: Sequence[str], at: float, *, after: asyncio.Task[None] | None
    ) -> None:
        if after is not None:
            await asyncio.wait({after})
        self._learn(watched, [await self._matcher.latest(pattern, lines)], at=at)

    def _learn(self, watched: _Watched, lines: Sequence[Mapping[str, float]], *, at: float) -> None:
        told = [line for line in lines if line]
        if told:
            watched.read_at = self._now()
            self._metrics.add(watched.key, watched.read_at, told)
            watched.pacer.tell(told, at=at)

    def _written(self, file: Tail) -> float:
        """When the last line was written, but after the last look in any case: a job can misdate its files."""
        now = self._clock()
        return min(now, max(self._looked_at, now - (self._now() - file.written_at)))

    def _listen(self, watched: _Watched, key: RunKey) -> socket.socket | None:
        """The run's own datagram socket. If there can be none, the file remains."""
        path = self._home.progress_socket(key)
        if not path:
            return None
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            with suppress(FileNotFoundError):
                os.unlink(path)
            with _for_everybody():  # a container's user is another than ours; the folder above is closed to others
                listening.bind(path)
        except OSError as error:
            logger.debug("no progress socket for %s: %s", key, error)
            listening.close()
            return None
        asyncio.get_running_loop().add_reader(listening.fileno(), self._hear, watched, listening)
        return listening

    def _hear(self, watched: _Watched, listening: socket.socket) -> None:
        now = self._clock()
        rate = min(COST_PER_SECOND, COST_PER_SECOND_ALL / len(self._watched))
        since = 1.0 if watched.heard_at is None else now - watched.heard_at
        watched.heard_at = now
        watched.allowance = min(rate, watched.allowance + since * rate)
        left = min(watched.allowance, COST_AT_WAKE)
        lines = []
        while left > 0 and (said := _received(listening)) is not None:
            cost = 1.0 + len(said) / BYTES_PER_COST
            left, watched.allowance = left - cost, watched.allowance - cost
            lines.append(pairs(said.decode(errors="replace")))
        self._learn(watched, lines, at=now)
        if watched.allowance <= 0:
            loop = asyncio.get_running_loop()
            loop.remove_reader(listening.fileno())
            pause = max(PAUSE_SECONDS, -watched.allowance / rate)
            loop.call_later(pause, self._hear_again, watched, listening)

    def _hear_last(self, watched: _Watched, listening: socket.socket) -> None:
        """Read the last of the waiting datagrams, as at the end of a file."""
        waiting = deque(islice(iter(partial(_received, listening), None), QUEUED_MAX), maxlen=LINES_MAX)
        while sum(map(len, waiting)) > READ_BYTES_MAX:
            waiting.popleft()
        self._learn(watched, [pairs(said.decode(errors="replace")) for said in waiting], at=self._clock())

    def _hear_again(self, watched: _Watched, listening: socket.socket) -> None:
        if watched.socket is listening:
            asyncio.get_running_loop().add_reader(listening.fileno(), self._hear, watched, listening)

    def _close(self, watched: _Watched) -> None:
        if watched.socket is not None:
            asyncio.get_running_loop().remove_reader(watched.socket.fileno())
            watched.socket.close()
            watched.socket = None


def _received(listening: socket.socket) -> bytes | None:
    """The next datagram, cut to the length of a line; None when none waits."""
    try:
        return listening.recv(LINE_BYTES_MAX)
    except OSError:
        return None
