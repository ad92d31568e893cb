"""What a node does to have the files of a run: asks piece by piece, checks the digest, removes what no run needs."""

import asyncio
import hashlib
import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from tests.support.doubles.bus import MemoryBus
from tests.support.runs import order, until
from weft.messages.contexts import PIECE_BYTES, ContextRead, ReadContext
from weftd.executor.files import contexts
from weftd.executor.files.contexts import BadContextError, Contexts
from weftd.executor.runs import RunKey, RuntimeUnavailableError


def zipped(**files: bytes) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return held.getvalue()


PACKED = zipped(a=b"1", big=bytes(range(256)) * 5000)
DIGEST = hashlib.sha256(PACKED).hexdigest()
NAMED = structs.replace(order("job-1"), context=DIGEST)
Read = Callable[[ReadContext], ContextRead]


def piece_of(packed: bytes) -> Read:
    def read(asked: ReadContext) -> ContextRead:
        at = asked.number * PIECE_BYTES
        return ContextRead(data=packed[at : at + PIECE_BYTES], size=len(packed))

    return read


class Node:
    """An executor's files, and what was asked for them."""

    def __init__(self, home: Path) -> None:
        self.home, self.bus, self.asked = home, MemoryBus(), list[ReadContext]()
        self.contexts = Contexts(home, self.bus, node_id="node-1")
        self.read = piece_of(PACKED)

    async def listens(self) -> "Node":
        async def answered(asked: ReadContext) -> ContextRead:
            self.asked.append(asked)
            return self.read(asked)

        await self.bus.answer(ReadContext, answered)
        return self

    @property
    def unpacked(self) -> list[str]:
        return sorted(path.name for path in (self.home / "contexts").glob("job-*"))


async def test_the_ranks_of_an_epoch_share_one_folder_and_another_epoch_has_its_own(tmp_path: Path) -> None:
    node = await Node(tmp_path).listens()
    ranks = [structs.replace(NAMED, rank=rank) for rank in range(3)]
    await asyncio.gather(*(node.contexts.bring(each) for each in ranks))
    assert [ask.number for ask in node.asked] == [0, 1, 2]
    assert {(ask.node_id, ask.job_id, ask.epoch) for ask in node.asked} == {("node-1", "job-1", 1)}
    assert (tmp_path / "contexts/job-1-1/big").read_bytes() == bytes(range(256)) * 5000
    (tmp_path / "contexts/job-1-1/a").write_text("changed")
    await node.contexts.bring(structs.replace(NAMED, epoch=2))
    assert (len(node.asked), (tmp_path / "contexts/job-1-2/a").read_text()) == (3, "1")
    node.contexts.keep([RunKey("job-1", 1, 2)])
    assert node.unpacked == ["job-1-1"]
    node.contexts.keep([])
    assert node.unpacked == []
    await until(lambda: not list((tmp_path / "contexts/discarded").iterdir()))
    node.contexts.close()


async def test_what_is_not_what_its_digest_says_is_not_unpacked_and_asked_for_again(tmp_path: Path) -> None:
    node = await Node(tmp_path).listens()
    for other in (zipped(a=b"2"), PACKED[:-1], PACKED + b"x", b""):
        node.read = piece_of(other)
        with pytest.raises(RuntimeUnavailableError, match="are not those of"):
            await node.contexts.bring(NAMED)
    node.read = lambda asked: ContextRead(data=bytes(PIECE_BYTES), size=1 << 60)
    node.asked.clear()
    with pytest.raises(RuntimeUnavailableError, match="are not those of"):
        await node.contexts.bring(NAMED)
    assert len(node.asked) == 128
    assert node.unpacked == []
    node.read = piece_of(PACKED)
    await node.contexts.bring(NAMED)
    assert node.unpacked == ["job-1-1"]


async def test_files_that_are_gone_end_the_start_and_files_that_are_not_given_now_do_not(tmp_path: Path) -> None:
    node = await Node(tmp_path).listens()
    node.read = lambda _: ContextRead(missing=True)
    with pytest.raises(BadContextError, match="not stored any more"):
        await node.contexts.bring(NAMED)
    node.read = lambda _: ContextRead(refused="not here")
    with pytest.raises(RuntimeUnavailableError, match="not here"):
        await node.contexts.bring(NAMED)


async def test_without_an_answer_the_start_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts, "ANSWER_SECONDS_MAX", 0.05)
    with pytest.raises(RuntimeUnavailableError, match="no gateway sends its files"):
        await Contexts(tmp_path, MemoryBus(), node_id="node-1").bring(NAMED)


async def test_half_unpacked_files_of_an_executor_that_was_killed_are_not_taken_for_whole(tmp_path: Path) -> None:
    left = tmp_path / "contexts/job-1-1.new"
    left.mkdir(parents=True)
    (left / "stale").write_text("x")
    node = await Node(tmp_path).listens()
    await node.contexts.bring(NAMED)
    assert sorted(path.name for path in (tmp_path / "contexts/job-1-1").iterdir()) == ["a", "big"]
