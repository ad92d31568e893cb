"""The registry behind a gateway: what a tenant, a node and an enemy may do with its API, and how much."""

import asyncio
import base64
import hashlib
import io
import json
import os
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec import Struct, structs
from yarl import URL

from tests.support.builders import node
from tests.support.gateway import Place, until
from tests.support.gateway_world import SETTINGS, World, opened
from tests.support.registries import RegistryServer
from tests.support.steps import placement
from weft.client.errors import Refused
from weft.messages.images import ImageRead, ReadImage

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
BYTES_MAX = 4 << 20
ADDRESS = "weft.example.org:8470"


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def manifest(*layers: bytes, **fields: Any) -> bytes:
    def part(media: str, data: bytes) -> dict[str, object]:
        return {"mediaType": media, "size": len(data), "digest": digest_of(data)}

    config, *rest = layers
    made = {"schemaVersion": 2, "mediaType": MANIFEST, "config": part(CONFIG, config)}
    return json.dumps({**made, "layers": [part(LAYER, each) for each in rest], **fields}).encode()


class Answered(Struct, frozen=True):
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def why(self) -> str:
        return str(json.loads(self.body)["errors"][0]["message"])


class Pusher(Struct, frozen=True):
    """A client of registries, as one tenant or with one ticket."""

    world: World
    auth: str

    async def ask(self, method: str, path: str, *, headers: dict[str, str] | None = None, body: Any = None) -> Answered:
        url = URL(f"{self.world.gateway.url}{path}", encoded=True)
        body = io.BytesIO(body) if isinstance(body, bytes) else body
        given = {"Authorization": self.auth, **(headers or {})}
        async with self.world.http.request(method, url, headers=given, data=body, allow_redirects=False) as found:
            return Answered(found.status, await found.read(), dict(found.headers))

    async def begin(self, repository: str, query: str = "") -> Answered:
        return await self.ask("POST", f"/v2/{repository}/blobs/uploads/{query}")

    async def blob(self, repository: str, data: bytes) -> Answered:
        begun = await self.begin(repository)
        if begun.status != 202:
            return begun
        sent = await self.ask("PATCH", begun.headers["Location"], body=data)
        if sent.status != 202:
            return sent
        where = f"{sent.headers['Location']}&digest={digest_of(data)}"
        return await self.ask("PUT", where)

    async def name(self, repository: str, reference: str, body: bytes, media: str = MANIFEST) -> Answered:
        path = f"/v2/{repository}/manifests/{reference}"
        return await self.ask("PUT", path, body=body, headers={"Content-Type": media})

    async def image(self, repository: str, tag: str, *layers: bytes) -> str:
        """Push an image; its digest."""
        for each in layers:
            if (await self.ask("HEAD", f"/v2/{repository}/blobs/{digest_of(each)}")).status == 404:
                assert (await self.blob(repository, each)).status == 201
        body = manifest(*layers)
        put = await self.name(repository, tag, body)
        assert (put.status, put.headers.get("Docker-Content-Digest")) == (201, digest_of(body)), put.body
        return digest_of(body)


def basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


@pytest.fixture
async def world(servers: Place, tmp_path: Path) -> AsyncIterator[tuple[World, RegistryServer]]:
    registry = RegistryServer(tmp_path)
    settings = structs.replace(
        SETTINGS, registry_url=registry.url, registry_address=ADDRESS, tenant_images_bytes_max=BYTES_MAX
    )
    try:
        async with opened(servers, settings) as world:
            await with_containers(world)
            yield world, registry
    finally:
        registry.stop()


async def with_containers(world: World) -> None:
    for node_id in ("node-1", "node-2"):
        runs = structs.replace(node(node_id), runtime="docker", seen_at=time.time())
        await world.place.stores.scheduler.save_node(world.lease, runs, event="joined", cause="it reported")


def tenant(world: World, name: str) -> Pusher:
    return Pusher(world, basic("whoever", world.tokens[name]))


async def test_a_client_of_registries_logs_in_pushes_pulls_and_deletes(world: tuple[World, RegistryServer]) -> None:
    w, _ = world
    alice, one = tenant(w, "alice"), secrets.token_bytes(300_000)
    nobody = await Pusher(w, "Basic !").ask("GET", "/v2/")
    assert (nobody.status, nobody.headers["WWW-Authenticate"].split(" ")[0]) == (401, "Basic")
    assert nobody.headers["Docker-Distribution-Api-Version"] == "registry/2.0"
    assert (await alice.ask("GET", "/v2/")).status == 200
    assert (await alice.ask("GET", "/v1/jobs")).status == 401  # a browser would send a password along with any form
    digest = await alice.image("alice/team/train", "7", b"{}", one)
    for reference in ("7", digest):
        got = await alice.ask("GET", f"/v2/alice/team/train/manifests/{reference}")
        assert (got.status, digest_of(got.body)) == (200, digest)
    layer = f"/v2/alice/team/train/blobs/{digest_of(one)}"
    assert (await alice.ask("GET", layer)).body == one
    part = await alice.ask("GET", layer, headers={"Range": "bytes=100-199"})
    assert (part.status, part.body) == (206, one[100:200])
    many = await alice.ask("GET", layer, headers={"Range": "bytes=0-9,20-29"})
    assert (many.status, many.body) == (200, one)  # several ranges are not passed on
    tags = await alice.ask("GET", "/v2/alice/team/train/tags/list")
    assert json.loads(tags.body)["tags"] == ["7"]
    found = await w.alice.images()
    (image,) = found.images
    assert (image.name, image.digest, image.tags) == ("weft.internal/alice/team/train", digest, ("7",))
    assert (found.prefix, found.bytes, found.bytes_max) == ("weft.internal/alice/", image.bytes, BYTES_MAX)
    assert image.bytes == len(one) + 2 + len(manifest(b"{}", one))
    assert (await alice.ask("DELETE", "/v2/alice/team/train/manifests/7")).status == 405
    assert (await alice.ask("DELETE", f"/v2/alice/team/train/manifests/{digest}")).status == 202
    assert (await w.alice.images()).images == ()


async def test_a_tenant_reaches_no_image_of_another_one_by_any_name(world: tuple[World, RegistryServer]) -> None:
    w, _ = world
    alice, bob, secret = tenant(w, "alice"), tenant(w, "bob"), secrets.token_bytes(1000)
    digest = await alice.image("alice/train", "7", b"{}", secret)
    await bob.image("bob/own", "1", b"{}", b"own")
    blob = digest_of(secret)
    for path in (
        "/v2/alice/train/manifests/7",
        f"/v2/alice/train/manifests/{digest}",
        f"/v2/alice/train/blobs/{blob}",
        "/v2/alice/train/tags/list",
    ):
        assert (await bob.ask("GET", path)).status == 403, path
        assert (await bob.ask("HEAD", path)).status in (403, 405), path
    for path in (
        f"/v2/bob/own/manifests/{digest}",
        f"/v2/bob/own/blobs/{blob}",
        f"/v2/bob/../alice/train/blobs/{blob}",
        f"/v2/bob/own/../../alice/train/blobs/{blob}",
        f"/v2/bob%2f..%2falice/train/blobs/{blob}",
        f"/v2/bob/%2e%2e/alice/train/blobs/{blob}",
        f"/v2/bob//alice/train/blobs/{blob}",
        f"/%76%32/alice/train/blobs/{blob}",
        f"/v2/./alice/train/blobs/{blob}",
        f"/v2/bob/own/blobs/{blob}/../../../../alice/train/blobs/{blob}",
        "/v2/_catalog",
        "/v2/_catalog?n=10",
        "/v2/bob/own/_catalog",
        "/v2/bob/blobs/manifests/7",
        "/v2/bob/own/referrers/x",
        "/debug/vars",
        "/metrics",
    ):
        found = await bob.ask("GET", path)
        assert found.status in (400, 403, 404), (path, found)
        assert secret not in found.body
    # A mount from another's repository gives an ordinary upload, and no layer.
    for query in (
        f"?mount={blob}&from=alice/train",
        f"?from=alice/train&mount={blob}",
        f"?mount={blob}",
        f"?digest={blob}",
        f"?mount={blob}&from=bob/own&from=alice/train",
        f"?mount={blob}&from=alice%2ftrain",
    ):
        assert (await bob.begin("bob/own", query)).status in (202, 400), query
        assert (await bob.ask("HEAD", f"/v2/bob/own/blobs/{blob}")).status == 404, query
    lent = await bob.name("bob/own", "2", manifest(b"{}", secret))
    assert (lent.status, "is not in the repository" in lent.why) == (400, True)
    # Nor does it write there.
    assert (await bob.begin("alice/train")).status == 403
    assert (await bob.name("alice/train", "7", manifest(b"{}"))).status == 403
    assert (await bob.ask("DELETE", f"/v2/alice/train/manifests/{digest}")).status == 403
    begun = await alice.begin("alice/train")
    stolen = begun.headers["Location"].replace("/v2/alice/train/", "/v2/bob/own/")
    assert (await bob.ask("PATCH", stolen, body=b"x")).status == 404
    assert (await bob.ask("PATCH", begun.headers["Location"], body=b"x")).status == 403
    # Its own layers move between its repositories, and those of the administrator to all.
    mounted = await alice.begin("alice/other", f"?mount={blob}&from=alice/train")
    assert mounted.status == 201
    admin = tenant(w, "admin")
    shared = await admin.image("admin/base", "1", b"{}", b"shared")
    assert (await bob.ask("GET", f"/v2/admin/base/manifests/{shared}")).status == 200
    assert (await bob.begin("admin/base")).status == 403
    assert (await admin.ask("GET", f"/v2/alice/train/manifests/{digest}")).status == 403


async def test_a_manifest_that_says_more_or_less_than_there_is_is_refused(world: tuple[World, RegistryServer]) -> None:
    w, _ = world
    alice, layer = tenant(w, "alice"), secrets.token_bytes(5000)
    for data in (b"{}", layer):
        assert (await alice.blob("alice/x", data)).status == 201
    good = json.loads(manifest(b"{}", layer))
    small = json.loads(manifest(b"{}", layer))
    small["layers"][0]["size"] = 1
    away = json.loads(manifest(b"{}", layer))
    away["layers"][0]["urls"] = ["http://10.0.0.1/"]
    hidden = {**json.loads(manifest(b"{}")), "Layers": good["layers"]}
    folded = {**json.loads(manifest(b"{}")), "layer\u017f": good["layers"]}
    twice = manifest(b"{}", layer).replace(b'"schemaVersion"', b'"layers": [], "schemaVersion"')
    many = {**good, "layers": good["layers"] * 600}
    for wrong in (small, away, hidden, folded, many, {}, [], {**good, "mediaType": INDEX}):
        assert (await alice.name("alice/x", "1", json.dumps(wrong).encode())).status == 400, wrong
    for raw in (twice, b"", b"\xff", b"[" * 100_000, manifest(b"{}", layer)[:-1]):
        assert (await alice.name("alice/x", "1", raw)).status == 400, raw[:50]
    assert (await alice.name("alice/x", "1", b" " * (5 << 20))).status == 413
    assert (await alice.name("alice/x", "1", manifest(b"{}", layer), "text/html")).status == 400
    assert (await alice.name("alice/x", digest_of(b"other"), manifest(b"{}", layer))).status == 400
    assert (await alice.name("alice/x", f"sha256-{'0' * 64}", manifest(b"{}", layer))).status == 400
    assert (await w.alice.images()).images == ()
    assert (await alice.name("alice/x", "1", manifest(b"{}", layer))).status == 201


async def test_a_tenant_stores_no_more_than_its_limit(world: tuple[World, RegistryServer]) -> None:
    w, _ = world
    alice, bob = tenant(w, "alice"), tenant(w, "bob")
    half = secrets.token_bytes(BYTES_MAX // 2)
    digest = await alice.image("alice/a", "1", b"{}", half)
    mounted = await alice.begin("alice/b", f"?mount={digest_of(half)}&from=alice/a")
    assert mounted.status == 201
    await alice.image("alice/b", "1", b"{}", half)  # the same layer is counted once

    # A layer that is mounted counts with the image that has it.
    shared = secrets.token_bytes(BYTES_MAX // 2 + 1)
    await tenant(w, "admin").image("admin/base", "1", b"{}", shared)
    assert (await alice.begin("alice/b", f"?mount={digest_of(shared)}&from=admin/base")).status == 201
    refused = await alice.name("alice/b", "2", manifest(b"{}", shared))
    assert (refused.status, "GATEWAY_TENANT_IMAGES_BYTES_MAX" in refused.why) == (403, True)

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(BYTES_MAX // 65536 + 10):
            yield os.urandom(65536)

    begun = await alice.begin("alice/c")
    refused = await alice.ask("PATCH", begun.headers["Location"], body=endless())
    assert (refused.status, "GATEWAY_TENANT_IMAGES_BYTES_MAX" in refused.why) == (403, True)
    assert (await alice.ask("GET", begun.headers["Location"])).status == 404  # the registry has dropped it
    # One that breaks off half way is dropped: clients begin again.
    hold, sent = asyncio.Event(), asyncio.Event()

    async def breaking() -> AsyncIterator[bytes]:
        yield secrets.token_bytes(BYTES_MAX // 4)
        sent.set()
        await hold.wait()

    begun = await alice.begin("alice/c")
    broken = asyncio.create_task(alice.ask("PATCH", begun.headers["Location"], body=breaking()))
    await sent.wait()
    broken.cancel()
    async with asyncio.timeout(20.0):
        while (await alice.ask("GET", begun.headers["Location"])).status != 404:
            pass
    whole = await alice.begin("alice/c")
    refused = await alice.ask("PATCH", whole.headers["Location"], body=secrets.token_bytes(BYTES_MAX // 2 + 1))
    assert (refused.status, "GATEWAY_TENANT_IMAGES_BYTES_MAX" in refused.why) == (403, True)
    # Layers that no manifest names count, too; those of others do not.
    assert (await alice.blob("alice/c", secrets.token_bytes(BYTES_MAX // 2 - 4096))).status == 201
    refused = await alice.blob("alice/c", secrets.token_bytes(4096))
    assert (refused.status, "4194304 bytes" in refused.why) == (403, True)
    await bob.image("bob/a", "1", b"{}", half)
    # An image whose tag a newer one took counts until it is deleted.
    await alice.ask("DELETE", f"/v2/alice/b/manifests/{digest}")
    await alice.ask("DELETE", f"/v2/alice/a/manifests/{digest}")
    assert (await w.alice.images()).bytes == 0


async def test_a_moved_tag_leaves_the_image_before_it_and_deleting_by_a_tag_says_what_went(
    world: tuple[World, RegistryServer],
) -> None:
    w, registry = world
    alice = tenant(w, "alice")
    old = await alice.image("alice/train", "7", b"{}", b"old")
    new = await alice.image("alice/train", "7", b"{}", b"new")
    await alice.name("alice/train", "latest", manifest(b"{}", b"new"))
    found = {one.digest: one.tags for one in (await w.alice.images()).images}
    assert found == {old: (), new: ("7", "latest")}
    with pytest.raises(Refused, match="of this tenant"):
        await w.bob.delete_image("weft.internal/alice/train:7")
    gone = await w.alice.delete_image("weft.internal/alice/train:7")
    assert set(gone.deleted) == {"weft.internal/alice/train:7", "weft.internal/alice/train:latest"}
    with pytest.raises(Refused, match="has no image"):
        await w.alice.delete_image("weft.internal/alice/train:7")
    await w.alice.delete_image(f"weft.internal/alice/train@{old}")
    assert (await w.alice.images()).images == ()
    assert registry.blobs() > 0  # until the registry sweeps


async def test_an_image_of_several_platforms_is_one_and_goes_whole(world: tuple[World, RegistryServer]) -> None:
    w, _ = world
    alice = tenant(w, "alice")
    bodies = [manifest(b"{}", layer) for layer in (b"amd64", b"arm64")]
    for body, layer in zip(bodies, (b"amd64", b"arm64"), strict=True):
        for data in (b"{}", layer):
            assert (await alice.blob("alice/multi", data)).status == 201
        assert (await alice.name("alice/multi", digest_of(body), body)).status == 201
    parts = [{"mediaType": MANIFEST, "size": len(body), "digest": digest_of(body)} for body in bodies]
    index = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": parts}).encode()
    assert (await alice.name("alice/multi", "1", index, INDEX)).status == 201
    (one,) = (await w.alice.images()).images
    assert one.digest == digest_of(index)
    assert one.bytes == len(index) + sum(map(len, bodies)) + len(b"{}amd64arm64")
    await w.alice.delete_image("weft.internal/alice/multi:1")
    assert (await w.alice.images()) == structs.replace(await w.alice.images(), bytes=0, images=())


async def test_a_job_has_the_digest_of_its_image_and_no_image_of_another_tenant(
    world: tuple[World, RegistryServer],
) -> None:
    w, registry = world
    alice, bob = tenant(w, "alice"), tenant(w, "bob")
    old = await alice.image("alice/train", "7", b"{}", b"old")
    name = "weft.internal/alice/train:7"
    job = await w.submitted(image=name)
    assert job.spec.image == f"{name}@{old}"
    again = await w.submitted(image=f"{ADDRESS}/alice/train:7")
    assert again.spec.image == f"{name}@{old}"
    await alice.image("alice/train", "7", b"{}", b"new")
    assert (await w.alice.job(job.id)).spec.image == f"{name}@{old}"
    for image, why in (
        ("weft.internal/bob/own:1", "another tenant"),
        (f"weft.internal/alice/train@{digest_of(b'none')}", "has no image"),
        ("weft.internal/alice/none", "has no image"),
        ("weft.internal/train:7", "expected weft.internal/TENANT/NAME"),
        ("weft.internal/alice/../bob/own:1", "expected weft.internal/TENANT/NAME"),
    ):
        with pytest.raises(Refused, match=why):
            await w.submitted(image=image)
    await bob.image("bob/own", "1", b"{}", b"own")
    with pytest.raises(Refused, match="another tenant"):
        await w.submitted(image="weft.internal/bob/own:1")
    assert (await w.submitted(image="busybox:1")).spec.image == "busybox:1"
    registry.stop()
    with pytest.raises(Refused, match="the registry of this cluster does not answer"):
        await w.submitted(image=name)
    assert (await w.submitted(image="busybox:1")).spec.image == "busybox:1"


async def test_an_update_of_a_service_has_the_digest_and_no_image_that_its_tenant_may_not_use(
    world: tuple[World, RegistryServer],
) -> None:
    w, _ = world
    digest = await tenant(w, "alice").image("alice/chat", "2", b"{}", b"chat")
    await tenant(w, "bob").image("bob/chat", "2", b"{}", b"other")
    serves = {"kind": "inference", "service": {"port": 8000, "ready": "/healthz"}, "image": "chat:1"}
    job = await w.running(**serves)
    await w.alice.update(job.id, image="weft.internal/alice/chat:2")
    (asked,) = await w.take_asks()
    assert asked.update is not None
    assert asked.update.image == f"weft.internal/alice/chat:2@{digest}"
    for client in (w.alice, w.admin):  # the images of the job's tenant count, whoever asks
        with pytest.raises(Refused, match="another tenant"):
            await client.update(job.id, image="weft.internal/bob/chat:2")


async def test_a_node_pulls_the_image_of_its_run_and_nothing_else(world: tuple[World, RegistryServer]) -> None:
    w, registry = world
    alice = tenant(w, "alice")
    digest = await alice.image("alice/train", "7", b"{}", b"layer")
    await alice.image("alice/other", "1", b"{}", b"other")
    job = await w.running(image="weft.internal/alice/train:7", placement=placement(("node-1", 0)))
    assert job.spec.image is not None
    asked = ReadImage(node_id="node-1", job_id=job.id, epoch=job.epoch, rank=0, image=job.spec.image)
    async with w.place.bus("executor-node-1") as bus:

        async def read(asked: ReadImage) -> ImageRead:
            return await bus.request(asked, ImageRead, seconds_max=5.0)

        given = await read(asked)
        assert given.reference == f"{ADDRESS}/alice/train@{digest}"
        assert (await read(structs.replace(asked, epoch=job.epoch + 1))).refused
        assert (await read(structs.replace(asked, rank=1))).refused
        assert (await read(structs.replace(asked, image="weft.internal/alice/other:1"))).refused
        node = Pusher(w, basic(given.user, given.password))
        assert (await node.ask("GET", "/v2/")).status == 200
        got = await node.ask("GET", f"/v2/alice/train/manifests/{digest}")
        assert digest_of(got.body) == digest
        assert (await node.ask("GET", f"/v2/alice/train/blobs/{digest_of(b'layer')}")).body == b"layer"
        assert (await node.ask("GET", "/v2/alice/other/manifests/1")).status == 403
        assert (await node.begin("alice/train")).status == 403
        assert (await node.ask("DELETE", f"/v2/alice/train/manifests/{digest}")).status == 403
        forged = base64.urlsafe_b64encode(
            base64.urlsafe_b64decode(given.password)[:32] + b'["alice","alice/other",9999999999.0]'
        )
        for password in (forged.decode(), given.password[:-4], "", "x", w.tokens["alice"]):
            wrong = Pusher(w, basic(given.user, password))
            status = (await wrong.ask("GET", "/v2/alice/other/manifests/1")).status
            assert status == (200 if password == w.tokens["alice"] else 401), password
        api = await w.ask("GET", "/v1/jobs", headers={"Authorization": node.auth})
        assert api[0] == 401
        await w.alice.delete_image("weft.internal/alice/train:7")
        assert "has no image" in (await read(asked)).missing
        registry.stop()
        assert "does not answer" in (await read(asked)).away


async def test_a_slow_or_crowding_client_keeps_nobody_out(world: tuple[World, RegistryServer]) -> None:
    w, _ = world
    alice, bob = tenant(w, "alice"), tenant(w, "bob")
    hold = asyncio.Event()

    async def stuck() -> AsyncIterator[bytes]:
        yield b"x"
        await hold.wait()

    places = [(await alice.begin("alice/slow")).headers["Location"] for _ in range(8)]
    tasks = [asyncio.create_task(alice.ask("PATCH", place, body=stuck())) for place in places]
    place = (await alice.begin("alice/slow")).headers["Location"]
    async with asyncio.timeout(20.0):
        while (await alice.ask("PATCH", place, body=b"x")).status != 503:
            place = (await alice.begin("alice/slow")).headers["Location"]
    assert (await bob.blob("bob/fast", b"data")).status == 201
    hold.set()
    assert {answered.status for answered in await asyncio.gather(*tasks)} == {202}
    squeezed = await alice.ask("PATCH", place, body=b"x", headers={"Content-Encoding": "gzip"})
    assert squeezed.status in (400, 415)


async def test_an_upload_ends_with_its_token_and_no_other_does(world: tuple[World, RegistryServer]) -> None:
    w, _ = world
    hold, sent = asyncio.Event(), list[bool]()

    async def stuck() -> AsyncIterator[bytes]:
        yield b"x"
        sent.append(True)
        await hold.wait()

    async def uploads(name: str) -> int:
        pusher = tenant(w, name)
        place = (await pusher.begin(f"{name}/slow")).headers["Location"]
        return (await pusher.ask("PATCH", place, body=stuck())).status

    alice, bob = asyncio.create_task(uploads("alice")), asyncio.create_task(uploads("bob"))
    await until(lambda: len(sent) == 2)
    await w.admin.revoke("alice", "test")
    with pytest.raises(aiohttp.ClientError):
        async with asyncio.timeout(20.0):
            await alice
    hold.set()
    assert await bob == 202


async def test_without_a_registry_one_sentence_says_so(servers: Place) -> None:
    async with opened(servers) as w:
        await with_containers(w)
        with pytest.raises(Refused, match="no registry for images; its operator sets GATEWAY_REGISTRY_URL"):
            await w.alice.images()
        with pytest.raises(Refused, match="no registry for images"):
            await w.submitted(image="weft.internal/alice/train:7")
        status, body, _ = await w.ask("GET", "/v2/")
        assert (status, "no registry for images" in body.decode()) == (404, True)


async def test_the_registry_frees_its_disk_once_a_day_and_keeps_what_a_manifest_names(tmp_path: Path) -> None:
    """Here a day has three seconds."""
    registry = RegistryServer(tmp_path, sweep_seconds=3)
    try:
        async with aiohttp.ClientSession() as http:
            for data in (b"{}", b"kept", b"loose"):
                async with http.post(f"{registry.url}/v2/alice/a/blobs/uploads/") as begun:
                    place = URL(begun.headers["Location"], encoded=True)
                where = URL(registry.url).join(place).update_query(digest=digest_of(data))
                async with http.put(where, data=data) as put:
                    assert put.status == 201
            body, headers = manifest(b"{}", b"kept"), {"Content-Type": MANIFEST}
            async with http.put(f"{registry.url}/v2/alice/a/manifests/1", data=body, headers=headers) as put:
                assert put.status == 201
            assert registry.blobs() == 4
            await until(lambda: registry.blobs() == 3 and registry.answers())
            async with http.get(f"{registry.url}/v2/alice/a/blobs/{digest_of(b'kept')}") as found:
                assert await found.read() == b"kept"
            async with http.get(f"{registry.url}/v2/alice/a/blobs/{digest_of(b'loose')}") as found:
                assert found.status == 404
    finally:
        registry.stop()
