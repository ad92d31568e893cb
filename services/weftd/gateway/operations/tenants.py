"""Operations on packed files and on images."""

from typing import Any

from weft.messages.contexts import PACKED_BYTES_MAX, ContextView
from weft.messages.images import IMAGE_BYTES_MAX, ImageDeleted, ImagesView, ImageView
from weftd.gateway import contexts, images
from weftd.gateway.route import NoQuery, Route, RouteAnswer, Who

CONTEXTS: tuple[Route[Any], ...] = (
    Route(
        method="GET",
        path="/v1/contexts/{digest}",
        group="contexts",
        summary="Look for packed files",
        description="Of the token's tenant. They are kept from now on as if a job had used them.",
        handler=contexts.context,
        query=NoQuery,
        answers={200: RouteAnswer(description="They are stored.", type=ContextView)},
    ),
    Route(
        method="PUT",
        path="/v1/contexts/{digest}",
        group="contexts",
        summary="Store packed files",
        description="A ZIP file, under its SHA-256. A job of this tenant that has this digest as its `context` runs in"
        " a folder with these files: docs/sync.md.",
        handler=contexts.set_,
        query=NoQuery,
        body=bytes,
        body_media=("application/zip",),
        body_bytes_max=PACKED_BYTES_MAX,
        answers={200: RouteAnswer(description="They are stored.", type=ContextView)},
        example="--data-binary @files.zip",
    ),
)

IMAGES: tuple[Route[Any], ...] = (
    Route(
        method="GET",
        path="/v1/images",
        group="images",
        summary="List pushed images",
        handler=images.images,
        query=NoQuery,
        who=Who.ADMIN,
        answers={200: RouteAnswer(description="Those that are stored, by name.", type=ImagesView)},
    ),
    Route(
        method="PUT",
        path="/v1/images/{digest}",
        group="images",
        summary="Push an image",
        description="An archive as `docker save` writes it, under its SHA-256, in the place of any other of its name. A"
        " node that starts a run of a job which names it, and has no such image, loads it: docs/images.md.",
        handler=images.push,
        query=images.ImageNamed,
        who=Who.ADMIN,
        body=bytes,
        body_media=("application/x-tar",),
        body_bytes_max=IMAGE_BYTES_MAX,
        answers={200: RouteAnswer(description="It is stored.", type=ImageView)},
        example="--data-binary @image.tar",
    ),
    Route(
        method="DELETE",
        path="/v1/images",
        group="images",
        summary="Forget a pushed image",
        description="Nodes that have it keep it.",
        handler=images.delete,
        query=images.ImageNamed,
        who=Who.ADMIN,
        answers={200: RouteAnswer(description="Its name.", type=ImageDeleted)},
        example="?name=base:1",
    ),
)
