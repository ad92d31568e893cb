"""Files of a folder from the command line to the working folder of a run, on a whole cluster."""

import asyncio
import hashlib
import io
import os
from collections.abc import AsyncIterator
from itertools import islice
from pathlib import Path

import aiohttp
import pytest

from tests.support.cluster import Cluster, embedded_cluster
from tests.support.person import Person
from weft.domain.job import JobState
from weftd.cli.jobs.sync import pack
from weftd.gateway.gateway import UPLOADS_PER_TENANT_MAX

SUMS = "find . -type f | LC_ALL=C sort | xargs sha256sum"


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with embedded_cluster(tmp_path_factory.mktemp("sync"), nodes=2, gpus=2) as cluster:
        yield cluster


@pytest.fixture
def person(cluster: Cluster) -> Person:
    return Person(cluster, cluster.local.token)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "pkg").mkdir(parents=True)
    (folder / "main.sh").write_text(". pkg/lib.sh\nsay\n")
    (folder / "pkg/lib.sh").write_text("say() { echo said; }\n")
    (folder / "big").write_bytes(os.urandom(1_300_000))  # three pieces
    (folder / ".weftignore").write_text("secret\n")
    (folder / "secret").write_text("stays here")
    return folder


async def test_a_command_runs_in_the_files_that_went_along_and_leaves_nothing_on_its_node(
    cluster: Cluster, person: Person, source: Path
) -> None:
    first = await person.types("run", "--sync", str(source), "-f", "--", "sh", "-c", f"sh main.sh; {SUMS}; touch made")
    said, *sums = first.out.splitlines()
    assert (first.status, said) == (0, "said"), first.err
    local = await asyncio.create_subprocess_shell(f"rm secret; {SUMS}", cwd=source, stdout=asyncio.subprocess.PIPE)
    assert sums == (await local.communicate())[0].decode().splitlines()
    packed = pack(str(source))
    packed.file.close()
    kept = await cluster.client.context(packed.digest)
    assert (kept is not None and kept.bytes, packed.files) == (packed.bytes, 4)
    (source / "secret").write_text("another")
    again = await person.types("run", "--sync", str(source), "-f", "--", "ls")
    assert again.out.split() == ["big", "main.sh", "pkg"]
    assert again.status == 0
    async with asyncio.timeout(30):
        while folders(cluster):  # noqa: ASYNC110 - what is waited for is of another process
            await asyncio.sleep(0.1)


async def test_a_job_file_with_roles_of_two_nodes_gets_them_and_a_new_epoch_gets_them_as_they_were(
    cluster: Cluster, person: Person, source: Path, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(
        "name: gang\n"
        "command: [sh, -c, 'ls; test -e made && echo stale; touch made; sleep 0.3; [ $WEFT_EPOCH -gt 0 ]']\n"
        "roles: {worker: {gpus: 2, replicas: {want: 2}}}\nretries: {max: 1}\n"
    )
    ran = await person.types("submit", "--sync", str(source), str(tmp_path / "job.yaml"), "-f")
    assert ran.status == 0, ran.err
    assert "stale" not in ran.out


async def test_files_of_another_tenant_and_files_that_are_not_stored_are_refused(
    cluster: Cluster, person: Person, source: Path
) -> None:
    assert (await person.types("run", "--sync", str(source), "-f", "--", "true")).status == 0
    made = await cluster.client.make_token("other", label="test", admin=False)
    packed = pack(str(source))
    packed.file.close()
    job = {"name": "thief", "command": ["cat", "main.sh"], "context": packed.digest}
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {made.token}"}) as http:
        url = cluster.local.url
        refused = await http.post(f"{url}/v1/jobs", json=job)
        assert (refused.status, (await refused.json())["error"]["field"]) == (400, "context")
        looked = await http.get(f"{url}/v1/contexts/{packed.digest}")
        assert looked.status == 404
        for digest, body, status in (
            ("x", b"1", 400),
            ("0" * 64, b"not of this digest", 400),
            ("0" * 64, b"", 400),
            (packed.digest.upper(), b"1", 400),
        ):
            answer = await http.put(f"{url}/v1/contexts/{digest}", data=body)
            assert answer.status == status, digest
        huge = await http.put(f"{url}/v1/contexts/{'0' * 64}", data=io.BytesIO(b"x" * (65 << 20)), expect100=True)
        assert huge.status == 413
        assert (await http.get(f"{url}/v1/contexts/{'0' * 64}")).status == 404
    wrong = await person.types("run", "--sync", str(source), "--workdir", "/tmp", "--", "ls")
    assert (wrong.status, "--workdir: " in wrong.err) == (1, True)


async def test_files_that_are_no_zip_file_end_the_run_with_the_reason(cluster: Cluster, person: Person) -> None:
    body = b"PK is all that this has of a ZIP file"
    digest = hashlib.sha256(body).hexdigest()
    await cluster.client.set_context(digest, body)
    spec = f'{{"name": "bad", "command": ["ls"], "context": "{digest}", "retries": {{"max": 0}}}}'
    submitted = await cluster.client.submit(spec.encode(), key=None, content="json")
    failed = await cluster.ended(submitted.id)
    assert failed.state is JobState.FAILED
    assert "its files are no ZIP file" in (await person.types("explain", submitted.id)).out


def folders(cluster: Cluster) -> list[Path]:
    """What nodes have unpacked and not removed yet."""
    tops = cluster.local.home.root.rglob("contexts")
    return [path for top in tops for path in top.iterdir() if path.name not in ("packed", "discarded")]


async def test_uploads_that_never_end_keep_nobody_else_from_storing_files(
    cluster: Cluster, person: Person, tmp_path: Path
) -> None:
    made = await cluster.client.make_token("slow", label="test", admin=False)
    host, port = cluster.local.url.removeprefix("http://").split(":")
    lines = []
    for number in range(12):
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"PUT /v1/contexts/{number:064} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {made.token}\r\n"
        writer.write(f"{head}Content-Length: 1000000\r\n\r\nbegun".encode())
        lines.append((reader, writer))
    answers = [asyncio.create_task(reader.readline()) for reader, _ in lines]
    for first in islice(asyncio.as_completed(answers), 12 - UPLOADS_PER_TENANT_MAX):
        assert (await first).startswith(b"HTTP/1.1 503")
    (tmp_path / "a").write_text("a")
    ran = await person.types("run", "--sync", str(tmp_path), "-f", "--", "cat", "a")
    assert (ran.status, ran.out) == (0, "a")
    for _, writer in lines:
        writer.close()
