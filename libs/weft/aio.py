"""The Python interface for programs with an event loop: the names of `weft`, as coroutines and asynchronous iterators.

    job = await weft.aio.run("python train.py", gpus=1)
    async for line in job.logs(follow=True): ...
    await job.result()

Each call opens a connection of its own, to the cluster of WEFT_URL and WEFT_TOKEN, else the one that `weft up` runs
here. A job keeps the cluster at which it was submitted. Every call raises Refused if the gateway refuses it,
Unreachable if no gateway answers in time, and ClientError if no cluster is known.
"""

import asyncio
import functools
import html
import itertools
import math
import os
import sys
import traceback
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, Unpack, cast, overload

from weft.client import Client, Refused
from weft.client.calls import JOBS_MAX, Call, RemoteFunction, answers, is_local, outcome, store
from weft.client.events import FINAL_EVENTS
from weft.client.failure import failed_rank, failure
from weft.client.files import targets
from weft.client.job_failed import JobFailed
from weft.client.job_fields import Given, JobFields, as_given, encoded, specification
from weft.client.local_cluster import Cluster
from weft.client.logs import lines_of
from weft.client.place import PATIENT_SECONDS, RESTART_SECONDS, Place, find_place
from weft.client.studies import Study
from weft.domain.arrays import element_id
from weft.domain.job import JobState
from weft.messages.files import JobFile
from weft.messages.http import JobView, Submitted
from weft.messages.metrics import MetricsView

if TYPE_CHECKING:
    from weft.planning.reasons.explain import Explanation

__all__ = ["Cluster", "Function", "Job", "Study", "as_completed", "function", "jobs", "run", "submit"]

P = ParamSpec("P")
R = TypeVar("R")
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
        async with _connected(place) as client:
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
        async with _connected(self._place) as client:
            self._view = await client.job(self.id)
        return self

    async def wait(self, timeout: float | None = None, *, patience: float = PATIENT_SECONDS) -> JobState:
        """Wait until the job has ended, and return its final state; a requeued job has not ended.

        Raises TimeoutError after `timeout` seconds, and Unreachable once no gateway has answered for `patience`
        seconds. The job goes on in both cases.
        """
        try:
            async with asyncio.timeout(timeout), _connected(self._place, patience) as client:
                self._view = await client.until_over(self.id)
        except TimeoutError:
            raise TimeoutError(f"{self.name} ({self.id}) is not over after {timeout:g} s, and goes on") from None
        return self.state

    async def result(self, timeout: float | None = None, *, patience: float = PATIENT_SECONDS) -> T:
        """Wait as `wait` does, and return what the function returned, of any other job None.

        Raises JobFailed if the job failed or was cancelled; of a function that raised, it has the traceback.
        """
        await self.wait(timeout, patience=patience)
        view = self._view
        assert view is not None, "it was waited for"
        async with _connected(self._place, patience) as client:
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

        `rank`: by default the one that failed first, else 0. `follow`: go on until the job is over, through every
        try. Bytes that are no UTF-8 become U+FFFD. Raises Refused if the node no longer has the log.
        """
        async with _connected(self._place, patience) as client:
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
        async with _connected(self._place) as client:
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
        async with _connected(self._place, patience) as client:
            found = await client.files(self.id, path, rank=rank)
            written = []
            for file, where in targets(found, path, Path(target)):
                where.parent.mkdir(parents=True, exist_ok=True)
                await client.fetch_file(self.id, file.path, where, rank=rank)
                written.append(where)
        return written

    async def delete_files(self, path: str = "", *, rank: int = 0) -> None:
        """Delete the files below `path`, by default all of them, on the node of one rank. The job has ended."""
        async with _connected(self._place) as client:
            await client.delete_files(self.id, path, rank=rank)

    async def metrics(self, *, rank: int = 0, points: int = 1000) -> MetricsView:
        """The numbers that one rank reported with `step` and `metric`, over all tries of the job.

        `at`: seconds since 1970; `series`: by name, such as `loss` and `step`, a value for each of `at`, or None.
        `points`: at most 10,000, evenly taken. Raises Refused if the rank was on no node yet.
        """
        async with _connected(self._place) as client:
            return await client.metrics(self.id, rank=rank, points=points)

    async def cancel(self) -> None:
        """Ask for the end of the job. Its processes get SIGTERM, and SIGKILL after its `grace`; `wait` sees the end."""
        async with _connected(self._place) as client:
            await client.cancel(self.id)

    async def explain(self) -> "Explanation":
        """The reason why the job waits, runs or failed: `sentence` for people, `code` and `numbers` for programs."""
        async with _connected(self._place) as client:
            return await client.explain(self.id)

    def __repr__(self) -> str:
        return f"<Job {self.name} {self.id} {self.state}>"

    def _repr_html_(self) -> str:
        """The job as a row, in a notebook."""
        view = self._view
        progress = "" if view is None else ", ".join(f"{name} {value:g}" for name, value in view.progress.items())
        nodes = "" if view is None else ", ".join(view.nodes)
        cells = {"job": self.name, "id": self.id, "state": self.state, "nodes": nodes, "progress": progress}
        head = "".join(f"<th>{name}</th>" for name in cells)
        row = "".join(f"<td>{html.escape(text)}</td>" for text in cells.values())
        return f"<table><thead><tr>{head}</tr></thead><tbody><tr>{row}</tr></tbody></table>"


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

    async def result(self, timeout: float | None = None, *, patience: float = PATIENT_SECONDS) -> T:
        if self._error is not None:
            raise self._error
        return cast(T, self._value)

    async def cancel(self) -> None:
        pass


class Function(Generic[P, R]):
    """A function that can run as a job; `function` makes one. To call it runs it here, unchanged.

    With WEFT_LOCAL=1 `spawn`, `remote` and `map` run it in this process, too, with arguments and results as a job would
    have them.
    """

    def __init__(self, function: Callable[P, R], remote: RemoteFunction) -> None:
        functools.update_wrapper(self, function)
        self.__wrapped__ = function
        self._remote = remote

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.__wrapped__(*args, **kwargs)

    async def spawn(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Submit one call as a job, and return at once; `result` of the job returns what the function returned.

        Raises Refused for a function that a job cannot find, for arguments that cannot be sent and for another minor
        version of Python, before anything is sent.
        """
        call = (args, kwargs)
        if is_local():
            return LocalJob(self._remote, call)
        place, submitted = await self._submit([call])
        return Job(place, submitted.id, submitted.name, notes=submitted.notes, function=self._remote)

    async def remote(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run one call as a job, and return its result. Raises as `spawn` and `Job.result` do."""
        return await (await self.spawn(*args, **kwargs)).result()

    async def map(
        self,
        values: Iterable[Any],
        *,
        at_once: int | None = None,
        chunk: int | None = None,
        return_exceptions: bool = False,
        patience: float = PATIENT_SECONDS,
    ) -> AsyncGenerator[R, None]:
        """Call the function with each value, as the elements of one array, and yield the results in the same order.

        `at_once`: how many elements may run at once. `chunk`: how many values one element takes, by default so many
        that there are 64 elements at most. A call that raised is a JobFailed at its place: raised there, or with
        `return_exceptions` yielded; the others go on.
        """
        calls: list[Call] = [((value,), {}) for value in values]
        async with aclosing(self._results(calls, at_once, chunk, return_exceptions, patience, [])) as results:
            async for result in results:
                yield result

    async def _results(
        self,
        calls: Sequence[Call],
        at_once: int | None,
        chunk: int | None,
        return_exceptions: bool,
        patience: float,
        begun: list[Study],
    ) -> AsyncGenerator[R, None]:
        """The results of `map`; the array is added to `begun` once it is submitted."""
        if not calls:
            return
        found = self._mapped_here(calls) if is_local() else self._mapped(calls, at_once, chunk, patience, begun)
        async with aclosing(found):
            async for result in found:
                if isinstance(result, JobFailed) and not return_exceptions:
                    raise result
                yield cast(R, result)

    async def _mapped_here(self, calls: Sequence[Call]) -> AsyncGenerator[object, None]:
        for call in calls:
            job: LocalJob[R] = LocalJob(self._remote, call)
            yield job._value if job._error is None else job._error

    async def _mapped(
        self, calls: Sequence[Call], at_once: int | None, chunk: int | None, patience: float, begun: list[Study]
    ) -> AsyncGenerator[object, None]:
        chunk = chunk or math.ceil(len(calls) / JOBS_MAX)
        place, submitted = await self._submit(calls, chunk=chunk, at_once=at_once)
        begun.append(Study(place, submitted.id, submitted.name))
        elements = [element_id(submitted.id, number) for number in range(math.ceil(len(calls) / chunk))]
        ended: dict[str, JobView] = {}
        async with _connected(place, patience) as client, aclosing(_ends(client, set(elements))) as ends:
            for number, element in enumerate(elements):
                while element not in ended:
                    view = await anext(ends)
                    ended[view.id] = view
                view, found = ended.pop(element), await answers(client, element)
                for n in range(number * chunk, min(len(calls), (number + 1) * chunk)):
                    try:
                        yield await outcome(client, view, self._remote, found, n)
                    except JobFailed as failed:
                        yield failed

    async def _submit(
        self, calls: Sequence[Call], *, chunk: int = 0, at_once: int | None = None
    ) -> tuple[Place, Submitted]:
        prepared = self._remote.prepared(calls, chunk=chunk, at_once=at_once)
        place = find_place(os.environ)
        try:
            async with _connected(place) as client:
                await store(client, prepared)
                return place, await client.submit(encoded(prepared.asked))
        except Refused as error:
            raise as_given(error, prepared.asked, self._remote.fields) from None


@overload
def function(call: Callable[P, R], /) -> Function[P, R]: ...
@overload
def function(
    *, pickle: bool = False, python: str | None = None, **fields: Unpack[JobFields]
) -> Callable[[Callable[P, R]], Function[P, R]]: ...
def function(
    call: Callable[P, R] | None = None,
    /,
    *,
    pickle: bool = False,
    python: str | None = None,
    **fields: Unpack[JobFields],
) -> Function[P, R] | Callable[[Callable[P, R]], Function[P, R]]:
    """Make a function one that can run as a job: `@weft.aio.function` or `@weft.aio.function(gpus=1)`.

    `fields`: those of `submit`, for each job. `pickle`: send arguments and results by pickle, not as JSON by the types
    in the annotations. `python`: the job's interpreter; by default that of this program, in a container `python3`.
    """

    def made(call: Callable[P, R]) -> Function[P, R]:
        return Function(call, RemoteFunction(call, fields, pickled=pickle, python=python or sys.executable))

    return made if call is None else made(call)


async def submit(spec: Given | None = None, /, *, key: str | None = None, **fields: Unpack[JobFields]) -> Job[None]:
    """Submit one job, and return at once.

    `spec`: a mapping with the fields of a job file, or the path of such a file in YAML or JSON; `fields` are added, and
    replace those of `spec`. `key`: submitting again with the same key returns the same job. A job without a `name` is
    named by its command, and a process without a `workdir` runs in the current folder. Raises Refused, with the `field`
    and its `value`, if the job is not accepted, and OSError if the file cannot be read.
    """
    asked = specification(spec, fields, cwd=os.getcwd())
    place = find_place(os.environ)
    try:
        async with _connected(place) as client:
            submitted = await client.submit(encoded(asked), key=key)
    except Refused as error:
        raise as_given(error, asked, fields) from None
    return Job(place, submitted.id, submitted.name, notes=submitted.notes)


async def run(command: str | Sequence[str], /, *, key: str | None = None, **fields: Unpack[JobFields]) -> Job[None]:
    """Submit a job that runs this command, and return at once; `fields` and errors are those of `submit`.

    A text is split into words as a shell does, but no shell runs it: pass `["sh", "-c", text]` for that.
    """
    return await submit({"command": command}, key=key, **fields)


async def jobs(
    *,
    states: Sequence[JobState | str] = (),
    name: str = "",
    labels: Sequence[str] = (),
    since: float | None = None,
    limit: int = 100,
) -> list[Job[None]]:
    """The newest jobs first, at most `limit`, which is at most 1000.

    `states`: such as `["running", "queued"]`, else all. `name`: also a pattern with `*` and `?`. `labels`: each
    `NAME=VALUE` or `NAME`; a job has all of them. `since`: submitted then or later, in seconds since 1970 (UTC).
    """
    place = find_place(os.environ)
    wanted = [JobState(state) for state in states]
    async with _connected(place) as client:
        found = await client.jobs(states=wanted, name=name, labels=labels, since=since, limit=limit, benchmarks=False)
    return [Job(place, view.id, view.name, view=view) for view in found.jobs]


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
    async with _connected(place, patience) as client, aclosing(_ends(client, set(waiting))) as ends:
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


async def _ends(client: Client, ids: set[str]) -> AsyncGenerator[JobView, None]:
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


def _connected(place: Place, patience: float = RESTART_SECONDS) -> AbstractAsyncContextManager[Client]:
    return Client(
        place.url, place.token, retry_seconds=patience, first_seconds=place.first_seconds, ca_file=place.ca_file
    )
