"""The dashboard's files, read once at the start: `/` is its page, `/face/<digest>/NAME` all that the page loads.

The digest is that of the whole folder, so a name never changes its content and browsers may cache it for ever;
`{digest}` in the page is filled in. Only the names that were read are served, whatever a path looks like.
"""

import base64
import gzip
import hashlib
import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable

from aiohttp import web
from msgspec import Struct

from weftd.gateway.errors import RejectedError

PAGE = "index.html"
MARK = b"{digest}"
DIGEST_CHARACTERS = 16
TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
    "svg": "image/svg+xml",
    "png": "image/png",
    "woff2": "font/woff2",
}
GAINFUL = 0.9  # compressed bytes are served if they are at most this fraction of the plain ones

POLICY = (
    "default-src 'none'; script-src 'self'{scripts}; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
    " font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
INLINE = re.compile(rb'<script type="module">(.*?)</script>', re.DOTALL)
FOR_EVER = "public, max-age=31536000, immutable"


class FaceFile(Struct, frozen=True):
    """One file: its media type, its bytes, and the compressed bytes if these are fewer."""

    media: str
    plain: bytes
    zipped: bytes | None


class Face:
    """The files of the dashboard by name. Raises ValueError if the folder has no page, or a file of unknown type."""

    def __init__(self, contents: Mapping[str, bytes]) -> None:
        if PAGE not in contents:
            raise ValueError(f"the dashboard has no {PAGE}")
        self.digest = _digest(contents)
        page = contents[PAGE].replace(MARK, self.digest.encode())
        self._scripts = "".join(f" {sha256_source(script)}" for script in INLINE.findall(page))
        self._files = {name: _file(name, content) for name, content in {**contents, PAGE: page}.items()}

    @property
    def names(self) -> list[str]:
        return sorted(self._files)

    def page(self, request: web.Request) -> web.Response:
        """The page itself: browsers ask for it again each time, and get it again if it changed."""
        tag = f'"{self.digest}"'
        headers = {**_security(self._scripts), "Cache-Control": "no-cache", "ETag": tag}
        if request.headers.get("If-None-Match", "").removeprefix("W/") == tag:
            return web.Response(status=304, headers=headers)
        return _answer(self._files[PAGE], request, headers)

    def file(self, request: web.Request) -> web.Response:
        """A file of the page. Raises RejectedError 404."""
        digest, name = request.match_info["digest"], request.match_info["name"]
        if digest != self.digest:
            raise RejectedError(404, "", "this is of another version of the dashboard; load its page again")
        found = self._files.get(name)
        if found is None or name == PAGE:
            raise RejectedError(404, "", f"the dashboard has no file {name[:200]!r}")
        return _answer(found, request, {**_security(""), "Cache-Control": FOR_EVER})


def packaged() -> Face:
    """The dashboard that this program was installed with."""
    return Face(dict(_contents(files(__package__).joinpath("face"))))


def _contents(folder: Traversable, below: str = "") -> Iterator[tuple[str, bytes]]:
    """The files of a folder and of those in it, by their paths below the first."""
    for each in folder.iterdir():
        if each.is_dir():
            yield from _contents(each, f"{below}{each.name}/")
        elif _is_served(each.name):
            yield f"{below}{each.name}", each.read_bytes()


def _security(scripts: str) -> dict[str, str]:
    """`scripts`: those within the page that may be executed, as the policy names them."""
    return {"Content-Security-Policy": POLICY.format(scripts=scripts), "Referrer-Policy": "no-referrer"}


def _is_served(name: str) -> bool:
    """True unless tools left the file in the folder."""
    return not name.startswith((".", "_")) and not name.endswith(("~", ".orig", ".md"))


def _digest(contents: Mapping[str, bytes]) -> str:
    whole = hashlib.sha256()
    for name in sorted(contents):
        whole.update(b"%d %s %d " % (len(name), name.encode(), len(contents[name])))
        whole.update(contents[name])
    return whole.hexdigest()[:DIGEST_CHARACTERS]


def _file(name: str, content: bytes) -> FaceFile:
    media = TYPES.get(name.rpartition(".")[2])
    if media is None:
        raise ValueError(f"a file of unknown type in the dashboard: {name}")
    zipped = gzip.compress(content, mtime=0)
    return FaceFile(media, content, zipped if len(zipped) < GAINFUL * len(content) else None)


def _answer(found: FaceFile, request: web.Request, headers: Mapping[str, str]) -> web.Response:
    told = {**headers, "Content-Type": found.media}
    if found.zipped is None:
        return web.Response(body=found.plain, headers=told)
    told["Vary"] = "Accept-Encoding"
    if takes_gzip(request.headers.get("Accept-Encoding", "")):
        return web.Response(body=found.zipped, headers={**told, "Content-Encoding": "gzip"})
    return web.Response(body=found.plain, headers=told)


def takes_gzip(accepted: str) -> bool:
    for part in accepted.lower().split(","):
        coding, _, quality = part.strip().partition(";")
        if coding.strip() in ("gzip", "*"):
            return quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def sha256_source(text: bytes) -> str:
    """The name of a script within a page in a Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'"
