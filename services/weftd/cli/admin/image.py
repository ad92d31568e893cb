"""`weft image`: images in the registry of the cluster, below the name of the token's tenant, and logins at other
registries. docs/images.md.

`push` lets the container engine here push an image of its own through the gateway, with this token for that alone.
"""

import argparse
import asyncio
import base64
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from rich.table import Table

from weft.domain.quantity import size_text
from weft.messages.images import (
    DOCKER_HUB,
    HOST,
    OWN_HOST,
    ImageDeleted,
    ImageView,
    login_secret,
    login_text,
    registry_image,
)
from weftd.cli import connection, page
from weftd.cli.admin.secret import secret_value
from weftd.cli.cli_error import CliError
from weftd.cli.rendering.context import RenderContext, plain, table

_has_host = re.compile(r"(?:localhost|[^/]*[.:][^/]*)/").match
_NOT_TRUSTED = ("server gave HTTP response to HTTPS client", "x509:", "certificate")
DIGEST_CHARACTERS = len("sha256:") + 12


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("image", help="images in the cluster's registry", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="push|list|delete|login|logout")
    pusher = verbs.add_parser(
        "push", help="push an image from this machine's container engine, for jobs of this tenant"
    )
    pusher.add_argument("--engine", default="docker", metavar="COMMAND", help="command that pushes: docker, or podman")
    pusher.add_argument("name", metavar="IMAGE", help="name of the image in this machine's engine")
    lister = verbs.add_parser("list", help="list the stored images of this tenant")
    deleter = verbs.add_parser("delete", help="delete stored images; nodes that have them keep them")
    deleter.add_argument(
        "name", metavar="IMAGE", nargs="?", help="name that `weft image list` shows, with a tag or digest"
    )
    deleter.add_argument(
        "--untagged", action="store_true", help="delete every image that lost its tags to newer images"
    )
    opener = verbs.add_parser(
        "login",
        help="store a login at another registry: jobs of this tenant pull their images with it",
        description="store a login at another registry as a secret. The password is typed without an echo, or read from"
        " standard input or a file: never from the command line, which other users of this machine see",
    )
    opener.add_argument("--user", required=True, metavar="USER", help="user name at the registry")
    opener.add_argument("--from", dest="source", metavar="FILE", help="file with the password or token")
    closer = verbs.add_parser("logout", help="delete the login at another registry; images on nodes stay there")
    for each in (opener, closer):
        each.add_argument("host", metavar="HOST", help=f"registry, such as ghcr.io, or {DOCKER_HUB} of Docker Hub")
    verbs_of = ((pusher, push), (lister, list_), (deleter, delete), (opener, login), (closer, logout))
    for each, func in verbs_of:
        connection.options(each)
        each.set_defaults(func=func)


async def push(args: argparse.Namespace) -> int:
    place = connection.find_place(args, os.environ)
    async with connection.connected(args) as client:
        prefix = (await client.images()).prefix
        name = _stored_name(args.name, prefix)
        target = name.replace(OWN_HOST, _host(place.url), 1)
        await _engine(args.engine, "tag", args.name, target)
        try:
            with tempfile.TemporaryDirectory(prefix="weft-image-") as folder:
                _write_config(Path(folder), _host(place.url), place.token, os.environ)
                file = f"{folder}/config.json"
                await _engine(
                    args.engine, "push", target, environ={"DOCKER_CONFIG": folder, "REGISTRY_AUTH_FILE": file}
                )
        finally:
            with suppress(CliError):
                await _engine(args.engine, "rmi", target)
        kept = next(
            (one for one in (await client.images()).images if name in {f"{one.name}:{tag}" for tag in one.tags}), None
        )
    if kept is None:
        raise CliError(f"{name} was pushed, and another push or `weft image delete` took it away")
    page.answered(args, kept, f"{name} is in the registry: jobs of this tenant name it so")
    return 0


async def list_(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        found = await client.images()
    if args.json:
        page.json_line(found)
    elif found.images:
        page.show(image_table(found.images, page.context()))
    else:
        page.note("no images; `weft image push IMAGE` stores one")
    return 0


async def delete(args: argparse.Namespace) -> int:
    if bool(args.name) == args.untagged:
        raise CliError("name an image, or give --untagged", field="IMAGE")
    gone: list[str] = []
    async with connection.connected(args) as client:
        names = [args.name]
        if args.untagged:
            names = [f"{one.name}@{one.digest}" for one in (await client.images()).images if not one.tags]
        for name in names:
            gone += (await client.delete_image(name)).deleted
    deleted = ImageDeleted(deleted=tuple(gone))
    page.answered(args, deleted, f"deleted: {', '.join(gone)}" if gone else "every image has a tag")
    return 0


async def login(args: argparse.Namespace) -> int:
    name = _login_name(args.host)
    if ":" in args.user or not args.user.isprintable():
        raise CliError("expected a user name without a colon", field="--user", status=2)
    value = login_text(args.host, args.user, secret_value(f"the password at {args.host}", args.source))
    async with connection.connected(args) as client:
        stored = await client.set_secret(name, value)
    page.answered(args, stored, f"jobs of this tenant pull images of {args.host} as {args.user} (secret {name})")
    return 0


async def logout(args: argparse.Namespace) -> int:
    name = _login_name(args.host)
    async with connection.connected(args) as client:
        deleted = await client.delete_secret(name)
    page.answered(args, deleted, f"the login at {args.host} is deleted")
    return 0


def _login_name(host: str) -> str:
    """The name of the secret. Raises `CliError`."""
    if not re.fullmatch(HOST, host):
        raise CliError(f"expected the host of a registry, such as ghcr.io, not {host}", field="HOST", status=2)
    return login_secret(host)


def _stored_name(name: str, prefix: str) -> str:
    """The name of a local image in the registry: without the host that it is from. Raises `CliError`."""
    host = _has_host(name)
    found = f"{prefix}{name[host.end() if host else 0 :]}"
    with suppress(ValueError):
        image = registry_image(found)
        if image is not None and not image.digest:
            return str(image)
    raise CliError(f"{name} cannot be stored as {found}: expected the name of an image with a tag", field="IMAGE")


def _host(url: str) -> str:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{host}:{port}"


def _write_config(folder: Path, host: str, token: str, environ: Mapping[str, str]) -> None:
    """A configuration of the engine's client with this token, and its user's choice of an engine."""
    own = Path(environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    chosen = {}
    with suppress(OSError, ValueError, AttributeError):
        context = json.loads((own / "config.json").read_text()).get("currentContext")
        chosen = {"currentContext": context} if context else {}
    if (own / "contexts").is_dir():
        (folder / "contexts").symlink_to(own.absolute() / "contexts")
    auth = base64.b64encode(f"weft:{token}".encode()).decode()
    (folder / "config.json").touch(mode=0o600)
    (folder / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}, **chosen}))


async def _engine(engine: str, *words: str, environ: Mapping[str, str] | None = None) -> None:
    """Run a command of the engine. Raises `CliError`."""
    if words[-1].startswith("-") or words[1].startswith("-"):
        raise CliError(f"{words[1]} is no name of an image", field="IMAGE")
    shown = sys.stderr if sys.stderr.isatty() and words[0] == "push" else asyncio.subprocess.DEVNULL
    try:
        running = await asyncio.create_subprocess_exec(
            engine,
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=shown,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **(environ or {})},
        )
    except OSError as error:
        raise CliError(f"{engine} cannot be run here: {error.strerror}", field="--engine") from error
    _, said = await running.communicate()
    if running.returncode:
        lines = said.decode(errors="replace").strip().splitlines()
        why = lines[-1] if lines else f"status {running.returncode}"
        hint = ": the engine must trust the gateway's certificate, docs/images.md" if _is_trust(why) else ""
        raise CliError(f"{engine} {' '.join(words)}: {why}{hint}")


def _is_trust(why: str) -> bool:
    return any(words in why for words in _NOT_TRUSTED)


def image_table(images: Sequence[ImageView], context: RenderContext) -> Table:
    """A row for each tag; an image that has none any more is shown by its whole digest, by which it can be deleted."""
    made = table("NAME", "SIZE", "DIGEST", context=context, right=("SIZE",), flexible="NAME")
    for one in images:
        names = [f"{one.name}:{tag}" for tag in one.tags] or [f"{one.name}@{one.digest}"]
        for name in names:
            made.add_row(plain(name, "bold"), size_text(one.bytes), plain(one.digest[:DIGEST_CHARACTERS]))
    return made
