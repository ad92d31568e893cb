"""What a session keeps, what is unpacked of a hostile archive, and what is typed to open and leave one."""

import argparse
import io
import os
import random
import tarfile
from pathlib import Path

import pytest

from weftd.cli.sessions.console import Escape
from weftd.cli.sessions.copying import PathBeside, place
from weftd.cli.sessions.forward import PortWanted, wanted
from weftd.cli.sessions.packing import Unpacking, leads_inside, parts_of
from weftd.executor.sessions.session import PIECE_BYTES, PIECE_COST, OutputWindow
from weftd.gateway.sessions.records import COMMAND_CHARACTERS, shown


def test_a_window_gives_every_byte_at_its_offset_and_in_its_stream_whatever_the_pieces_are() -> None:
    dice = random.Random(5)
    window, streams, read = OutputWindow(1 << 20), bytearray(), bytearray()
    text = bytearray()
    for _ in range(400):
        stream, data = dice.choice((1, 2)), dice.randbytes(dice.randint(0, 900))
        window.add(stream, data)
        text += data
        streams += bytes((stream,)) * len(data)
        while dice.random() < 0.7:
            found, piece = window.read(len(read), dice.randint(1, 1500))
            assert set(streams[len(read) : len(read) + len(piece)]) <= {found}
            read += piece
            window.forget(dice.randint(0, len(read)))
    assert read == text[: len(read)]
    assert window.read(len(text), 10)[1] == b""
    assert window.read(-1, 10)[1] == b""
    window.forget(10**15)
    assert (window.begins, window.ends) == (len(text), len(text))


def test_a_window_is_full_also_of_single_bytes_of_two_streams_in_turn() -> None:
    window = OutputWindow(4 * PIECE_BYTES)
    added = 0
    while window.room:
        window.add(1 + added % 2, b"x")
        added += 1
    assert added <= 4 * PIECE_BYTES / PIECE_COST
    window.forget(window.ends)
    assert window.room == 4 * PIECE_BYTES


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for member, data in members:
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return made.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.mode = kind, link, 0o6755
    return found


def unpacked(target: Path, packed: bytes, size_max: int = 1 << 20) -> Unpacking:
    into = Unpacking(target, size_max)
    try:
        for at in range(0, len(packed), 700):
            into.feed((b"folder\n" if not at else b"") + packed[at : at + 700])
        into.finish(whole=True)
    finally:
        into.close()
    return into


def test_nothing_of_an_archive_leads_out_of_its_target(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    hostile = (
        (member("../outside/a"), b"x"),
        (member("/etc/weft-was-here"), b"x"),
        (member("in/../../outside/b"), b"x"),
        (member("in/link", tarfile.SYMTYPE, "../../outside"), b""),
        (member("in/absolute", tarfile.SYMTYPE, str(tmp_path / "outside")), b""),
        (member("in/round", tarfile.SYMTYPE, "fine/../../../outside"), b""),
        (member("in/hard", tarfile.LNKTYPE, "../outside/c"), b""),
        (member("in/pipe", tarfile.FIFOTYPE), b""),
        (member("in/device", tarfile.CHRTYPE), b""),
        (member("in/fine"), b"fine"),
        (member("in/also", tarfile.SYMTYPE, "fine"), b""),
        (member("/".join(["deep"] * 200)), b"x"),
    )
    into = unpacked(tmp_path / "target", archive(*hostile))
    assert sorted(os.listdir(tmp_path / "target/in")) == ["also", "fine"]
    assert (tmp_path / "target/in/also").read_bytes() == b"fine"
    assert (tmp_path / "target/in/fine").stat().st_mode & 0o7777 == 0o755  # without the set-user-id bit
    assert os.listdir(tmp_path / "outside") == []
    assert sorted(os.listdir(tmp_path)) == ["outside", "target"]
    assert len(into.skipped) == 10


def test_a_link_that_was_in_the_target_before_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "target").mkdir()
    (tmp_path / "target/in").symlink_to(tmp_path / "outside")
    with pytest.raises(ValueError, match=r".+"):
        unpacked(tmp_path / "target", archive((member("in/a"), b"x")))
    assert os.listdir(tmp_path / "outside") == []


def test_an_archive_is_bounded_in_size_also_with_holes_and_in_its_headers(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="larger"):
        unpacked(tmp_path / "large", archive((member("a"), b"x" * 5000)), size_max=4000)
    long_name = member("n" * 3_000_000)
    with pytest.raises(ValueError, match="too long"):
        unpacked(tmp_path / "named", archive((long_name, b"")), size_max=1 << 30)
    into = Unpacking(tmp_path / "odd", 100)
    with pytest.raises(ValueError, match="is no archive"):
        into.feed(b"x" * 100)


def test_a_file_that_does_not_come_whole_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"before")
    for whole in (False, True):
        into = Unpacking(tmp_path / "a", 100)
        into.feed(b"fi")
        into.feed(b"le\nafter")
        into.finish(whole=whole)
        into.close()
        assert (tmp_path / "a").read_bytes() == (b"after" if whole else b"before")
    assert os.listdir(tmp_path) == ["a"]


def test_the_names_of_an_archive() -> None:
    assert parts_of("./a//b/.") == ["a", "b"]
    assert [parts_of(name) for name in ("/a", "a/..", "a\0b", "a/" * 101)] == [None] * 4
    assert leads_inside(["a", "b", "link"], "../../c")
    assert not leads_inside(["a", "b", "link"], "../../../c")
    assert not leads_inside(["link"], "")


@pytest.mark.parametrize(
    ("typed", "sent", "leaves"),
    [
        (b"~.", b"", True),
        (b"ls\r~.x", b"ls\r", True),
        (b"a~.", b"a~.", False),
        (b"\r~~.", b"\r~~.", False),
        (b"\r~\r~.", b"\r~\r", True),
    ],
)
def test_enter_and_tilde_and_a_point_leave_and_all_else_is_typed(typed: bytes, sent: bytes, leaves: bool) -> None:
    whole, by_key = Escape(), Escape()
    assert whole.feed(typed) == (sent, leaves)
    keys, left = b"", False
    for number in typed:
        more, left_now = by_key.feed(bytes((number,))) if not left else (b"", True)
        keys, left = keys + more, left or left_now
    assert (keys, left) == (sent, leaves)


def test_ports_and_places_as_they_are_typed() -> None:
    assert (wanted("8888"), wanted("0:22"), wanted("9000:8888")) == (
        PortWanted(8888, 8888),
        PortWanted(0, 22),
        PortWanted(9000, 8888),
    )
    for wrong in ("", "0", "a", ":1", "1:", "1:2:3", "70000", "-1", "1:0", "٣"):
        with pytest.raises(argparse.ArgumentTypeError):
            wanted(wrong)
    assert place("train:a/b") == PathBeside("a/b", "train")
    assert place("./a:b") == PathBeside("./a:b")
    assert place("a") == PathBeside("a")
    with pytest.raises(argparse.ArgumentTypeError):
        place("train:")


def test_a_story_shows_a_command_on_one_line_and_short() -> None:
    assert shown(("sh", "-c", "a\nb\x1b[2Jc")) == "sh -c a·b·[2Jc"
    assert len(shown(tuple("x" * 500 for _ in range(500)))) <= COMMAND_CHARACTERS + 1
