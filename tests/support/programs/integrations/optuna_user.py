"""A program of a person who uses Optuna."""

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution

import weft
from weft.integrations.optuna import optimize

SPACE = {"x": FloatDistribution(-4.0, 4.0), "kind": CategoricalDistribution(["plain", "bad"])}


@weft.function(cpus=0.1)
def loss(x: float, kind: str) -> float:
    if kind == "bad":
        raise ValueError("no luck")
    return (x - 1.0) ** 2


if __name__ == "__main__":
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1), direction="minimize")
    optimize(study, loss, SPACE, n_trials=10, at_once=4)
    states = [trial.state.name for trial in study.trials]
    assert set(states) == {"COMPLETE", "FAIL"}, states
    assert len(states) == 10
    assert study.best_value == loss(**study.best_params)
    failed = next(trial for trial in study.trials if trial.state.name == "FAIL")
    assert "ValueError: no luck" in failed.user_attrs["weft_failure"]
    print(study.best_trial.user_attrs["weft_job"])
