"""Functions that can run as jobs, for programs with an event loop."""

import functools
import math
import os
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Generic, ParamSpec, TypeVar, Unpack, cast, overload

from weft.aio.job import Job, LocalJob, as_completed, connected, ends_of
from weft.aio.study import Study
from weft.aio.tuner import Tuner
from weft.client import Refused
from weft.client.calls import JOBS_MAX, Call, RemoteFunction, answers, is_local, outcome, store
from weft.client.job_failed import JobFailed
from weft.client.job_fields import JobFields, as_given, encoded
from weft.client.place import PATIENT_SECONDS, Place, find_place
from weft.domain.arrays import element_id
from weft.domain.job import JobState
from weft.messages.http import JobView, Submitted

P = ParamSpec("P")
R = TypeVar("R")


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
        return await self._spawned((args, kwargs))

    async def _spawned(self, call: Call) -> Job[R]:
        if is_local():
            return self.here(call)
        place, submitted = await self._submit([call])
        return Job(place, submitted.id, submitted.name, notes=submitted.notes, function=self._remote)

    def here(self, call: Call) -> LocalJob[R]:
        """Make one call in this process, with arguments and result as a job would have them; it is over then."""
        return LocalJob(self._remote, call)

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

    async def sweep(
        self,
        values: Mapping[str, Any],
        *,
        n: int | None = None,
        seed: int = 0,
        at_once: int | None = None,
        early_stop: Mapping[str, Any] | None = None,
    ) -> Study:
        """Call the function with every combination of these values as named arguments, or with `n` of them drawn at
        random, as the elements of one array, and return at once.

        `values`: for each argument a list, whole numbers such as `1..5`, or with `n` also
        `{"min": 1e-4, "max": 1e-1, "log": True}`. `early_stop`: as in a job file, such as
        `{"metric": "loss", "after": 16}`. The function reports its metrics with `weft.step`. Raises as `spawn` does.
        """
        if is_local():
            raise Refused(0, "sweep", "needs a cluster: with WEFT_LOCAL=1 there is none")
        table: dict[str, Any] = {"sweep": dict(values)}
        table |= {} if n is None else {"sample": {"count": n, "seed": seed}}
        table |= {} if early_stop is None else {"early_stop": dict(early_stop)}
        table |= {} if at_once is None else {"array": f"%{at_once}"}
        place, submitted = await self._submit([((), {})], table=table)
        return Study(place, submitted.id, submitted.name)

    async def tune(self, tuner: Tuner, *, n: int, at_once: int = 8, patience: float = PATIENT_SECONDS) -> None:
        """Call the function with `n` points of the tuner, each as a job, and give it the outcome of each.

        `at_once`: how many jobs there are at once; the tuner knows the results of all before them. The tuner
        gets the JobFailed of a job that fails, and the others go on. If this call is ended, it cancels the jobs that
        are under way.
        """
        running: dict[str, tuple[Mapping[str, Any], Job[R]]] = {}
        begun = 0
        try:
            while running or begun < n:
                while begun < n and len(running) < at_once:
                    point = tuner.ask()
                    job = await self._spawned(((), point))
                    running[job.id] = (point, job)
                    begun += 1
                async with aclosing(as_completed([job for _, job in running.values()], patience=patience)) as ending:
                    ended = await anext(ending)
                try:
                    result: object = await ended.result(patience=patience)
                except JobFailed as failed:
                    result = failed
                tuner.tell(running.pop(ended.id)[0], ended.id, result)
        finally:
            for point, job in running.values():
                await job.cancel()
                tuner.tell(point, job.id, JobFailed(job.id, job.name, state=JobState.CANCELLED))

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
            try:
                value: object = self.here(call).over()
            except JobFailed as failed:
                value = failed
            yield value

    async def _mapped(
        self, calls: Sequence[Call], at_once: int | None, chunk: int | None, patience: float, begun: list[Study]
    ) -> AsyncGenerator[object, None]:
        chunk = chunk or math.ceil(len(calls) / JOBS_MAX)
        place, submitted = await self._submit(calls, chunk=chunk, at_once=at_once)
        begun.append(Study(place, submitted.id, submitted.name))
        elements = [element_id(submitted.id, number) for number in range(math.ceil(len(calls) / chunk))]
        ended: dict[str, JobView] = {}
        async with connected(place, patience) as client, aclosing(ends_of(client, set(elements))) as ends:
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
        self,
        calls: Sequence[Call],
        *,
        chunk: int = 0,
        at_once: int | None = None,
        table: Mapping[str, Any] | None = None,
    ) -> tuple[Place, Submitted]:
        prepared = self._remote.prepared(calls, chunk=chunk, at_once=at_once, table=table or {})
        place = find_place(os.environ)
        try:
            async with connected(place) as client:
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
