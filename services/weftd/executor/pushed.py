"""Images that an administrator pushed: fetched from a gateway as a run starts for whose image this node has none,
checked, and loaded into the node's engine.

An archive may name any image, and the engine would give that name to what it brings: so only one is loaded that names
the image which the job has, and no other.
"""

import asyncio
import hashlib
import logging
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from weft.bus import Bus, BusError
from weft.messages.contexts import PIECE_BYTES
from weft.messages.images import IMAGE_BYTES_MAX, IMAGE_PIECES_MAX, ImageRead, ReadImage, tagged
from weft.messages.nodes import StartRun
from weftd.executor.runs import RuntimeUnavailableError

logger = logging.getLogger(__name__)

ANSWER_SECONDS_MAX = 10.0
MANIFEST_BYTES_MAX = 8 << 20
MEMBERS_MAX = 100_000
_NAMED_BY = ("io.containerd.image.name", "org.opencontainers.image.ref.name")


class BadImageError(Exception):
    """The pushed image is not what its name says, now or later."""


@runtime_checkable
class LoadsImages(Protocol):
    """A runtime whose runs have images."""

    async def has_image(self, name: str) -> bool: ...

    async def load_image(self, name: str, archive: str) -> str:
        """Empty, or why the engine does not take it."""
        ...


class PushedImages:
    """`home`: the executor's folder. An archive is in it only while it comes and is loaded."""

    def __init__(self, home: Path, bus: Bus, runtime: object, *, node_id: str) -> None:
        self._bus, self._node_id = bus, node_id
        self._runtime = runtime if isinstance(runtime, LoadsImages) else None
        self._folder = home / "pushed"
        self._locks: dict[str, asyncio.Lock] = {}
        with suppress(OSError):
            for left in self._folder.iterdir():
                left.unlink()

    async def bring(self, order: StartRun) -> None:
        """Load the image of the order if it was pushed and the engine has none of that name. Raises BadImageError;
        RuntimeUnavailableError if it cannot be had now, so that the start is tried again."""
        if self._runtime is None or not order.image:
            return
        image = tagged(order.image)
        async with self._locks.setdefault(image, asyncio.Lock()):
            if "@" in image or await self._runtime.has_image(image):
                return
            first = await self._first(order)
            if first is None:
                return
            path = self._folder / f"{hashlib.sha256(image.encode()).hexdigest()}.tar"
            try:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                await self._fetch(order, path, first)
                await asyncio.to_thread(check, path, image)
                if why := await self._runtime.load_image(image, str(path)):
                    raise BadImageError(f"the pushed image {image} cannot be loaded: {why}")
                logger.info("loaded the pushed image %s", image)
            except OSError as error:
                raise RuntimeUnavailableError(f"the pushed image {image} cannot be stored now: {error}") from error
            finally:
                with suppress(FileNotFoundError):
                    path.unlink()

    async def _first(self, order: StartRun) -> ImageRead | None:
        """The first piece; None: no such image was pushed, or no gateway says, and the engine fetches it as ever."""
        try:
            first = await self._ask(order, 0)
        except (BusError, ValueError) as error:
            logger.info("no gateway says whether the image %s was pushed: %s", order.image, error)
            return None
        if first.refused:
            raise RuntimeUnavailableError(f"its image is not given: {first.refused}")
        return None if first.missing else first

    async def _fetch(self, order: StartRun, path: Path, piece: ImageRead) -> None:
        size, digest, number, came = piece.size, piece.digest, 0, 0
        if not 0 < size <= IMAGE_BYTES_MAX:
            raise RuntimeUnavailableError(f"the pushed image {order.image} would have {size} bytes")
        hashed = hashlib.sha256()
        while True:
            await asyncio.to_thread(_append, path, piece.data, hashed)
            number, came = number + 1, came + len(piece.data)
            if came >= size or len(piece.data) != PIECE_BYTES or number == IMAGE_PIECES_MAX:
                break
            try:
                piece = await self._ask(order, number)
            except (BusError, ValueError) as error:
                raise RuntimeUnavailableError(f"no gateway gives the rest of its image: {error}") from error
            if piece.digest != digest:
                raise RuntimeUnavailableError(f"the pushed image {order.image} was replaced as it came")
        if came != size or hashed.hexdigest() != digest:
            raise RuntimeUnavailableError(f"the {came} bytes that came are not those of {digest[:12]}")

    async def _ask(self, order: StartRun, number: int) -> ImageRead:
        asked = ReadImage(
            node_id=self._node_id,
            job_id=order.job_id,
            epoch=order.epoch,
            rank=order.rank,
            image=order.image or "",
            number=number,
        )
        return await self._bus.request(asked, ImageRead, seconds_max=ANSWER_SECONDS_MAX)


class _Manifest(msgspec.Struct):
    RepoTags: list[str] | None = None


class _Index(msgspec.Struct):
    manifests: list["_Described"] = []


class _Described(msgspec.Struct):
    annotations: dict[str, str] | None = None


def check(path: Path, image: str) -> None:
    """Raises BadImageError unless the archive is of this one image; OSError."""
    try:
        with tarfile.open(path, "r:") as archive:
            found = _read(archive)
        manifests = msgspec.json.decode(found.get("manifest.json", b""), type=list[_Manifest])
        index = msgspec.json.decode(found.get("index.json", b"{}"), type=_Index)
    except (tarfile.TarError, msgspec.DecodeError, EOFError, ValueError) as error:
        raise BadImageError(f"the pushed image {image} is no archive of `docker save`: {error}") from None
    names = {tagged(name) for one in manifests for name in one.RepoTags or ()}
    said = {one.annotations.get(_NAMED_BY[0], "") for one in index.manifests if one.annotations} - {""}
    if names != {image} or not all(_is_short_for(image, name) for name in said):
        others = ", ".join(sorted(names | said)) or "none"
        raise BadImageError(f"the pushed archive of {image} has other names in it: {others[:300]}")


def _is_short_for(image: str, name: str) -> bool:
    """Engines write the whole name into an index: `docker.io/library/busybox:1` for `busybox:1`."""
    return tagged(name) in (image, f"docker.io/library/{image}", f"docker.io/{image}")


def _read(archive: tarfile.TarFile) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for count, member in enumerate(archive):
        if count >= MEMBERS_MAX:
            raise ValueError(f"it has more than {MEMBERS_MAX} files")
        name = member.name.removeprefix("./")
        if name in ("manifest.json", "index.json"):
            if name in found or not member.isreg() or member.size > MANIFEST_BYTES_MAX:
                raise ValueError(f"{name} is there twice, no file, or too large")
            file = archive.extractfile(member)
            found[name] = b"" if file is None else file.read(MANIFEST_BYTES_MAX)
    return found


def _append(path: Path, data: bytes, hashed: "hashlib._Hash") -> None:
    hashed.update(data)
    with open(path, "ab") as file:
        file.write(data)
