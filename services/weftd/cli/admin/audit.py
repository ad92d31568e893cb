"""`weft audit`: acts of administrators, sign-ins, sign-outs and refusals."""

import argparse
from collections.abc import Sequence

from rich.table import Table

from weft.messages.http.audit import AuditView
from weftd.cli import connection, page
from weftd.cli.formatting import clock
from weftd.cli.rendering.context import RenderContext, plain, table

LISTED = 100
LISTED_MAX = 1000


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "audit",
        help="print the audit log: acts of administrators, sign-ins, refusals",
        description="print the audit log: what administrators did, who signed in and out, changes of secrets and"
        " webhooks, and what was refused; the newest entries last. A tenant sees its own, an administrator all.",
    )
    parser.add_argument("-n", type=int, dest="limit", default=LISTED, metavar="N", help=f"entries (default: {LISTED})")
    parser.add_argument("--tenant", default="", metavar="T", help="only entries of this tenant; for administrators")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--after", type=int, metavar="SEQ", help="list the first entries after this number")
    group.add_argument("--before", type=int, metavar="SEQ", help="list the last entries before this number")
    connection.options(parser)
    parser.set_defaults(func=audit)


async def audit(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        log = await client.audit(tenant=args.tenant, after=args.after, before=args.before, limit=args.limit)
    page.drawn(args, log, lambda look: audit_table(log.entries, look), "" if log.entries else "no entries")
    return 0


def audit_table(entries: Sequence[AuditView], context: RenderContext) -> Table:
    made = table("SEQ", "AT", "TENANT", "WHO", "FROM", "OUTCOME", "ACT", "DETAIL", context=context, flexible="DETAIL")
    for one in entries:
        made.add_row(
            str(one.seq),
            clock(one.at, now=context.now),
            plain(one.tenant or "?", "bold"),
            plain(f"{one.who} ({', '.join(filter(None, (one.person, one.session)))})" if one.session else one.who),
            plain(one.source),
            plain(one.outcome, "red" if one.outcome == "refused" else ""),
            plain(one.act),
            plain(one.detail),
        )
    return made
