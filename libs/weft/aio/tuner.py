"""The interface of a tuner, which chooses the points of a search."""

from collections.abc import Mapping
from typing import Any, Protocol


class Tuner(Protocol):
    """Chooses the points of a search. `weft.integrations.optuna` has one with Optuna's samplers; a class of yours needs
    these two methods."""

    def ask(self) -> Mapping[str, Any]:
        """The next point: the named arguments of one call. It knows the results of all points told before."""
        ...

    def tell(self, point: Mapping[str, Any], job: str, result: Any) -> None:
        """Take the outcome of a point that `ask` returned: the function's result, or the JobFailed. `job`: its id."""
        ...
