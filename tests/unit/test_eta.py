"""When jobs start and end: by what is known, and said to be unknown where nothing is."""

from typing import Any

from libs.domain.cluster import Node
from libs.domain.job import Job, JobState
from libs.messages.eta import Basis, Estimate, Helps, Sooner
from libs.planning.eta.learnt import Lasted, kinds_of
from libs.planning.eta.starts import PoolToCome
from libs.planning.eta.told import to_come
from tests.support.builders import job, node
from tests.support.steps import placement

NOW = 1000.0


def running(job_id: str = "j-1", gpus: int = 4, node_id: str = "node-1", **fields: Any) -> Job:
    """Since 500 seconds on the first GPUs of the node."""
    where = placement(*((node_id, index) for index in range(gpus)))
    begun = {"placed_at": 500.0, "started_at": 500.0, "since": 500.0}
    return job(job_id, gpus=gpus, state=JobState.RUNNING, placement=where, **begun, **fields)


def lasted(like: Job, *seconds: float) -> Lasted:
    durations = Lasted()
    for one in seconds:
        durations.add(kinds_of(like), one)
    return durations


def told(
    about: Job, *others: Job, nodes: tuple[Node, ...] = (node(),), durations: Lasted | None = None
) -> tuple[Estimate, tuple[Sooner, ...]]:
    jobs = [about, *others]
    pool = PoolToCome(
        nodes,
        [one for one in jobs if one.state.holding],
        [one for one in jobs if one.state is JobState.QUEUED],
        now=NOW,
        policy="priority+weft-best+easy",
        durations=durations,
    )
    foreseen, helps = to_come(about, lambda: pool)
    assert foreseen is not None
    return foreseen.estimate, helps


WAITS = job("j-2", seq=2, gpus=2)


def test_by_time_limits_only_the_latest_start_is_known() -> None:
    eta, _ = told(WAITS, running(spec={"time_limit": "20m"}))
    assert (eta.basis, eta.earliest, eta.likely, eta.latest) == (Basis.LIMITS, None, None, 500.0 + 1200)
    assert eta.sentence == "starts in 11m40s at the latest, by time limits"


def test_where_nothing_is_known_it_is_said_so_and_no_number_stands_beside_it() -> None:
    eta, _ = told(WAITS, running())
    assert (eta.basis, eta.earliest, eta.likely, eta.latest) == (Basis.UNKNOWN, None, None, None)
    assert eta.sentence.startswith(
        "nobody can tell when it starts: the jobs that hold what it needs have no time limit"
    )


def test_durations_of_like_jobs_give_a_range_by_those_that_lasted_as_long() -> None:
    holds = running()
    eta, _ = told(WAITS, holds, durations=lasted(holds, *(10.0 for _ in range(50)), 600, 700, 800, 900, 1000, 1100))
    assert eta.basis is Basis.LEARNT
    assert eta.earliest is not None
    assert eta.likely is not None
    assert eta.latest is not None
    assert NOW <= eta.earliest < eta.likely < eta.latest
    assert 250 < eta.likely - NOW < 450  # it has run for 500 s; most of those that ran so long took 700 to 1000


def test_a_drained_node_that_would_help_is_tried_and_named() -> None:
    _, helps = told(WAITS, running(), nodes=(node(), node("node-2", drained=True)))
    resumed = next(one for one in helps if one.what is Helps.RESUME_NODE)
    assert resumed.change == {"node": "node-2"}
    assert resumed.sentence == (
        "if node-2, which is drained, took work again (`weft resume node-2`), it would start now;"
        " as it is, nobody can tell"
    )


def test_what_does_not_help_is_not_told() -> None:
    _, helps = told(WAITS, running(), nodes=(node(), node("node-2", gpus=1, drained=True)))
    assert Helps.RESUME_NODE not in {one.what for one in helps}
