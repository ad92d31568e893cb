"""The documentation at `/docs/`: the files of one archive beside this module, read once at the start.

`make docs` builds the archive, the wheel and the image carry it. It holds each file compressed by gzip, as most
browsers take it. An installation without the archive answers with a sentence about how to get it.
"""

import gzip
import hashlib
import re
import zipfile
from collections.abc import Mapping
from importlib.resources import files

from aiohttp import web

from weftd.gateway.face import POLICY, sha256_source, takes_gzip

ARCHIVE = "documentation.zip"
HOME = "index.html"
ABSENT = (
    "This gateway was installed without its documentation: run `make docs` in a checkout of Weft before you build the"
    " wheel or the image, or read the folder docs of the source.\n"
)
TYPES = {
    "css": "text/css",
    "html": "text/html",
    "ipynb": "text/plain",
    "js": "text/javascript",
    "json": "application/json",
    "png": "image/png",
    "py": "text/plain",
    "svg": "image/svg+xml",
    "txt": "text/plain",
}
SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)


class Documentation:
    """The files of the documentation by name, each compressed. An empty mapping means that it is not installed."""

    def __init__(self, zipped: Mapping[str, bytes]) -> None:
        self._zipped = zipped
        self._tag = f'"{hashlib.sha256(b"".join(zipped.values())).hexdigest()[:16]}"'
        self._policies = {name: _policy(gzip.decompress(page)) for name, page in zipped.items() if _is_page(name)}

    @classmethod
    def packaged(cls) -> "Documentation":
        """The documentation that this program was installed with."""
        archive = files(__package__).joinpath(ARCHIVE)
        if not archive.is_file():
            return cls({})
        with archive.open("rb") as opened, zipfile.ZipFile(opened) as read:
            return cls({name: read.read(name) for name in read.namelist()})

    def answer(self, request: web.Request) -> web.Response:
        """A file, a redirect to the first page, or a sentence about the missing documentation."""
        if not self._zipped:
            return web.Response(status=404, text=ABSENT)
        name = request.match_info.get("name", "") or HOME
        if request.path == "/docs":
            return web.Response(status=308, headers={"Location": "docs/"})
        zipped = self._zipped.get(name)
        if zipped is None:
            return web.Response(
                status=404, text=f"The documentation has no page {name[:200]!r}; /docs/ is its first.\n"
            )
        headers = {"Cache-Control": "no-cache", "ETag": self._tag, "Vary": "Accept-Encoding"}
        headers |= {"Content-Security-Policy": self._policies.get(name, _policy(b"")), "Referrer-Policy": "no-referrer"}
        if request.headers.get("If-None-Match", "").removeprefix("W/") == self._tag:
            return web.Response(status=304, headers=headers)
        kind = TYPES.get(name.rpartition(".")[2], "application/octet-stream")
        headers["Content-Type"] = f"{kind}; charset=utf-8" if kind.startswith("text/") else kind
        if takes_gzip(request.headers.get("Accept-Encoding", "")):
            return web.Response(body=zipped, headers={**headers, "Content-Encoding": "gzip"})
        return web.Response(body=gzip.decompress(zipped), headers=headers)


DOCUMENTATION_KEY = web.AppKey("documentation", Documentation)


async def page_of_documentation(request: web.Request) -> web.StreamResponse:
    """A file of the documentation; no operation of the API."""
    return request.app[DOCUMENTATION_KEY].answer(request)


def _is_page(name: str) -> bool:
    return name.endswith(".html")


def _policy(page: bytes) -> str:
    """The policy of a page: besides the gateway's own files, only the scripts within the page are executed."""
    scripts = "".join(f" {sha256_source(script)}" for script in sorted(set(SCRIPT.findall(page))))
    return POLICY.format(scripts=scripts)
