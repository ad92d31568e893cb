"""The demo notices whether its jobs get on."""

from typing import cast

from tests.support.views import job_view
from weft.client import Client
from weft.messages.http import JobsView, JobView
from weftd.cli.demo.board import Board


class Gateway:
    """Answers with the jobs that the test gives it."""

    def __init__(self) -> None:
        self.steps = {"trainer": 0.0, "doomed": 0.0}

    async def jobs(self, *, benchmarks: bool) -> JobsView:
        return JobsView(jobs=tuple(self._job(name, step) for name, step in self.steps.items()))

    def _job(self, name: str, step: float) -> JobView:
        return job_view(f"j-{name}", name=name, progress={"step": step})


async def test_only_a_job_that_gets_on_keeps_the_demo_waiting() -> None:
    gateway = Gateway()
    board = Board(cast("Client", gateway), endless=frozenset({"doomed"}))
    await board.look()
    seen = board.changed_at
    await board.look()
    gateway.steps["doomed"] = 5.0
    await board.look()
    assert board.changed_at == seen, "a job that runs until it is cancelled is no sign of progress"
    gateway.steps["trainer"] = 1.0
    await board.look()
    assert board.changed_at > seen


async def test_a_demo_in_which_nothing_has_changed_is_stalled() -> None:
    board = Board(cast("Client", Gateway()))
    await board.look()
    await board.stalled(0.0)
