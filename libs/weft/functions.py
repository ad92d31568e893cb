"""Functions that can run as jobs, for scripts and notebooks. A job imports this module, so it imports little itself."""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

if TYPE_CHECKING:
    from typing import Unpack

    from weft import aio
    from weft.blocking import Job
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

        calls: list[tuple[tuple[Any], dict[str, Any]]] = [((value,), {}) for value in values]
        begun: list[Any] = []
        results = self._function._results(calls, at_once, chunk, return_exceptions, patience, begun)
        return _named_array(results, begun)


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
