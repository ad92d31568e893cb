"""The Python interface for scripts and notebooks: each call of `weft.aio`, awaited in a thread that has the event loop.

The thread starts with the first call. A notebook has an event loop of its own, which these calls do not touch.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack, cast

from weft import aio
from weft.client import ClientError
from weft.client.job_fields import Given, JobFields
from weft.client.place import PATIENT_SECONDS
from weft.domain.job import JobState
from weft.domain.spec import MetricGoal
from weft.messages.files import JobFile
from weft.messages.http import JobView
from weft.messages.metrics import MetricsView
from weft.messages.sweeps import SweepRow, SweepView
from weft.notebook import Live, live

if TYPE_CHECKING:
    from weft.messages.http.explanation import Explanation

T = TypeVar("T")
_END_SECONDS = 2.0
JOB_SECONDS, STUDY_SECONDS = 2.0, 5.0  # between two drawings in a notebook while a call waits


class Job(Generic[T]):
    """One job. Its result is what its function returned, else None.

    `state` and `view` are as they were when this object last asked; `refresh` asks again.

    Every method raises Unreachable if no gateway answers in time. Ctrl-C in `wait`, `result` and `logs` leaves the job
    running, and KeyboardInterrupt names it.
    """

    def __init__(self, job: aio.Job[T]) -> None:
        self._job = job

    @classmethod
    def find(cls, named: str) -> "Job[None]":
        """The job with this id, or the newest job of this name. Raises Refused if there is none."""
        return Job(_call(aio.Job.find(named)))

    @property
    def id(self) -> str:
        """The id, which never changes."""
        return self._job.id

    @property
    def name(self) -> str:
        return self._job.name

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about how the job will be treated, from its submission."""
        return self._job.notes

    @property
    def state(self) -> JobState:
        """The state when it was last asked for; `queued` before that."""
        return self._job.state

    @property
    def view(self) -> JobView | None:
        """All that the gateway reported when it was last asked: nodes, progress, cause. None before that."""
        return self._job.view

    def refresh(self) -> Self:
        """Ask for the job's present state."""
        _call(self._job.refresh())
        return self

    def wait(self, timeout: float | None = None, *, patience: float = PATIENT_SECONDS) -> JobState:
        """Wait until the job has ended, and return its final state; a requeued job has not ended.

        Raises TimeoutError after `timeout` seconds, and Unreachable once no gateway has answered for `patience`
        seconds. The job goes on in both cases.
        """
        with _named([self._job]):
            return _call(self._job.wait(timeout, patience=patience), shown=self._live())

    def wait_until(
        self, state: JobState | str, timeout: float | None = None, *, patience: float = PATIENT_SECONDS
    ) -> JobState:
        """Wait until the job has this state, such as `running`, or has ended, and return its state.

        A state that lasts less than a request takes may be missed. Raises as `wait` does.
        """
        with _named([self._job]):
            return _call(self._job.wait_until(state, timeout, patience=patience), shown=self._live())

    def result(self, timeout: float | None = None, *, patience: float = PATIENT_SECONDS) -> T:
        """Wait as `wait` does, and return what the function returned, of any other job None.

        Raises JobFailed if the job failed or was cancelled; of a function that raised, it has the traceback.
        """
        with _named([self._job]):
            return _call(self._job.result(timeout, patience=patience), shown=self._live())

    def logs(
        self, *, follow: bool = False, rank: int | None = None, patience: float = PATIENT_SECONDS
    ) -> Iterator[str]:
        """The lines that one rank wrote to stdout and stderr in its newest try, without their line ends.

        `rank`: by default the one that failed first, else 0. `follow`: follow until the job has ended, through every
        try. Bytes that are no UTF-8 become U+FFFD. Raises Refused if the node no longer has the log.
        """
        with _named([self._job]):
            yield from _each(self._job.logs(follow=follow, rank=rank, patience=patience))

    def files(self, path: str = "", *, rank: int = 0) -> list[JobFile]:
        """The files that the runs of the job wrote, below `path`, on the node of one rank, by their paths in order.

        Each path begins with `results/` (WEFT_RESULTS), `checkpoints/` (WEFT_CHECKPOINT_DIR) or `metrics/`; any other
        `path` is below `results`. Raises Refused if the node has none there.
        """
        return _call(self._job.files(path, rank=rank))

    def fetch(
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
        return _call(self._job.fetch(path, target, rank=rank, patience=patience))

    def delete_files(self, path: str = "", *, rank: int = 0) -> None:
        """Delete the files below `path`, by default all of them, on the node of one rank. The job has ended."""
        _call(self._job.delete_files(path, rank=rank))

    def metrics(self, *, rank: int = 0, points: int = 1000) -> MetricsView:
        """The numbers that one rank reported with `step` and `metric`, over all tries of the job.

        `at`: seconds since 1970; `series`: by name, such as `loss` and `step`, a value for each of `at`, or None.
        `points`: at most 10,000, evenly taken. Raises Refused if the rank was on no node yet.
        """
        return _call(self._job.metrics(rank=rank, points=points))

    def cancel(self) -> None:
        """Ask for the end of the job. Its processes get SIGTERM, and SIGKILL after its `grace`; `wait` sees the end."""
        _call(self._job.cancel())

    def scale(self, **replicas: int) -> None:
        """Ask for another size: replicas by role, such as `scale(worker=2)`. Raises Refused if it does not resize."""
        _call(self._job.scale(**replicas))

    def explain(self) -> "Explanation":
        """The reason why the job waits, runs or failed: `sentence` for people, `code` and `numbers` for programs."""
        return _call(self._job.explain())

    def __repr__(self) -> str:
        return repr(self._job)

    def _repr_html_(self) -> str:
        return self._job._repr_html_()

    def _live(self) -> Live | None:
        return live(self._job, self.refresh, seconds=JOB_SECONDS)


class Service(Job[None]):
    """A job whose replicas answer requests behind one address."""

    def __init__(self, service: aio.Service) -> None:
        super().__init__(service)
        self._service = service

    @property
    def headers(self) -> dict[str, str]:
        """The headers with which a request is let in; a service that is `public` needs none."""
        return self._service.headers

    def ready(self, timeout: float | None = None, *, patience: float = PATIENT_SECONDS) -> str:
        """Wait until a replica takes requests, and return the URL of the service, which ends with `/`.

        Raises TimeoutError after `timeout` seconds, JobFailed if the service ends before, and ClientError if the
        cluster has no router.
        """
        with _named([self._service]):
            return _call(self._service.ready(timeout, patience=patience))


class Study:
    """A sweep or an array: its elements with their values and with what they reported."""

    def __init__(self, study: aio.Study) -> None:
        self._study = study
        self.id, self.name = study.id, study.name

    @classmethod
    def find(cls, named: str) -> Self:
        """The array with this id, or the newest of this name. Raises Refused if there is none."""
        return cls(_call(aio.Study.find(named)))

    def table(self, *, metric: str = "", goal: MetricGoal | str | None = None) -> SweepView:
        """Every element: `rows`, each with `index`, `values`, `last`, `best`, `curve`, `state` and `ended_for`.

        `metric`: that of `early_stop` by default, else the first that an element reported. `goal`: `min` or `max`.
        """
        return _call(self._study.table(metric=metric, goal=goal))

    def best(self, *, metric: str = "", goal: MetricGoal | str | None = None) -> SweepRow | None:
        """The element with the best value so far; None if none reported the metric."""
        return _call(self._study.best(metric=metric, goal=goal))

    def wait(self, timeout: float | None = None, *, patience: float = PATIENT_SECONDS) -> Self:
        """Wait until every element has ended, and return this study. Raises as `Job.wait` does."""
        shown = live(self._study, self.table, seconds=STUDY_SECONDS)
        _call(self._study.wait(timeout, patience=patience), shown=shown)
        return self

    def cancel(self) -> None:
        """Ask for the end of every element that is not over, as `Job.cancel` does."""
        _call(self._study.cancel())

    def __repr__(self) -> str:
        return repr(self._study)

    def _repr_html_(self) -> str:
        return self._study._repr_html_()


class Cluster:
    """A cluster on this machine, for as long as the block lasts: `with weft.Cluster.local(gpus=2) as cluster`.

    In the block WEFT_URL and WEFT_TOKEN of this process name the cluster, so `weft.submit` and programs that the block
    starts use it. `url`: the address of its gateway and dashboard. `token`: its administrator's.
    """

    def __init__(self, cluster: aio.Cluster) -> None:
        self._cluster = cluster

    @classmethod
    def local(cls, *, nodes: int = 1, gpus: int = 2) -> Self:
        """A cluster with `nodes` nodes of `gpus` emulated GPUs each, on free ports of the loopback interface.

        It needs the extra `embedded` of the package. Entering the block takes some seconds and raises ClientError if
        the cluster does not start; leaving it kills what still runs and removes every file.
        """
        return cls(aio.Cluster.local(nodes=nodes, gpus=gpus))

    @property
    def url(self) -> str:
        return self._cluster.url

    @property
    def token(self) -> str:
        return self._cluster.token

    def __enter__(self) -> Self:
        try:
            _call(self._cluster.__aenter__())
        except KeyboardInterrupt:
            _call(self._cluster.__aexit__(None, None, None))
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _call(self._cluster.__aexit__(kind, error, trace))


def submit(
    spec: Given | None = None,
    /,
    *,
    key: str | None = None,
    sync: str | os.PathLike[str] | None = None,
    venv: bool = False,
    **fields: Unpack[JobFields],
) -> Job[None]:
    """Submit one job, and return at once.

    `spec`: a mapping with the fields of a job file, or the path of such a file in YAML or JSON; `fields` are added, and
    replace those of `spec`. `key`: submitting again with the same key returns the same job. `sync`: the files of this
    folder go along and are where the job runs. `venv`: a process runs in the virtual environment of this program. A job
    without a `name` is named by its command, and a process without a `workdir` runs in the current folder. Raises
    Refused, with the `field` and its `value`, if the job is not accepted, Unreachable if no gateway answers, and
    OSError if the file cannot be read.
    """
    return Job(_call(aio.submit(spec, key=key, sync=sync, venv=venv, **fields)))


def run(
    command: str | Sequence[str],
    /,
    *,
    key: str | None = None,
    sync: str | os.PathLike[str] | None = None,
    venv: bool = False,
    **fields: Unpack[JobFields],
) -> Job[None]:
    """Submit a job that runs this command, and return at once; all else is as of `submit`.

    A text is split into words as a shell does, but no shell runs it: pass `["sh", "-c", text]` for that.
    """
    return Job(_call(aio.run(command, key=key, sync=sync, venv=venv, **fields)))


def serve(
    command: str | Sequence[str],
    /,
    *,
    ready: str | None = None,
    port: int | None = None,
    key: str | None = None,
    sync: str | os.PathLike[str] | None = None,
    venv: bool = False,
    **fields: Unpack[JobFields],
) -> Service:
    """Submit a service that runs this command, and return at once; all else is as of `submit`.

    A replica listens at the port of its variable WEFT_PORT; `port`: that of a container. `ready`: the path that a
    replica answers with 200 once it takes requests; without it, once its port takes a connection. `replicas`: such as
    `{"min": 0, "want": 1, "max": 4}`; with an `objective` their number follows the load (docs/serving.md).
    """
    return Service(_call(aio.serve(command, ready=ready, port=port, key=key, sync=sync, venv=venv, **fields)))


def jobs(
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
    found = _call(aio.jobs(states=states, name=name, labels=labels, since=since, limit=limit))
    return [Job(job) for job in found]


def as_completed(
    jobs: Iterable[Job[T]], *, timeout: float | None = None, patience: float = PATIENT_SECONDS
) -> Iterator[Job[T]]:
    """The jobs in the order in which they end, each of them once, whether it succeeded or not.

    All jobs belong to one cluster; one connection serves any number of them. Raises TimeoutError `timeout` seconds
    after the first call, and Unreachable once no gateway has answered for `patience` seconds. The jobs go on in both
    cases.
    """
    by_id = {job.id: job for job in jobs}
    inner = [job._job for job in by_id.values()]
    with _named(inner):
        for ended in _each(aio.as_completed(inner, timeout=timeout, patience=patience)):
            yield by_id[ended.id]


@contextmanager
def _named(jobs: Sequence[aio.Job[Any]]) -> Iterator[None]:
    """Have a Ctrl-C name the jobs, which go on."""
    try:
        yield
    except KeyboardInterrupt:
        left = [job for job in jobs if not job.state.final]
        each = ", ".join(f"{job.name} ({job.id})" for job in left)
        what = f"weft.Job.find({left[0].id!r}) returns it" if len(left) == 1 else "weft.Job.find(ID) returns one"
        raise KeyboardInterrupt(f"goes on: {each}; {what}, and its cancel() ends it") from None


def _named_array(items: AsyncGenerator[T, None], begun: Sequence[aio.Study]) -> Iterator[T]:
    """The items; a Ctrl-C names the array from which they come, which goes on."""
    try:
        yield from _each(items)
    except KeyboardInterrupt:
        if not begun:
            raise
        what = f"weft.Study.find({begun[0].id!r}) returns it, and its cancel() ends it"
        raise KeyboardInterrupt(f"goes on: {begun[0].name} ({begun[0].id}); {what}") from None


# the event loop

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_over = threading.Event()  # the program ends


def _call(coroutine: Coroutine[Any, Any, T], *, shown: Live | None = None) -> T:
    """The result of a coroutine, which runs in the loop's thread. Ctrl-C cancels it there and waits for its end.
    `shown` is drawn again meanwhile, and once more at the end."""
    ended = threading.Event()

    async def noting() -> T:
        try:
            return await coroutine
        finally:
            ended.set()

    future = asyncio.run_coroutine_threadsafe(noting(), _running())
    try:
        if shown is None:
            return future.result()
        while not futures.wait([future], shown.seconds).done:
            shown.again(failures=(ClientError,))
        shown.again(failures=(ClientError,))
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        ended.wait(_END_SECONDS)
        raise


def _call_here(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing, run in the thread of the caller."""
    try:
        coroutine.send(None)
    except StopIteration as over:
        return cast(T, over.value)
    raise RuntimeError("it waits for something")


def _each(items: AsyncGenerator[T, None]) -> Iterator[T]:
    """The items of an asynchronous generator, which is closed at the end."""

    async def following() -> tuple[T, ...]:
        try:
            return (await anext(items),)
        except StopAsyncIteration:
            return ()

    try:
        while item := _call(following()):
            yield item[0]
    finally:
        if not _over.is_set():
            _call(items.aclose())


def _running() -> asyncio.AbstractEventLoop:
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            thread = threading.Thread(target=_loop.run_forever, name="weft", daemon=True)
            thread.start()
            atexit.register(_end, _loop, thread)
        return _loop


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """At the end of the program: close what is left open, such as a log that was not read to its end."""
    _over.set()
    with suppress(TimeoutError):
        asyncio.run_coroutine_threadsafe(loop.shutdown_asyncgens(), loop).result(_END_SECONDS)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(_END_SECONDS)
    if not thread.is_alive():
        loop.close()


def _forget() -> None:
    """In a forked process, which has no such thread."""
    global _loop, _lock
    _loop, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
