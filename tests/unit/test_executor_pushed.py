"""Pushed images on a node: fetched only where the engine has none, checked, and loaded under their own name alone."""

import asyncio
import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.support.runs import order
from weft.bus.memory import MemoryBus
from weft.messages.contexts import PIECE_BYTES
from weft.messages.images import ImageRead, ReadImage, tagged
from weftd.executor.pushed import BadImageError, LoadsImages, PushedImages, check
from weftd.executor.runs import RuntimeUnavailableError
from weftd.executor.runtime.docker.runtime import DockerRuntime

IMAGE = "team/base:1"
NAMED = structs.replace(order("job-1"), image=IMAGE)
Read = Callable[[ReadImage], ImageRead]


def saved(*tags: str, index: tuple[str, ...] = (), **more: bytes) -> bytes:
    """An archive as an engine saves it, of an image with these tags."""
    files = {"manifest.json": json.dumps([{"Config": "c", "RepoTags": list(tags), "Layers": []}]).encode(), **more}
    if index:
        found = [{"digest": "d", "annotations": {"io.containerd.image.name": name}} for name in index]
        files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": found}).encode()
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return held.getvalue()


ARCHIVE = saved(IMAGE, layer=bytes(range(256)) * 5000)


def piece_of(archive: bytes, digest: str = "") -> Read:
    def read(asked: ReadImage) -> ImageRead:
        at = asked.number * PIECE_BYTES
        told = digest or hashlib.sha256(archive).hexdigest()
        return ImageRead(data=archive[at : at + PIECE_BYTES], size=len(archive), digest=told)

    return read


class Engine:
    """A runtime with images, as far as one is asked for them."""

    def __init__(self, *names: str, refuses: str = "") -> None:
        self.names, self.loaded, self.refuses = set(names), list[bytes](), refuses

    async def has_image(self, name: str) -> bool:
        return name in self.names

    async def load_image(self, name: str, archive: str) -> str:
        if not self.refuses:
            self.loaded.append(await asyncio.to_thread(Path(archive).read_bytes))
            self.names.add(name)
        return self.refuses


class Node:
    def __init__(self, home: Path, runtime: object) -> None:
        self.home, self.bus, self.asked = home, MemoryBus(), list[ReadImage]()
        self.images = PushedImages(home, self.bus, runtime, node_id="node-1")
        self.read = piece_of(ARCHIVE)

    async def listens(self) -> "Node":
        async def answered(asked: ReadImage) -> ImageRead:
            self.asked.append(asked)
            return self.read(asked)

        await self.bus.answer(ReadImage, answered)
        return self

    @property
    def left(self) -> list[Path]:
        return list((self.home / "pushed").glob("*"))


async def test_ranks_that_start_at_once_load_an_image_once_and_leave_no_archive(tmp_path: Path) -> None:
    engine = Engine()
    node = await Node(tmp_path, engine).listens()
    await asyncio.gather(*(node.images.bring(structs.replace(NAMED, rank=rank)) for rank in range(4)))
    assert engine.loaded == [ARCHIVE]
    assert [asked.number for asked in node.asked] == [0, 1, 2]
    assert node.left == []


async def test_an_image_that_the_engine_has_is_not_asked_for(tmp_path: Path) -> None:
    engine = Engine(IMAGE, "busybox:latest")
    node = await Node(tmp_path, engine).listens()
    for name in (IMAGE, "busybox", f"busybox@sha256:{'0' * 64}", None):
        await node.images.bring(structs.replace(NAMED, image=name))
    assert node.asked == []


async def test_where_nothing_was_pushed_or_nobody_answers_the_engine_fetches_it_as_ever(tmp_path: Path) -> None:
    engine = Engine()
    await Node(tmp_path, engine).images.bring(NAMED)
    node = await Node(tmp_path, engine).listens()
    node.read = lambda _: ImageRead(missing=True)
    await node.images.bring(NAMED)
    assert (len(node.asked), engine.loaded) == (1, [])


async def test_a_runtime_without_images_asks_for_none(tmp_path: Path) -> None:
    node = await Node(tmp_path, object()).listens()
    await node.images.bring(NAMED)
    assert node.asked == []
    assert issubclass(DockerRuntime, LoadsImages)


def changed(asked: ReadImage) -> ImageRead:
    found = piece_of(ARCHIVE)(asked)
    return structs.replace(found, digest="1" * 64) if asked.number else found


@pytest.mark.parametrize(
    ("read", "says"),
    [
        (piece_of(ARCHIVE, digest="0" * 64), "are not those of"),
        (lambda _: ImageRead(refused="no"), "not given: no"),
        (lambda _: ImageRead(data=b"x", size=1 << 60, digest="0" * 64), "would have"),
        (lambda _: ImageRead(data=b"", size=5, digest="0" * 64), "are not those of"),
        (lambda _: ImageRead(data=b"xxxxxx", size=5, digest=hashlib.sha256(b"xxxxxx").hexdigest()), "not those of"),
        (changed, "was replaced as it came"),
    ],
)
async def test_what_does_not_come_whole_is_tried_again_and_never_loaded(read: Read, says: str, tmp_path: Path) -> None:
    engine = Engine()
    node = await Node(tmp_path, engine).listens()
    node.read = read
    with pytest.raises(RuntimeUnavailableError, match=says):
        await node.images.bring(NAMED)
    assert (engine.loaded, node.left) == ([], [])
    node.read = piece_of(ARCHIVE)
    await node.images.bring(NAMED)
    assert engine.loaded == [ARCHIVE]


async def test_an_engine_that_does_not_take_it_fails_the_start_with_its_words(tmp_path: Path) -> None:
    node = await Node(tmp_path, Engine(refuses="no space")).listens()
    with pytest.raises(BadImageError, match="no space"):
        await node.images.bring(NAMED)
    assert node.left == []


async def test_an_archive_that_an_earlier_executor_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "pushed").mkdir()
    (tmp_path / "pushed" / "left.tar").write_bytes(b"x")
    assert Node(tmp_path, Engine()).left == []


@pytest.mark.parametrize(
    ("archive", "says"),
    [
        (b"no archive at all", "no archive of"),
        (b"", "no archive of"),
        (saved(IMAGE)[:700], "no archive of"),
        (saved(), "other names in it: none"),
        (saved("weft:local"), "weft:local"),
        (saved(IMAGE, "weft:local"), "weft:local"),
        (saved(IMAGE, index=("docker.io/library/weft:local",)), "weft:local"),
        (saved(IMAGE, index=(f"docker.io/{IMAGE}", "weft:local")), "weft:local"),
        (saved(IMAGE, **{"./manifest.json": b"[]"}), "twice"),
    ],
)
def test_an_archive_that_brings_anything_else_is_not_loaded(archive: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(archive)
    with pytest.raises(BadImageError, match=says):
        check(tmp_path / "a.tar", IMAGE)


def test_an_archive_of_the_image_is_taken_in_the_forms_that_engines_write(tmp_path: Path) -> None:
    forms: list[tuple[Any, str]] = [
        (saved(IMAGE), IMAGE),
        (saved(IMAGE, index=(f"docker.io/{IMAGE}",)), IMAGE),
        (saved("base:latest", index=("docker.io/library/base:latest",)), "base:latest"),
    ]
    for archive, image in forms:
        (tmp_path / "a.tar").write_bytes(archive)
        check(tmp_path / "a.tar", image)


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("base", "base:latest"),
        ("base:1", "base:1"),
        ("host:5000/team/base", "host:5000/team/base:latest"),
        ("host:5000/team/base:2", "host:5000/team/base:2"),
        ("base@sha256:0", "base@sha256:0"),
    ],
)
def test_a_name_without_a_tag_is_the_latest(name: str, whole: str) -> None:
    assert tagged(name) == whole
