"""Optuna's samplers on Weft: each trial is a job."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from optuna.trial import TrialState

import weft

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

    from weft.functions import Function


class OptunaTuner:
    """A `weft.Tuner` whose points the sampler of an Optuna study chooses.

    A result is the value of its trial: a number, or one for each direction of the study. A job that fails is a failed
    trial, with the reason as its user attribute `weft_failure`.
    """

    def __init__(self, study: "Study", space: "Mapping[str, BaseDistribution]") -> None:
        self._study, self._space = study, space
        self._trials: dict[int, Trial] = {}  # by the identity of the point, which `tune` keeps alive until `tell`

    def ask(self) -> Mapping[str, Any]:
        trial = self._study.ask(dict(self._space))
        point: dict[str, Any] = trial.params  # a copy each time
        self._trials[id(point)] = trial
        return point

    def tell(self, point: Mapping[str, Any], job: str, result: Any) -> None:
        trial = self._trials.pop(id(point))
        trial.set_user_attr("weft_job", job)
        if isinstance(result, weft.JobFailed):
            trial.set_user_attr("weft_failure", str(result)[:1000])
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._study.tell(trial, result)


def optimize(
    study: "Study",
    function: "Function[..., Any]",
    space: "Mapping[str, BaseDistribution]",
    *,
    n_trials: int,
    at_once: int = 8,
    patience: float = 60.0,
) -> None:
    """`function.tune` with an `OptunaTuner` of this study: `n_trials` points of `space`, `at_once` jobs at once."""
    function.tune(OptunaTuner(study, space), n=n_trials, at_once=at_once, patience=patience)
