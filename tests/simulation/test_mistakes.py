"""A scheduler with a mistake that shows with some jobs: those end, and everything else is as without the mistake."""

import zlib
from typing import Any

import pytest

from tests.simulation.simulate import Variation, simulate
from tests.support.tier import some
from weft.domain.job import Job, Step
from weftd.scheduler.thinking.decide import lifecycle, serving, waiting
from weftd.scheduler.thinking.state.cluster_state import ClusterState

_follow, _follow_service = lifecycle.follow, serving.follow


def _is_bad(job_id: str) -> bool:
    return zlib.crc32(job_id.encode()) % 5 == 0


def _fails_to_follow(cluster_state: ClusterState, job: Job, now: float) -> list[Step]:
    """It fails whenever it follows what nodes say of some jobs in their second epoch."""
    if job.epoch == 1 and _is_bad(job.id):
        raise KeyError(job.id)
    return _follow(cluster_state, job, now)


def _fails_to_follow_services(cluster_state: ClusterState, job: Job, now: float) -> list[Step]:
    if _is_bad(job.id):
        raise ZeroDivisionError(job.id)
    return _follow_service(cluster_state, job, now)


class _Waiting(waiting.Waiting):
    """It fails whenever it looks for a place for some jobs that were tried before."""

    def _find(self, job_id: str, *arguments: Any) -> Any:
        if self._cluster_state.jobs[job_id].epoch == 2 and _is_bad(job_id):
            raise AssertionError(job_id)
        return super()._find(job_id, *arguments)


MISTAKES = Variation(
    replaced=(
        (lifecycle, "follow", _fails_to_follow),
        (serving, "follow", _fails_to_follow_services),
        (waiting, "Waiting", _Waiting),
    )
)
# The listener takes every mistake that is logged for a failure. A job that fails while it stops may have runs left.
OF_A_MISTAKE = ("a decision failed", "is failed in epoch")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", some(2, range(1, 13)))
def test_what_a_mistake_is_not_about_is_as_without_it(seed: int) -> None:
    result = simulate(seed, variation=MISTAKES)
    assert [failure for failure in result.failures if not any(what in failure.what for what in OF_A_MISTAKE)] == []


@pytest.mark.timeout(300)
def test_such_mistakes_show_in_these_lives() -> None:
    result = simulate(4, variation=MISTAKES)
    assert sum("a decision failed" in failure.what for failure in result.failures) > 1
