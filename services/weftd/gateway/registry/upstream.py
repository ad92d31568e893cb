"""Requests to the registry: images of a tenant and their bytes."""

import asyncio
import io
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import aiohttp
import msgspec
from msgspec import Struct
from yarl import URL

from weft.messages.images import DIGEST, RegistryImage
from weftd.gateway.errors import RejectedError
from weftd.gateway.registry.manifests import MEDIA, Manifest, manifest_of
from weftd.gateway.registry.requests import HELD_TAG
from weftd.gateway.registry.tickets import Tickets

NO_REGISTRY = "this cluster has no registry for images; its operator sets GATEWAY_REGISTRY_URL: docs/images.md"
CONNECT_SECONDS_MAX = 5.0
SILENCE_SECONDS_MAX = 60.0
ASK_SECONDS_MAX = 20.0
CATALOG_PAGE = 1000
NAMES_MAX = 1000  # repositories, images and tags, each, of one tenant
KNOWN_SECONDS = 30.0
KNOWN_MAX = 20_000
LOOSE_SECONDS = 86400.0  # a blob without a manifest is deleted after this time: the registry is swept once a day
LOOSE_MAX = 4096  # of one tenant
ACCEPT = ", ".join(MEDIA)
_NEXT = re.compile(r"<[^>]*>;\s*rel=\"?next\"?")
_GONE = (aiohttp.ClientError, TimeoutError, OSError)


class _Catalog(Struct):
    repositories: list[str] | None = None


class _Tags(Struct):
    tags: list[str] | None = None


class Stored(Struct, frozen=True, kw_only=True):
    """Contents of a tenant: manifests and user tags by repository, and the bytes of each blob."""

    manifests: Mapping[str, tuple[Manifest, ...]]
    tags: Mapping[str, tuple[str, ...]]
    blobs: Mapping[str, int]
    bytes: int

    def check_names(self, repository: str, digest: str = "", tag: str = "") -> None:
        """Raises RejectedError if the names are new and the tenant has too many already."""
        images = {one.digest for each in self.manifests.values() for one in each}
        tags = {(name, each) for name, named in self.tags.items() for each in named}
        for what, known, new in (
            ("names of images", self.manifests.keys(), repository),
            ("images", images, digest),
            ("tags", tags, tag and (repository, tag)),
        ):
            if new and new not in known and len(known) >= NAMES_MAX:
                raise RejectedError(403, "", f"a tenant has at most {NAMES_MAX} {what}")


class Loose(Struct):
    """Uploaded bytes without a manifest, by digest or upload, with the time of arrival."""

    bytes: dict[str, tuple[int, float]] = msgspec.field(default_factory=dict)
    total: int = 0

    def put(self, key: str, size: int, *, now: float) -> None:
        if key not in self.bytes:
            self.drop(*[key for key, (_, at) in self.bytes.items() if at < now - LOOSE_SECONDS])
        if key not in self.bytes and len(self.bytes) >= LOOSE_MAX:
            raise RejectedError(
                403, "", f"{LOOSE_MAX} layers are stored that no manifest names: finish these pushes first"
            )
        self.drop(key)
        self.bytes[key] = (size, now)
        self.total += size

    def drop(self, *keys: str) -> None:
        for key in keys:
            self.total -= self.bytes.pop(key, (0, 0.0))[0]


def away(why: object = "") -> RejectedError:
    return RejectedError(503, "", f"the registry of this cluster does not answer{f': {why}' if why else ''}")


class Registry:
    """`url`: address of the registry for gateways; `address`: address of a gateway for the nodes' engines, as
    host:port."""

    def __init__(self, url: str, address: str, *, bytes_max: int, tickets: Tickets, clock: Callable[[], float]) -> None:
        self.address, self.bytes_max, self.tickets = address, bytes_max, tickets
        self._url, self._clock = url.rstrip("/"), clock
        self._session: aiohttp.ClientSession | None = None
        self._read: dict[str, Manifest] = {}
        self._stored: dict[str, tuple[float, Stored]] = {}
        self._loose: dict[str, Loose] = {}

    def now(self) -> float:
        return self._clock()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def asked(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: AsyncIterator[bytes] | io.BytesIO | None = None,
        seconds: float | None = ASK_SECONDS_MAX,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One request. No redirect is followed. `seconds` None: for as long as bytes come. Raises RejectedError 503 if
        the registry does not answer."""
        if self._session is None:
            self._session = aiohttp.ClientSession(auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar())
        silence = None if seconds else SILENCE_SECONDS_MAX
        time = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS_MAX, sock_read=silence)
        url = URL(f"{self._url}{path}", encoded=True).with_query(dict(query or {}))
        try:
            async with self._session.request(
                method, url, headers=headers, data=body, timeout=time, allow_redirects=False
            ) as response:
                yield response
        except _GONE as error:
            raise away(type(error).__name__) from error

    async def digest(self, repository: str, reference: str) -> str | None:
        """The digest of a manifest; None: there is none. Raises RejectedError."""
        async with self.asked("HEAD", f"/v2/{repository}/manifests/{reference}", headers={"Accept": ACCEPT}) as found:
            if found.status == 404:
                return None
            digest = found.headers.get("Docker-Content-Digest", "")
            if found.status != 200 or not re.fullmatch(DIGEST, digest):
                raise away(f"status {found.status}")
            return digest

    async def size(self, repository: str, digest: str) -> int | None:
        """The bytes of a blob; None: there is none."""
        async with self.asked("HEAD", f"/v2/{repository}/blobs/{digest}") as found:
            return found.content_length if found.status == 200 else None

    async def pinned(self, image: RegistryImage) -> RegistryImage | None:
        """The image with its digest; None: there is none. Raises RejectedError."""
        digest = await self.digest(image.repository, image.digest or image.tag)
        return None if digest is None else msgspec.structs.replace(image, digest=digest)

    async def stored(self, tenant: str, *, fresh: bool = False) -> Stored:
        """Contents of the tenant, at most KNOWN_SECONDS old. Raises RejectedError."""
        until, stored = self._stored.get(tenant, (0.0, None))
        if stored is not None and until > self._clock() and not fresh:
            return stored
        stored = await self._look(tenant)
        if len(self._stored) >= KNOWN_MAX:
            self._stored.clear()
        self._stored[tenant] = (self._clock() + KNOWN_SECONDS, stored)
        self.loose(tenant).drop(*stored.blobs)
        return stored

    def changed(self, tenant: str) -> None:
        self._stored.pop(tenant, None)

    def loose(self, tenant: str) -> Loose:
        return self._loose.setdefault(tenant, Loose())

    async def room(self, tenant: str) -> int:
        """The bytes that the tenant may still store; negative: it has too many."""
        stored = await self.stored(tenant)
        return self.bytes_max - stored.bytes - self.loose(tenant).total

    def full(self, tenant: str) -> RejectedError:
        return RejectedError(
            403,
            "",
            f"the images of tenant {tenant} would have more than {self.bytes_max} bytes"
            " (GATEWAY_TENANT_IMAGES_BYTES_MAX); `weft image list` shows them, `weft image delete` makes room",
        )

    async def delete(self, repository: str, digest: str) -> None:
        async with self.asked("DELETE", f"/v2/{repository}/manifests/{digest}") as answered:
            if answered.status not in (202, 404):
                raise away(f"status {answered.status}")

    async def _look(self, tenant: str) -> Stored:
        manifests: dict[str, tuple[Manifest, ...]] = {}
        tags: dict[str, tuple[str, ...]] = {}
        for repository in await self._repositories(tenant):
            named = [tag async for tag in self.tags(repository)]
            held = [f"sha256:{tag.removeprefix(HELD_TAG)}" for tag in named if tag.startswith(HELD_TAG)]
            found = [await self._manifest(repository, digest) for digest in held]
            manifests[repository] = tuple(one for one in found if one is not None)
            tags[repository] = tuple(sorted(tag for tag in named if not tag.startswith(HELD_TAG)))
        blobs = {key: size for each in manifests.values() for one in each for key, size in one.blobs.items()}
        return Stored(manifests=manifests, tags=tags, blobs=blobs, bytes=sum(blobs.values()))

    async def _repositories(self, tenant: str) -> list[str]:
        found: list[str] = []
        async for one in self._listed("/v2/_catalog", _Catalog, last=tenant):
            if not one.startswith(f"{tenant}/"):
                break
            found.append(one)
        return found

    async def tags(self, repository: str) -> AsyncIterator[str]:
        """Every tag of a repository. Raises RejectedError."""
        async for one in self._listed(f"/v2/{repository}/tags/list", _Tags, last=""):
            yield one

    async def _listed(self, path: str, kind: type[_Catalog] | type[_Tags], *, last: str) -> AsyncIterator[str]:
        """The items of a list, page by page."""
        while True:
            query = {"n": str(CATALOG_PAGE), **({"last": last} if last else {})}
            async with self.asked("GET", path, query=query) as answered:
                if answered.status == 404:
                    return
                if answered.status != 200:
                    raise away(f"status {answered.status}")
                try:
                    page = msgspec.json.decode(await answered.read(), type=kind)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise away(error) from None
                more = _NEXT.search(answered.headers.get("Link", ""))
            items = (page.repositories if isinstance(page, _Catalog) else page.tags) or []
            for one in items:
                yield one
            if not more or not items:
                return
            last = items[-1]

    async def _manifest(self, repository: str, digest: str) -> Manifest | None:
        if digest in self._read:
            return self._read[digest]
        async with self.asked("GET", f"/v2/{repository}/manifests/{digest}", headers={"Accept": ACCEPT}) as found:
            if found.status == 404:
                return None
            if found.status != 200:
                raise away(f"status {found.status}")
            body, media = await found.read(), found.content_type
        manifest = await asyncio.to_thread(manifest_of, body, media)
        if len(self._read) >= KNOWN_MAX:
            self._read.clear()
        self._read[digest] = manifest
        return manifest
