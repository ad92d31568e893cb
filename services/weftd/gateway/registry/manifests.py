"""Manifests, read and checked before the registry gets them. Pure."""

import hashlib
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from weft.domain.decoding.doubled_names import doubled_name
from weftd.gateway.errors import RejectedError

MANIFEST_BYTES_MAX = 4 << 20
DESCRIPTORS_MAX = 512
_IMAGES = ("application/vnd.docker.distribution.manifest.v2+json", "application/vnd.oci.image.manifest.v1+json")
_LISTS = ("application/vnd.docker.distribution.manifest.list.v2+json", "application/vnd.oci.image.index.v1+json")
MEDIA = (*_IMAGES, *_LISTS)


class _Descriptor(Struct, frozen=True, kw_only=True):
    digest: str
    size: int
    urls: tuple[str, ...] = ()


class _Document(Struct, frozen=True, kw_only=True):
    media: str = msgspec.field(name="mediaType", default="")
    config: _Descriptor | None = None
    layers: tuple[_Descriptor, ...] = ()
    manifests: tuple[_Descriptor, ...] = ()


_NAMES = frozenset({*_Document.__struct_encode_fields__, *_Descriptor.__struct_encode_fields__})
_FOLDED = frozenset(name.casefold() for name in _NAMES)


class Manifest(Struct, frozen=True, kw_only=True):
    """`blobs`: the bytes of each, by digest, with the manifest itself; `children`: the manifests that a list names."""

    digest: str
    blobs: Mapping[str, int]
    children: frozenset[str] = frozenset()


def manifest_of(body: bytes, media: str) -> Manifest:
    """Raises RejectedError."""
    if media not in MEDIA:
        raise RejectedError(400, "", f"a manifest is one of {', '.join(MEDIA)}; not {media[:100]}")
    try:
        document = msgspec.json.decode(body, type=_Document)
        named = _names(msgspec.json.decode(body))
        twice = doubled_name(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RejectedError(400, "", f"no manifest: {error}") from None
    spelled = [name for name in named if name.casefold() in _FOLDED and name not in _NAMES]
    if twice is not None or spelled:  # the registry reads `Layers` as `layers`, and uses the last of two
        raise RejectedError(400, "", f"the manifest has a name twice, or misspelled: {(twice or spelled[0])[:40]!r}")
    parts = (*((document.config,) if document.config else ()), *document.layers)
    if (media in _LISTS) != bool(document.manifests) or (media in _IMAGES) != bool(parts):
        raise RejectedError(400, "", f"the manifest lacks parts of a {media}")
    if (document.media or media) != media:
        raise RejectedError(400, "", "the manifest has another media type in it than the request says")
    if len(parts) + len(document.manifests) > DESCRIPTORS_MAX:
        raise RejectedError(400, "", f"the manifest has more than {DESCRIPTORS_MAX} parts")
    if any(one.urls for one in (*parts, *document.manifests)):
        raise RejectedError(
            400, "", "the manifest has layers of other places (urls): nodes pull from this registry alone"
        )
    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    blobs = {one.digest: one.size for one in parts}
    return Manifest(
        digest=digest,
        blobs={**blobs, digest: len(body)},
        children=frozenset(one.digest for one in document.manifests),
    )


def _names(value: object) -> list[str]:
    """The names in all its objects that can be part of the manifest."""
    if isinstance(value, list):
        return [name for one in value for name in _names(one)]
    if not isinstance(value, dict):
        return []
    return [*value, *(name for key in ("config", "layers", "manifests") for name in _names(value.get(key)))]
