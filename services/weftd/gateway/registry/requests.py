"""The requests of the registry's API that are passed on: everything else is refused. Pure."""

import re
from collections.abc import Mapping
from enum import Enum

from msgspec import Struct

from weft.messages.images import DIGEST, REPOSITORY, REPOSITORY_CHARACTERS_MAX, TAG
from weftd.gateway.errors import RejectedError

HELD_TAG = "sha256-"  # prefix, with the digest, of a tag for each manifest: the registry does not list untagged ones
PATH_BYTES_MAX = 600
_RESERVED = frozenset({"manifests", "blobs", "tags", "uploads"})  # a repository with one could be read in two ways
_UPLOAD = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_STATE = r"[A-Za-z0-9_=-]{1,4096}"


class What(Enum):
    PING = ""
    TAGS = "/tags/list"
    MANIFEST = "/manifests/"
    BLOB = "/blobs/"
    UPLOADS = "/blobs/uploads/"
    UPLOAD = "/blobs/uploads/…"


METHODS: Mapping[What, tuple[str, ...]] = {
    What.PING: ("GET", "HEAD"),
    What.TAGS: ("GET",),
    What.MANIFEST: ("GET", "HEAD", "PUT", "DELETE"),
    What.BLOB: ("GET", "HEAD"),
    What.UPLOADS: ("POST",),
    What.UPLOAD: ("GET", "PATCH", "PUT", "DELETE"),
}
_PATHS = {
    what: re.compile(path).fullmatch
    for what, path in {
        What.PING: r"/v2/",
        What.TAGS: rf"/v2/(?P<repository>{REPOSITORY})/tags/list",
        What.MANIFEST: rf"/v2/(?P<repository>{REPOSITORY})/manifests/(?P<reference>{DIGEST}|{TAG})",
        What.BLOB: rf"/v2/(?P<repository>{REPOSITORY})/blobs/(?P<reference>{DIGEST})",
        What.UPLOADS: rf"/v2/(?P<repository>{REPOSITORY})/blobs/uploads/?",
        What.UPLOAD: rf"/v2/(?P<repository>{REPOSITORY})/blobs/uploads/(?P<reference>{_UPLOAD})",
    }.items()
}
_QUERIES: Mapping[What, Mapping[str, str]] = {
    What.TAGS: {"n": r"[0-9]{1,9}", "last": TAG},
    What.UPLOADS: {"mount": DIGEST, "from": REPOSITORY},
    What.UPLOAD: {"_state": _STATE, "digest": DIGEST},
}


class RegistryRequest(Struct, frozen=True, kw_only=True):
    """`reference`: a tag or a digest, or the id of an upload."""

    what: What
    repository: str = ""
    reference: str = ""
    query: Mapping[str, str] = {}

    @property
    def path(self) -> str:
        match self.what:
            case What.PING:
                return "/v2/"
            case What.UPLOAD:
                return f"/v2/{self.repository}/blobs/uploads/{self.reference}"
            case _:
                return f"/v2/{self.repository}{self.what.value}{self.reference}"


def request_of(method: str, path: str, query: list[tuple[str, str]]) -> RegistryRequest:
    """The request of this path. The path is not decoded, because the registry decodes it. Raises
    RejectedError."""
    what, found = next(((what, found) for what, of in _PATHS.items() if (found := of(path))), (None, None))
    if what is None or found is None or len(path) > PATH_BYTES_MAX:
        raise RejectedError(
            404, "", "the registry of this cluster has manifests, blobs and tags below /v2/TENANT/NAME/ alone"
        )
    if method not in METHODS[what]:
        raise RejectedError(405, "", f"{method} is not allowed here; allowed: {', '.join(METHODS[what])}")
    named = found.groupdict()
    repository = named.get("repository") or ""
    if len(repository) > REPOSITORY_CHARACTERS_MAX:
        raise RejectedError(
            400, "", f"a name of an image has at most {REPOSITORY_CHARACTERS_MAX} characters, with its tenant"
        )
    if not _RESERVED.isdisjoint(repository.split("/")):
        raise RejectedError(400, "", f"a name of an image has no part {', '.join(sorted(_RESERVED))}")
    return RegistryRequest(
        what=what, repository=repository, reference=named.get("reference") or "", query=_query(what, query)
    )


def _query(what: What, given: list[tuple[str, str]]) -> dict[str, str]:
    taken, query = _QUERIES.get(what, {}), dict(given)
    if len(query) != len(given):
        raise RejectedError(400, "", "a parameter is given twice")
    for name, value in query.items():
        if name not in taken or not re.fullmatch(taken[name], value):
            raise RejectedError(400, "", f"no such parameter, or no such value of it: {name[:40]}")
    return query
