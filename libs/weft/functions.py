"""Functions that can run as jobs, for scripts and notebooks. A job imports this module, so it imports little itself."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

if TYPE_CHECKING:
    from typing import Unpack

    from weft import aio
    from weft.aio.tuner import Tuner
    from weft.blocking import Job, Study
    from weft.client.job_fields import JobFields

P = ParamSpec("P")
R = TypeVar("R")


class Function(Generic[P, R]):
    """A function that can run as a job; `function` makes one. To call it runs it here, unchanged.

    With WEFT_LOCAL=1 `spawn`, `remote` and `map` run it in this process, too, with arguments and results as a job would
    have them.
    """

    def __init__(self, function: Callable[P, R], fields: "JobFields", *, pickle: bool, python: str | None) -> None:
        functools.update_wrapper(self, function)
        self.__wrapped__ = function
        self._fields, self._pickle, self._python = fields, pickle, python

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.__wrapped__(*args, **kwargs)

    @functools.cached_property
    def _function(self) -> "aio.Function[P, R]":
        from weft import aio  # slow to import: a job that makes the call does without it

        return aio.function(pickle=self._pickle, python=self._python, **self._fields)(self.__wrapped__)

    def spawn(self, *args: P.args, **kwargs: P.kwargs) -> "Job[R]":
        """Submit one call as a job, and return at once; `result` of the job returns what the function returned.

        Raises Refused for a function that a job cannot find, for arguments that cannot be sent and for another minor
        version of Python, before anything is sent.
        """
        from weft.blocking import Job, _call
        from weft.client.calls import is_local

        if is_local():  # in the thread of the caller: the function may handle signals, and use `weft` itself
            return Job(self._function.here((args, kwargs)))
        return Job(_call(self._function.spawn(*args, **kwargs)))

    def remote(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run one call as a job, and return its result. Raises as `spawn` and `Job.result` do."""
        return self.spawn(*args, **kwargs).result()

    def map(
        self,
        values: Iterable[Any],
        *,
        at_once: int | None = None,
        chunk: int | None = None,
        return_exceptions: bool = False,
        patience: float = 60.0,
    ) -> Iterator[R]:
        """Call the function with each value, as the elements of one array, and yield the results in the same order.

        `at_once`: how many elements may run at once. `chunk`: how many values one element takes, by default so many
        that there are 64 elements at most. A call that raised is a JobFailed at its place: raised there, or with
        `return_exceptions` yielded; the others go on. A loop that is left early leaves the array running, and so does
        Ctrl-C: KeyboardInterrupt names the array.
        """
        from weft.blocking import _named_array
        from weft.client.calls import is_local

        if is_local():
            return self._mapped_here(values, return_exceptions)
        calls: list[tuple[tuple[Any], dict[str, Any]]] = [((value,), {}) for value in values]
        begun: list[Any] = []
        results = self._function._results(calls, at_once, chunk, return_exceptions, patience, begun)
        return _named_array(results, begun)

    def sweep(
        self,
        values: Mapping[str, Any],
        *,
        n: int | None = None,
        seed: int = 0,
        at_once: int | None = None,
        early_stop: Mapping[str, Any] | None = None,
    ) -> "Study":
        """Call the function with every combination of these values as named arguments, or with `n` of them drawn at
        random, as the elements of one array, and return at once.

        `values`: for each argument a list, whole numbers such as `1..5`, or with `n` also
        `{"min": 1e-4, "max": 1e-1, "log": True}`. `early_stop`: as in a job file, such as
        `{"metric": "loss", "after": 16}`. The function reports its metrics with `weft.step`. Raises as `spawn` does.
        """
        from weft.blocking import Study, _call

        return Study(_call(self._function.sweep(values, n=n, seed=seed, at_once=at_once, early_stop=early_stop)))

    def tune(self, tuner: "Tuner", *, n: int, at_once: int = 8, patience: float = 60.0) -> None:
        """Call the function with `n` points of the tuner, each as a job, and give it the outcome of each.

        `at_once`: how many jobs there are at once; the tuner knows the results of all before them. The tuner
        gets the JobFailed of a job that fails, and the others go on. Ctrl-C cancels the jobs that are under way.
        """
        from weft.blocking import _call, _call_here
        from weft.client.calls import is_local

        call = _call_here if is_local() else _call
        call(self._function.tune(tuner, n=n, at_once=at_once, patience=patience))

    def _mapped_here(self, values: Iterable[Any], return_exceptions: bool) -> Iterator[R]:
        from weft.client.job_failed import JobFailed

        for value in values:
            try:
                result: Any = self._function.here(((value,), {})).over()
            except JobFailed as failed:
                if not return_exceptions:
                    raise
                result = failed
            yield result


@overload
def function(call: Callable[P, R], /) -> Function[P, R]: ...
@overload
def function(
    *, pickle: bool = False, python: str | None = None, **fields: "Unpack[JobFields]"
) -> Callable[[Callable[P, R]], Function[P, R]]: ...
def function(
    call: Callable[P, R] | None = None,
    /,
    *,
    pickle: bool = False,
    python: str | None = None,
    **fields: "Unpack[JobFields]",
) -> Function[P, R] | Callable[[Callable[P, R]], Function[P, R]]:
    """Make a function one that can run as a job: `@weft.function` or `@weft.function(gpus=1)`.

    `fields`: those of `submit`, for each job. `pickle`: send arguments and results by pickle, not as JSON by the types
    in the annotations. `python`: the job's interpreter; by default that of this program, in a container `python3`.
    """

    def made(call: Callable[P, R]) -> Function[P, R]:
        return Function(call, fields, pickle=pickle, python=python)

    return made if call is None else made(call)
