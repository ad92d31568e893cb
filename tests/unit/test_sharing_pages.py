"""The pages and messages of a shared GPU: what is written is read, and any bytes of a job are read without harm."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weft.sharing import pages, slots, wire
from weft.sharing.pages import PAGE_BYTES, Flag, LimitsPage, SlotLimits, UsePage
from weft.sharing.records import SlotShare
from weft.sharing.wire import MICROSECONDS_MAX, MalformedError, Op, ShareMessage

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)


@given(op=U32, pid=U32, turn=U64, a=U64, b=U64)
def test_a_message_is_read_as_it_was_sent(op: int, pid: int, turn: int, a: int, b: int) -> None:
    message = ShareMessage(op, pid, turn, a, b)
    assert len(wire.encode(message)) == wire.BYTES
    assert wire.decode(wire.encode(message)) == message


@given(data=st.binary(max_size=64))
def test_what_a_job_sends_is_bounded_or_refused(data: bytes) -> None:
    try:
        message = wire.from_job(data)
    except MalformedError:
        return
    assert len(data) == wire.BYTES
    assert message.op in (Op.HELLO, Op.WANT, Op.RETURN, Op.CHARGE)
    assert -MICROSECONDS_MAX <= message.a <= MICROSECONDS_MAX
    assert 0 <= message.b <= MICROSECONDS_MAX


@given(a=st.integers(-(2**63), 2**63 - 1))
def test_a_correction_has_a_sign(a: int) -> None:
    read = wire.from_job(wire.encode(ShareMessage(Op.CHARGE, 1, 0, a)))
    assert read.a == max(-MICROSECONDS_MAX, min(MICROSECONDS_MAX, a))


def test_a_job_may_not_speak_as_the_arbiter() -> None:
    with pytest.raises(MalformedError):
        wire.from_job(wire.encode(ShareMessage(Op.GRANT, 1, 1, 1, 1)))


@given(
    flags=st.integers(0, 15),
    memory=U64,
    device=U64,
    in_flight=U32,
    context=U32,
    beat=U64,
    changes=U32,
)
def test_limits_are_read_as_they_were_written(
    flags: int, memory: int, device: int, in_flight: int, context: int, beat: int, changes: int
) -> None:
    limits = SlotLimits(Flag(flags), memory, device, in_flight, context, beat, changes)
    assert len(pages.limits_bytes(limits)) == PAGE_BYTES
    assert pages.read_limits(pages.limits_bytes(limits)) == limits


def test_the_fields_of_the_limits_page_lie_where_the_hook_reads_them() -> None:
    page = pages.limits_bytes(SlotLimits(Flag.GATED | Flag.CLOSED, 1 << 40, 1 << 41, 2000, 512, 77, 9))
    assert page[:8] == b"WEFTLIM1"
    places = {8: 1, 12: 9, 16: 10, 40: 2000, 44: 512}
    assert {at: int.from_bytes(page[at : at + 4], "little") for at in places} == places
    wide = {24: 1 << 40, 32: 1 << 41, 48: 77}
    assert {at: int.from_bytes(page[at : at + 8], "little") for at in wide} == wide


@settings(suppress_health_check=[HealthCheck.large_base_example])  # a page is never smaller
@given(data=st.binary(min_size=PAGE_BYTES, max_size=PAGE_BYTES))
def test_any_bytes_of_a_use_page_give_numbers_in_bounds(data: bytes) -> None:
    use = pages.read_use(pages.empty_use_bytes()[:8] + data[8:])
    assert use is not None
    assert 0 <= use.memory <= pages.COUNT_MAX
    assert all(0 <= number <= pages.COUNT_MAX for number in use[:6])
    assert all(0 <= number <= pages.COUNT_MAX for entry in use.entries for number in entry)


Opened = Callable[[Path], int]


@pytest.fixture
def opened() -> Iterator[Opened]:
    with ExitStack() as stack:

        def open_file(path: Path) -> int:
            fd = os.open(path, os.O_RDWR)
            stack.callback(os.close, fd)
            return fd

        yield open_file


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_every_change_of_the_limits_is_counted_and_a_beat_is_none(tmp_path: Path, opened: Opened) -> None:
    page = LimitsPage(opened(written(tmp_path / "limits", bytes(PAGE_BYTES))))
    found: list[tuple[int, int]] = []
    for limits in (SlotLimits(memory_limit=5, beat_ns=1), SlotLimits(memory_limit=5, beat_ns=2), SlotLimits(beat_ns=3)):
        page.write(limits)
        read = pages.read_limits((tmp_path / "limits").read_bytes())
        assert read is not None
        found.append((read.changes, read.beat_ns))
    assert found == [(1, 1), (1, 2), (2, 3)]
    again = LimitsPage(opened(tmp_path / "limits"))
    again.write(SlotLimits(memory_limit=6))
    read = pages.read_limits((tmp_path / "limits").read_bytes())
    assert read is not None
    assert read.changes == 3  # counted on from what the arbiter before wrote


def test_an_entry_that_is_cleared_is_free_and_the_others_stay(tmp_path: Path, opened: Opened) -> None:
    page = bytearray(pages.empty_use_bytes())
    for index, pid in ((0, 7), (62, 8)):
        at = pages.ENTRIES_AT + index * pages.ENTRY_BYTES
        page[at : at + 4] = pid.to_bytes(4, "little")
        page[at + 8 : at + 16] = (100).to_bytes(8, "little")
    use = UsePage(opened(written(tmp_path / "use", bytes(page))))
    assert use.read().memory == 200
    use.clear(0)
    assert [(entry.place, entry.pid, entry.memory) for entry in use.read().entries] == [(62, 8, 100)]
    assert use.entry(0) is None
    assert use.entry(63) is None
    (tmp_path / "use").write_bytes(b"")  # the job may do this at any time
    assert use.read() == pages.SlotUse()
    assert use.entry(62) is None


def test_only_an_ordinary_page_with_one_name_is_a_page(tmp_path: Path, opened: Opened) -> None:
    page = tmp_path / "page"
    fd = opened(written(page, bytes(PAGE_BYTES)))
    assert pages.regular(fd)
    os.link(page, tmp_path / "other")
    assert not pages.regular(fd)
    short = opened(written(tmp_path / "short", b"x"))
    assert not pages.regular(short)


# the slot folder

SHARED = SlotShare(gpu="GPU-1", job="j", epoch=1, rank=0, request=700, limit=1000, memory=1 << 30)


def test_a_share_is_read_as_it_was_written(tmp_path: Path) -> None:
    job = slots.make_slot(tmp_path, "run-1", SHARED)
    assert job == tmp_path / "run-1" / "job"
    assert slots.slot_names(tmp_path) == ["run-1"]
    assert slots.read_share(tmp_path / "run-1") == SHARED


@pytest.mark.parametrize("name", ["", "A", "a/b", "..", "x" * 41, "a.b"])
def test_a_name_that_could_be_a_path_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="no name of a slot"):
        slots.make_slot(tmp_path, name, SHARED)


def test_a_root_that_is_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="too long a path"):
        slots.make_slot(tmp_path / ("x" * 90), "a", SHARED)


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"{", b"[]", b"{}", b"\xff" * 100, b" " * (slots.FILE_BYTES_MAX + 1)),
        *(b'{"gpu": "g", "request": %b}' % request for request in (b"1001", b"-1", b"1e999", b'"1"')),
    ],
)
def test_a_share_that_is_none_says_why(tmp_path: Path, text: bytes) -> None:
    (tmp_path / slots.SHARE).write_bytes(text)
    with pytest.raises(ValueError, match=r"share\.json"):
        slots.read_share(tmp_path)


def test_links_fifos_and_folders_are_never_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"{}")
    for make in (lambda path: os.symlink(tmp_path / "secret", path), os.mkfifo, os.mkdir):
        path = tmp_path / "file"
        make(path)
        with pytest.raises((OSError, ValueError)):
            slots.read_file(tmp_path, "file")
        path.rmdir() if path.is_dir() else path.unlink()
    (tmp_path / "linked").symlink_to(tmp_path)
    assert slots.slot_names(tmp_path) == []
