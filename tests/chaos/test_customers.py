"""What is late is waited for, what stands still is not."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.chaos import customers
from tests.chaos.customers import Submission, all_over
from tests.chaos.wishes import wishes
from weft.domain.job import JobState


class Answers:
    """In place of a client: each look at the job has another answer, the last one again and again."""

    def __init__(self, *answers: tuple[JobState, float]) -> None:
        self.left = list(answers)
        self.looks = 0

    async def job(self, _job_id: str) -> Any:
        self.looks += 1
        state, step = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        return SimpleNamespace(state=state, epoch=0, progress={"step": step})


async def looks(monkeypatch: pytest.MonkeyPatch, answers: Answers) -> int:
    monkeypatch.setattr(customers, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(customers, "STANDS_STILL_SECONDS", 0.25)
    wish = wishes(1, 60.0, folder=Path("/"), run="r")[0]
    await all_over(answers, [Submission(wish=wish, ids=["j-1"])], 0.5)  # type: ignore[arg-type]
    return answers.looks


async def test_a_job_that_gets_on_is_waited_for_beyond_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [(JobState.RUNNING, float(step)) for step in range(15)]
    assert await looks(monkeypatch, Answers(*steps, (JobState.SUCCEEDED, 15.0))) == 16


async def test_a_job_that_stands_still_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await looks(monkeypatch, Answers((JobState.RUNNING, 1.0))) <= 11


async def test_a_job_that_never_ends_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [(JobState.RUNNING, float(step)) for step in range(1000)]
    assert await looks(monkeypatch, Answers(*steps)) <= 31
