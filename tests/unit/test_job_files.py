"""The files that a job left on its node: what of them can be listed, read and deleted, whatever the job made."""

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec import structs

from weft.messages.files import DeleteFiles, FilesListed, ListFiles, ReadFile
from weftd.executor.files import job_files
from weftd.executor.files.job_files import JobFiles
from weftd.executor.files.job_folders import JobFolders
from weftd.executor.service import FILES_AT_ONCE, FILES_THREADS, answers_about

ASK = ListFiles(node_id="node-1", job_id="j-1")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The results of j-1; beside them are those of j-2."""
    for path, text in {
        "results/j-1/model.pt": "weights",
        "results/j-1/deep/er/log.txt": "a line\n",
        "results/j-1/deep.txt": "",
        "results/j-2/secret": "of another tenant",
        "checkpoints/j-1/step-1": "saved",
    }.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "results/j-1"


@pytest.fixture
def kept(own: Path) -> Iterator[JobFiles]:
    folders = [JobFolders(str(own.parents[1] / area)) for area in ("results", "checkpoints", "metrics")]
    yield JobFiles(*folders)
    for each in folders:
        each.close()


def paths(listed: FilesListed) -> list[str]:
    assert not listed.refused
    return [file.path for file in listed.files]


def read(kept: JobFiles, path: str) -> bytes | str:
    found = kept.read(ReadFile(node_id="node-1", job_id="j-1", path=path))
    return "missing" if found.missing else found.refused or found.data


EVERY = ["checkpoints/step-1", "results/deep/er/log.txt", "results/deep.txt", "results/model.pt"]


def test_all_files_of_a_job_are_listed_in_order_and_in_pages(kept: JobFiles) -> None:
    assert paths(kept.list(ASK)) == EVERY
    assert [file.bytes for file in kept.list(ASK).files] == [5, 7, 0, 7]
    for limit in (1, 2, 3):
        found: list[str] = []
        after = ""
        while page := kept.list(structs.replace(ASK, limit=limit, after=after)):
            found += paths(page)
            if not (after := page.next):
                break
        assert found == EVERY


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("results", EVERY[1:]),
        ("checkpoints/", EVERY[:1]),
        ("deep", EVERY[1:2]),
        ("results/./deep//er", EVERY[1:2]),
        ("model.pt", EVERY[3:]),
    ],
)
def test_the_files_below_a_path_are_listed(kept: JobFiles, path: str, found: list[str]) -> None:
    assert paths(kept.list(structs.replace(ASK, path=path))) == found


def test_what_is_not_there_is_missing(kept: JobFiles) -> None:
    for path in ("nothing", "model.pt/x", "checkpoints/none"):
        assert kept.list(structs.replace(ASK, path=path)).missing
        assert read(kept, path) == "missing"
        assert kept.delete(DeleteFiles(node_id="node-1", job_id="j-1", path=path)).missing
    assert kept.list(structs.replace(ASK, job_id="j-3")).missing


@pytest.mark.parametrize(
    "path", ["../j-2/secret", "deep/../../j-2/secret", "/etc/passwd", "a/" * 70, "x\0y", "..", "\ud800"]
)
def test_a_path_out_of_the_jobs_folder_is_refused(kept: JobFiles, path: str) -> None:
    assert kept.list(structs.replace(ASK, path=path)).refused
    assert kept.read(ReadFile(node_id="node-1", job_id="j-1", path=path)).refused
    assert kept.delete(DeleteFiles(node_id="node-1", job_id="j-1", path=path)).refused


def test_links_are_followed_within_the_jobs_folder_alone(own: Path, kept: JobFiles) -> None:
    for name, target in {
        "last": "model.pt",
        "deep/up": "../model.pt",
        "out": "../j-2/secret",
        "sideways": "deep/../../j-2/secret",
        "root": str(own / "model.pt"),
        "ring": "ring",
        "folder-out": "../j-2",
        "gone": "nothing",
    }.items():
        (own / name).symlink_to(target)
    assert read(kept, "last") == read(kept, "deep/up") == b"weights"
    for name in ("out", "sideways", "root", "ring", "folder-out/secret"):
        assert "link" in str(read(kept, name)), name
    assert read(kept, "gone") == "missing"
    listed = kept.list(structs.replace(ASK, path="results"))
    assert set(paths(listed)) == {*EVERY[1:], "results/last", "results/deep/up"}
    assert listed.left_out == 6


def test_what_is_no_file_is_not_waited_for(own: Path, kept: JobFiles) -> None:
    os.mkfifo(own / "pipe")
    (own / os.fsdecode(b"no-text-\xff")).write_text("x")
    assert read(kept, "pipe") == "is no file"
    assert read(kept, "deep") == "is a folder"
    assert kept.list(ASK).left_out == 2


def test_a_folder_with_very_many_entries_is_cut(own: Path, kept: JobFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_files, "ENTRIES_MAX", 20)
    for number in range(40):
        (own / f"file-{number:02}").touch()
    listed = kept.list(structs.replace(ASK, path="results"))
    assert listed.cut
    assert len(listed.files) <= 20
    assert not kept.list(structs.replace(ASK, path="results/deep")).cut


def test_the_paths_of_one_answer_have_a_bound(own: Path, kept: JobFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_files, "LISTED_CHARACTERS_MAX", 30)
    first = kept.list(ASK)
    assert (paths(first), first.next) == (EVERY[:1], EVERY[0])


def test_a_part_of_a_file_is_read_and_its_mark_changes_with_it(own: Path, kept: JobFiles) -> None:
    ask = ReadFile(node_id="node-1", job_id="j-1", path="model.pt", offset=2, limit=3)
    first = kept.read(ask)
    assert (first.data, first.size) == (b"igh", 7)
    assert kept.read(structs.replace(ask, offset=9)).data == b""
    (own / "new").write_text("weights")
    os.replace(own / "new", own / "model.pt")
    assert kept.read(ask).mark != first.mark


def test_files_are_deleted_and_a_link_does_not_take_its_target_along(own: Path, kept: JobFiles) -> None:
    (own / "link").symlink_to("model.pt")
    (own / "link-out").symlink_to("../j-2")
    for path in ("link", "link-out", "deep"):
        assert not kept.delete(DeleteFiles(node_id="node-1", job_id="j-1", path=path)).missing
    assert paths(kept.list(ASK)) == [EVERY[0], EVERY[2], EVERY[3]]
    assert (own.parent / "j-2/secret").exists()
    assert kept.delete(DeleteFiles(node_id="node-1", job_id="j-1")) == kept.delete(
        DeleteFiles(node_id="node-1", job_id="j-2", path="results")
    )
    assert kept.list(ASK).missing


async def test_folders_without_end_take_no_thread_that_starts_and_stops_need(own: Path) -> None:
    release = threading.Event()

    class Slow(JobFiles):
        def list(self, ask: ListFiles) -> FilesListed:
            release.wait()
            return FilesListed()

    folders = JobFolders(str(own.parent))
    with ThreadPoolExecutor(FILES_THREADS) as threads:
        listing, *_ = answers_about(Slow(folders, folders, folders), threads, {})
        asked = [asyncio.ensure_future(listing.handler(ASK)) for _ in range(FILES_AT_ONCE)]
        try:
            async with asyncio.timeout(10):
                assert await asyncio.to_thread(threading.get_ident)
            assert not any(one.done() for one in asked)
        finally:
            release.set()
        await asyncio.gather(*asked)
