"""Contexts over HTTP: packed files are stored under their digest, for jobs of their tenant to name."""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import suppress

from aiohttp import web
from msgspec import structs

from libs.domain.spec import DIGEST_PATTERN
from libs.messages.contexts import PACKED_BYTES_MAX, PIECE_BYTES, ContextView
from libs.store import GatewayStore, StoreUnavailableError
from libs.store.contexts import ContextKept
from services.gateway.errors import RejectedError
from services.gateway.gateway import Gateway
from services.gateway.route import Call, NoQuery, answer, check_length, too_large

PIECE_SECONDS_MAX = 60.0
WHOLE_SECONDS_MAX = 1800.0
UNUSED_SECONDS = 3600.0  # not removed before, to make room: a job that names it may be on its way
BEGUN_SECONDS_MAX = 600.0  # without a piece: its sender is gone
EVICTED_AT_ONCE = 16
_matches_digest = re.compile(DIGEST_PATTERN).fullmatch
ID_CHARACTERS = 24


async def context(call: Call[NoQuery]) -> web.StreamResponse:
    kept = await call.gateway.store.use_context(call.who.tenant, _digest(call), at=call.gateway.now())
    if kept is None:
        raise RejectedError(404, "digest", f"tenant {call.who.tenant} has no files of this digest")
    return answer(_view(kept))


async def set_(call: Call[NoQuery]) -> web.StreamResponse:
    digest, tenant, gateway, request = _digest(call), call.who.tenant, call.gateway, call.request
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise RejectedError(415, "Content-Encoding", "send the packed files as they are")
    if request.content_length is None:
        raise RejectedError(411, "Content-Length", "is needed: how many bytes the packed files have")
    check_length(request, PACKED_BYTES_MAX)
    if not request.content_length:
        raise RejectedError(400, "", "the body is empty")
    call.turn.end()
    with gateway.uploads.one(tenant), gateway.streams.one(tenant, request):
        if await gateway.store.use_context(tenant, digest, at=gateway.now()) is None:
            await _store(gateway, tenant, digest, request, size=request.content_length)
    kept = await gateway.store.use_context(tenant, digest, at=gateway.now())
    if kept is None:
        raise RejectedError(503, "digest", "was removed as it came: send it again")
    return answer(_view(kept))


async def forget(store: GatewayStore, *, now: float, kept_seconds: float) -> int:
    """Remove what no job used for so long and no open job names, and what never became whole. Returns how many."""
    return await store.forget_contexts(whole_before=now - kept_seconds, begun_before=now - BEGUN_SECONDS_MAX)


async def _store(gateway: Gateway, tenant: str, digest: str, request: web.Request, *, size: int) -> None:
    store, context = gateway.store, gateway.characters(ID_CHARACTERS)
    await _begin(gateway, context, tenant, digest, size)
    hashed = hashlib.sha256()
    try:
        async with asyncio.timeout(WHOLE_SECONDS_MAX):
            number = 0
            async for piece in _pieces(request):
                hashed.update(piece)
                if not await store.add_context_piece(context, number, piece, at=gateway.now()):
                    raise RejectedError(408, "", "the body came too slowly")
                number += 1
        if hashed.hexdigest() != digest:
            raise RejectedError(400, "digest", f"is not that of the body: {hashed.hexdigest()}")
        await store.finish_context(context, at=gateway.now())
    except BaseException as error:
        with suppress(StoreUnavailableError):
            await asyncio.shield(store.drop_context(context))
        if isinstance(error, TimeoutError):
            raise RejectedError(408, "", "the body did not arrive in time") from None
        raise


async def _begin(gateway: Gateway, context: str, tenant: str, digest: str, size: int) -> None:
    """Make room by removing what was used longest ago, as far as needed. Raises RejectedError."""
    store, most = gateway.store, gateway.settings.tenant_context_bytes_max
    while not await store.begin_context(context, tenant=tenant, digest=digest, size=size, at=gateway.now(), most=most):
        now = gateway.now()
        forgotten = await store.forget_contexts(
            whole_before=now - UNUSED_SECONDS,
            begun_before=now - BEGUN_SECONDS_MAX,
            tenant=tenant,
            most=EVICTED_AT_ONCE,
        )
        if not forgotten:
            why = f"the files of tenant {tenant} would have more than {most} bytes, and those that are stored are named"
            raise RejectedError(409, "", f"{why} by open jobs or were used in the last hour")


async def _pieces(request: web.Request) -> AsyncIterator[bytes]:
    """The body in pieces of `PIECE_BYTES`, the last one shorter. Raises TimeoutError, RejectedError."""
    held, total = bytearray(), 0
    while True:
        async with asyncio.timeout(PIECE_SECONDS_MAX):
            data = await request.content.readany()
        total += len(data)
        if total > PACKED_BYTES_MAX:
            raise too_large(PACKED_BYTES_MAX)
        held += data
        while len(held) >= PIECE_BYTES or (held and not data):
            yield bytes(held[:PIECE_BYTES])
            del held[:PIECE_BYTES]
        if not data:
            return


def _digest(call: Call[NoQuery]) -> str:
    digest = call.path("digest")
    if not _matches_digest(digest):
        raise RejectedError(400, "digest", "is a SHA-256 as 64 hexadecimal digits in lower case")
    return digest


def _view(kept: ContextKept) -> ContextView:
    return ContextView(**structs.asdict(kept))
