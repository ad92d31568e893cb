"""`weft image`: images for nodes that reach no registry which has them, pushed by an administrator. docs/images.md.

`push` takes the image of the container engine here (`docker save`), or an archive that was saved before.
"""

import argparse
import asyncio
import hashlib
import os
import tempfile

from weft.messages.images import IMAGE_BYTES_MAX, ImagesView
from weftd.cli import connection, page
from weftd.cli.complaint import Complaint
from weftd.cli.drawing.images import image_table

READ_BYTES = 1 << 20


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("image", help="push images to the nodes", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="push|list|delete")
    pusher = verbs.add_parser("push", help="have an image on every node that starts a job of it and has none")
    pusher.add_argument("--from", dest="source", metavar="FILE", help="an archive of `docker save`")
    pusher.add_argument(
        "--engine", default="docker", metavar="COMMAND", help="command that saves it: docker, or podman"
    )
    lister = verbs.add_parser("list", help="the images that were pushed")
    deleter = verbs.add_parser("delete", help="forget a pushed image; nodes that have it keep it")
    for each in (pusher, deleter):
        each.add_argument("name", metavar="IMAGE")
    for each, func in ((pusher, push), (lister, list_), (deleter, delete)):
        connection.options(each)
        each.set_defaults(func=func)


async def push(args: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="weft-image-") as folder:
        path = args.source or f"{folder}/image.tar"
        if args.source is None:
            await _save(args.engine, args.name, path)
        digest = await asyncio.to_thread(_digest, path)
        async with connection.connected(args) as client:
            kept = await client.push_image(args.name, digest, path)
    page.answered(args, kept, f"{kept.name} is stored ({kept.bytes} bytes)")
    return 0


async def list_(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        found: ImagesView = await client.images()
    if args.json:
        page.json_line(found)
    elif found.images:
        page.show(image_table(found.images, page.look()))
    else:
        page.note("no images; `weft image push IMAGE` stores one")
    return 0


async def delete(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        gone = await client.delete_image(args.name)
    page.answered(args, gone, f"{gone.deleted} is deleted")
    return 0


async def _save(engine: str, name: str, path: str) -> None:
    if name.startswith("-"):
        raise Complaint(f"{name} is no name of an image", field="IMAGE")
    try:
        saving = await asyncio.create_subprocess_exec(
            engine, "save", "--output", path, name, stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
    except OSError as error:
        raise Complaint(f"{engine} cannot be run here: {error.strerror}", field="--engine") from error
    _, said = await saving.communicate()
    if saving.returncode:
        why = said.decode(errors="replace").strip().splitlines()
        raise Complaint(f"{engine} save {name}: {why[-1] if why else f'status {saving.returncode}'}")


def _digest(path: str) -> str:
    """Raises `Complaint`."""
    try:
        if (size := os.path.getsize(path)) > IMAGE_BYTES_MAX:
            raise Complaint(f"{path} has {size} bytes; {IMAGE_BYTES_MAX} at most are stored")
        with open(path, "rb") as file:
            hashed = hashlib.sha256()
            while data := file.read(READ_BYTES):
                hashed.update(data)
    except OSError as error:
        raise Complaint(f"cannot read {path}: {error.strerror}") from error
    return hashed.hexdigest()
