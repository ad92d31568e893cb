"""Images of the cluster's registry, listed and deleted by their tenant."""

from aiohttp import web
from msgspec import Struct

from weft.domain.spec import Image
from weft.messages.images import OWN_HOST, ImageDeleted, ImagesView, ImageView
from weftd.gateway.errors import RejectedError
from weftd.gateway.http.route import Call, NoQuery, answer
from weftd.gateway.registry.manifests import Manifest
from weftd.gateway.registry.pinning import parsed
from weftd.gateway.registry.upstream import NO_REGISTRY, Registry, Stored


class ImageNamed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Image


async def images(call: Call[NoQuery]) -> web.StreamResponse:
    registry, tenant = _registry(call.gateway.registry), call.who.tenant
    stored = await registry.stored(tenant, fresh=True)
    found: list[ImageView] = []
    for repository, manifests in sorted(stored.manifests.items()):
        tags = await _tags(registry, repository, stored)
        children = {child for one in manifests for child in one.children}
        found += [
            ImageView(
                name=f"{OWN_HOST}/{repository}",
                digest=one.digest,
                bytes=sum(_blobs(one, manifests).values()),
                tags=tuple(tag for tag, digest in tags.items() if digest == one.digest),
            )
            for one in manifests
            if one.digest not in children or one.digest in tags.values()
        ]
    return answer(
        ImagesView(
            prefix=f"{OWN_HOST}/{tenant}/", bytes=stored.bytes, bytes_max=registry.bytes_max, images=tuple(found)
        )
    )


async def delete(call: Call[ImageNamed]) -> web.StreamResponse:
    registry, tenant = _registry(call.gateway.registry), call.who.tenant
    image = parsed(call.query.name, "name", registry)
    if image is None or image.tenant != tenant:
        raise RejectedError(400, "name", f"expected an image of this tenant: {OWN_HOST}/{tenant}/NAME")
    pinned = await registry.pinned(image)
    if pinned is None:
        raise RejectedError(404, "name", f"the registry has no image {image}")
    stored = await registry.stored(tenant, fresh=True)
    manifests = stored.manifests.get(image.repository, ())
    tags = await _tags(registry, image.repository, stored)
    gone = [one for one in manifests if one.digest == pinned.digest]
    others = {child for one in manifests if one not in gone for child in one.children} | set(tags.values())
    for digest in {pinned.digest, *(child for one in gone for child in one.children if child not in others)}:
        await registry.delete(image.repository, digest)
    registry.changed(tenant)
    name = f"{OWN_HOST}/{image.repository}"
    named = tuple(f"{name}:{tag}" for tag, digest in tags.items() if digest == pinned.digest)
    return answer(ImageDeleted(deleted=named or (f"{name}@{pinned.digest}",)))


def _registry(registry: Registry | None) -> Registry:
    if registry is None:
        raise RejectedError(404, "", NO_REGISTRY)
    return registry


async def _tags(registry: Registry, repository: str, stored: Stored) -> dict[str, str]:
    """The digest of each tag."""
    found = {tag: await registry.digest(repository, tag) for tag in stored.tags.get(repository, ())}
    return {tag: digest for tag, digest in found.items() if digest is not None}


def _blobs(manifest: Manifest, among: tuple[Manifest, ...]) -> dict[str, int]:
    """Its own, and those of the images that it lists."""
    parts = (one for one in among if one.digest in manifest.children)
    return {**manifest.blobs, **{digest: size for one in parts for digest, size in one.blobs.items()}}
