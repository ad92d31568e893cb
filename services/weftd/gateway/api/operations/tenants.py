"""Operations on packed files and on images."""

from typing import Any

from weft.messages.contexts import PACKED_BYTES_MAX, ContextView
from weft.messages.images import ImageDeleted, ImagesView
from weftd.gateway.api import contexts, images
from weftd.gateway.http.route import NoQuery, Route, RouteAnswer

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
        summary="List images in the registry",
        description="Those of the token's tenant. They are pushed through `/v2/`, the API of registries of containers:"
        " docs/images.md.",
        handler=images.images,
        query=NoQuery,
        answers={200: RouteAnswer(description="By name, with how many bytes all of them have.", type=ImagesView)},
    ),
    Route(
        method="DELETE",
        path="/v1/images",
        group="images",
        summary="Delete an image in the registry",
        description="By its digest, or by a tag with all others that it has. Nodes that have it keep it; a job that"
        " names it and starts elsewhere fails, and says so.",
        handler=images.delete,
        query=images.ImageNamed,
        answers={200: RouteAnswer(description="The names that are gone.", type=ImageDeleted)},
        example="?name=weft.internal/vision/train:7",
    ),
)
