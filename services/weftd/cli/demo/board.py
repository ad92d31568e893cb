"""The present state of the demo's jobs, and a way to wait for a state."""

import asyncio
from collections.abc import Callable

from weft.client import Client
from weft.domain.job import JobState
from weft.messages.http import JobView
from weft.messages.http.explanation import Explanation
from weftd.cli.demo.burst import Burst

LOOK_SECONDS = 0.25


class Board:
    """`told` is called with each line to print, `drawn` after each look. Benchmarks are left out.

    The progress of the jobs in `endless` says nothing about the demo: they run until they are cancelled.
    """

    def __init__(
        self,
        client: Client,
        *,
        told: Callable[[str, str], None] = lambda name, line: None,
        drawn: Callable[[], None] = lambda: None,
        endless: frozenset[str] = frozenset(),
    ) -> None:
        self.jobs: dict[str, JobView] = {}  # by name, in the order of submission
        self.explained: dict[str, Explanation] = {}
        self.burst = Burst()
        self.borrowed = 0.0  # GPUs that the service had of other jobs, at most
        self.left_out: dict[str, str] = {}  # jobs that cannot be shown here, and why
        self._client = client
        self._told, self._drawn = told, drawn
        self._endless = endless
        self.changed_at = asyncio.get_running_loop().time()
        self._looked = asyncio.Condition()

    async def watch(self) -> None:
        """Look at the jobs for ever."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        seen = await self._client.jobs(benchmarks=False)
        for job in sorted(seen.jobs, key=lambda job: job.seq):
            before = self.jobs.get(job.name)
            if before is None or (before.state, before.epoch, _size(before)) != (job.state, job.epoch, _size(job)):
                self._told(job.name, in_words(job))
            if before is None or self._signs(before) != self._signs(job):
                self.changed_at = asyncio.get_running_loop().time()
            self.jobs[job.name] = job
        self._drawn()
        async with self._looked:
            self._looked.notify_all()

    async def stalled(self, seconds: float) -> None:
        """Return once no job has changed its state, its size or its progress for `seconds`."""
        clock = asyncio.get_running_loop().time
        while (left := self.changed_at + seconds - clock()) > 0:  # noqa: ASYNC110 -- the deadline moves
            await asyncio.sleep(left)

    async def until(self, name: str, so: Callable[[JobView], bool], *, seconds_max: float | None = None) -> JobView:
        """Wait until the job meets the condition; with None the caller bounds the wait. Raises TimeoutError."""
        async with asyncio.timeout(seconds_max), self._looked:
            await self._looked.wait_for(lambda: name in self.jobs and so(self.jobs[name]))
            return self.jobs[name]

    async def until_state(self, name: str, *states: JobState) -> JobView:
        return await self.until(name, lambda job: job.state in states)

    def _signs(self, job: JobView) -> tuple[object, ...]:
        """The facts that change while a job gets on."""
        progress = {} if job.name in self._endless else job.progress
        return job.state, job.epoch, _size(job), progress

    def tell(self, name: str, line: str) -> None:
        self._told(name, line)


def _size(job: JobView) -> tuple[int, int]:
    """The desired and the current number of replicas of a service."""
    return (job.service.wanted, job.service.granted) if job.service is not None else (0, 0)


def in_words(job: JobView) -> str:
    where = f" on {', '.join(job.nodes)}" if job.nodes and job.state.holding else ""
    again = f", try {job.attempts + 1}" if job.attempts and not job.state.final else ""
    cause = job.waiting_for if job.state is JobState.QUEUED else job.stopping_for
    why = f": {cause.sentence}" if cause and cause.sentence and not job.state.final else ""
    serves = job.service is not None and job.state is JobState.RUNNING
    replicas = f", {job.service.granted} of {job.service.wanted} replicas" if serves and job.service else ""
    return f"{job.state}{where}{again}{replicas}{why}"
