"""A container's output is copied once, byte for byte, however often and wherever the copying breaks off."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker.utils import kwargs_from_env
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.fake_engine import fake_engine
from weftd.executor.runtime.docker.engine import Follower
from weftd.executor.runtime.docker.logcopy import LogCopy, Position, position_path, read_position

STAMP = "2026-01-01T00:{minute:02d}:{second:02d}.{nano:09d}Z"


class ScriptedEngine:
    """Has these entries, each with its second; each answer breaks off after so many, until there are no more breaks."""

    def __init__(self, entries: list[tuple[int, bytes]], breaks: list[int]) -> None:
        self._entries = entries
        self._breaks = breaks
        self.answers = 0

    def inspect_container(self, container: str) -> dict[str, Any]:
        return {"State": {"Status": "running" if self._breaks else "exited"}}

    def logs(
        self, container: str, *, stream: bool, follow: bool, timestamps: bool, since: int | None
    ) -> Iterator[bytes]:
        self.answers += 1
        start = 1767225600  # 2026-01-01
        count = self._breaks.pop() if self._breaks else len(self._entries)
        for second, data in [entry for entry in self._entries if start + entry[0] >= (since or 0)][:count]:
            stamp = STAMP.format(minute=second // 60, second=second % 60, nano=0)
            yield stamp.encode() + b" " + data


SECONDS = st.lists(st.integers(0, 3), max_size=60).map(lambda steps: [sum(steps[: i + 1]) for i in range(len(steps))])


@settings(deadline=None)
@given(seconds=SECONDS, swaps=st.lists(st.integers(0, 58), max_size=5), breaks=st.lists(st.integers(0, 60), max_size=6))
def test_every_byte_is_copied_once(seconds: list[int], swaps: list[int], breaks: list[int]) -> None:
    for place in swaps:  # two streams may be stored a little out of order
        if place + 1 < len(seconds):
            seconds[place], seconds[place + 1] = seconds[place + 1], seconds[place]
    entries = [(second, b"entry %d at %d%s" % (n, second, b"\n" * (n % 2))) for n, second in enumerate(seconds)]
    with tempfile.TemporaryDirectory() as folder:
        log = f"{folder}/log"
        told: list[None] = []
        engine: Any = ScriptedEngine(entries, breaks)
        copy = LogCopy(engine, "container", log, told=lambda: told.append(None))
        copy.begin()
        copy.join(10)
        assert copy.done
        assert told
        assert Path(log).read_bytes() == b"".join(data for _, data in entries)


def test_what_was_written_after_the_kept_position_is_written_again(tmp_path: Path) -> None:
    """As after a kill of the executor: the log is longer than the position says."""
    log = str(tmp_path / "log")
    entries = [(0, b"one\n"), (1, b"two\n"), (1, b"three\n")]
    engine: Any = ScriptedEngine(entries, [])
    Path(log).write_bytes(b"one\ntwo\nthr")
    Path(position_path(log)).write_text('{"since": 1767225600, "entries": 1, "size": 4}')
    copy = LogCopy(engine, "container", log, told=lambda: None)
    copy.begin()
    copy.join(10)
    assert Path(log).read_bytes() == b"one\ntwo\nthree\n"


def test_a_position_beyond_its_log_is_not_believed(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    Path(log).write_bytes(b"short")
    Path(position_path(log)).write_text('{"size": 1000}')
    assert read_position(log) == Position()


def test_a_copy_that_is_done_is_not_begun_again(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    for _ in range(2):
        engine: Any = ScriptedEngine([(0, b"one\n")], [])
        copy = LogCopy(engine, "container", log, told=lambda: None)
        copy.begin()
        copy.join(10)
    assert copy.done
    assert engine.answers == 0


def test_a_copy_that_is_stopped_as_the_engine_answers_leaves_no_connection_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is asked after the log: a question that fails would leave the log's connection open."""
    opened: list[Any] = []
    with fake_engine(tmp_path) as (engine, address):
        monkeypatch.setenv("DOCKER_HOST", address)
        client = Follower(timeout=5, **kwargs_from_env())
        logs = client.logs

        def answered(*arguments: Any, **named: Any) -> Any:
            opened.append(logs(*arguments, **named))
            copy.stop()
            return opened[-1]

        monkeypatch.setattr(client, "logs", answered)
        engine.containers["it"] = {"Id": "it", "Name": "/it", "State": {"Status": "running"}}
        copy = LogCopy(client, "it", str(tmp_path / "log"), told=lambda: None)
        copy.begin()
        copy.join(10)
        client.close()
    assert engine.asked[-1] == ("GET", "/containers/it/logs")
    (stream,) = opened
    connection = stream._response.raw.connection
    assert connection is None or connection.sock is None
