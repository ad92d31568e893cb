"""`/v2/`: the registry's own API for tenants and nodes. A tenant pushes and pulls below its name, and pulls what the
administrator shares; a ticket pulls from one repository."""

import asyncio
import io
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from http import HTTPStatus

import aiohttp
import msgspec
from aiohttp import web
from yarl import URL

from weft.messages.images import SHARED_TENANT, may_read
from weft.store import StoreUnavailableError
from weft.store.tenants import Access
from weftd.gateway.errors import RejectedError, unavailable
from weftd.gateway.gateway import Gateway
from weftd.gateway.limits.access import must_change, source_of
from weftd.gateway.limits.connections import HttpConnection
from weftd.gateway.limits.streams import write
from weftd.gateway.registry.manifests import MANIFEST_BYTES_MAX, Manifest, manifest_of
from weftd.gateway.registry.requests import HELD_TAG, RegistryRequest, What, request_of
from weftd.gateway.registry.tickets import as_bearer
from weftd.gateway.registry.upstream import ACCEPT, NO_REGISTRY, Registry, away

PIECE_SECONDS_MAX = 60.0
UPLOAD_SECONDS_MAX = 7200.0
PIECE_BYTES = 256 << 10
_VERSION = {"Docker-Distribution-Api-Version": "registry/2.0"}
_SENT = ("Content-Type", "Content-Range", "If-None-Match")
_ANSWERED = (
    *("Content-Type", "Content-Length", "Content-Range", "Accept-Ranges", "Etag", "Range"),
    *("Docker-Content-Digest", "Docker-Upload-UUID"),
)
_one_range = re.compile(r"bytes=[0-9]{1,18}-[0-9]{0,18}").fullmatch
_CODES = {401: "UNAUTHORIZED", 403: "DENIED", 404: "NAME_UNKNOWN", 405: "UNSUPPORTED", 429: "TOOMANYREQUESTS"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def registry_api(gateway: Gateway) -> Handler:
    timed = gateway.meters.timed("registry /v2/")

    async def handle(request: web.Request) -> web.StreamResponse:
        with timed():
            try:
                return await _admitted(gateway, request)
            except RejectedError as error:
                refusal = error
            except StoreUnavailableError:
                refusal = unavailable()
            if request.writer.output_size:
                raise ConnectionAbortedError("its answer had begun") from refusal
            return _refused(refusal)

    return handle


def _refused(error: RejectedError) -> web.Response:
    """An error as clients of registries show it."""
    code = _CODES.get(error.status, "UNKNOWN")
    body = msgspec.json.encode({"errors": [{"code": code, "message": error.reason}]})
    headers = {**error.headers, **_VERSION}
    if error.status == 401:
        headers["WWW-Authenticate"] = 'Basic realm="weft: any user, the token as password"'
    return web.Response(body=body, status=error.status, content_type="application/json", headers=headers)


async def _admitted(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    header, registry = request.headers.get("Authorization"), gateway.registry
    ticket = registry.tickets.of(header) if registry is not None else None
    if ticket is not None:
        who = Access(tenant=ticket.tenant)
    else:
        who = await gateway.access.of(as_bearer(header), source=source_of(request.remote))
    if isinstance(request.protocol, HttpConnection):
        request.protocol.let_in()
    gateway.count(who, changes=request.method not in ("GET", "HEAD"))
    if request.method not in ("GET", "HEAD"):
        must_change(who)
    if registry is None:
        raise RejectedError(404, "", NO_REGISTRY)
    path, _, query = request.raw_path.partition("?")
    asked = request_of(request.method, path, list(URL(f"/?{query}", encoded=True).query.items()))
    if ticket is not None and asked.what is not What.PING:
        if asked.repository != ticket.repository or request.method not in ("GET", "HEAD"):
            raise RejectedError(403, "", f"this run may pull from {ticket.repository} only")
    else:
        _check_owner(who, asked, request.method)
    await gateway.cpu_budgets.go(who.tenant)
    turn = await gateway.at_work.take(who.tenant)
    try:
        if asked.what in (What.BLOB, What.UPLOAD):
            turn.end()  # it may take long, and is counted as a stream
        return await gateway.cpu_budgets.paid(who.tenant, _answered(gateway, registry, who, asked, request))
    finally:
        turn.end()


def _check_owner(who: Access, asked: RegistryRequest, method: str) -> None:
    """Raises RejectedError."""
    if asked.what is What.PING or asked.repository.startswith(f"{who.tenant}/"):
        return
    if method not in ("GET", "HEAD") or asked.what is What.UPLOAD or not may_read(who.tenant, asked.repository):
        reads = "" if who.tenant == SHARED_TENANT else f", and pulls those below {SHARED_TENANT}/"
        raise RejectedError(403, "", f"tenant {who.tenant} has its images below {who.tenant}/{reads}")


async def _answered(
    gateway: Gateway, registry: Registry, who: Access, asked: RegistryRequest, request: web.Request
) -> web.StreamResponse:
    match asked.what, request.method:
        case What.PING, _:
            return web.Response(body=b"{}", content_type="application/json", headers=_VERSION)
        case What.TAGS, _:
            tags = [tag async for tag in registry.tags(asked.repository) if not tag.startswith(HELD_TAG)]
            return web.json_response({"name": asked.repository, "tags": tags}, headers=_VERSION)
        case What.MANIFEST, "PUT":
            async with gateway.uploads.one(who.tenant):
                return await _put_manifest(registry, who.tenant, asked, request)
        case What.MANIFEST, "DELETE":
            return await _delete_manifest(registry, who.tenant, asked)
        case What.UPLOADS, _:
            return await _begin_upload(registry, who.tenant, asked, request)
        case What.UPLOAD, "PATCH" | "PUT":
            async with gateway.uploads.one(who.tenant), gateway.streams.one(who.tenant, request):
                return await _upload(gateway, registry, who.tenant, asked, request)
        case What.UPLOAD, _:
            if request.method == "DELETE":
                registry.loose(who.tenant).drop(asked.reference)
            return await _passed(registry, asked, request)
        case _:
            async with gateway.streams.one(who.tenant, request):
                return await _download(gateway, registry, who.tenant, asked, request)


async def _download(
    gateway: Gateway, registry: Registry, tenant: str, asked: RegistryRequest, request: web.Request
) -> web.StreamResponse:
    headers = _forwarded(request)
    if asked.what is What.MANIFEST:
        headers["Accept"] = ACCEPT
    elif _one_range(request.headers.get("Range", "")):
        headers["Range"] = request.headers["Range"]
    async with registry.asked(request.method, asked.path, headers=headers, seconds=None) as found:
        response = web.StreamResponse(status=_status(found), headers=_shown(found))
        await response.prepare(request)
        if request.method == "HEAD":
            return response
        async for data in found.content.iter_chunked(PIECE_BYTES):
            await gateway.cpu_budgets.write(tenant)
            await write(response, data)
        await response.write_eof()
        return response


async def _begin_upload(
    registry: Registry, tenant: str, asked: RegistryRequest, request: web.Request
) -> web.StreamResponse:
    if request.body_exists and request.content_length != 0:
        raise RejectedError(400, "", "an upload begins without a body")
    if await registry.room(tenant) <= 0:
        raise registry.full(tenant)
    (await registry.stored(tenant)).check_names(asked.repository)
    source = asked.query.get("from", "")
    if not ("mount" in asked.query and source and may_read(tenant, source)):
        asked = msgspec.structs.replace(asked, query={})  # an ordinary upload, as if the registry had no such layer
    loose = registry.loose(tenant)
    if "mount" in asked.query:
        loose.put(f"{asked.repository}@{asked.query['mount']}", 0, now=registry.now())
    answered = await _passed(registry, asked, request)
    if uploaded := answered.headers.get("Docker-Upload-UUID"):
        loose.put(uploaded, 0, now=registry.now())
    return answered


async def _upload(
    gateway: Gateway, registry: Registry, tenant: str, asked: RegistryRequest, request: web.Request
) -> web.StreamResponse:
    """A piece of a layer, or its end. Each byte is counted before the registry gets it."""
    loose, refused = registry.loose(tenant), list[RejectedError]()
    came, _ = loose.bytes.get(asked.reference, (0, 0.0))
    if (request.content_length or 0) > await registry.room(tenant):
        raise registry.full(tenant)

    async def body() -> AsyncIterator[bytes]:
        nonlocal came
        try:
            async for data in _pieces(request):
                came += len(data)
                loose.put(asked.reference, came, now=registry.now())
                if await registry.room(tenant) < 0:
                    raise registry.full(tenant)
                await gateway.cpu_budgets.write(tenant)
                yield data
        except RejectedError as error:
            refused.append(error)
            raise

    headers = _forwarded(request)
    if request.content_length is not None:
        headers["Content-Length"] = str(request.content_length)
    try:
        answered = await _passed(
            registry, asked, request, headers=headers, body=body() if request.body_exists else None
        )
    except BaseException as error:  # Clients resume an upload where it broke off, and would lack the room.
        with suppress(RejectedError):
            await asyncio.shield(_drop_upload(registry, tenant, asked))
        if refused:
            raise refused[0] from error
        raise
    if request.method == "PUT" and answered.status == HTTPStatus.BAD_REQUEST:
        loose.drop(asked.reference)  # the registry has dropped it
    if request.method == "PUT" and answered.status == HTTPStatus.CREATED:
        loose.drop(asked.reference)
        digest = asked.query.get("digest", "")
        size = await registry.size(asked.repository, digest)
        if size and digest not in (await registry.stored(tenant)).blobs:
            loose.put(digest, size, now=registry.now())
    return answered


async def _drop_upload(registry: Registry, tenant: str, asked: RegistryRequest) -> None:
    query = {name: value for name, value in asked.query.items() if name == "_state"}
    async with registry.asked("DELETE", asked.path, query=query) as answered:
        if answered.status in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_FOUND):
            registry.loose(tenant).drop(asked.reference)


async def _pieces(request: web.Request) -> AsyncIterator[bytes]:
    """Raises RejectedError where the body comes too slowly."""
    loop = asyncio.get_running_loop()
    until = loop.time() + UPLOAD_SECONDS_MAX
    try:
        while loop.time() < until:
            async with asyncio.timeout(PIECE_SECONDS_MAX):
                data = await request.content.readany()
            if not data:
                return
            yield data
    except TimeoutError:
        pass
    raise RejectedError(408, "", "the body came too slowly")


async def _put_manifest(
    registry: Registry, tenant: str, asked: RegistryRequest, request: web.Request
) -> web.StreamResponse:
    """Store a manifest under its digest, under a tag that holds it, and under its own tag."""
    reference = asked.reference
    if reference.startswith(HELD_TAG):
        raise RejectedError(400, "", f"a tag must not begin with {HELD_TAG}")
    body = b"".join([piece async for piece in _bounded(request)])
    media = request.content_type
    manifest = await asyncio.to_thread(manifest_of, body, media)
    if reference.startswith("sha256:") and reference != manifest.digest:
        raise RejectedError(400, "", f"the manifest has the digest {manifest.digest}")
    await _check_parts(registry, asked.repository, manifest)
    stored = await registry.stored(tenant, fresh=True)
    loose = registry.loose(tenant)
    # Uploaded parts without a manifest are counted once, by their digest, here as well.
    blobs = {**{key: size for key, (size, _) in loose.bytes.items()}, **stored.blobs, **manifest.blobs}
    if sum(blobs.values()) > registry.bytes_max:
        raise registry.full(tenant)
    tag = "" if reference.startswith("sha256:") else reference
    stored.check_names(asked.repository, manifest.digest, tag)
    held = f"{HELD_TAG}{manifest.digest.removeprefix('sha256:')}"
    for name in (held, tag) if tag else (held,):
        path = f"/v2/{asked.repository}/manifests/{name}"
        async with registry.asked("PUT", path, headers={"Content-Type": media}, body=io.BytesIO(body)) as answered:
            if answered.status != HTTPStatus.CREATED:
                return web.Response(
                    status=_status(answered), body=await answered.read(), content_type="application/json"
                )
    registry.changed(tenant)
    loose.drop(*manifest.blobs)
    headers = {
        **_VERSION,
        "Docker-Content-Digest": manifest.digest,
        "Location": f"/v2/{asked.repository}/manifests/{manifest.digest}",
    }
    return web.Response(status=HTTPStatus.CREATED, headers=headers)


async def _check_parts(registry: Registry, repository: str, manifest: Manifest) -> None:
    """Raises RejectedError unless the repository has every part, as large as the manifest says."""
    for digest, size in manifest.blobs.items():
        if digest != manifest.digest and (found := await registry.size(repository, digest)) != size:
            is_ = "is not in the repository" if found is None else f"has {found} bytes"
            raise RejectedError(400, "", f"the manifest says that {digest} has {size} bytes; it {is_}")


async def _delete_manifest(registry: Registry, tenant: str, asked: RegistryRequest) -> web.StreamResponse:
    if not asked.reference.startswith("sha256:"):
        raise RejectedError(405, "", "an image is deleted by its digest; `weft image delete` takes a tag")
    if await registry.digest(asked.repository, asked.reference) is None:
        raise RejectedError(404, "", f"{asked.repository} has no {asked.reference}")
    await registry.delete(asked.repository, asked.reference)
    registry.changed(tenant)
    return web.Response(status=HTTPStatus.ACCEPTED, headers=_VERSION)


async def _bounded(request: web.Request) -> AsyncIterator[bytes]:
    total = 0
    async for data in _pieces(request):
        total += len(data)
        if total > MANIFEST_BYTES_MAX:
            raise RejectedError(413, "", f"a manifest has at most {MANIFEST_BYTES_MAX} bytes")
        yield data


async def _passed(
    registry: Registry,
    asked: RegistryRequest,
    request: web.Request,
    *,
    headers: Mapping[str, str] | None = None,
    body: AsyncIterator[bytes] | None = None,
) -> web.Response:
    """The registry's answer to a request, which is short. An end may take long: it reads the whole layer again."""
    seconds = UPLOAD_SECONDS_MAX if request.method in ("PATCH", "PUT") else 60.0
    async with registry.asked(
        request.method, asked.path, query=asked.query, headers=headers, body=body, seconds=seconds
    ) as found:
        shown = _shown(found)
        shown.pop("Content-Length", None)
        return web.Response(status=_status(found), headers=shown, body=await found.read())


def _forwarded(request: web.Request) -> dict[str, str]:
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise RejectedError(415, "", "send the body as it is, not compressed")
    return {name: request.headers[name] for name in _SENT if name in request.headers}


def _status(found: aiohttp.ClientResponse) -> int:
    """A redirect would send clients past this gateway."""
    if HTTPStatus.MULTIPLE_CHOICES <= found.status < HTTPStatus.BAD_REQUEST and found.status != HTTPStatus.NOT_MODIFIED:
        raise away("it redirects; set REGISTRY_STORAGE_REDIRECT_DISABLE=true")
    return found.status


def _shown(found: aiohttp.ClientResponse) -> dict[str, str]:
    shown = {name: found.headers[name] for name in _ANSWERED if name in found.headers}
    if location := found.headers.get("Location"):
        shown["Location"] = URL(location).raw_path_qs  # the address of this gateway, whatever address the registry has
    return {**shown, **_VERSION}
