"""Images of the registry on a node: each start asks for the right to its image, and the engine pulls it with that."""

import asyncio

import pytest
from msgspec import structs

from tests.support.doubles.bus import MemoryBus
from tests.support.runs import order
from weft.messages.images import ImageRead, ReadImage
from weft.messages.nodes import StartRun
from weftd.executor.registry import AWAY_SECONDS_MAX, NoImageError, PullsImages, RegistryImages
from weftd.executor.runs import RuntimeUnavailableError
from weftd.executor.runtime.docker.runtime import DockerRuntime

IMAGE = f"weft.internal/alice/train:7@sha256:{'0' * 64}"
REFERENCE = f"gateway:8470/alice/train@sha256:{'0' * 64}"
NAMED = structs.replace(order("job-1"), image=IMAGE)
GIVEN = ImageRead(reference=REFERENCE, user="weft-run", password="ticket")


class Engine:
    """A runtime with images, as far as one is asked for them."""

    def __init__(self, *names: str, refuses: str = "") -> None:
        self.names, self.refuses = set(names), refuses
        self.pulled: list[tuple[str, str, str]] = []
        self.private: dict[str, set[str]] = {}  # the tenants whose login pulled an image

    async def has_image(self, name: str) -> bool:
        return name in self.names

    async def may_use_image(self, name: str, *, tenant: str) -> bool:
        return name in self.names and tenant in self.private.get(name, {tenant})

    async def pull_image(self, name: str, *, user: str, password: str, tenant: str = "") -> str:
        await asyncio.sleep(0)
        self.pulled.append((name, user, password))
        if not self.refuses:
            self.names.add(name)
            if tenant:
                self.private.setdefault(name, set()).add(tenant)
            else:
                self.private.pop(name, None)
        return self.refuses


class Gateway:
    def __init__(self, runtime: object, read: ImageRead = GIVEN) -> None:
        self.bus, self.read, self.asked = MemoryBus(), read, list[ReadImage]()
        self.now = 0.0
        self.images = RegistryImages(self.bus, runtime, node_id="node-1", clock=lambda: self.now)

    async def brings(self, wanted: StartRun = NAMED) -> StartRun:
        async def answered(asked: ReadImage) -> ImageRead:
            self.asked.append(asked)
            return self.read

        if not self.asked:
            await self.bus.answer(ReadImage, answered)
        return await self.images.bring(wanted)


def test_the_docker_runtime_pulls_images() -> None:
    assert issubclass(DockerRuntime, PullsImages)


async def test_an_image_is_pulled_once_and_the_right_to_it_is_asked_for_at_each_start() -> None:
    engine = Engine()
    gateway = Gateway(engine)
    assert (await gateway.brings()).image == REFERENCE
    assert (await gateway.brings()).image == REFERENCE
    assert engine.pulled == [(REFERENCE, "weft-run", "ticket")]
    asked = gateway.asked[0]
    assert (asked.job_id, asked.epoch, asked.rank, asked.image) == (NAMED.job_id, NAMED.epoch, NAMED.rank, IMAGE)
    assert len(gateway.asked) == 2


async def test_two_starts_at_once_pull_once() -> None:
    gateway = Gateway(engine := Engine())
    await asyncio.gather(gateway.brings(), gateway.images.bring(NAMED))
    assert len(engine.pulled) == 1


@pytest.mark.parametrize("image", [None, "busybox:1", "weft.internal.example.org/alice/train:7"])
async def test_other_images_that_are_here_are_left_to_the_engine(image: str | None) -> None:
    gateway = Gateway(Engine(image or ""))
    wanted = structs.replace(NAMED, image=image)
    assert await gateway.brings(wanted) is wanted
    assert not gateway.asked


PRIVATE = structs.replace(NAMED, image="ghcr.io/team/train:7")
LOGIN = ImageRead(reference="ghcr.io/team/train:7", user="me", password="secret")


async def test_an_image_of_another_registry_is_pulled_with_its_tenants_login() -> None:
    gateway = Gateway(engine := Engine(), LOGIN)
    assert await gateway.brings(PRIVATE) is PRIVATE
    assert await gateway.brings(PRIVATE) is PRIVATE
    assert engine.pulled == [("ghcr.io/team/train:7", "me", "secret")]
    assert len(gateway.asked) == 1


@pytest.mark.parametrize(
    "answer", [ImageRead(reference="ghcr.io/team/train:7"), ImageRead(missing="a gateway of the last release")]
)
async def test_an_image_without_a_login_is_left_to_the_start_of_the_run(answer: ImageRead) -> None:
    gateway = Gateway(engine := Engine(), answer)
    assert await gateway.brings(PRIVATE) is PRIVATE
    assert engine.pulled == []
    alone = Gateway(engine)  # no gateway answers
    assert await alone.images.bring(PRIVATE) is PRIVATE


async def test_another_tenant_needs_a_right_of_its_own_to_an_image_that_a_login_pulled() -> None:
    gateway = Gateway(engine := Engine(), LOGIN)
    await gateway.brings(PRIVATE)
    bobs = structs.replace(PRIVATE, tenant="bob")
    gateway.read, engine.refuses = ImageRead(reference="ghcr.io/team/train:7"), "unauthorized"
    with pytest.raises(NoImageError, match=r"image-missing: ghcr\.io/team/train:7: unauthorized"):
        await gateway.brings(bobs)
    with pytest.raises(RuntimeUnavailableError, match="no gateway gives the login for its image"):
        await Gateway(engine).images.bring(bobs)
    gateway.read, engine.refuses = LOGIN, ""
    assert await gateway.brings(bobs) is bobs
    assert engine.private == {"ghcr.io/team/train:7": {"alice", "bob"}}


async def test_a_secret_that_is_no_login_is_named() -> None:
    gateway = Gateway(Engine(), ImageRead(bad_login="the secret registry-ghcr-io is no login at ghcr.io"))
    with pytest.raises(NoImageError, match=r"the secret registry-ghcr-io is no login at ghcr\.io"):
        await gateway.brings(PRIVATE)


async def test_a_runtime_without_images_asks_for_none() -> None:
    gateway = Gateway(object())
    assert await gateway.brings() is NAMED
    assert not gateway.asked


async def test_the_reason_is_given_and_an_image_that_is_here_is_not_used_without_the_right_to_it() -> None:
    gateway = Gateway(Engine(REFERENCE), ImageRead(missing="the registry has no image"))
    with pytest.raises(NoImageError, match=r"image-missing: weft.internal/alice/train:7@.*: the registry has no image"):
        await gateway.brings()
    gateway = Gateway(Engine(refuses="received unexpected HTTP status"))
    with pytest.raises(NoImageError, match=r"image-missing: .*received unexpected HTTP status"):
        await gateway.brings()
    gateway = Gateway(Engine(REFERENCE), ImageRead(refused="no such rank"))
    with pytest.raises(RuntimeUnavailableError, match="no such rank"):
        await gateway.brings()
    with pytest.raises(RuntimeUnavailableError, match="no gateway gives its image"):
        await Gateway(Engine(REFERENCE)).images.bring(NAMED)


async def test_a_start_waits_for_a_registry_that_is_away_but_not_for_ever() -> None:
    gateway = Gateway(engine := Engine(), ImageRead(away="the registry does not answer"))
    for _ in range(3):
        with pytest.raises(RuntimeUnavailableError, match="its image is refused now: the registry does not answer"):
            await gateway.brings()
        gateway.now += AWAY_SECONDS_MAX / 3
    with pytest.raises(NoImageError, match=r"image-missing: .*the registry does not answer"):
        await gateway.brings()
    with pytest.raises(RuntimeUnavailableError):  # the next try of the job waits again
        await gateway.brings()
    gateway.now, gateway.read = gateway.now + AWAY_SECONDS_MAX * 2, GIVEN
    assert (await gateway.brings()).image == REFERENCE

    gateway.read, engine.names, engine.refuses = GIVEN, set(), "unexpected HTTP status"

    async def fails(name: str, *, user: str, password: str, tenant: str = "") -> str:
        gateway.read = ImageRead(away="the registry does not answer")
        return "unexpected HTTP status"

    engine.pull_image = fails  # type: ignore[method-assign]
    with pytest.raises(RuntimeUnavailableError, match="the registry does not answer"):
        await gateway.brings()
