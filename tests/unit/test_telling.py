"""Which progress is worth a message: what is new, once a second, and what is known again and again."""

from weft.messages.nodes import Pace, RunProgressed
from weftd.executor.runs import RunKey
from weftd.executor.thinking.telling import AGAIN_SECONDS, RUNS_MAX, Telling, Told

KEY = RunKey("job-1", 2, 3)
PACE = Pace(window_seconds=10.0, steps=10, steps_rate=1.0, step_seconds=1.0)


def told(step: float, pace: Pace | None = None, disbelieved: int = 0) -> Told:
    return Told(progress={"step": step}, at=99.0, pace=pace, disbelieved=disbelieved)


def test_all_that_is_known_of_a_run_is_said() -> None:
    expected = RunProgressed(job_id="job-1", epoch=2, rank=3, progress={"step": 1.0}, at=99.0, pace=PACE, disbelieved=4)
    assert Telling().due({KEY: told(1.0, PACE, 4)}, now=0.0) == [(expected,)]


def test_news_are_said_once_a_second_at_most_and_the_newest_are_said_in_the_end() -> None:
    telling = Telling()
    said = [telling.due({KEY: told(place // 2)}, now=place * 0.1) for place in range(100)]
    spoken = [messages[0][0].progress["step"] for messages in said if messages]
    assert len(spoken) == 10
    assert telling.due({KEY: told(49.0)}, now=11.0) != []
    assert telling.due({KEY: told(49.0)}, now=100.0) == []


def test_a_pace_that_stays_is_said_every_few_seconds_and_progress_alone_is_not() -> None:
    other = RunKey("job-2", 1, 0)
    telling = Telling()
    said = [telling.due({KEY: told(1.0, PACE), other: told(1.0)}, now=place * 0.5) for place in range(60)]
    keys = [run.job_id for messages in said for runs in messages for run in runs]
    assert keys.count("job-2") == 1
    assert keys.count("job-1") == 30 / AGAIN_SECONDS


def test_a_run_that_has_gone_is_forgotten_and_one_that_came_is_said() -> None:
    telling = Telling()
    assert telling.due({KEY: told(1.0)}, now=0.0) != []
    assert telling.due({}, now=2.0) == []
    assert telling.due({KEY: told(1.0)}, now=4.0) != []


def test_many_runs_are_several_messages() -> None:
    many = {RunKey("job", 1, rank): told(1.0) for rank in range(2 * RUNS_MAX + 1)}
    said = Telling().due(many, now=0.0)
    assert [len(runs) for runs in said] == [RUNS_MAX, RUNS_MAX, 1]
    assert [run.rank for runs in said for run in runs] == list(range(2 * RUNS_MAX + 1))
