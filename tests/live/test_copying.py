"""`weft cp` with odd paths on a live job: each is one clear error, or does what it says, and nothing else."""

import os
import shutil
import stat
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import Struct

from tests.support.builders import spec
from tests.support.cluster import Cluster, embedded_cluster
from tests.support.person import Person
from tests.support.runs import until
from tests.support.tier import some
from weft.domain.job import JobState

LONG = "a" * 250
WIDE = "漢" * 84  # 252 bytes
DEEP = 1200


class Copied(Struct):
    """A job that runs, the folder in which it works, and one here."""

    person: Person
    there: Path
    here: Path

    async def copies(self, source: str, target: str) -> tuple[int, str]:
        """Runs `weft cp`. Returns its exit status and its stderr. A path with `@` first is in the local folder."""
        typed = [f"{self.here}/{word[1:]}" if word.startswith("@") else word for word in (source, target)]
        ended = await self.person.types("cp", *typed)
        return ended.status, ended.err.replace(f"{self.here}/", "@")


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with embedded_cluster(tmp_path_factory.mktemp("copying"), nodes=1, gpus=1) as made:
        yield made


@pytest.fixture(scope="module")
async def there(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a job named `open`, which is a process of this machine."""
    told = tmp_path_factory.mktemp("told") / "where"
    command = ["sh", "-c", f"pwd >{told}.part; mv {told}.part {told}; while :; do sleep 1; done"]
    made = await cluster.client.submit(spec("open", command=command))
    await cluster.state(made.id, JobState.RUNNING)
    await until(told.exists)
    return Path(told.read_text().strip())


@pytest.fixture
def copied(cluster: Cluster, there: Path, tmp_path: Path) -> Copied:
    """Files, folders, links and a pipe of the same names on both sides."""
    for entry in there.iterdir():
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    for root in (there, tmp_path):
        (root / "folder").mkdir()
        (root / "folder" / "inner").write_text("inner")
        (root / "empty").mkdir()
        (root / "to-file").symlink_to("file")
        (root / "to-folder").symlink_to("folder")
        (root / "to-nothing").symlink_to("nothing")
        os.mkfifo(root / "pipe")
        for name in ("file", "-dash", "-", "two\nlines", LONG, WIDE):
            (root / name).write_text("content")
    return Copied(Person(cluster, cluster.local.token), there, tmp_path)


DONE: list[tuple[str, str, str]] = [
    ("@file", "open:.", "file"),
    ("@file", "open:empty/..", "file"),
    ("@file", "open:empty/", "empty/file"),
    ("@file", "open:-new", "-new"),
    ("@file", "open:-n/../-", "-"),
    ("@file", "open:-", "-"),
    ("@file", "open:new\nlines", "new\nlines"),
    ("@file", f"open:b{LONG}", f"b{LONG}"),
    ("@file", f"open:{WIDE}", WIDE),
    ("@-dash", "open:empty", "empty/-dash"),
    ("@two\nlines", "open:empty", "empty/two\nlines"),
    (f"@{LONG}", "open:empty", f"empty/{LONG}"),
    (f"@{WIDE}", "open:empty", f"empty/{WIDE}"),
    ("@to-file", "open:empty", "empty/to-file"),
    ("@to-file", "open:to-nothing", "to-nothing"),
    ("open:file", "@empty", "@empty/file"),
    ("open:./-dash", "@empty", "@empty/-dash"),
    ("open:-dash", "@empty", "@empty/-dash"),
    ("open:-", "@empty", "@empty/-"),
    ("open:empty/../file", "@new", "@new"),
    ("open:two\nlines", "@empty", "@empty/two\nlines"),
    (f"open:{LONG}", "@empty", f"@empty/{LONG}"),
    (f"open:{WIDE}", "@empty", f"@empty/{WIDE}"),
    ("open:to-file", "@empty", "@empty/to-file"),
    ("open:file", "@to-nothing", "@to-nothing"),
]


@pytest.mark.parametrize(("source", "target", "made"), some(10, DONE), ids=range(len(DONE)))
async def test_a_file_of_an_odd_name_comes_whole_and_to_its_place(
    copied: Copied, source: str, target: str, made: str
) -> None:
    if "-n/" in target:
        (copied.there / "-n").mkdir()
    assert await copied.copies(source, target) == (0, "")
    where = copied.here / made[1:] if made[0] == "@" else copied.there / made
    assert (where.read_text(), where.is_symlink()) == ("content", False)
    assert parts_left(copied) == []


@pytest.mark.parametrize(
    ("source", "target", "made"),
    [
        ("@folder", "open:-new", "-new/inner"),
        ("@folder", "open:new\nlines", "new\nlines/inner"),
        ("@folder", "open:empty/..", "folder/inner"),
        ("@to-folder", "open:new", "new/inner"),
        ("@to-folder", "open:empty", "empty/to-folder/inner"),
        ("@empty/../folder/.", "open:empty", "empty/folder/inner"),
        ("open:to-folder", "@new", "@new/inner"),
        ("open:to-folder", "@new/", "@new/inner"),
        ("open:-folder", "@new", "@new/inner"),
    ],
)
async def test_a_folder_of_an_odd_name_comes_whole_and_to_its_place(
    copied: Copied, source: str, target: str, made: str
) -> None:
    if source == "open:-folder":
        (copied.there / "folder").rename(copied.there / "-folder")
    assert await copied.copies(source, target) == (0, "")
    where = copied.here / made[1:] if made[0] == "@" else copied.there / made
    assert where.read_text() == "inner"


REFUSED: list[tuple[str, str, int, str]] = [
    ("", "open:new", 2, "SOURCE: is empty"),
    ("open:file", "", 2, "TARGET: is empty"),
    ("@file", "open:", 2, "TARGET: expected JOB:PATH, not 'open:': the path is missing"),
    ("@file", "open:new/", 1, "new/: no such folder"),
    ("@file", "open:new/file", 1, "Directory nonexistent"),
    ("@file", "open:file/new", 1, "file/new: "),
    ("@file", "open:pipe", 1, "pipe: the target is no file"),
    ("@file", "open:folder/..//pipe", 1, "the target is no file"),
    ("@folder", "open:file", 1, "file: the target is no folder"),
    ("@file", "open:" + "a" * 300, 1, "File name too long"),
    ("@file", "open:" + "b/" * 40_000, 2, "… has more than 4096 bytes"),
    ("@" + "a" * 300, "open:new", 1, "File name too long"),
    ("@to-nothing", "open:new", 1, "@to-nothing: No such file or directory"),
    ("@pipe", "open:new", 1, "@pipe is no file and no folder"),
    ("/dev/zero", "open:new", 1, "/dev/zero is no file and no folder"),
    ("open:pipe", "@new", 1, "pipe: it is no file and no folder"),
    ("open:to-nothing", "@new", 1, "to-nothing: no such file or folder"),
    ("open:..", "@empty", 2, ".. has no name of its own: name the target whole"),
    ("open:file", "@pipe", 1, "@pipe is no file and no folder"),
    ("open:pipe", "@.", 1, "@pipe is no file and no folder"),
    ("open:file", "@new/file", 1, "there is no folder "),
    ("open:file", "@new/", 1, "@new: no such folder"),
    ("open:file", "@file/", 1, "@file: no such folder"),
    ("open:file", "@" + "a" * 300, 1, "File name too long"),
    ("open:folder", "@file", 1, "@file: File exists"),
    ("open:" + "a" * 5000, "@new", 2, "… has more than 4096 bytes"),
]


@pytest.mark.parametrize(("source", "target", "status", "said"), some(12, REFUSED), ids=range(len(REFUSED)))
async def test_what_cannot_be_copied_is_one_clear_error_and_changes_nothing(
    copied: Copied, source: str, target: str, status: int, said: str
) -> None:
    before = names_of(copied)
    ended, told = await copied.copies(source, target)
    line = told.rstrip("\n").rpartition("\n")[2]
    assert (ended, line.startswith("weft: "), said in line, len(line) < 700) == (status, True, True, True), told[-2000:]
    assert (told.count("\n") == 1 or status == 2, names_of(copied) == before) == (True, True), told[-2000:]


async def test_a_folder_that_is_nested_too_deeply_is_one_error(copied: Copied) -> None:
    nest(copied.here / "empty")
    told = await copied.copies("@empty", "open:new")
    remove(copied.here / "empty", copied.there / "new")
    assert told == (1, "weft: @empty: is nested too deeply\n")


async def test_a_command_that_is_too_long_for_a_session_is_one_error(copied: Copied) -> None:
    ended = await copied.person.types("exec", "open", "--", "true", "x" * 100_000)
    assert (ended.status, ended.err) == (1, "weft: the command has more than 65536 bytes\n")


def nest(folder: Path) -> None:
    """So many folders within each other."""
    fd = os.open(folder, os.O_RDONLY)
    for _ in range(DEEP):
        os.mkdir("e", dir_fd=fd)
        inner = os.open("e", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)


def remove(*folders: Path) -> None:
    """Those that are too deep for shutil."""
    subprocess.run(["rm", "-rf", *folders], check=True)


def names_of(copied: Copied) -> list[tuple[str, bool]]:
    """All that is on both sides, and which of it is a pipe."""
    found = [*copied.there.rglob("*"), *copied.here.rglob("*")]
    return sorted((str(path), stat.S_ISFIFO(path.lstat().st_mode)) for path in found)


def parts_left(copied: Copied) -> list[str]:
    return [name for name, _ in names_of(copied) if ".weft-" in name]
