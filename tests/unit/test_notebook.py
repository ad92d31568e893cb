"""Jobs and sweeps in a notebook, by the display protocol of IPython: a stand-in for its kernel records what is seen."""

import asyncio
import sys
from types import ModuleType
from typing import Any

import pytest

from weft import blocking
from weft.client.errors import ClientError
from weft.domain.job import JobState
from weft.messages.sweeps import SweepRow, SweepView
from weft.notebook import Live, job_html, live, study_html

LAST = 3


class Kernel:
    """The part of IPython that shows things: `shown` has what a reader saw, one after another."""

    def __init__(self, *, kernel: object = "a kernel") -> None:
        self.kernel = kernel
        self.shown: list[str] = []

    def display(self, what: Any, *, display_id: bool) -> "Kernel":
        assert display_id
        self.update(what)
        return self

    def update(self, what: Any) -> None:
        self.shown.append(what._repr_html_())

    def install(self, monkeypatch: pytest.MonkeyPatch) -> "Kernel":
        ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
        ipython.get_ipython = lambda: self  # type: ignore[attr-defined]
        display.display = self.display  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        monkeypatch.setitem(sys.modules, "IPython.display", display)
        return self


class Counter:
    def __init__(self) -> None:
        self.count = 0
        self.loop: asyncio.AbstractEventLoop | None = None
        self.counted = asyncio.Event()

    def _repr_html_(self) -> str:
        return str(self.count)

    def refresh(self) -> None:
        self.count += 1
        if self.count == LAST and self.loop is not None:
            self.loop.call_soon_threadsafe(self.counted.set)

    async def until_last(self) -> str:
        self.loop = asyncio.get_running_loop()
        await self.counted.wait()
        return "done"


def sweep(*rows: SweepRow) -> SweepView:
    return SweepView(id="a-1", name="rates", metric="loss", rows=rows)


def row(index: int, best: float | None, *, rate: str = "0.1") -> SweepRow:
    values = {"rate": rate}
    return SweepRow(index=index, id=f"j-{index}", state=JobState.RUNNING, values=values, best=best, curve=(3.0, 2.0))


def test_a_call_that_waits_draws_what_changes_until_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, counter = Kernel().install(monkeypatch), Counter()
    shown = live(counter, counter.refresh, seconds=0.01)
    assert blocking._call(counter.until_last(), shown=shown) == "done"
    assert kernel.shown == [str(count) for count in range(len(kernel.shown))]
    assert len(kernel.shown) == LAST + 2, "also how it was at the end"


def test_what_has_not_changed_is_not_drawn_again_and_a_failure_is_left_to_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel, counter = Kernel().install(monkeypatch), Counter()

    def fails() -> None:
        raise ClientError("no gateway answers")

    shown = live(counter, fails, seconds=0.01)
    assert isinstance(shown, Live)
    for _ in range(3):
        shown.again(failures=(ClientError,))
        shown.draw()
    assert kernel.shown == ["0"]


def test_nothing_is_shown_outside_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert live(Counter(), lambda: None, seconds=1.0) is None
    kernel = Kernel(kernel=None).install(monkeypatch)
    assert live(Counter(), lambda: None, seconds=1.0) is None, "IPython in a terminal"
    assert not kernel.shown


def test_the_table_of_a_sweep_has_its_values_its_curves_and_the_best_in_bold() -> None:
    shown = study_html("rates", "a-1", sweep(row(0, 0.5), row(1, 0.25, rate="0.3"), row(2, None)))
    assert "<th>rate</th><th>state</th><th>best loss</th>" in shown
    assert "<b>0.3</b>" in shown
    assert "<b>0.1</b>" not in shown
    assert shown.count("<polyline") == 3
    assert "0 of 3 over" in shown


def test_no_text_of_a_job_becomes_markup() -> None:
    bad = "<script>alert(1)</script>"
    one = SweepRow(index=0, id="j-1", state=JobState.RUNNING, values={bad: bad})
    shown = study_html(bad, bad, SweepView(id="a-1", name=bad, metric=bad, rows=(one,)))
    assert "<script>" not in shown + job_html(bad, bad, "running", None)


def test_a_sweep_that_was_never_asked_for_is_its_name() -> None:
    assert study_html("rates", "a-1", None) == "<p><b>rates</b> <code>a-1</code></p>"
