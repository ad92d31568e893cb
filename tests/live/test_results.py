"""The files of jobs that have ended, listed, fetched and deleted by Python and by `weft`, on a whole cluster."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import weft
from tests.support.cluster import Cluster, embedded_cluster
from tests.support.person import Person
from tests.support.proxy import Proxy
from weft.client import Client

SECONDS_MAX = 60.0
WRITES = """
mkdir -p "$WEFT_RESULTS/deep"
echo weights >"$WEFT_RESULTS/model.pt"
echo a line >"$WEFT_RESULTS/deep/log.txt"
ln -s model.pt "$WEFT_RESULTS/last"
ln -s /etc/passwd "$WEFT_RESULTS/out"
echo saved >"$WEFT_CHECKPOINT_DIR/step-1"
"""
LARGE_BYTES = 24 << 20


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with embedded_cluster(tmp_path_factory.mktemp("results"), nodes=2, gpus=2) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def known(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_URL", cluster.local.url)
    monkeypatch.setenv("WEFT_TOKEN", cluster.local.token)


async def ended(script: str, name: str, **fields: int) -> "weft.aio.Job":
    job = await weft.aio.run(["sh", "-c", script], name=name, cpus=0.1, **fields)  # type: ignore[arg-type]
    async with asyncio.timeout(SECONDS_MAX):
        await job.result()
    return job


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def digest(file: Path) -> bytes:
    return hashlib.sha256(file.read_bytes()).digest()


async def test_what_a_job_wrote_is_listed_fetched_and_deleted_after_its_end(tmp_path: Path) -> None:
    job = await ended(WRITES, "writes")
    assert [file.path for file in await job.files()] == [
        "checkpoints/step-1",
        "results/deep/log.txt",
        "results/last",
        "results/model.pt",
    ]
    assert await job.fetch("model.pt", tmp_path) == [tmp_path / "model.pt"]
    assert await job.fetch("checkpoints/step-1", tmp_path / "named") == [tmp_path / "named"]
    assert ((tmp_path / "model.pt").read_text(), (tmp_path / "named").read_text()) == ("weights\n", "saved\n")
    await job.fetch("results", tmp_path)
    assert (tmp_path / "results/deep/log.txt").read_text() == "a line\n"
    assert len(await job.fetch(target=tmp_path / "all")) == 4
    assert names(tmp_path / "all") == ["checkpoints", "results"]
    with pytest.raises(weft.Refused, match="results/out is an absolute link"):
        await job.fetch("results/out", tmp_path)
    with pytest.raises(weft.Refused, match=r"\.\./x has \.\. in it"):
        await job.files("../x")
    await job.delete_files("deep")
    await job.delete_files("checkpoints")
    assert [file.path for file in await job.files()] == ["results/last", "results/model.pt"]
    await job.delete_files()
    with pytest.raises(weft.Refused, match="has no files of writes: it wrote none, or they were deleted"):
        await job.files()


async def test_the_files_of_a_rank_are_those_of_its_node(cluster: Cluster) -> None:
    job = await ended('echo $WEFT_RANK >"$WEFT_RESULTS/of-$WEFT_RANK"', "ranks", replicas=2, gpus=2)
    assert [[file.path for file in await job.files(rank=rank)] for rank in (0, 1)] == [
        ["results/of-0"],
        ["results/of-1"],
    ]
    nodes = [(await anext(cluster.client.file_pages(job.id, rank=rank))).node for rank in (0, 1)]
    assert len(set(nodes)) == 2


async def test_files_of_a_running_job_are_read_and_not_deleted() -> None:
    job = await weft.aio.run(["sh", "-c", 'echo x >"$WEFT_RESULTS/x"; echo done; sleep 60'], name="runs", grace="1s")
    assert await anext(job.logs(follow=True)) == "done"
    assert [file.path for file in await job.files()] == ["results/x"]
    with pytest.raises(weft.Refused, match="runs is running: its files can be deleted once it has ended"):
        await job.delete_files()
    await job.cancel()
    await job.wait()


async def test_another_tenant_finds_none_of_them(cluster: Cluster) -> None:
    job = await ended(WRITES, "private")
    token = (await cluster.client.make_token("bob", "test")).token
    async with Client(cluster.local.url, token) as bob:
        for asking in (bob.files(job.id), bob.delete_files(job.id), bob.read_file(job.id, "model.pt")):
            with pytest.raises(weft.Refused, match="no job has the id"):
                await asking
    assert await cluster.client.read_file(job.id, "results/model.pt") == b"weights\n"


async def test_a_fetch_goes_on_where_its_connection_was_cut(cluster: Cluster, tmp_path: Path) -> None:
    job = await ended(f'head -c {LARGE_BYTES} /dev/urandom >"$WEFT_RESULTS/large"', "large")
    whole = hashlib.sha256(await cluster.client.read_file(job.id, "large")).digest()
    came = 0
    async with (
        Proxy(urlsplit(cluster.local.url).port or 0) as link,
        Client(f"http://127.0.0.1:{link.port}", cluster.local.token) as client,
    ):

        def took(count: int) -> None:
            nonlocal came
            before, came = came, came + count
            if before < LARGE_BYTES // 3 <= came:
                link.reset()

        assert await client.fetch_file(job.id, "large", tmp_path / "large", took=took) == LARGE_BYTES
        accepted = link.accepted
    assert digest(tmp_path / "large") == whole
    assert (accepted >= 2, came) == (True, LARGE_BYTES), "no byte came twice"
    assert names(tmp_path) == ["large"]


async def test_copies_of_one_file_at_once_are_each_whole_and_two_to_one_target_are_refused(
    cluster: Cluster, tmp_path: Path
) -> None:
    job = await ended(f'head -c {LARGE_BYTES} /dev/urandom >"$WEFT_RESULTS/large"', "at-once")
    targets = [tmp_path / str(number) for number in range(8)]
    await asyncio.gather(*(cluster.client.fetch_file(job.id, "large", target) for target in targets))
    assert len({digest(target) for target in targets}) == 1
    assert {target.stat().st_size for target in targets} == {LARGE_BYTES}
    same = [cluster.client.fetch_file(job.id, "large", tmp_path / "same") for _ in range(2)]
    outcomes = await asyncio.gather(*same, return_exceptions=True)
    assert any("another copy to it is under way" in str(outcome) for outcome in outcomes)


async def test_a_fetch_that_was_given_up_goes_on_in_the_next_call(cluster: Cluster, tmp_path: Path) -> None:
    job = await ended(f'head -c {LARGE_BYTES} /dev/urandom >"$WEFT_RESULTS/large"', "given-up")
    began = asyncio.Event()
    fetching = asyncio.create_task(
        cluster.client.fetch_file(job.id, "large", tmp_path / "large", took=lambda _: began.set())
    )
    await began.wait()
    fetching.cancel()
    await asyncio.gather(fetching, return_exceptions=True)
    (part,) = names(tmp_path)
    before, came = (tmp_path / part).stat().st_size, list[int]()
    assert await cluster.client.fetch_file(job.id, "large", tmp_path / "large", took=came.append) == LARGE_BYTES
    assert (0 < before < LARGE_BYTES, sum(came)) == (True, LARGE_BYTES - before)


async def test_the_command_line_lists_copies_and_deletes_them(cluster: Cluster, tmp_path: Path) -> None:
    job = await ended(WRITES, "typed")
    person = Person(cluster, cluster.local.token)
    listed = await person.types("files", "typed", "results")
    assert listed.status == 0
    assert [line.split()[-1] for line in listed.out.splitlines()[1:]] == [
        "results/deep/log.txt",
        "results/last",
        "results/model.pt",
    ]
    assert listed.err == "left out: 1 entries that are no readable files, such as links that lead elsewhere\n"
    copied = await person.types("cp", "typed:model.pt", str(tmp_path))
    assert (copied.status, copied.err, (tmp_path / "model.pt").read_text()) == (0, "", "weights\n")
    assert (await person.types("cp", f"{job.id}:results", str(tmp_path / "new"))).status == 0
    assert (tmp_path / "new/deep/log.txt").read_text() == "a line\n"
    missing = await person.types("cp", "typed:none", str(tmp_path))
    assert (missing.status, "has no none of typed" in missing.err) == (1, True)
    deleted = await person.types("files", "typed", "results", "--delete")
    assert (deleted.status, "are deleted on node-" in deleted.out) == (0, True)
    assert (await person.types("files", "typed")).out.split()[-1] == "checkpoints/step-1"
