"""Which logs a node keeps, and how much of each: decided as a table, then done to real files."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftd.executor.files.home import Home
from weftd.executor.logs import retention
from weftd.executor.logs.retention import GRAIN, Cut, Log, Removal, Retention, RetentionLimits, decide, punch
from weftd.executor.runs import RunKey

DAY = 86400.0
NOW = 100 * DAY
KEY = RunKey("job-1", 0, 0)
OTHER = RunKey("job-2", 0, 0)


def log(name: str, grains: int, *, age: float = 0.0, held: bool = False, dropped: int = 0) -> Log:
    size = grains * GRAIN
    return Log(name=name, size=size, used=size - dropped * GRAIN, written_at=NOW - age, held=held)


def limits(**fields: float) -> RetentionLimits:
    bounds = {"logs_kept_days": 0, "log_bytes_max": 0, "logs_bytes_max": 0, **fields}
    return RetentionLimits(
        logs_kept_days=bounds["logs_kept_days"],
        log_bytes_max=int(bounds["log_bytes_max"]),
        logs_bytes_max=int(bounds["logs_bytes_max"]),
    )


def test_old_logs_of_ended_runs_go_and_those_of_live_runs_stay() -> None:
    logs = [log("old", 1, age=15 * DAY), log("live", 1, age=90 * DAY, held=True), log("new", 1, age=DAY)]
    assert decide(logs, limits(logs_kept_days=14), now=NOW) == [Removal("old")]


def test_without_limits_nothing_is_dropped() -> None:
    assert decide([log("a", 5000, age=900 * DAY), log("b", 5000, held=True)], limits(), now=NOW) == []


def test_a_nodes_limit_drops_the_oldest_ended_logs_first_and_no_more_than_needed() -> None:
    logs = [log("b", 4, age=2), log("a", 4, age=3), log("c", 4, age=1), log("live", 4, age=9, held=True)]
    assert decide(logs, limits(logs_bytes_max=9 * GRAIN), now=NOW) == [Removal("a"), Removal("b")]


def test_one_runs_limit_keeps_its_newest_bytes() -> None:
    logs = [log("live", 10, held=True), log("ended", 10), log("short", 3)]
    assert set(decide(logs, limits(log_bytes_max=4 * GRAIN), now=NOW)) == {
        Cut("live", 6 * GRAIN),
        Cut("ended", 6 * GRAIN),
    }


def test_what_was_cut_is_not_cut_again() -> None:
    assert decide([log("live", 10, held=True, dropped=6)], limits(log_bytes_max=4 * GRAIN), now=NOW) == []


def test_when_live_runs_alone_are_over_the_nodes_limit_the_longest_lose_of_their_heads() -> None:
    logs = [log("long", 50, held=True), log("other", 50, held=True), log("quiet", 2, held=True)]
    assert set(decide(logs, limits(logs_bytes_max=22 * GRAIN), now=NOW)) == {
        Cut("long", 40 * GRAIN),
        Cut("other", 40 * GRAIN),
    }


@given(
    logs=st.lists(st.tuples(st.integers(0, 60), st.booleans(), st.floats(0, 30)), max_size=12),
    one=st.integers(0, 20),
    all_logs=st.integers(2, 60),
)
def test_what_is_left_is_within_the_limits(logs: list[tuple[int, bool, float]], one: int, all_logs: int) -> None:
    found = [log(f"log-{n}", size, held=held, age=age * DAY) for n, (size, held, age) in enumerate(logs)]
    bounds = limits(logs_kept_days=14, log_bytes_max=one * GRAIN, logs_bytes_max=all_logs * GRAIN)
    deeds = decide(found, bounds, now=NOW)
    removed = {deed.name for deed in deeds if isinstance(deed, Removal)}
    cuts = {deed.name: deed.begins for deed in deeds if isinstance(deed, Cut)}
    assert not removed & {each.name for each in found if each.held}
    left = {each.name: each.size - cuts.get(each.name, 0) for each in found if each.name not in removed}
    assert sum(left.values()) <= (all_logs + len(left)) * GRAIN  # cuts are at whole grains
    assert all(size < (one + 1) * GRAIN for size in left.values()) or not one


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home")
    if not holes(tmp_path):
        pytest.skip("this file system makes no holes")
    return made


def holes(folder: Path) -> bool:
    probe = folder / "probe"
    probe.write_bytes(bytes(2 * GRAIN))
    fd = os.open(probe, os.O_RDWR)
    try:
        punch(fd, GRAIN)
    except OSError:
        return False
    finally:
        os.close(fd)
        probe.unlink()
    return True


def numbered(grains: int) -> bytes:
    return b"".join(b"%0*d\n" % (1023, number) for number in range(grains * GRAIN // 1024))


def test_the_head_of_a_long_log_is_given_back_and_every_byte_left_keeps_its_offset(home: Home) -> None:
    text = numbered(8)
    Path(home.log(KEY)).write_bytes(text)
    keeping = Retention(home, limits(log_bytes_max=3 * GRAIN))
    found = keeping.look({KEY}, now=NOW)
    assert found.dropped_bytes == 5 * GRAIN
    assert os.stat(home.log(KEY)).st_blocks * 512 <= 4 * GRAIN
    chunk = home.read_log(KEY, offset=0, limit=1 << 20, known=True, over=False)
    assert (chunk.begins, chunk.size) == (5 * GRAIN, len(text))
    assert chunk.data == text[5 * GRAIN : 6 * GRAIN]
    chunk = home.read_log(KEY, offset=7 * GRAIN, limit=100, known=True, over=True)
    assert (chunk.begins, chunk.data, chunk.ended) == (5 * GRAIN, text[7 * GRAIN : 7 * GRAIN + 100], False)
    with open(home.log(KEY), "ab") as file:
        file.write(b"more")
    chunk = home.read_log(KEY, offset=len(text), limit=100, known=True, over=True)
    assert (chunk.data, chunk.ended) == (b"more", True)


def test_a_removed_log_is_missing_and_one_that_is_held_is_not_removed(home: Home) -> None:
    for key in (KEY, OTHER):
        Path(home.log(key)).write_bytes(b"words")
        os.utime(home.log(key), (NOW - 20 * DAY, NOW - 20 * DAY))
    Path(f"{home.log(OTHER)}.at").write_bytes(b"{}")
    Retention(home, limits(logs_kept_days=14)).look({KEY}, now=NOW)
    assert os.listdir(home.logs) == [f"{KEY}.log"]
    gone = home.read_log(OTHER, offset=0, limit=10, known=False, over=True)
    assert gone.missing
    assert (gone.dropped_at, gone.dropped_bytes > 0) == (NOW, True), "a reader learns when, and how much"


def test_a_log_ages_from_the_end_of_its_run(home: Home) -> None:
    """A run that was silent for its last weeks has an old file."""
    Path(home.log(KEY)).write_bytes(b"words")
    os.utime(home.log(KEY), (NOW - 20 * DAY, NOW - 20 * DAY))
    home.close_log(KEY)
    written_at = os.stat(home.log(KEY)).st_mtime
    node = Node(home, written_at)
    node.goes_on(13 * DAY)
    assert os.path.exists(home.log(KEY))
    node.goes_on(2 * DAY)
    assert not os.path.exists(home.log(KEY))


class Node:
    """Its clock, which may jump, and the time since its boot, which does not. Logs are kept for 14 days."""

    def __init__(self, home: Home, now: float) -> None:
        self.home = home
        self.now = now
        self.at = 0.0
        self.restart()

    def restart(self) -> None:
        self.retention = Retention(self.home, limits(logs_kept_days=14), clock=lambda: self.at)
        self.goes_on(0)

    def goes_on(self, seconds: float, *, jump: float = 0.0) -> None:
        self.now += seconds + jump
        self.at += seconds
        self.retention.look(set(), now=self.now)


@pytest.fixture
def node(home: Home) -> Node:
    """Where a run ended an hour ago."""
    Path(home.log(KEY)).write_bytes(b"words")
    written_at = os.stat(home.log(KEY)).st_mtime
    return Node(home, written_at + 3600)


def test_a_clock_that_goes_ahead_by_weeks_drops_no_log_for_a_day(node: Node) -> None:
    node.goes_on(60, jump=20 * DAY)
    node.goes_on(DAY / 2)
    assert os.path.exists(node.home.log(KEY))
    node.goes_on(DAY / 2)
    assert not os.path.exists(node.home.log(KEY))


def test_a_clock_that_is_set_right_within_a_day_dropped_no_log(node: Node) -> None:
    node.goes_on(60, jump=20 * DAY)
    node.goes_on(DAY / 2)
    node.goes_on(60, jump=-20 * DAY)
    node.goes_on(2 * DAY)
    assert os.path.exists(node.home.log(KEY))


def test_an_executor_that_begins_with_its_clock_ahead_drops_no_log_for_a_day(node: Node) -> None:
    node.now += 20 * DAY
    for _ in range(3):
        node.restart()
        node.goes_on(DAY / 2)
    assert os.path.exists(node.home.log(KEY))
    node.goes_on(DAY / 2)
    assert not os.path.exists(node.home.log(KEY))


def test_a_clock_that_goes_back_drops_no_log_and_is_gone_by_from_then_on(node: Node) -> None:
    node.goes_on(60, jump=-90 * DAY)
    node.goes_on(13 * DAY)
    assert os.path.exists(node.home.log(KEY))


def test_a_clock_that_is_ahead_does_not_lift_the_limit_of_all_logs(home: Home) -> None:
    keeping = Retention(home, limits(logs_kept_days=14, logs_bytes_max=2 * GRAIN), clock=lambda: 0.0)
    keeping.look(set(), now=NOW)
    Path(home.log(KEY)).write_bytes(numbered(4))
    keeping.look(set(), now=NOW + 20 * DAY)
    assert not os.path.exists(home.log(KEY))


def test_while_it_is_not_known_what_runs_nothing_is_removed(home: Home) -> None:
    Path(home.log(KEY)).write_bytes(b"words")
    Retention(home, limits(logs_kept_days=1 / DAY)).look(None, now=NOW + 1e9)
    assert os.path.exists(home.log(KEY))


def test_a_file_system_that_makes_no_holes_keeps_the_log_and_says_so(
    home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: int) -> int:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(retention, "punch", refuse)
    text = numbered(4)
    Path(home.log(KEY)).write_bytes(text)
    keeping = Retention(home, limits(log_bytes_max=2 * GRAIN))
    for _ in range(2):
        assert keeping.look({KEY}, now=NOW).uncut == 1
    assert Path(home.log(KEY)).read_bytes() == text
    assert len([record for record in caplog.records if "cannot drop the head" in record.message]) == 1


def test_what_a_job_put_where_its_log_was_is_left_alone(home: Home, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(numbered(4))
    os.symlink(precious, home.log(KEY))
    os.mkfifo(home.log(OTHER))
    Retention(home, limits(log_bytes_max=GRAIN, logs_kept_days=1 / DAY)).look({KEY, OTHER}, now=NOW)
    assert os.stat(precious).st_blocks * 512 >= 4 * GRAIN
