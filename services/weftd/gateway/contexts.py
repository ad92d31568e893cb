"""Contexts over HTTP: packed files are stored under their digest, for jobs of their tenant to name."""

from aiohttp import web
from msgspec import structs

from weft.messages.contexts import PACKED_BYTES_MAX, ContextView
from weft.store.contexts import ContextKept
from weftd.gateway.errors import RejectedError
from weftd.gateway.receiving import Upload, digest_of, receive
from weftd.gateway.route import Call, NoQuery, answer

WHOLE_SECONDS_MAX = 1800.0


async def context(call: Call[NoQuery]) -> web.StreamResponse:
    kept = await call.gateway.store.use_context(call.who.tenant, digest_of(call), at=call.gateway.now())
    if kept is None:
        raise RejectedError(404, "digest", f"tenant {call.who.tenant} has no files of this digest")
    return answer(_view(kept))


async def set_(call: Call[NoQuery]) -> web.StreamResponse:
    digest, tenant, gateway = digest_of(call), call.who.tenant, call.gateway
    most = gateway.settings.tenant_context_bytes_max

    async def stored() -> ContextKept | None:
        return await gateway.store.use_context(tenant, digest, at=gateway.now())

    upload = Upload(
        kind="context",
        owner=tenant,
        digest=digest,
        words="the ZIP file",
        bytes_max=PACKED_BYTES_MAX,
        seconds_max=WHOLE_SECONDS_MAX,
        most=most,
        apart=True,
        full=f"the files of tenant {tenant} would have more than {most} bytes, and those that are stored are named"
        " by open jobs or were used in the last hour",
    )
    return answer(_view(await receive(call, upload, stored)))


def _view(kept: ContextKept) -> ContextView:
    return ContextView(**structs.asdict(kept))
