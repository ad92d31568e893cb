"""Data that runs have from an object store, which is a real one: copied, kept, dropped; and a store that fails."""

import asyncio
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec import structs

from tests.support.doubles.bus import MemoryBus
from tests.support.object_store import BUCKET, KEY, KEY_ID, ObjectStore, object_store, overloaded
from tests.support.runs import order, until
from weft.messages.nodes import ReadSecrets, SecretsRead, StartRun
from weftd.executor.data.cache import DataCache
from weftd.executor.data.rclone import NoDataError
from weftd.executor.data.settings import DataSettings
from weftd.executor.runs import RuntimeUnavailableError

MIB = 1 << 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    with object_store(tmp_path / "store") as store:
        store.put("sets/a.bin", os.urandom(3 * MIB))
        store.put("sets/deep/b.txt", b"hello")
        yield store


def wants(*, url: str = f"s3://{BUCKET}/sets", rank: int = 0, tenant: str = "alice") -> StartRun:
    return structs.replace(order("job-1", rank=rank, tenant=tenant), mounts={"/data": url}, object_store="minio")


class Node:
    """The cache of a node. `now`: its clock."""

    def __init__(self, home: Path, secret: str, **settings: float) -> None:
        self.home, self.secret, self.now, self.wanted = home, secret, 0.0, True
        self._settings = DataSettings(**settings)  # type: ignore[arg-type]

    async def cache(self) -> DataCache:
        bus = MemoryBus()

        async def read(_: ReadSecrets) -> SecretsRead:
            return SecretsRead(values={"WEFT_OBJECT_STORE": self.secret} if self.secret else {})

        await bus.answer(ReadSecrets, read)
        return DataCache(self.home, bus, self._settings, node_id="node-1", clock=lambda: self.now)

    async def bring(self, asked: StartRun) -> Path:
        cache = await self.cache()
        try:
            brought = await cache.bring(asked, permitted=lambda: self.wanted)
        finally:
            cache.close()
        return Path(brought.mounted["/data"])

    def ends(self) -> None:
        """No run is left."""
        DataCache(self.home, MemoryBus(), self._settings, node_id="node-1", clock=lambda: self.now).keep([])

    @property
    def copies(self) -> int:
        return len(list((self.home / "data" / "copies").glob("*.json")))


async def test_objects_are_copied_once_and_lie_there_to_be_read_alone(store: ObjectStore, tmp_path: Path) -> None:
    node = Node(tmp_path / "home", store.secret)
    folder = await node.bring(wants())
    assert (folder / "a.bin").read_bytes() == store.get("sets/a.bin")
    assert (folder / "deep" / "b.txt").read_bytes() == b"hello"
    assert stat.S_IMODE((folder / "a.bin").stat().st_mode) == 0o444
    assert stat.S_IMODE((folder / "deep").stat().st_mode) == 0o555
    first = (folder / "a.bin").stat().st_ino
    assert await node.bring(wants(rank=1)) == folder
    assert (folder / "a.bin").stat().st_ino == first, "it was not copied again"
    kept = b"".join(path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file())
    assert KEY.encode() not in kept
    assert KEY_ID.encode() not in kept


async def test_one_object_and_another_tenant_have_copies_of_their_own(store: ObjectStore, tmp_path: Path) -> None:
    node = Node(tmp_path / "home", store.secret)
    alone = await node.bring(wants(url=f"s3://{BUCKET}/sets/a.bin"))
    assert [path.name for path in alone.iterdir()] == ["a.bin"]
    assert await node.bring(wants()) != await node.bring(wants(tenant="bob"))


async def test_an_object_that_changes_makes_another_copy_and_a_spoilt_copy_is_made_again(
    store: ObjectStore, tmp_path: Path
) -> None:
    node = Node(tmp_path / "home", store.secret)
    before = await node.bring(wants())
    store.put("sets/deep/b.txt", b"hello, world")
    after = await node.bring(wants())
    assert after != before
    assert (before / "deep" / "b.txt").read_bytes() == b"hello", "a run that began with it still has it"
    os.chmod(after / "a.bin", 0o600)
    os.truncate(after / "a.bin", 7)
    assert await node.bring(wants()) == after
    assert (after / "a.bin").read_bytes() == store.get("sets/a.bin")


async def test_the_cache_has_a_bound_and_never_drops_what_a_run_uses(store: ObjectStore, tmp_path: Path) -> None:
    store.put("more/c.bin", os.urandom(2 * MIB))
    node = Node(tmp_path / "home", store.secret, data_bytes_max=4 * MIB)
    first = await node.bring(wants())
    with pytest.raises(RuntimeUnavailableError, match="runs use too much of it"):
        await node.bring(wants(url=f"s3://{BUCKET}/more", rank=1))
    assert first.is_dir()
    node.ends()
    await node.bring(wants(url=f"s3://{BUCKET}/more", rank=1))
    assert not first.exists()
    assert node.copies == 1
    store.put("huge/d.bin", os.urandom(5 * MIB))
    with pytest.raises(NoDataError, match=f"s3://{BUCKET}/huge has 5MiB; the cache of this node has 4MiB"):
        await node.bring(wants(url=f"s3://{BUCKET}/huge"))


@pytest.mark.parametrize(
    ("url", "secret", "why"),
    [
        ("s3://nobody/sets", lambda text: text, "s3://nobody/sets: "),
        (f"s3://{BUCKET}/none", lambda text: text, "has no objects"),
        (f"s3://{BUCKET}/sets", lambda text: text.replace(KEY, "wrong"), "SignatureDoesNotMatch"),
        (f"s3://{BUCKET}/sets", lambda text: text.replace(KEY_ID, "nobody"), "InvalidAccessKeyId"),
        (f"s3://{BUCKET}/sets", lambda _: "", "no such secret: minio"),
    ],
)
async def test_what_cannot_be_had_is_said_in_a_sentence_without_keys(
    store: ObjectStore, tmp_path: Path, url: str, secret: Callable[[str], str], why: str
) -> None:
    with pytest.raises(Exception, match=why) as refused:
        await Node(tmp_path / "home", secret(store.secret)).bring(wants(url=url))
    assert not isinstance(refused.value, RuntimeUnavailableError)
    assert KEY not in str(refused.value)


async def test_a_store_that_is_away_is_tried_again_and_then_the_start_fails_as_one_of_the_store(
    store: ObjectStore, tmp_path: Path
) -> None:
    store.kill()
    node = Node(tmp_path / "home", store.secret)
    cache = await node.cache()
    with pytest.raises(RuntimeUnavailableError, match="s3://bucket/sets"):
        await cache.bring(wants(), permitted=lambda: True)
    node.now = 301.0
    with pytest.raises(NoDataError, match=r"^object-store: s3://bucket/sets: .*, for 300 s$"):
        await cache.bring(wants(), permitted=lambda: True)
    store.start()
    assert (await node.bring(wants()) / "deep" / "b.txt").read_bytes() == b"hello"


async def test_a_store_that_answers_503_half_the_time_is_read_all_the_same(store: ObjectStore, tmp_path: Path) -> None:
    async with overloaded(store) as secret:
        node = Node(tmp_path / "home", secret)
        for _ in range(20):
            try:
                folder = await node.bring(wants())
            except RuntimeUnavailableError:
                continue  # as its executor tries the start again
            break
        else:
            raise AssertionError("20 tries")
    assert (folder / "a.bin").read_bytes() == store.get("sets/a.bin")
    assert (folder / "deep" / "b.txt").read_bytes() == b"hello"


async def test_a_copy_that_nobody_wants_any_more_ends(tmp_path: Path) -> None:
    with object_store(tmp_path / "store", "--bwlimit", "256K") as store:
        store.put("sets/a.bin", os.urandom(64 * MIB))
        node = Node(tmp_path / "home", store.secret)
        bringing = asyncio.create_task(node.bring(wants()))
        await until(lambda: list((tmp_path / "home" / "data" / "coming").glob("*.lock")))
        node.wanted = False
        with pytest.raises(RuntimeUnavailableError, match="no run needs it"):
            await bringing
        assert node.copies == 0


async def test_a_store_that_hangs_ends_a_copy_within_its_bound(tmp_path: Path) -> None:
    with object_store(tmp_path / "store", "--bwlimit", "256K") as store:
        store.put("sets/a.bin", os.urandom(64 * MIB))
        node = Node(tmp_path / "home", store.secret, data_silent_seconds=2.0)
        bringing = asyncio.create_task(node.bring(wants()))
        await until(lambda: list((tmp_path / "home" / "data" / "coming").glob("*.lock")))
        store.pause()
        try:
            with pytest.raises(RuntimeUnavailableError, match="no byte came for 2 s"):
                await bringing
        finally:
            store.resume()


async def test_a_copy_that_one_start_gave_up_is_made_once_by_those_that_wait_for_it(tmp_path: Path) -> None:
    with object_store(tmp_path / "store", "--bwlimit", "2M") as store:
        store.put("sets/a.bin", os.urandom(6 * MIB))
        node = Node(tmp_path / "home", store.secret)
        cache = await node.cache()
        first = asyncio.create_task(cache.bring(wants(), permitted=lambda: node.wanted))
        await until(lambda: bool(cache._reserved))
        second = asyncio.create_task(cache.bring(wants(rank=1), permitted=lambda: True))
        await until(lambda: any(lock._waiters for lock in cache._locks.values()))
        node.wanted = False
        with pytest.raises(RuntimeUnavailableError, match="no run needs it any more"):
            await first
        await until(lambda: bool(cache._reserved))
        third = asyncio.create_task(cache.bring(wants(rank=2), permitted=lambda: True))
        brought = [one.mounted["/data"] for one in await asyncio.gather(second, third)]
        assert brought[0] == brought[1]
        assert (Path(brought[0]) / "a.bin").read_bytes() == store.get("sets/a.bin")
        cache.close()
