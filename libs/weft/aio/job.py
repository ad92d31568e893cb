"""One job for programs with an event loop."""

import asyncio
import itertools
import os
import traceback
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import AbstractAsyncContextManager, aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

from weft.client import Client, Refused
from weft.client.calls import Call, RemoteFunction, answers, outcome
from weft.client.events import FINAL_EVENTS
from weft.client.failure import failed_rank, failure
from weft.client.files import targets
from weft.client.job_failed import JobFailed
from weft.client.logs import lines_of
from weft.client.place import PATIENT_SECONDS, RESTART_SECONDS, Place, find_place
from weft.domain.job import JobState
from weft.messages.files import JobFile
from weft.messages.http import JobView
from weft.messages.metrics import MetricsView
from weft.notebook import job_html

if TYPE_CHECKING:
    from weft.messages.http.explanation import Explanation

T = TypeVar("T")


class Job(Generic[T]):
    """One job. Its result is what its function returned, else None.

    `state` and `view` are as they were when this object last asked; `refresh` asks again.

    `id` and `name` never change. `notes`: sentences about how the job will be treated, from its submission.
    """

    def __init__(
        self,
        place: Place,
        id: str,  # noqa: A002 -- the name of the attribute
        name: str,
        *,
        view: JobView | None = None,
        notes: tuple[str, ...] = (),
        function: RemoteFunction | None = None,
    ) -> None:
        self._place = place
        self._function = function
        self._view = view
        self.id = id
        self.name = name
        self.notes = notes

    @classmethod
    async def find(cls, named: str) -> "Job[None]":
        """The job with this id, or the newest job of this name. Raises Refused if there is none."""
        place = find_place(os.environ)
        async with connected(place) as client:
            view = await client.job(named)
        return Job(place, view.id, view.name, view=view)

    @property
    def state(self) -> JobState:
        """The state when it was last asked for; `queued` before that."""
        return self._view.state if self._view is not None else JobState.QUEUED

    @property
    def view(self) -> JobView | None:
        """All that the gateway reported when it was last asked: nodes, progress, cause. None before that."""
        return self._view

    async def refresh(self) -> Self:
        """Ask for the job's present state."""
        async with connected(self._place) as client:
            self._view = await client.job(self.id)
        return self

    async def wait(self, timeout: float | None = None, *, patience: float = PATIENT_SECONDS) -> JobState:
        """Wait until the job has ended, and return its final state; a requeued job has not ended.

        Raises TimeoutError after `timeout` seconds, and Unreachable once no gateway has answered for `patience`
        seconds. The job goes on in both cases.
        """
        try:
            async with asyncio.timeout(timeout), connected(self._place, patience) as client:
                self._view = await client.until_over(self.id)
        except TimeoutError:
            raise TimeoutError(f"{self.name} ({self.id}) is not over after {timeout:g} s, and goes on") from None
        return self.state

    async def wait_until(
        self, state: JobState | str, timeout: float | None = None, *, patience: float = PATIENT_SECONDS
    ) -> JobState:
        """Wait until the job has this state, such as `running`, or has ended, and return its state.

        A state that lasts less than a request takes may be missed. Raises as `wait` does.
        """
        wanted = JobState(state)
        try:
            async with asyncio.timeout(timeout), connected(self._place, patience) as client:
                self._view = await client.until(self.id, wanted)
        except TimeoutError:
            now = f"is {self.state}, not {wanted}, after {timeout:g} s, and goes on"
            raise TimeoutError(f"{self.name} ({self.id}) {now}") from None
        return self.state

    async def result(self, timeout: float | None = None, *, patience: float = PATIENT_SECONDS) -> T:
        """Wait as `wait` does, and return what the function returned, of any other job None.

        Raises JobFailed if the job failed or was cancelled; of a function that raised, it has the traceback.
        """
        await self.wait(timeout, patience=patience)
        view = self._view
        assert view is not None, "it was waited for"
        async with connected(self._place, patience) as client:
            if self._function is None:
                if view.state is JobState.SUCCEEDED:
                    return cast(T, None)
                raise await failure(client, view)
            found = await answers(client, view.id)
            return cast(T, await outcome(client, view, self._function, found, 0))

    async def logs(
        self, *, follow: bool = False, rank: int | None = None, patience: float = PATIENT_SECONDS
    ) -> AsyncGenerator[str, None]:
        """The lines that one rank wrote to stdout and stderr in its newest try, without their line ends.

        `rank`: by default the one that failed first, else 0. `follow`: follow until the job has ended, through every
        try. Bytes that are no UTF-8 become U+FFFD. Raises Refused if the node no longer has the log.
        """
        async with connected(self._place, patience) as client:
            if rank is None:
                self._view = await client.job(self.id)
                rank = failed_rank(self._view) or 0
            chunks = client.follow_log(self.id, rank=rank) if follow else client.stream_log(self.id, rank=rank)
            async with aclosing(lines_of(chunks)) as lines:
                async for line in lines:
                    yield line

    async def files(self, path: str = "", *, rank: int = 0) -> list[JobFile]:
        """The files that the runs of the job wrote, below `path`, on the node of one rank, by their paths in order.

        Each path begins with `results/` (WEFT_RESULTS), `checkpoints/` (WEFT_CHECKPOINT_DIR) or `metrics/`; any other
        `path` is below `results`. Raises Refused if the node has none there.
        """
        async with connected(self._place) as client:
            return list(await client.files(self.id, path, rank=rank))

    async def fetch(
        self,
        path: str = "",
        target: str | os.PathLike[str] = ".",
        *,
        rank: int = 0,
        patience: float = PATIENT_SECONDS,
    ) -> list[Path]:
        """Copy a file, or all files below a folder, from the node of one rank, and return the paths that were written.

        A `target` that is a folder gets it under its own name; any other name is that of the copy. A file replaces
        another whole or not at all; what came before a connection broke is not sent again, also by a later call.
        Raises Refused if the node has no such file, and ClientError if the disk here does not take it.
        """
        async with connected(self._place, patience) as client:
            found = await client.files(self.id, path, rank=rank)
            written = []
            for file, where in targets(found, path, Path(target)):
                where.parent.mkdir(parents=True, exist_ok=True)
                await client.fetch_file(self.id, file.path, where, rank=rank)
                written.append(where)
        return written

    async def delete_files(self, path: str = "", *, rank: int = 0) -> None:
        """Delete the files below `path`, by default all of them, on the node of one rank. The job has ended."""
        async with connected(self._place) as client:
            await client.delete_files(self.id, path, rank=rank)

    async def metrics(self, *, rank: int = 0, points: int = 1000) -> MetricsView:
        """The numbers that one rank reported with `step` and `metric`, over all tries of the job.

        `at`: seconds since 1970; `series`: by name, such as `loss` and `step`, a value for each of `at`, or None.
        `points`: at most 10,000, evenly taken. Raises Refused if the rank was on no node yet.
        """
        async with connected(self._place) as client:
            return await client.metrics(self.id, rank=rank, points=points)

    async def cancel(self) -> None:
        """Ask for the end of the job. Its processes get SIGTERM, and SIGKILL after its `grace`; `wait` sees the end."""
        async with connected(self._place) as client:
            await client.cancel(self.id)

    async def scale(self, **replicas: int) -> None:
        """Ask for another size: replicas by role, such as `scale(worker=2)`. Raises Refused if it does not resize."""
        async with connected(self._place) as client:
            await client.scale(self.id, replicas)

    async def explain(self) -> "Explanation":
        """The reason why the job waits, runs or failed: `sentence` for people, `code` and `numbers` for programs."""
        async with connected(self._place) as client:
            return await client.explain(self.id)

    def __await__(self) -> Generator[Any, None, T]:
        """`await job` is its result."""
        return self.result().__await__()

    def __repr__(self) -> str:
        return f"<Job {self.name} {self.id} {self.state}>"

    def _repr_html_(self) -> str:
        """The job as a row, in a notebook."""
        return job_html(self.name, self.id, self.state, self._view)


class LocalJob(Job[T]):
    """A call that was made in this process, because of WEFT_LOCAL: it is over."""

    _numbers = itertools.count(1)

    def __init__(self, function: RemoteFunction, call: Call) -> None:
        super().__init__(Place(url="", token="", token_from=""), f"local-{next(self._numbers)}", function.name)
        self._value: T | None = None
        self._error: JobFailed | Refused | None = None
        try:
            self._value = function.here(call)
        except Refused as error:
            self._error = error
        except Exception as error:
            what, where = f"{type(error).__name__}: {error}", traceback.format_exc()
            self._error = JobFailed(self.id, self.name, state=JobState.FAILED, error=what, traceback=where)

    @property
    def state(self) -> JobState:
        return JobState.SUCCEEDED if self._error is None else JobState.FAILED

    async def refresh(self) -> Self:
        return self

    async def wait(self, timeout: float | None = None, *, patience: float = PATIENT_SECONDS) -> JobState:
        return self.state

    async def wait_until(
        self, state: JobState | str, timeout: float | None = None, *, patience: float = PATIENT_SECONDS
    ) -> JobState:
        return self.state

    async def result(self, timeout: float | None = None, *, patience: float = PATIENT_SECONDS) -> T:
        return self.over()

    def over(self) -> T:
        """The result, at once. Raises JobFailed, and Refused for a result of another type."""
        if self._error is not None:
            raise self._error
        return cast(T, self._value)

    async def cancel(self) -> None:
        pass


async def as_completed(
    jobs: Iterable[Job[T]], *, timeout: float | None = None, patience: float = PATIENT_SECONDS
) -> AsyncGenerator[Job[T], None]:
    """The jobs in the order in which they end, each of them once, whether it succeeded or not.

    All jobs belong to one cluster; one connection serves any number of them. Raises TimeoutError `timeout` seconds
    after the first call, and Unreachable once no gateway has answered for `patience` seconds. The jobs go on in both
    cases.
    """
    waiting = {job.id: job for job in jobs}
    for here in [job for job in waiting.values() if isinstance(job, LocalJob)]:
        yield waiting.pop(here.id)
    if not waiting:
        return
    places = {job._place.url: job._place for job in waiting.values()}
    if len(places) > 1:
        raise ValueError(f"as_completed takes the jobs of one cluster, got those of {' and '.join(sorted(places))}")
    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + timeout
    (place,) = places.values()
    async with connected(place, patience) as client, aclosing(ends_of(client, set(waiting))) as ends:
        while waiting:
            try:
                async with asyncio.timeout_at(deadline):
                    view = await anext(ends)
            except TimeoutError:
                late = ", ".join(job.name for job in waiting.values())
                raise TimeoutError(f"not over after {timeout:g} s, and going on: {late}") from None
            job = waiting.pop(view.id)
            job._view = view
            yield job


async def ends_of(client: Client, ids: set[str]) -> AsyncGenerator[JobView, None]:
    """The jobs as they end. The cursor is taken before the jobs are looked at, so no end falls in between."""
    newest = await client.events(limit=1)
    cursor = newest[-1].cursor if newest else ""
    for job in sorted(ids):
        view = await client.job(job)
        if view.state.final:
            ids.remove(job)
            yield view
    if not ids:
        return
    async with aclosing(client.follow_events(after=cursor)) as events:
        async for event in events:
            if event.type in FINAL_EVENTS and event.data.job_id in ids:
                view = await client.job(event.data.job_id)
                if view.state.final:  # else it was requeued since
                    ids.remove(view.id)
                    yield view
                    if not ids:
                        return


def connected(place: Place, patience: float = RESTART_SECONDS) -> AbstractAsyncContextManager[Client]:
    return Client(
        place.url, place.token, retry_seconds=patience, first_seconds=place.first_seconds, ca_file=place.ca_file
    )
