"""`weft context`: the clusters that this person uses, and which of them commands are sent to."""

import argparse
import os

from msgspec import Struct
from rich.table import Table

from weft.client import ClientError
from weft.client.contexts import LOCAL, Contexts, read_contexts, write_contexts
from weft.client.place import CLIENT_FILE, weft_home
from weftd.cli import page
from weftd.cli.cli_error import CliError
from weftd.cli.rendering.context import RenderContext, plain, table


class ContextView(Struct, frozen=True, kw_only=True):
    name: str
    url: str
    current: bool
    token: bool


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "context",
        help="list and choose the clusters that you signed in to",
        description="list and choose the clusters that you signed in to with `weft login`. `local` is the cluster that"
        " `weft up` runs here. `--context NAME` and WEFT_CONTEXT choose one for a command; WEFT_URL and WEFT_TOKEN go"
        " before WEFT_CONTEXT.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="list|use|show|delete")
    each = verbs.add_parser("list", help="list contexts; the current one has a star")
    each.add_argument("--json", action="store_true", help="print JSON")
    each.set_defaults(func=listed)
    each = verbs.add_parser("use", help="make a context the current one")
    each.add_argument("name", metavar="NAME")
    each.set_defaults(func=use)
    each = verbs.add_parser("show", help="print the name of the current context")
    each.set_defaults(func=show)
    each = verbs.add_parser("delete", help="forget a context and its token")
    each.add_argument("name", metavar="NAME")
    each.set_defaults(func=delete)


async def listed(args: argparse.Namespace) -> int:
    contexts = _read()
    current = contexts.current or LOCAL
    found = [
        ContextView(name=name, url=one.url, current=name == current, token=bool(one.token))
        for name, one in sorted(contexts.contexts.items())
    ]
    if (weft_home(os.environ) / CLIENT_FILE).exists() or current == LOCAL:
        local = ContextView(name=LOCAL, url="", current=current == LOCAL, token=True)
        found.append(local)

    def drawn(context: RenderContext) -> Table:
        made = table("", "CONTEXT", "URL", context=context, flexible="URL")
        for one in found:
            url = one.url or "the cluster that `weft up` runs here"
            made.add_row("*" if one.current else "", plain(one.name, "bold"), plain(url))
        return made

    page.drawn(args, tuple(found), drawn)
    return 0


async def use(args: argparse.Namespace) -> int:
    contexts = _read()
    _of(contexts, args.name)
    _write(Contexts(current="" if args.name == LOCAL else args.name, contexts=contexts.contexts))
    page.show(f"commands go to {args.name} from now on")
    return 0


async def show(args: argparse.Namespace) -> int:
    page.show(os.environ.get("WEFT_CONTEXT") or _read().current or LOCAL)
    return 0


async def delete(args: argparse.Namespace) -> int:
    contexts = _read()
    if _of(contexts, args.name) is None:
        raise CliError(f"{LOCAL} is the cluster that `weft up` runs here, and is in no file of contexts")
    _write(contexts.without(args.name))
    page.show(f"context {args.name} is forgotten")
    return 0


def _of(contexts: Contexts, name: str) -> object:
    try:
        return contexts.named(name)
    except ClientError as error:
        raise CliError(str(error)) from error


def _read() -> Contexts:
    try:
        return read_contexts(os.environ)
    except ClientError as error:
        raise CliError(str(error)) from error


def _write(contexts: Contexts) -> None:
    try:
        write_contexts(os.environ, contexts)
    except ClientError as error:
        raise CliError(str(error)) from error
