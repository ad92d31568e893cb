"""Bodies that come in pieces and are stored under their digest: the files of jobs, and images."""

import asyncio
import hashlib
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from aiohttp import web
from msgspec import Struct

from weft.domain.spec import DIGEST_PATTERN
from weft.messages.contexts import PIECE_BYTES
from weft.store import GatewayStore, StoreUnavailableError
from weft.store.uploads import UploadKind
from weftd.gateway.errors import RejectedError
from weftd.gateway.gateway import Gateway
from weftd.gateway.route import Call, check_length, too_large

PIECE_SECONDS_MAX = 60.0
UNUSED_SECONDS = 3600.0  # not removed before, to make room: a job or a node may be about to use it
BEGUN_SECONDS_MAX = 600.0  # without a piece: its sender is gone
EVICTED_AT_ONCE = 4
ID_CHARACTERS = 24
_matches_digest = re.compile(DIGEST_PATTERN).fullmatch


class StoredUpload(Protocol):
    """What is stored of a whole upload."""

    @property
    def digest(self) -> str: ...


S = TypeVar("S", bound=StoredUpload)


class Upload(Struct, frozen=True, kw_only=True):
    """What is to come. `words`: what it is called in errors; `most`: how many bytes are stored of its kind, of the
    `owner` alone if `apart`; `full`: why there is no room, where that is so."""

    kind: UploadKind
    owner: str
    digest: str
    words: str
    bytes_max: int
    seconds_max: float
    most: int
    apart: bool
    full: str


def digest_of(call: Call[Any]) -> str:
    digest = call.path("digest")
    if not _matches_digest(digest):
        raise RejectedError(400, "digest", "is a SHA-256 as 64 hexadecimal digits in lower case")
    return digest


async def receive(call: Call[Any], upload: Upload, stored: Callable[[], Awaitable[S | None]]) -> S:
    """Store the body unless it is stored already, which `stored` looks up. Raises RejectedError."""
    gateway, tenant, request = call.gateway, call.who.tenant, call.request
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise RejectedError(415, "Content-Encoding", f"send {upload.words} as it is, not compressed")
    if request.content_length is None:
        raise RejectedError(411, "Content-Length", f"is needed: how many bytes {upload.words} has")
    check_length(request, upload.bytes_max)
    if not request.content_length:
        raise RejectedError(400, "", "the body is empty")
    call.turn.end()
    async with gateway.uploads.one(tenant), gateway.streams.one(tenant, request):
        found = await stored()
        if found is None or found.digest != upload.digest:
            await _store(gateway, upload, request, size=request.content_length)
    found = await stored()
    if found is None:
        raise RejectedError(503, "digest", "was removed as it came: send it again")
    return found


def forgetting_uploads(
    store: GatewayStore, now: Callable[[], float], kind: UploadKind, *, kept_days: float
) -> Callable[[], Awaitable[None]]:
    """What removes uploads that nothing used for so long (0: for ever), and those that never became whole."""

    async def forget() -> None:
        at = now()
        whole_before = at - min(kept_days * 86400.0 or math.inf, at)
        await store.forget_uploads(kind, whole_before=whole_before, begun_before=at - BEGUN_SECONDS_MAX)

    return forget


async def _store(gateway: Gateway, upload: Upload, request: web.Request, *, size: int) -> None:
    store, kind, one = gateway.store, upload.kind, gateway.characters(ID_CHARACTERS)
    await _begin(gateway, upload, one, size)
    hashed = hashlib.sha256()
    try:
        async with asyncio.timeout(upload.seconds_max):
            number = 0
            async for piece in _pieces(request, size):
                await asyncio.to_thread(hashed.update, piece)
                if not await store.add_piece(kind, one, number, piece, at=gateway.now()):
                    raise RejectedError(408, "", "the body came too slowly")
                number += 1
        if hashed.hexdigest() != upload.digest:
            raise RejectedError(400, "digest", f"is not that of the body: {hashed.hexdigest()}")
        await store.finish_upload(kind, one, at=gateway.now())
    except BaseException as error:
        with suppress(StoreUnavailableError):
            await asyncio.shield(store.drop_upload(kind, one))
        if isinstance(error, TimeoutError):
            raise RejectedError(408, "", "the body did not arrive in time") from None
        raise


async def _begin(gateway: Gateway, upload: Upload, one: str, size: int) -> None:
    """Make room by removing what was used longest ago, as far as needed. Raises RejectedError."""
    store, kind, owner, most = gateway.store, upload.kind, upload.owner, upload.most
    while not await store.begin_upload(
        kind, one, owner=owner, digest=upload.digest, size=size, at=gateway.now(), most=most
    ):
        now = gateway.now()
        if not await store.forget_uploads(
            kind,
            whole_before=now - UNUSED_SECONDS,
            begun_before=now - BEGUN_SECONDS_MAX,
            owner=owner if upload.apart else None,
            most=EVICTED_AT_ONCE,
        ):
            raise RejectedError(409, "", upload.full)


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
