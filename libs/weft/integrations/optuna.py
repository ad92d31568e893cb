"""Optuna's samplers on Weft: each trial is a job."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from optuna.trial import TrialState

import weft

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution

    from weft.functions import Function


def optimize(
    study: "Study",
    function: "Function[..., Any]",
    space: "Mapping[str, BaseDistribution]",
    *,
    n_trials: int,
    at_once: int = 8,
    patience: float = 60.0,
) -> None:
    """Ask the study for `n_trials` points of `space`, run `function(**point)` for each as a job, and tell the study the
    result: a number, or one for each direction of the study.

    `at_once`: how many jobs there are at once; the sampler knows the results of all before them. A job that fails is a
    failed trial, and the others go on. Ctrl-C cancels the jobs that are under way, whose trials failed.
    """
    running: dict[str, tuple[Any, weft.Job[Any]]] = {}
    begun = 0
    try:
        while running or begun < n_trials:
            while begun < n_trials and len(running) < at_once:
                trial = study.ask(dict(space))
                job = function.spawn(**trial.params)
                trial.set_user_attr("weft_job", job.id)
                running[job.id] = (trial, job)
                begun += 1
            ended = next(weft.as_completed([job for _, job in running.values()], patience=patience))
            trial, _ = running.pop(ended.id)
            try:
                study.tell(trial, ended.result(patience=patience))
            except weft.JobFailed as failed:
                trial.set_user_attr("weft_failure", str(failed)[:1000])
                study.tell(trial, state=TrialState.FAIL)
    finally:
        for trial, job in running.values():
            job.cancel()
            study.tell(trial, state=TrialState.FAIL)
