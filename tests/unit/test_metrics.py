"""The series of what runs report: on the disk of a node, thinned and bounded, and as a gateway shows them."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from tests.support.builders import job
from weft.messages.files import FileRead, ReadFile
from weftd.executor.logs import metrics as stored
from weftd.executor.logs.metrics import SERIES_MAX, MetricsFiles, thinned
from weftd.executor.runs import RunKey
from weftd.gateway.api import metrics as shown
from weftd.gateway.api.metrics import stored_metrics, view_of
from weftd.gateway.gateway import Gateway

KEY = RunKey("j-1", 2, 0)


@pytest.fixture
def files(tmp_path: Path) -> MetricsFiles:
    return MetricsFiles(str(tmp_path / "metrics"))


def text(tmp_path: Path) -> bytes:
    return (tmp_path / "metrics/j-1/2-0.jsonl").read_bytes()


def test_what_a_run_reports_comes_back_as_series(tmp_path: Path, files: MetricsFiles) -> None:
    files.add(KEY, 10.0, [{"step": 1.0, "reward": -3.5}, {"step": 2.0}])
    files.write()
    files.add(KEY, 11.0, [{"loss": 0.25}])
    files.write()
    view = view_of([text(tmp_path)], rank=0, points=100)
    assert view.at == (10.0, 10.0, 11.0)
    assert view.series == {"loss": (None, None, 0.25), "reward": (-3.5, None, None), "step": (1.0, 2.0, None)}
    assert (view.last("step"), view.last("none"), view.points) == (2.0, None, 3)


def test_what_is_no_number_and_what_are_too_many_names_are_left_out(tmp_path: Path, files: MetricsFiles) -> None:
    files.add(KEY, 1.0, [{"loss": math.nan, "step": 1.0}, {"loss": math.inf}, {"huge": 1e300}])
    files.add(KEY, 2.0, [{f"name-{number}": 1.0 for number in range(5000)}])
    files.write()
    view = view_of([text(tmp_path)], rank=0, points=100)
    assert (view.series["step"][0], view.series["huge"][1], "loss" in view.series) == (1.0, 1e300, False)
    assert len(view.series) == SERIES_MAX


def test_a_file_never_has_more_lines_than_it_may_and_the_newest_are_whole(
    tmp_path: Path, files: MetricsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "ROWS_MAX", 200)
    monkeypatch.setattr(stored, "NEWEST", 20)
    for step in range(3000):
        files.add(KEY, float(step), [{"step": float(step)}])
        if step % 10 == 9:
            files.write()
            assert len(text(tmp_path).splitlines()) <= 200
    steps = [int(value or 0) for value in view_of([text(tmp_path)], rank=0, points=1000).series["step"]]
    assert steps[-20:] == list(range(2980, 3000))
    assert (steps == sorted(set(steps)), steps[0] < 1000) == (True, True)


def test_an_executor_that_starts_again_stores_no_line_twice(tmp_path: Path, files: MetricsFiles) -> None:
    lines = [{"step": float(step), "loss": 1.0} for step in range(10)]
    files.add(KEY, 1.0, lines)
    files.write()
    again = MetricsFiles(str(tmp_path / "metrics"))
    again.add(KEY, 2.0, [*lines[5:], {"step": 10.0, "loss": 1.0}])
    again.write()
    assert view_of([text(tmp_path)], rank=0, points=100).series["step"] == tuple(float(step) for step in range(11))


def test_a_disk_that_takes_nothing_loses_nothing_that_has_room(tmp_path: Path, files: MetricsFiles) -> None:
    (tmp_path / "metrics").write_text("in the way")
    files.add(KEY, 1.0, [{"step": 1.0}])
    with pytest.raises(OSError, match="metrics"):
        files.write()
    (tmp_path / "metrics").unlink()
    files.add(KEY, 2.0, [{"step": 2.0}])
    files.write()
    assert view_of([text(tmp_path)], rank=0, points=100).series["step"] == (1.0, 2.0)


def test_fewer_points_are_evenly_taken_and_the_last_is_among_them() -> None:
    part = b"".join(b'[%d.0,{"step":%d.0}]\n' % (step, step) for step in range(1000))
    view = view_of([part, b'[1000.0,{"step":1000.0}]\n[10', b"no line\n"], rank=0, points=100)
    assert (view.points, len(view.at), view.series["step"][-1]) == (1001, 100, 1000.0)
    assert 9 <= view.series["step"][1] - view.series["step"][0] <= 11  # type: ignore[operator]
    assert thinned([b"a", b"b"]) == [b"a", b"b"]


def test_the_more_names_there_are_the_fewer_points_are_shown() -> None:
    parts = [
        b"".join(
            msgspec.json.encode((float(row), {f"{epoch}-{name}": 0.5 for name in range(100)})) + b"\n"
            for row in range(1000)
        )
        for epoch in range(4)
    ]
    view = view_of(parts, rank=0, points=10_000)
    assert (view.points, len(view.series)) == (4000, 400)
    assert len(view.at) * 400 <= shown.VALUES_MAX < (len(view.at) + 1) * 400
    assert (view.at[-1], view.last("3-99"), view.last("0-0")) == (999.0, 0.5, 0.5)


class _Nodes:
    """Answers for the nodes: every epoch has a file of `size` bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.read: list[str] = []

    async def request(self, ask: ReadFile, answer: type[FileRead], *, seconds_max: float) -> FileRead:
        if ask.limit:
            self.read.append(ask.path)
        return FileRead(size=self.size, data=b"x" * ask.limit)


async def test_of_many_epochs_the_newest_that_have_room_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = _Nodes(size=400_000)

    async def five(*_: object) -> dict[int, str]:
        return dict.fromkeys(range(5), "node-1")

    monkeypatch.setattr(shown, "_nodes", five)
    monkeypatch.setattr(shown, "BYTES_MAX", 1_000_000)
    gateway = cast(Gateway, SimpleNamespace(bus=nodes))
    parts, missing = await stored_metrics(gateway, job("j-1"), 0)
    assert (len(parts), missing) == (2, [0, 1, 2])
    assert set(nodes.read) == {"metrics/4-0.jsonl", "metrics/3-0.jsonl"}
