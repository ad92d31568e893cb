"""`weft files`: what a job wrote to its results and its checkpoints, also after its end."""

import argparse
import time
from contextlib import aclosing
from typing import TypedDict

from msgspec import structs
from rich.table import Table
from rich.text import Text

from weft.client import Client
from weft.domain.quantity import size_text
from weft.messages.files import JobFile
from weftd.cli import connection, page
from weftd.cli.rendering.context import plain, table

LIMIT = 1000


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "files",
        help="list the files that a job wrote, also after its end",
        description="List the files that a job wrote to $WEFT_RESULTS and $WEFT_CHECKPOINT_DIR, or delete them. They"
        " are on the node on which the rank ran, for as long as it keeps them. `weft cp JOB:PATH .` copies them.",
        epilog="weft files train\nweft files train checkpoints\nweft files train results/tmp --delete",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("job", metavar="JOB", help="id of the job, or its name (then the newest of that name)")
    parser.add_argument("path", nargs="?", default="", metavar="PATH", help="only files below this path")
    parser.add_argument("--rank", type=int, default=0, metavar="N", help="rank whose node has the files (default: 0)")
    parser.add_argument("--role", default="", help="count ranks within this role")
    parser.add_argument("--epoch", type=int, metavar="N", help="epoch whose node has the files (default: the newest)")
    parser.add_argument("--limit", type=int, default=LIMIT, metavar="N", help=f"files to show (default: {LIMIT})")
    parser.add_argument("--delete", action="store_true", help="delete the files of a job that has ended")
    connection.options(parser)
    parser.set_defaults(func=files)


class Which(TypedDict):
    """The run on whose node the files are."""

    rank: int
    role: str
    epoch: int | None


async def files(args: argparse.Namespace) -> int:
    which = Which(rank=args.rank, role=args.role, epoch=args.epoch)
    async with connection.connected(args) as client:
        if args.delete:
            deleted = await client.delete_files(args.job, args.path, **which)
            sentence = f"the files of {args.job} below {args.path or '/'} are deleted on {deleted.node}"
            page.answered(args, deleted, sentence)
            return 0
        await _list(client, args, which)
    return 0


async def _list(client: Client, args: argparse.Namespace, which: "Which") -> None:
    found: list[JobFile] = []
    left_out, cut = 0, False
    async with aclosing(client.file_pages(args.job, args.path, **which)) as pages:
        async for each in pages:
            found += each.files
            left_out, cut = left_out + each.left_out, cut or each.cut
            if len(found) > args.limit:
                break
    if args.json:
        page.json_line(structs.replace(each, files=tuple(found[: args.limit]), left_out=left_out, cut=cut))
        return
    page.show(_table(found[: args.limit]))
    if len(found) > args.limit:
        page.remark(f"there are more: --limit {2 * args.limit}, or name a folder")
    if cut:
        page.remark("a folder has too many entries to search: name a path below it")
    if left_out:
        page.remark(f"left out: {left_out} entries that are no readable files, such as links that lead elsewhere")


def _table(found: list[JobFile]) -> Table:
    context = page.context()
    made = table("SIZE", "WRITTEN", "PATH", context=context, right=("SIZE",), flexible="PATH")
    for file in found:
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime(max(0.0, min(file.modified_at, 4e9))))
        made.add_row(Text(size_text(file.bytes)), Text(at, "dim"), plain(file.path))
    return made
