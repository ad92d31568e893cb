"""The outputs of runs in a real object store: uploaded while they run and at their end, whatever happens meanwhile."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from tests.support.doubles.bus import MemoryBus
from tests.support.object_store import BUCKET, KEY, ObjectStore, object_store
from tests.support.runs import order, until
from weft.messages.nodes import NOT_UPLOADED, EndReason, ReadSecrets, RunState, SecretsRead, StartRun
from weftd.executor.data.settings import DataSettings
from weftd.executor.data.uploads import STOPPING_SECONDS_MAX, Uploads
from weftd.executor.runs import Run, RunKey
from weftd.executor.thinking.core import Reconciler, ReconcilerTimings

MIB = 1 << 20
ASKED = structs.replace(order("job-1"), outputs={"/out": f"s3://{BUCKET}/out"}, object_store="minio")
KEY_OF_RUN = RunKey.of(ASKED)
LIVE = Run(key=KEY_OF_RUN, state=RunState.RUNNING)
ENDED = Run(key=KEY_OF_RUN, state=RunState.EXITED, reason=EndReason.EXIT, exit_code=0, ended_at=1000.0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    with object_store(tmp_path / "store") as store:
        yield store


class Node:
    """`secrets`: the secrets of jobs that have others than `secret`."""

    def __init__(self, home: Path, secret: str, *, transfers: int = 8, **secrets: str) -> None:
        self.home, self.secret, self.secrets, self.clock = home, secret, secrets, 0.0
        self.settings = DataSettings(data_transfers=transfers)

    async def begins(self) -> Uploads:
        """An executor begins, whatever became of the one before."""
        bus = MemoryBus()

        async def read(asked: ReadSecrets) -> SecretsRead:
            return SecretsRead(values={"WEFT_OBJECT_STORE": self.secrets.get(asked.job_id, self.secret)})

        await bus.answer(ReadSecrets, read)
        return Uploads(
            self.home,
            bus,
            self.settings,
            node_id="node-1",
            mode=0o700,
            clock=lambda: self.clock,
            now=lambda: 1000.0 + self.clock,
        )


def folder_of(started: StartRun) -> Path:
    return Path(started.written["/out"])


async def test_the_end_of_a_run_waits_until_its_outputs_are_in_the_store(store: ObjectStore, tmp_path: Path) -> None:
    uploads = await Node(tmp_path / "home", store.secret).begins()
    folder = folder_of(uploads.begin(ASKED))
    data = os.urandom(3 * MIB)
    (folder / "model.bin").write_bytes(data)
    (folder / "leads").symlink_to("/etc/passwd")
    assert uploads.waits(ENDED, False)
    uploads.look([ENDED])
    await until(lambda: not uploads.waits(ENDED, False))
    assert store.get("out/model.bin") == data
    assert not (store.root / BUCKET / "out" / "leads").exists()
    assert uploads.changed.is_set()
    assert uploads.given_up == {}
    uploads.keep([])
    assert not folder.exists()
    uploads.close()


async def test_a_run_that_goes_on_is_uploaded_now_and_then(store: ObjectStore, tmp_path: Path) -> None:
    node = Node(tmp_path / "home", store.secret)
    uploads = await node.begins()
    (folder_of(uploads.begin(ASKED)) / "checkpoint").write_bytes(b"7")
    uploads.look([LIVE])
    assert not uploads._tasks
    node.clock = 61.0
    uploads.look([LIVE])
    await until(lambda: (store.root / BUCKET / "out" / "checkpoint").exists() and not uploads._tasks)
    uploads.close()


async def test_a_run_cannot_have_files_of_its_node_uploaded(tmp_path: Path) -> None:
    """It puts a link in the place of a folder while that is uploaded."""
    outside = tmp_path / "outside"
    outside.mkdir()
    with object_store(tmp_path / "store", "--bwlimit", "1M") as store:
        node = Node(tmp_path / "home", store.secret, transfers=1)
        uploads = await node.begins()
        folder = folder_of(uploads.begin(ASKED))
        (folder / "a").mkdir()
        files = {str(number): os.urandom(MIB) for number in range(5)}
        for name, data in files.items():
            (folder / "a" / name).write_bytes(data)
            (outside / name).write_bytes(b"of the node")
        uploads.look([LIVE])
        node.clock = 61.0
        uploads.look([LIVE])
        there = store.root / BUCKET / "out" / "a"
        await until(lambda: there.is_dir() and any(there.iterdir()))
        (folder / "a").rename(tmp_path / "elsewhere")
        (folder / "a").symlink_to(outside)
        await until(lambda: not uploads._tasks)
        assert {name: store.get(f"out/a/{name}") for name in files} == files
        assert not (folder.parent / "linked").exists()
        uploads.close()


async def test_an_executor_that_is_killed_loses_no_byte_of_an_upload(tmp_path: Path) -> None:
    with object_store(tmp_path / "store", "--bwlimit", "2M") as store:
        node = Node(tmp_path / "home", store.secret)
        killed = await node.begins()
        folder = folder_of(killed.begin(ASKED))
        files = {str(number): os.urandom(MIB) for number in range(6)}
        for name, data in files.items():
            (folder / name).write_bytes(data)
        killed.look([ENDED])
        await until(lambda: any((store.root / BUCKET / "out").glob("*")) if (store.root / BUCKET).exists() else False)
        store.kill()
        killed.close()
        follows = await node.begins()
        assert follows.waits(ENDED, False)
        store.start()
        follows.look([ENDED])
        await until(lambda: not follows.waits(ENDED, False))
        assert {name: store.get(f"out/{name}") for name in files} == files
        assert follows.given_up == {}
        follows.close()
        third = await node.begins()
        assert not third.waits(ENDED, False), "it is known after a restart, too"


async def test_an_upload_that_cannot_succeed_is_given_up_and_fails_the_run(store: ObjectStore, tmp_path: Path) -> None:
    node = Node(tmp_path / "home", store.secret.replace(KEY, "wrong"))
    uploads = await node.begins()
    folder = folder_of(uploads.begin(ASKED))
    (folder / "model.bin").write_bytes(b"7")
    uploads.look([ENDED])
    await until(lambda: not uploads.waits(ENDED, False))
    core = Reconciler(ReconcilerTimings(fence_seconds=90.0, fence_grace_max=30.0))
    [seen] = core.report([ENDED], {}, uploading=uploads.waits, not_uploaded=uploads.given_up)
    assert (seen.state, seen.exit_code) == (RunState.EXITED, NOT_UPLOADED)
    assert seen.detail.startswith("object-store: its outputs are on node-1 and were not uploaded: s3://bucket/out: ")
    assert KEY not in seen.detail
    uploads.keep([])
    assert (folder / "model.bin").exists(), "for a person who wants them"
    uploads.close()


async def test_a_run_that_waits_for_its_upload_is_reported_as_running_and_one_that_stops_not_for_long(
    store: ObjectStore, tmp_path: Path
) -> None:
    node = Node(tmp_path / "home", store.secret)
    uploads = await node.begins()
    uploads.begin(ASKED)
    core = Reconciler(ReconcilerTimings(fence_seconds=90.0, fence_grace_max=30.0))
    [seen] = core.report([ENDED], {}, uploading=uploads.waits)
    assert (seen.state, seen.exit_code) == (RunState.RUNNING, None)
    assert uploads.waits(ENDED, True)
    node.clock = STOPPING_SECONDS_MAX + 1
    assert not uploads.waits(ENDED, True)
    uploads.close()


async def test_a_store_that_is_silent_delays_no_upload_of_another_tenant(store: ObjectStore, tmp_path: Path) -> None:
    with object_store(tmp_path / "silent") as silent:
        silent.pause()
        waiting = [structs.replace(ASKED, job_id=f"slow{n}", tenant="bob") for n in range(4)]
        slow = {asked.job_id: silent.secret for asked in waiting}
        uploads = await Node(tmp_path / "home", store.secret, **slow).begins()
        ended = [structs.replace(ENDED, key=RunKey.of(asked)) for asked in (*waiting, ASKED)]
        for asked in (*waiting, ASKED):
            (folder_of(uploads.begin(asked)) / "model.bin").write_bytes(b"7")
        uploads.look(ended)
        await until(lambda: not uploads.waits(ENDED, False))
        assert store.get("out/model.bin") == b"7"
        assert all(uploads.waits(one, False) for one in ended[:-1])
        uploads.close()
        silent.resume()


async def test_outputs_that_no_run_wrote_are_removed(store: ObjectStore, tmp_path: Path) -> None:
    uploads = await Node(tmp_path / "home", store.secret).begins()
    folder = folder_of(uploads.begin(ASKED))
    uploads.keep([])
    assert not folder.exists()
    uploads.close()
