"""Classes of jobs, from how busy they keep compute units and memory."""

from random import Random

import pytest

from weft.variability.classes import NAMES, Classes, Features, learn, told_apart


def jobs(seed: int = 1) -> list[Features]:
    dice = Random(seed)
    middles = [(0.85, 0.2), (0.5, 0.5), (0.15, 0.8)]
    made = [
        Features(compute=compute + dice.uniform(-0.05, 0.05), memory=memory + dice.uniform(-0.05, 0.05))
        for compute, memory in middles
        for _ in range(10)
    ]
    dice.shuffle(made)
    return made


@pytest.fixture
def classes() -> Classes:
    return learn(jobs())


@pytest.mark.parametrize(
    ("compute", "memory", "name"), [(0.9, 0.1, "A"), (0.5, 0.45, "B"), (0.1, 0.9, "C"), (0.2, 0.7, "C")]
)
def test_the_more_a_job_computes_the_more_sensitive_it_is(
    classes: Classes, compute: float, memory: float, name: str
) -> None:
    assert classes.of(Features(compute=compute, memory=memory)) == name


@pytest.mark.parametrize(
    "features", [None, Features(compute=float("nan"), memory=0.9), Features(compute=0.1, memory=80.0)]
)
def test_a_job_that_nothing_is_known_of_is_most_sensitive(classes: Classes, features: Features | None) -> None:
    assert classes.of(features) == "A"


def test_the_order_of_jobs_does_not_matter(classes: Classes) -> None:
    assert learn(jobs()[::-1]) == classes


def test_names_are_given_from_the_most_sensitive_on() -> None:
    classes = learn(jobs(), names=("hot", "cold"))
    assert classes.of(Features(compute=0.9, memory=0.1)) == "hot"
    assert classes.of(Features(compute=0.1, memory=0.9)) == "cold"


def test_jobs_that_are_all_alike_are_most_sensitive() -> None:
    classes = learn([Features(compute=0.1, memory=0.9)] * 3)
    assert classes.of(Features(compute=0.1, memory=0.9)) == "A"


def test_a_job_that_uses_no_memory_is_most_sensitive() -> None:
    classes = learn([Features(compute=0.3, memory=0.0), Features(compute=0.9, memory=0.1)], names=("A", "B"))
    assert classes.of(Features(compute=0.3, memory=0.0)) == "A"


def test_nothing_is_learnt_from_no_jobs_or_impossible_ones() -> None:
    with pytest.raises(ValueError, match="of 0 jobs"):
        learn([])
    with pytest.raises(ValueError, match="between 0 and 1"):
        learn([Features(compute=90.0, memory=0.1)])


def test_who_hardly_uses_a_gpu_is_no_class_of_its_own() -> None:
    idle = [Features(compute=0.0, memory=0.0), Features(compute=0.02, memory=0.0)]
    busy = [Features(compute=0.9 - n / 100, memory=0.3) for n in range(3)]
    waiting = [Features(compute=0.4 + n / 100, memory=0.8) for n in range(3)]
    tells = told_apart([*idle, *busy, *waiting])
    assert {tells.of(one) for one in busy} == {NAMES[0]}
    assert {tells.of(one) for one in waiting} == {NAMES[2]}
    assert {tells.of(one) for one in idle} == {NAMES[1]}
