"""Images over HTTP: archives that an administrator pushes, listed, replaced and deleted by name, and given to nodes as
they start a run of a job which names them."""

from aiohttp import web
from msgspec import Struct, structs

from weft.domain.spec import Image
from weft.messages.images import (
    IMAGE_BYTES_MAX,
    ImageDeleted,
    ImageRead,
    ImagesView,
    ImageView,
    ReadImage,
    tagged,
)
from weft.store import GatewayStore
from weft.store.images import ImageKept
from weftd.gateway.errors import RejectedError
from weftd.gateway.giving import held, not_there
from weftd.gateway.receiving import Upload, digest_of, receive
from weftd.gateway.route import Call, NoQuery, answer

WHOLE_SECONDS_MAX = 7200.0


class ImageNamed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Image


async def images(call: Call[NoQuery]) -> web.StreamResponse:
    return answer(ImagesView(images=tuple(_view(one) for one in await call.gateway.store.images())))


async def push(call: Call[ImageNamed]) -> web.StreamResponse:
    digest, gateway, most = digest_of(call), call.gateway, call.gateway.settings.images_bytes_max
    if "@" in call.query.name:
        raise RejectedError(400, "name", "is a name with a tag: what is pushed has no digest of a registry")
    name = tagged(call.query.name)

    async def stored() -> ImageKept | None:
        return await gateway.store.use_image(name, at=gateway.now())

    upload = Upload(
        kind="image",
        owner=name,
        digest=digest,
        words="the archive",
        bytes_max=min(most, IMAGE_BYTES_MAX),
        seconds_max=WHOLE_SECONDS_MAX,
        most=most,
        apart=False,
        full=f"all pushed images would have more than {most} bytes (GATEWAY_IMAGES_BYTES_MAX), and those that are"
        " stored were used in the last hour: delete one",
    )
    return answer(_view(await receive(call, upload, stored)))


async def delete(call: Call[ImageNamed]) -> web.StreamResponse:
    name = tagged(call.query.name)
    if not await call.gateway.store.delete_image(name):
        raise RejectedError(404, "name", f"no image {name} was pushed")
    return answer(ImageDeleted(deleted=name))


async def read_image(store: GatewayStore, asked: ReadImage, *, at: float) -> ImageRead:
    """A piece of the image that a job names, for a node on which it has that rank, in the epoch that it is in."""
    if (job := await held(store, asked)) is None:
        return ImageRead(refused=not_there(asked))
    names = {job.spec.image, *(role.image for role in job.spec.roles.values()), *(one.image for one in job.revisions)}
    if asked.image not in names:
        return ImageRead(refused=f"{asked.job_id} names no image {asked.image}")
    name = tagged(asked.image)
    if not asked.number and await store.use_image(name, at=at) is None:
        return ImageRead(missing=True)
    found = await store.image_piece(name, asked.number)
    if found is None:
        return ImageRead(missing=True)
    return ImageRead(data=found.data, size=found.bytes, digest=found.digest)


def _view(kept: ImageKept) -> ImageView:
    return ImageView(**structs.asdict(kept))
