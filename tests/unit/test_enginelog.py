"""A container's output, copied from the engine's own file: every byte once, and the file given back behind the copy."""

import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weftd.executor.runtime.docker import enginelog
from weftd.executor.runtime.docker.enginelog import GRAIN, PUNCH_BYTES, FileCopy, NotAnEntryError, beginning, decode
from weftd.executor.runtime.docker.logcopy import Position, position_path, read_position, store_position

PIECE = 16384


def varint(number: int) -> bytes:
    made = b""
    while number > 0x7F:
        made += bytes([number & 0x7F | 0x80])
        number >>= 7
    return made + bytes([number])


def entry(line: bytes, *, part: tuple[bool, int] | None = None) -> bytes:
    """As the engine writes it; `part` is whether it is the last of its line, and which."""
    body = b"\x0a\x06stdout\x10" + varint(1_795_221_369_000_000_000)
    if line:
        body += b"\x1a" + varint(len(line)) + line
    if part is not None:
        last, ordinal = part
        inner = (b"\x08\x01" if last else b"") + b"\x12\x04abcd\x18" + varint(ordinal)
        body += b"\x20\x01\x2a" + varint(len(inner)) + inner
    length = len(body).to_bytes(4, "big")
    return length + body + length


OUTPUT = st.lists(
    st.one_of(st.binary(max_size=40), st.integers(0, 40_000).map(lambda n: b"x" * n), st.just(b"\n")), max_size=20
).map(b"".join)


@given(output=OUTPUT, cut=st.integers(0, 200))
def test_what_was_written_is_read_out_of_the_entries(output: bytes, cut: int) -> None:
    data = b"".join(entries_of_lines(output))
    assert decode(data) == (output, len(data))
    found, used = decode(data[: max(0, len(data) - cut)])
    assert output.startswith(found)
    assert used <= max(0, len(data) - cut)


def entries_of_lines(output: bytes) -> list[bytes]:
    """Only `\\n` ends a line for the engine."""
    *whole, rest = output.split(b"\n")
    made = [entries_of(line, ended=True) for line in whole]
    return [*made, entries_of(rest, ended=False)] if rest else made


def entries_of(text: bytes, *, ended: bool) -> bytes:
    pieces = [text[at : at + PIECE] for at in range(0, len(text), PIECE)] or [b""]
    if len(pieces) == 1 and ended:
        return entry(text)
    last = len(pieces) - 1
    return b"".join(entry(piece, part=(ended and place == last, place + 1)) for place, piece in enumerate(pieces))


@given(data=st.binary(max_size=300))
def test_bytes_that_are_no_entries_are_refused_or_too_few(data: bytes) -> None:
    try:
        _, used = decode(data)
    except NotAnEntryError:
        return
    assert used <= len(data)


def copied(source: Path, log: Path, *, over: bool = True) -> FileCopy:
    told: list[None] = []
    copy = FileCopy(str(source), str(log), told=lambda: told.append(None))
    if over:
        copy.over()
    copy.begin()
    copy.join(30)
    assert told
    return copy


@settings(deadline=None, max_examples=25)
@given(size=st.integers(0, 400), kept=st.integers(0, 400), more=st.integers(0, 50))
def test_after_a_kill_at_any_point_every_byte_is_there_once(
    size: int, kept: int, more: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("copy")
    source, log = folder / "engine", folder / "log"
    lines = [b"line %d\n" % number for number in range(size)]
    stored = b"".join(lines[:kept])
    source.write_bytes(b"".join(entry(line[:-1]) for line in lines))
    log.write_bytes(stored + b"and some that came after the position was kept"[:more])
    store_position(str(log), Position(at=len(b"".join(entry(line[:-1]) for line in lines[:kept])), size=len(stored)))
    assert copied(source, log).done
    assert log.read_bytes() == b"".join(lines)


def test_what_is_copied_of_the_engines_file_is_given_back(tmp_path: Path) -> None:
    source, log = tmp_path / "engine", tmp_path / "log"
    line = b"x" * 16000
    many = 3 * PUNCH_BYTES // len(line)
    source.write_bytes(entry(line) * many)
    if os.stat(source).st_blocks == 0:
        pytest.skip("this file system does not tell what a file takes")
    assert copied(source, log).done
    assert log.read_bytes() == (line + b"\n") * many
    assert os.stat(source).st_blocks * 512 <= 2 * PUNCH_BYTES + GRAIN
    assert os.stat(source).st_size == len(entry(line)) * many


def test_a_copy_that_falls_too_far_behind_says_how_much_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enginelog, "BEHIND_BYTES_MAX", 1200)
    source, log = tmp_path / "engine", tmp_path / "log"
    early = entry(b"early")
    source.write_bytes(early + entry(b"x" * 500) * 3)
    log.write_bytes(b"early\n")
    store_position(str(log), Position(at=len(early), size=6))
    assert copied(source, log).done
    missing = len(entry(b"x" * 500))
    marker = b"early\n\n[weft: about %d bytes of output are missing here: they came too fast]\n" % missing
    assert log.read_bytes() == marker + (b"x" * 500 + b"\n") * 2


def test_an_entry_is_found_again_from_anywhere() -> None:
    data = entry(b"one") + entry(b"") + entry(b"three", part=(False, 1))
    starts = [0, len(entry(b"one")), len(entry(b"one") + entry(b""))]
    for cut in range(len(data)):
        following = [start for start in starts if start >= cut]
        assert beginning(data[cut:]) == (following[0] - cut if following else None)


def test_a_file_that_is_spoilt_is_passed_over_and_the_rest_is_copied(tmp_path: Path) -> None:
    source, log = tmp_path / "engine", tmp_path / "log"
    source.write_bytes(entry(b"one") + b"\0" * 40)
    copy = FileCopy(str(source), str(log), told=lambda: None)
    copy.begin()
    until_in(log, b"missing here")
    with source.open("ab") as file:
        file.write(entry(b"two"))
    until_in(log, b"two\n")
    copy.over()
    copy.join(30)
    assert copy.done
    assert log.read_bytes().startswith(b"one\n\n[weft: about 40 bytes")


def until_in(log: Path, words: bytes) -> None:
    deadline = time.monotonic() + 30
    while not (log.exists() and words in log.read_bytes()):
        assert time.monotonic() < deadline, log.read_bytes()
        time.sleep(0.01)


def test_a_container_that_is_gone_before_anything_was_copied_is_done(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert copied(tmp_path / "nothing", log).done


def test_a_copy_that_was_told_to_stop_goes_on_later(tmp_path: Path) -> None:
    source, log = tmp_path / "engine", tmp_path / "log"
    source.write_bytes(entry(b"one"))
    copy = FileCopy(str(source), str(log), told=lambda: None)
    copy.begin()
    until_in(log, b"one\n")
    copy.stop()
    copy.join(30)
    assert not copy.done
    assert read_position(str(log)).size == 4
    with source.open("ab") as file:
        file.write(entry(b"two"))
    assert copied(source, log).done
    assert log.read_bytes() == b"one\ntwo\n"
    assert os.path.exists(position_path(str(log)))
