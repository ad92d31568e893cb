"""Images over HTTP: archives that an administrator pushes, listed, replaced and deleted by name, and given to nodes as
they start a run of a job which names them."""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import suppress

from aiohttp import web
from msgspec import Struct, structs

from libs.domain.spec import DIGEST_PATTERN, Image
from libs.messages.contexts import PIECE_BYTES
from libs.messages.images import (
    IMAGE_BYTES_MAX,
    ImageDeleted,
    ImageRead,
    ImagesView,
    ImageView,
    ReadImage,
    tagged,
)
from libs.store import GatewayStore, StoreUnavailableError
from libs.store.images import ImageKept
from services.gateway.errors import RejectedError
from services.gateway.gateway import Gateway
from services.gateway.giving import held, not_there
from services.gateway.route import Call, NoQuery, answer, check_length, too_large

PIECE_SECONDS_MAX = 60.0
WHOLE_SECONDS_MAX = 7200.0
UNUSED_SECONDS = 3600.0  # not removed before, to make room: a node may be fetching it
BEGUN_SECONDS_MAX = 600.0  # without a piece: its sender is gone
EVICTED_AT_ONCE = 4
ID_CHARACTERS = 24
_matches_digest = re.compile(DIGEST_PATTERN).fullmatch


class ImageNamed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Image


async def images(call: Call[NoQuery]) -> web.StreamResponse:
    return answer(ImagesView(images=tuple(_view(one) for one in await call.gateway.store.images())))


async def push(call: Call[ImageNamed]) -> web.StreamResponse:
    digest, gateway, request = call.path("digest"), call.gateway, call.request
    if not _matches_digest(digest):
        raise RejectedError(400, "digest", "is a SHA-256 as 64 hexadecimal digits in lower case")
    if "@" in call.query.name:
        raise RejectedError(400, "name", "is a name with a tag: what is pushed has no digest of a registry")
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise RejectedError(415, "Content-Encoding", "send the archive as it is")
    if request.content_length is None:
        raise RejectedError(411, "Content-Length", "is needed: how many bytes the archive has")
    check_length(request, min(gateway.settings.images_bytes_max, IMAGE_BYTES_MAX))
    if not request.content_length:
        raise RejectedError(400, "", "the body is empty")
    call.turn.end()
    name = tagged(call.query.name)
    with gateway.uploads.one(call.who.tenant), gateway.streams.one(call.who.tenant, request):
        kept = await gateway.store.use_image(name, at=gateway.now())
        if kept is None or kept.digest != digest:
            await _store(gateway, name, digest, request, size=request.content_length)
    kept = await gateway.store.use_image(name, at=gateway.now())
    if kept is None:
        raise RejectedError(503, "name", "was removed as it came: push it again")
    return answer(_view(kept))


async def delete(call: Call[ImageNamed]) -> web.StreamResponse:
    name = tagged(call.query.name)
    if not await call.gateway.store.delete_image(name):
        raise RejectedError(404, "name", f"no image {name} was pushed")
    return answer(ImageDeleted(deleted=name))


async def read_image(store: GatewayStore, asked: ReadImage, *, at: float) -> ImageRead:
    """A piece of the image that a job names, for a node on which it has that rank, in the epoch that it is in."""
    if (job := await held(store, asked)) is None:
        return ImageRead(refused=not_there(asked))
    names = {job.spec.image, *(role.image for role in job.spec.roles.values()), *(one.image for one in job.revisions)}
    if asked.image not in names:
        return ImageRead(refused=f"{asked.job_id} names no image {asked.image}")
    name = tagged(asked.image)
    if not asked.number and await store.use_image(name, at=at) is None:
        return ImageRead(missing=True)
    found = await store.image_piece(name, asked.number)
    if found is None:
        return ImageRead(missing=True)
    return ImageRead(data=found.data, size=found.bytes, digest=found.digest)


async def forget_images(store: GatewayStore, *, now: float, kept_seconds: float) -> int:
    """Remove what no node asked for so long, and what never became whole. Returns how many."""
    return await store.forget_images(whole_before=now - kept_seconds, begun_before=now - BEGUN_SECONDS_MAX)


async def _store(gateway: Gateway, name: str, digest: str, request: web.Request, *, size: int) -> None:
    store, image = gateway.store, gateway.characters(ID_CHARACTERS)
    await _begin(gateway, image, name, digest, size)
    hashed = hashlib.sha256()
    try:
        async with asyncio.timeout(WHOLE_SECONDS_MAX):
            number = 0
            async for piece in _pieces(request, size):
                await asyncio.to_thread(hashed.update, piece)
                if not await store.add_image_piece(image, number, piece, at=gateway.now()):
                    raise RejectedError(408, "", "the body came too slowly")
                number += 1
        if hashed.hexdigest() != digest:
            raise RejectedError(400, "digest", f"is not that of the body: {hashed.hexdigest()}")
        await store.finish_image(image, at=gateway.now())
    except BaseException as error:
        with suppress(StoreUnavailableError):
            await asyncio.shield(store.drop_image(image))
        if isinstance(error, TimeoutError):
            raise RejectedError(408, "", "the body did not arrive in time") from None
        raise


async def _begin(gateway: Gateway, image: str, name: str, digest: str, size: int) -> None:
    """Make room by removing what was used longest ago, as far as needed. Raises RejectedError."""
    store, most = gateway.store, gateway.settings.images_bytes_max
    while not await store.begin_image(image, name=name, digest=digest, size=size, at=gateway.now(), most=most):
        now = gateway.now()
        unused, begun = now - UNUSED_SECONDS, now - BEGUN_SECONDS_MAX
        if not await store.forget_images(whole_before=unused, begun_before=begun, most=EVICTED_AT_ONCE):
            why = f"all pushed images would have more than {most} bytes (GATEWAY_IMAGES_BYTES_MAX)"
            raise RejectedError(409, "", f"{why}, and those that are stored were used in the last hour: delete one")


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


def _view(kept: ImageKept) -> ImageView:
    return ImageView(**structs.asdict(kept))
