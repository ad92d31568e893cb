"""What `--sync` packs, and what a node unpacks or refuses: files of people, and files made to do harm."""

import io
import os
import signal
import stat
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.odd_folders import make_deep, swept
from weft import packing
from weft.domain.quantity import size_text
from weft.messages import contexts as bounds
from weftd.cli.cli_error import CliError
from weftd.cli.jobs.sync import pack, sent_sentence
from weftd.executor.files import contexts
from weftd.executor.files.contexts import BadContextError, hand_over, unpack


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()}


def sent(folder: Path, into: Path) -> Path:
    """What a node has of that folder."""
    with pack(str(folder)).file as file:
        (into / "packed.zip").write_bytes(file.read())
    (into / "files").mkdir()
    unpack(str(into / "packed.zip"), str(into / "files"))
    return into / "files"


def digest_of(folder: Path) -> str:
    packed = pack(str(folder))
    packed.file.close()
    return packed.digest


def zipped(tmp_path: Path, add: Callable[[zipfile.ZipFile], None]) -> str:
    path = tmp_path / "made.zip"
    with zipfile.ZipFile(path, "w") as archive:
        add(archive)
    return str(path)


def test_files_arrive_with_their_contents_their_links_and_whether_they_can_be_executed(tmp_path: Path) -> None:
    source = write(tmp_path / "src", {"train.py": "print(1)", "pkg/ünïcode ✓.txt": "x" * 100_000, "run.sh": "#!"})
    (source / "run.sh").chmod(0o755)
    (source / "latest").symlink_to("pkg")
    (source / "empty").mkdir()
    os.mkfifo(source / "pipe")
    files = sent(source, tmp_path)
    assert names(files) == {"train.py", "pkg/ünïcode ✓.txt", "run.sh", "latest"}
    assert (files / "pkg/ünïcode ✓.txt").read_text() == "x" * 100_000
    assert os.readlink(files / "latest") == "pkg"
    assert (files / "empty").is_dir()
    modes = {name: stat.S_IMODE((files / name).stat().st_mode) for name in ("run.sh", "train.py", "empty", ".")}
    assert modes == {"run.sh": 0o755, "train.py": 0o644, "empty": 0o755, ".": 0o755}


def test_a_key_file_stays_its_owners_alone_and_belongs_to_the_user_of_the_container(tmp_path: Path) -> None:
    source = write(tmp_path / "src", {"id_ed25519": "key", "deep/plain": "text"})
    (source / "id_ed25519").chmod(0o600)
    files = sent(source, tmp_path)
    assert stat.S_IMODE((files / "id_ed25519").stat().st_mode) == 0o600
    if os.geteuid() == 0:
        hand_over(str(files), "1234:1234")
        owners = {(path.stat().st_uid, path.stat().st_gid) for path in (files, *files.rglob("*"))}
        assert owners == {(1234, 1234)}
        assert stat.S_IMODE((files / "id_ed25519").stat().st_mode) == 0o600
    hand_over(str(files), "jovyan")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in files.rglob("*")}
    assert modes == {"id_ed25519": 0o666, "deep": 0o777, "plain": 0o666}, "an unknown user may read and write them"


def test_the_same_files_have_the_same_digest_whenever_they_were_written(tmp_path: Path) -> None:
    first = write(tmp_path / "one", {"b": "2", "a": "1"})
    second = write(tmp_path / "two", {"a": "1", "b": "2"})
    os.utime(second / "a", (1, 1))
    assert digest_of(first) == digest_of(second)
    (second / "b").write_text("3")
    assert digest_of(first) != digest_of(second)


def test_weftignore_names_what_stays_and_takes_back_what_would_stay(tmp_path: Path) -> None:
    source = write(
        tmp_path / "src",
        {
            ".weftignore": "*.bin\n!keep.bin\n/data/\n!venv/\n",
            **dict.fromkeys((".git/config", "a/__pycache__/m.pyc", ".venv/x", ".mypy_cache/x"), "no"),
            **dict.fromkeys(("big.bin", "data/set"), "no"),
            **dict.fromkeys(("keep.bin", "a/data/set", "venv/x", "m.py"), "yes"),
        },
    )
    assert names(sent(source, tmp_path)) == {".weftignore", "keep.bin", "a/data/set", "venv/x", "m.py"}


def test_a_folder_that_cannot_go_along_is_told_with_what_would_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CliError, match="is not a folder"):
        pack(str(tmp_path / "none"))
    with pytest.raises(CliError, match="has no files"):
        pack(str(write(tmp_path / "bare", {"__pycache__/m.pyc": "x"})))
    source = write(tmp_path / "src", {f"f{i}": "x" * (i + 1) * 100 for i in range(5)})
    monkeypatch.setattr(packing, "FILES_MAX", 4)
    with pytest.raises(CliError, match=r"more than 4 files; .*name in \.weftignore"):
        pack(str(source))
    monkeypatch.setattr(packing, "FILES_MAX", 10)
    monkeypatch.setattr(packing, "UNPACKED_BYTES_MAX", 700)
    with pytest.raises(CliError, match=r"the largest are f3 \(400B\)"):
        pack(str(source))
    monkeypatch.setattr(packing, "UNPACKED_BYTES_MAX", 10_000)
    monkeypatch.setattr(packing, "PACKED_BYTES_MAX", 100)
    with pytest.raises(CliError, match="when it is packed"):
        pack(str(source))
    (source / os.fsdecode(b"bad\xff")).write_text("x")
    with pytest.raises(CliError, match="no UTF-8"):
        pack(str(source))


def test_gitignore_names_what_stays_and_weftignore_has_the_last_word(tmp_path: Path) -> None:
    source = write(
        tmp_path / "source",
        {".gitignore": "data/\n*.log\n", ".weftignore": "!data/\n", "data/set": "1", "a.log": "", "m.py": ""},
    )
    assert names(sent(source, tmp_path)) == {".gitignore", ".weftignore", "data/set", "m.py"}


def test_it_is_said_how_much_was_sent_and_to_where(tmp_path: Path) -> None:
    packed = pack(str(write(tmp_path / "source", {"m.py": ""})))
    packed.file.close()
    size = size_text(packed.bytes)
    assert sent_sentence(packed, "http://x:1", sent=True) == f"1 file, {size} packed, sent to http://x:1"
    told = sent_sentence(packed, "http://x:1", sent=False)
    assert told == f"1 file, {size} packed: http://x:1 has this already, nothing was sent"


@pytest.mark.parametrize(
    ("ignores", "why"),
    [
        (b"[z-a]\n", "bad character range"),
        (b"!\n", "Invalid git pattern"),
        (b"a\\\n", "Invalid git pattern"),
        ("a\n".encode("utf-16"), "cannot read .weftignore"),
        (b"#" + b"x" * (1 << 20) + b"\nsecret\n", "more than 1MiB"),
        (b"*a" * 20 + b"b\n", "take too long"),
        (b"**/a/" * 12 + b"b\n", "take too long"),
        (b"".join(b"x%d*y\n" % number for number in range(50_000)), "take too long"),
    ],
)
def test_a_weftignore_that_cannot_be_followed_whole_lets_nothing_go_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ignores: bytes, why: str
) -> None:
    monkeypatch.setattr(packing, "MATCHING_SECONDS_MAX", 0.2)
    before = signal.getsignal(signal.SIGPROF)
    source = write(tmp_path / "src", {"secret": "x", "a" * 200: "x", "a/" * 40 + "c": "x"})
    (source / ".weftignore").write_bytes(ignores)
    with pytest.raises(CliError, match=why) as refused:
        pack(str(source))
    assert (refused.value.field, len(str(refused.value)) < 500) == ("--sync", True)
    assert signal.getsignal(signal.SIGPROF) is before
    assert signal.getitimer(signal.ITIMER_PROF)[0] == 0


def test_a_weftignore_that_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    makes: list[Callable[[Path], None]] = [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")]
    for number, make in enumerate(makes):
        source = write(tmp_path / str(number), {"m.py": "x"})
        make(source / ".weftignore")
        with pytest.raises(CliError, match="is no file"):
            pack(str(source))


def test_a_weftignore_is_read_as_git_reads_its_own(tmp_path: Path) -> None:
    files = dict.fromkeys(("secret", "other", "a\u2028b", "c\x0cd", "d", "nul"), "x")
    text = "\ufeffsecret\r\nother\r\na\u2028b\nc\x0cd\n[[:alpha:]]x\n\0\n"
    source = write(tmp_path / "src", files)
    (source / ".weftignore").write_bytes(text.encode())
    assert names(sent(source, tmp_path)) == {".weftignore", "d", "nul"}


def test_a_folder_that_no_node_would_unpack_does_not_go_along(tmp_path: Path) -> None:
    with swept(tmp_path / "deep"):
        make_deep(tmp_path / "deep", 1200)  # deeper than Python calls itself
        with pytest.raises(CliError, match="more than 64 folders deep"):
            pack(str(tmp_path / "deep"))
    long = write(tmp_path / "long", {"/".join("y" * 250 for _ in range(9)): "x"})
    with pytest.raises(CliError, match="a path of more than 2048 bytes"):
        pack(str(long))
    just = write(tmp_path / "just", {"d/" * 63 + "f": "x", "/".join("y" * 255 for _ in range(8)): "x"})
    assert len(names(sent(just, tmp_path))) == 2


@pytest.mark.parametrize(
    "name",
    ["../out", "/etc/x", "a/../../out", "a//b", "./a", "a/./b", "x" * 300, "/".join("d" * 100), "..", ".", "a/" * 1500],
)
def test_a_name_that_leads_elsewhere_is_refused_and_nothing_is_outside(tmp_path: Path, name: str) -> None:
    packed = zipped(tmp_path, lambda archive: archive.writestr(zipfile.ZipInfo(name), "x"))
    (tmp_path / "files").mkdir()
    with pytest.raises(BadContextError, match=r"not within its folder|too long"):
        unpack(packed, str(tmp_path / "files"))
    assert names(tmp_path) == {"made.zip"}


def link(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.create_system, info.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    return info


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()

    def add(archive: zipfile.ZipFile) -> None:
        archive.writestr(link("d"), str(out))
        archive.writestr("d/inside", "x")

    (tmp_path / "files").mkdir()
    with pytest.raises(BadContextError, match="two files of one name"):
        unpack(zipped(tmp_path, add), str(tmp_path / "files"))
    assert not list(out.iterdir())


def test_two_files_of_one_name_and_a_file_that_is_a_folder_are_refused(tmp_path: Path) -> None:
    for number, (first, second) in enumerate([("a", "a"), ("a", "a/b"), ("a/b", "a")]):
        folder = tmp_path / str(number)
        folder.mkdir()

        def add(archive: zipfile.ZipFile, first: str = first, second: str = second) -> None:
            archive.writestr(first, "1")
            archive.writestr(second, "2")

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of two files of one name
            packed = zipped(tmp_path, add)
        with pytest.raises(BadContextError, match="two files of one name"):
            unpack(packed, str(folder))


def test_a_bomb_is_refused_by_its_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts, "UNPACKED_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(contexts, "FILES_MAX", 100)

    def large(archive: zipfile.ZipFile) -> None:
        archive.writestr("zeros", b"\0" * (2 << 20), zipfile.ZIP_DEFLATED)

    def many(archive: zipfile.ZipFile) -> None:
        for number in range(101):
            archive.writestr(str(number), b"")

    def said_smaller(archive: zipfile.ZipFile) -> None:
        archive.writestr("zeros", b"\0" * (2 << 20), zipfile.ZIP_DEFLATED)
        archive.filelist[0].file_size = 10  # in the list at the end, which is what is believed first

    for add, why in ((large, "2097152 bytes"), (many, "more than 100 files"), (said_smaller, "ZIP file|larger than")):
        folder = tmp_path / add.__name__
        folder.mkdir()
        with pytest.raises(BadContextError, match=why):
            unpack(zipped(tmp_path, add), str(folder))
        assert sum(path.stat().st_size for path in folder.rglob("*")) <= 1 << 20


def test_a_list_of_files_that_is_too_large_or_of_another_format_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "made.zip"

    def refused(data: bytes, why: str) -> None:
        path.write_bytes(data)
        with pytest.raises(BadContextError, match=why):
            unpack(str(path), str(tmp_path))

    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("a", "1")
    plain = held.getvalue()
    end = len(plain) - 22
    refused(plain[: end + 10] + (65535).to_bytes(2, "little") + plain[end + 12 :], "more than 20000 files")
    refused(plain[: end + 12] + (1 << 30).to_bytes(4, "little") + plain[end + 16 :], "list of its files")
    refused(plain + b"a comment", "no ZIP file")
    refused(plain[:end] + b"PK\x06\x07" + bytes(16) + plain[end:], "ZIP64")
    refused(b"", "no ZIP file")
    refused(b"PK\x05\x06" + b"\xff" * 16 + b"\0\0", "more than 20000 files")


@given(st.data())
def test_a_damaged_file_is_unpacked_or_refused_and_never_anything_else(data: st.DataObject) -> None:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/b", "1" * 1000)
        archive.writestr(link("c"), "a")
    damaged = bytearray(held.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "made.zip")
        path.write_bytes(damaged)
        Path(folder, "files").mkdir()
        with suppress(BadContextError):
            unpack(str(path), f"{folder}/files")
        assert set(os.listdir(folder)) == {"made.zip", "files"}


def test_the_bounds_of_both_sides_fit_together() -> None:
    assert bounds.PIECES_MAX * bounds.PIECE_BYTES == bounds.PACKED_BYTES_MAX
