"""Images from `weft image push` to a container, on a real engine and through a real registry."""

import io
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import docker
import docker.errors
import pytest
from msgspec import Struct

from tests.support.cluster import Cluster, embedded_cluster
from tests.support.engine import need_images
from tests.support.gateway import until
from tests.support.person import Person
from tests.support.registries import HASHED, PASSWORD, USER, RegistryServer
from weft.domain.job import JobState

BASE = "weft-job-busybox:local"
pytestmark = pytest.mark.docker


class Contained(Struct, frozen=True):
    cluster: Cluster
    registry: RegistryServer
    engine: docker.DockerClient

    async def tenant(self, name: str) -> Person:
        made = await self.cluster.client.make_token(name, label=uuid.uuid4().hex[:8])
        return Person(self.cluster, made.token)

    def forget(self, *names: str) -> None:
        """Remove from the engine what nodes pulled: images of this cluster's registry."""
        address = self.cluster.local.url.removeprefix("http://")
        for image in self.engine.images.list(all=True):
            for name in (*image.attrs["RepoTags"], *image.attrs["RepoDigests"]):
                if name.startswith(f"{address}/") or name in names:
                    with suppress(docker.errors.ImageNotFound):
                        self.engine.images.remove(name)


@pytest.fixture(scope="module")
async def contained(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Contained]:
    need_images(BASE)
    folder = tmp_path_factory.mktemp("images")
    registry, engine = RegistryServer(folder), docker.from_env()
    settings = {"EXECUTOR_RUNTIME": "docker", "GATEWAY_REGISTRY_URL": registry.url}
    try:
        async with embedded_cluster(folder / "home", nodes=1, gpus=0, settings=settings) as cluster:
            made = Contained(cluster, registry, engine)
            yield made
            made.forget()
    finally:
        registry.stop()
        engine.close()


@pytest.fixture
def name(contained: Contained) -> Iterator[str]:
    """An image of the engine that no registry has."""
    made = f"weft-pushed-{uuid.uuid4().hex[:8]}:1"
    contained.engine.images.get(BASE).tag(made)
    yield made
    with suppress(docker.errors.APIError):
        contained.engine.images.remove(made)


async def test_a_job_runs_an_image_that_its_tenant_pushed(contained: Contained, name: str) -> None:
    alice, bob = await contained.tenant("alice"), await contained.tenant("bob")
    pushed = await alice.types("image", "push", name)
    stored = f"weft.internal/alice/{name}"
    assert (pushed.status, stored in pushed.out) == (0, True), pushed.err
    contained.engine.images.remove(name)
    ran = await alice.types("run", "--image", stored, "-f", "--", "sh", "-c", "echo from what was pushed")
    assert (ran.status, ran.out) == (0, "from what was pushed\n"), ran.err
    listed = await alice.types("image", "list")
    assert stored in listed.out
    # The node has the image now: that lets no other tenant use it.
    assert (await bob.types("image", "list")).out == ""
    refused = await bob.types("run", "--image", stored, "--", "true")
    assert (refused.status, "of another tenant" in refused.err) == (1, True), refused.err
    address = contained.cluster.local.url.removeprefix("http://")
    refused = await bob.types("run", "--image", f"{address}/alice/{name}", "--", "true")
    assert (refused.status, "of another tenant" in refused.err) == (1, True), refused.err
    (kept,) = [one for one in contained.engine.images.list() if f"{address}/alice/" in str(one.attrs["RepoDigests"])]
    for guess in (kept.short_id, kept.id.removeprefix("sha256:")[:12], kept.id):
        guessed = await bob.types("run", "--image", guess, "-f", "--", "true")
        assert (guessed.status, "image-missing" in guessed.err) == (1, True), guessed.err
    gone = await alice.types("image", "delete", stored)
    assert (gone.status, stored in gone.out) == (0, True), gone.err
    assert (await alice.types("image", "delete", stored)).status == 1
    missing = await alice.types("run", "--image", stored, "--", "true")
    assert (missing.status, "the registry has no image" in missing.err) == (1, True)


async def test_a_job_keeps_its_image_when_the_tag_moves_and_waits_for_a_registry_that_is_away(
    contained: Contained, name: str
) -> None:
    cluster, alice = contained.cluster, await contained.tenant("alice")
    stored = f"weft.internal/alice/{name}"
    assert (await alice.types("image", "push", name)).status == 0
    first = await alice.runs(
        "--image", stored, "--", "sh", "-c", "until [ -e /weft/checkpoints/go ]; do sleep 0.1; done"
    )
    await cluster.state(first, JobState.RUNNING)
    old = (await cluster.client.job(first)).spec.image
    second = await alice.runs("--image", stored, "--after", first, "--", "sh", "-c", "echo $MADE")
    contained.engine.images.build(fileobj=io.BytesIO(f"FROM {BASE}\nENV MADE=new".encode()), tag=name)
    assert (await alice.types("image", "push", name)).status == 0
    third = await alice.runs("--image", stored, "--", "sh", "-c", "echo $MADE")
    images = [(await cluster.client.job(job)).spec.image for job in (second, third)]
    assert images[0] == old != images[1]
    assert (await cluster.ended(third)).state is JobState.SUCCEEDED
    assert (await alice.types("logs", third)).out == "new\n"
    contained.registry.stop()
    contained.forget()
    (cluster.local.home.checkpoints / first / "go").touch()
    await cluster.state(second, JobState.STARTING)
    log = cluster.local.home.log("executor-node-1")
    await until(lambda: "the registry of this cluster does not answer" in log.read_text(), seconds_max=60.0)
    for typed in (("image", "push", name), ("run", "--image", stored, "--", "true")):
        away = await alice.types(*typed)
        assert (away.status, "the registry of this cluster does not answer" in away.err) == (1, True), away.err
    contained.registry.start()
    assert (await cluster.ended(second)).state is JobState.SUCCEEDED
    assert (await alice.types("logs", second)).out == "\n"


@pytest.fixture
def private(contained: Contained, tmp_path: Path) -> Iterator[str]:
    """The name of an image in a registry with a password, which the engine here has not."""
    server = RegistryServer(tmp_path, hashed_password=HASHED)
    made = f"127.0.0.1:{server.port}/team/train"
    try:
        own = f"FROM {BASE}\nENV MADE={uuid.uuid4().hex}".encode()  # other tests pull the base without a login
        contained.engine.images.build(fileobj=io.BytesIO(own), tag=f"{made}:7")
        told = contained.engine.images.push(made, "7", auth_config={"username": USER, "password": PASSWORD})
        assert "errorDetail" not in told, told
        contained.engine.images.remove(f"{made}:7")
        yield f"{made}:7"
    finally:
        server.stop()
        contained.forget(f"{made}:7")


async def test_a_private_image_is_pulled_with_its_tenants_login_and_is_no_other_tenants(
    contained: Contained, private: str
) -> None:
    alice, bob = await contained.tenant("alice"), await contained.tenant("bob")
    host = private.partition("/")[0]
    arguments = ("run", "--retries", "0", "--image", private, "-f", "--", "echo", "from a private image")
    refused = await alice.types(*arguments)
    assert (refused.status, "image-missing" in refused.err) == (1, True), refused
    assert f"`weft image login {host}` stores a login" in refused.err
    wrong = await alice.types("image", "login", host, "--user", USER, stdin=b"wrong\n")
    assert wrong.status == 0, wrong.err
    refused = await alice.types(*arguments)
    assert (refused.status, "image-missing" in refused.err, "wrong" in refused.err) == (1, True, False), refused
    stored = await alice.types("image", "login", host, "--user", USER, stdin=f"{PASSWORD}\n".encode())
    assert (stored.status, PASSWORD in stored.out + stored.err) == (0, False), stored
    ran = await alice.types(*arguments)
    assert (ran.status, ran.out) == (0, "from a private image\n"), ran.err
    # The node has the image now: that lets no other tenant use it, by no name.
    digests = contained.engine.images.get(private).attrs["RepoDigests"]
    (digest,) = [one for one in digests if one.startswith(f"{host}/")]
    for image in (private, digest):
        refused = await bob.types("run", "--retries", "0", "--image", image, "-f", "--", "true")
        assert (refused.status, "image-missing" in refused.err) == (1, True), refused
    assert (await bob.types("image", "login", host, "--user", USER, stdin=PASSWORD.encode())).status == 0
    assert (await bob.types(*arguments)).status == 0
    gone = await alice.types("image", "logout", host)
    assert gone.status == 0, gone.err
    told = contained.cluster.local.home.log("executor-node-1").read_text()
    assert PASSWORD not in told
    assert PASSWORD not in contained.cluster.local.home.log("gateway").read_text()
