"""Contexts and images that users upload, over HTTP."""

import asyncio
import hashlib
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from aiohttp import web
from msgspec import Struct, structs

from weft.domain.spec import DIGEST_PATTERN, Image
from weft.messages.contexts import PACKED_BYTES_MAX, PIECE_BYTES, ContextView
from weft.messages.images import OWN_HOST, ImageDeleted, ImagesView, ImageView
from weft.store import GatewayStore, StoreUnavailableError
from weft.store.contexts import ContextKept
from weftd.gateway.errors import RejectedError
from weftd.gateway.gateway import Gateway
from weftd.gateway.http.route import Call, NoQuery, RouteAnswer, answer, check_length, operation, too_large
from weftd.gateway.registry.manifests import Manifest
from weftd.gateway.registry.pinning import parsed
from weftd.gateway.registry.upstream import NO_REGISTRY, Registry, Stored

CONTEXT_SECONDS_MAX = 1800.0
PIECE_SECONDS_MAX = 60.0
UNUSED_SECONDS = 3600.0  # kept at least this long, as a job may be about to use it
BEGUN_SECONDS_MAX = 600.0  # without a piece: its sender is gone
EVICTED_AT_ONCE = 4
ID_CHARACTERS = 24
_matches_digest = re.compile(DIGEST_PATTERN).fullmatch


@operation(
    "GET /v1/contexts/{digest}",
    "contexts",
    "Look for packed files",
    description="Find packed files of the token's tenant. The request counts as a use, so they are kept longer.",
    answers={200: RouteAnswer(description="The files are stored.", type=ContextView)},
)
async def context(call: Call[NoQuery]) -> web.StreamResponse:
    kept = await call.gateway.store.use_context(call.who.tenant, _digest_of(call), at=call.gateway.now())
    if kept is None:
        raise RejectedError(404, "digest", f"tenant {call.who.tenant} has no files of this digest")
    return answer(_view(kept))


@operation(
    "PUT /v1/contexts/{digest}",
    "contexts",
    "Store packed files",
    description="A ZIP file, under its SHA-256. A job of this tenant that has this digest as its `context` runs in"
    " a folder with these files: docs/sync.md.",
    body=bytes,
    body_media=("application/zip",),
    body_bytes_max=PACKED_BYTES_MAX,
    answers={200: RouteAnswer(description="The files are stored.", type=ContextView)},
    example="--data-binary @files.zip",
)
async def set_(call: Call[NoQuery]) -> web.StreamResponse:
    """Store the body unless it is stored already."""
    digest, tenant, gateway, request = _digest_of(call), call.who.tenant, call.gateway, call.request
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise RejectedError(415, "Content-Encoding", "send the ZIP file as it is, not compressed")
    if request.content_length is None:
        raise RejectedError(411, "Content-Length", "is missing: it is the size of the ZIP file in bytes")
    check_length(request, PACKED_BYTES_MAX)
    if not request.content_length:
        raise RejectedError(400, "", "the body is empty")
    call.turn.end()
    async with gateway.uploads.one(tenant), gateway.streams.one(tenant, request):
        found = await gateway.store.use_context(tenant, digest, at=gateway.now())
        if found is None:
            await _store(gateway, tenant, digest, request, size=request.content_length)
    found = await gateway.store.use_context(tenant, digest, at=gateway.now())
    if found is None:
        raise RejectedError(503, "digest", "was removed during the upload: send it again")
    return answer(_view(found))


def forgetting_contexts(
    store: GatewayStore, now: Callable[[], float], *, kept_days: float
) -> Callable[[], Awaitable[None]]:
    """A loop that removes files that were unused for this long (0: never), and incomplete uploads."""

    async def forget() -> None:
        at = now()
        whole_before = at - min(kept_days * 86400.0 or math.inf, at)
        await store.forget_uploads(whole_before=whole_before, begun_before=at - BEGUN_SECONDS_MAX)

    return forget


def _digest_of(call: Call[Any]) -> str:
    digest = call.path("digest")
    if not _matches_digest(digest):
        raise RejectedError(400, "digest", "is a SHA-256 as 64 hexadecimal digits in lower case")
    return digest


def _view(kept: ContextKept) -> ContextView:
    return ContextView(**structs.asdict(kept))


async def _store(gateway: Gateway, tenant: str, digest: str, request: web.Request, *, size: int) -> None:
    store, one = gateway.store, gateway.characters(ID_CHARACTERS)
    await _begin(gateway, one, tenant, digest, size)
    hashed = hashlib.sha256()
    try:
        async with asyncio.timeout(CONTEXT_SECONDS_MAX):
            number = 0
            async for piece in _pieces(request, size):
                await asyncio.to_thread(hashed.update, piece)
                if not await store.add_piece(one, number, piece, at=gateway.now()):
                    raise RejectedError(408, "", "the body came too slowly")
                number += 1
        if hashed.hexdigest() != digest:
            raise RejectedError(400, "digest", f"is not that of the body: {hashed.hexdigest()}")
        await store.finish_upload(one, at=gateway.now())
    except BaseException as error:
        with suppress(StoreUnavailableError):
            await asyncio.shield(store.drop_upload(one))
        if isinstance(error, TimeoutError):
            raise RejectedError(408, "", "the body did not arrive in time") from None
        raise


async def _begin(gateway: Gateway, one: str, tenant: str, digest: str, size: int) -> None:
    """Make room by removing the least recently used files. Raises RejectedError."""
    store, most = gateway.store, gateway.settings.tenant_context_bytes_max
    while not await store.begin_upload(one, owner=tenant, digest=digest, size=size, at=gateway.now(), most=most):
        now = gateway.now()
        if not await store.forget_uploads(
            whole_before=now - UNUSED_SECONDS,
            begun_before=now - BEGUN_SECONDS_MAX,
            owner=tenant,
            most=EVICTED_AT_ONCE,
        ):
            raise RejectedError(
                409,
                "",
                f"the files of tenant {tenant} would have more than {most} bytes, and those that are stored are named"
                " by open jobs or were used in the last hour",
            )


async def _pieces(request: web.Request, size: int) -> AsyncIterator[bytes]:
    """The body in pieces of `PIECE_BYTES`, the last one shorter. Raises TimeoutError, RejectedError."""
    pending, total = bytearray(), 0
    while True:
        async with asyncio.timeout(PIECE_SECONDS_MAX):
            data = await request.content.readany()
        total += len(data)
        if total > size:
            raise too_large(size)
        pending += data
        while len(pending) >= PIECE_BYTES or (pending and not data):
            yield bytes(pending[:PIECE_BYTES])
            del pending[:PIECE_BYTES]
        if not data:
            return


class ImageNamed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Image


@operation(
    "GET /v1/images",
    "images",
    "List images in the registry",
    description="Those of the token's tenant. They are pushed through `/v2/`, the API of registries of containers:"
    " docs/images.md.",
    answers={200: RouteAnswer(description="The images by name, and their total size in bytes.", type=ImagesView)},
)
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


@operation(
    "DELETE /v1/images",
    "images",
    "Delete an image in the registry",
    description="By its digest, or by a tag with all others that it has. Nodes that have it keep it; a job that"
    " names it and starts elsewhere fails, and says so.",
    answers={200: RouteAnswer(description="The deleted names.", type=ImageDeleted)},
    example="?name=weft.internal/vision/train:7",
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
