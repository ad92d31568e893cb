"""Conditional answers (`ETag`, RFC 9110) and links to the next page (`Link`, RFC 8288)."""

import hashlib

from aiohttp import web

from weftd.gateway.http.route import JSON

TAG_BYTES = 12


def tags_of(header: str) -> set[str]:
    """The tags that an `If-None-Match` names."""
    return {tag.strip().removeprefix("W/").strip('"') for tag in header.split(",")}


def revalidated(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """A JSON answer with a tag of its bytes, or a 304 without a body if the reader names this tag."""
    if not isinstance(response, web.Response) or (response.status, response.content_type) != (200, JSON):
        return response
    if not isinstance(response.body, bytes) or "ETag" in response.headers:
        return response
    tag = hashlib.blake2b(response.body, digest_size=TAG_BYTES).hexdigest()
    response.headers["ETag"] = f'"{tag}"'
    response.headers.setdefault("Cache-Control", "no-cache")
    if tag not in tags_of(request.headers.get("If-None-Match", "")):
        return response
    kept = {name: response.headers[name] for name in ("ETag", "Cache-Control", "Link") if name in response.headers}
    return web.Response(status=304, headers=kept)


def next_page(request: web.Request, **query: str | int | None) -> dict[str, str]:
    """The header that names the next page: this request with other parameters. Empty if one of them is None."""
    if None in query.values():
        return {}
    return {
        "Link": f'<{request.rel_url.update_query({name: str(value) for name, value in query.items()})}>; rel="next"'
    }
