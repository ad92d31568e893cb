"""Images that an administrator pushes, from the command line to a container on a real engine that had none."""

import hashlib
import io
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import aiohttp
import docker
import docker.errors
import pytest

from tests.support.cluster import Cluster, embedded_cluster
from tests.support.engine import need_images
from tests.support.person import Person

BASE = "weft-job-busybox:local"


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    settings = {"GATEWAY_IMAGES_BYTES_MAX": "100000000"}
    async with embedded_cluster(tmp_path_factory.mktemp("images"), nodes=1, gpus=0, settings=settings) as cluster:
        yield cluster


@pytest.fixture
def name() -> Iterator[str]:
    """A name that no engine knows."""
    need_images(BASE)
    made = f"weft-pushed-{uuid.uuid4().hex[:8]}:1"
    yield made
    engine = docker.from_env()
    with suppress(docker.errors.APIError):
        engine.images.remove(made)
    engine.close()


@pytest.mark.docker
async def test_an_image_that_the_engine_does_not_have_comes_from_the_gateway_as_a_job_starts(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    engine = docker.from_env()
    engine.images.get(BASE).tag(name)
    settings = {"EXECUTOR_RUNTIME": "docker"}
    async with embedded_cluster(tmp_path_factory.mktemp("contained"), nodes=1, gpus=0, settings=settings) as cluster:
        person = Person(cluster, cluster.local.token)
        pushed = await person.types("image", "push", name)
        assert pushed.status == 0, pushed.err
        engine.images.remove(name)
        with pytest.raises(docker.errors.ImageNotFound):
            engine.images.get(name)
        ran = await person.types("run", "--image", name, "-f", "--", "sh", "-c", "echo from what was pushed")
        assert (ran.status, ran.out) == (0, "from what was pushed\n"), ran.err
        assert engine.images.get(name).tags
        listed = await person.types("image", "list")
        assert name in listed.out
        assert not list(cluster.local.home.root.rglob("pushed/*"))
        gone = await person.types("image", "delete", name)
        assert gone.status == 0
        assert (await person.types("image", "delete", name)).status == 1
    engine.close()


async def test_administrators_alone_push_and_what_lies_about_itself_is_refused(
    cluster: Cluster, tmp_path: Path
) -> None:
    archive = tmp_path / "image.tar"
    archive.write_bytes(b"x" * 1_300_000)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    made = await cluster.client.make_token("other", label="test", admin=False)
    other = Person(cluster, made.token)
    for typed in (("push", "a:1", "--from", str(archive)), ("list",), ("delete", "a:1")):
        refused = await other.types("image", *typed)
        assert (refused.status, "needs an administrator" in refused.err) == (1, True), refused.err
    admin = Person(cluster, cluster.local.token)
    kept = await admin.types("image", "push", "a", "--from", str(archive))
    assert kept.status == 0, kept.err
    assert [(one.name, one.digest) for one in (await cluster.client.images()).images] == [("a:latest", digest)]
    headers = {"Authorization": f"Bearer {cluster.local.token}"}
    url = f"{cluster.local.url}/v1/images"
    async with aiohttp.ClientSession(headers=headers) as http:
        for path, name, body, status in (
            (digest.upper(), "b:1", b"x", 400),
            ("0" * 64, "b:1", b"not of this digest", 400),
            ("0" * 64, "b:1", b"", 400),
            ("0" * 64, "b 1", b"x", 400),
            ("0" * 64, f"b@sha256:{digest}", b"x", 400),
        ):
            answered = await http.put(f"{url}/{path}", params={"name": name}, data=body)
            assert answered.status == status, (name, await answered.text())
        huge = await http.put(
            f"{url}/{'0' * 64}", params={"name": "b:1"}, data=io.BytesIO(b"x" * 100_000_001), expect100=True
        )
        assert huge.status == 413
        assert (await http.put(f"{url}/{digest}", data=b"x")).status == 400
    assert [one.name for one in (await cluster.client.images()).images] == ["a:latest"]
    missing = await admin.types("image", "push", "a:1", "--from", "/no/such.tar")
    assert (missing.status, "cannot read /no/such.tar" in missing.err) == (1, True)
    none = await admin.types("image", "push", "a:1", "--engine", "no-such-engine")
    assert (none.status, "cannot be run here" in none.err) == (1, True)
