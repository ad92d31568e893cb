"""`weft label` and `weft taint`: marks of nodes, by which jobs choose nodes or are kept away from them."""

import argparse
from collections.abc import Sequence

from weft.client import Client
from weft.domain.labels import labels_of
from weft.messages.http import Accepted
from weftd.cli import connection
from weftd.cli.cli_error import CliError
from weftd.cli.jobs.act import each

_LABEL = (
    "change the labels of nodes, by which jobs choose them with `where`: zone=a sets one, nvlink= sets one without a"
    " value, zone- removes one, also one from the node's own settings. Running jobs continue"
)
_TAINT = (
    "change the taints of nodes: a job starts there only if it names each of them in `tolerate`. dedicated=vision sets"
    " one, dedicated- removes one, also one from the node's own settings. Running jobs continue"
)


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    for name, summary in (("label", _LABEL), ("taint", _TAINT)):
        parser = commands.add_parser(name, help=summary, description=summary)
        parser.add_argument("ids", nargs="+", metavar="NODE", help="nodes, and then changes: zone=a, nvlink=, zone-")
        connection.options(parser)
        parser.set_defaults(func=mark, marks=name)


async def mark(args: argparse.Namespace) -> int:
    nodes, changes = _read(args.ids)

    async def one(client: Client, node: str) -> Accepted:
        if args.marks == "label":
            return await client.mark(node, labels=changes)
        return await client.mark(node, taints=changes)

    async with connection.connected(args) as client:
        return await each(client, args, nodes, one, f"{{id}} has these {args.marks}s changed")


def _read(words: Sequence[str]) -> tuple[list[str], dict[str, str | None]]:
    """The nodes, and the changes: a word with `=` or with `-` at its end."""
    nodes = [word for word in words if not _is_change(word)]
    gone = [word.removesuffix("-") for word in words if _is_change(word) and "=" not in word]
    try:
        set_, taken = labels_of(word for word in words if "=" in word), labels_of(gone)
    except ValueError as error:
        raise CliError(str(error), status=2) from error
    if twice := sorted(set_.keys() & taken.keys()):
        raise CliError(f"{twice[0]} is both set and removed", status=2)
    if not nodes:
        raise CliError("no node is named", status=2)
    if not set_ and not taken:
        raise CliError(
            "no change is named: zone=a sets a label, nvlink= one without a value, zone- removes one", status=2
        )
    return nodes, {**set_, **dict.fromkeys(taken)}


def _is_change(word: str) -> bool:
    return "=" in word or word.endswith("-")
