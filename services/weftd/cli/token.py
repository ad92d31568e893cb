"""`weft token`: create, list and revoke access tokens. For administrators.

To change a tenant's token: create another with another label, use it, and revoke the first.
"""

import argparse

from weft.domain.quantity import duration_seconds
from weft.messages.http import EXPIRES_SECONDS_MAX
from weftd.cli import connection, page
from weftd.cli.drawing.tokens import token_table
from weftd.cli.words import clock, count, zone_name


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "token",
        help="create, list and revoke access tokens",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="create|list|revoke")
    maker = verbs.add_parser("create", aliases=["make"], help="make a token; it is shown this once")
    maker.add_argument("tenant", metavar="TENANT", help="tenant that uses it; created with its first token")
    maker.add_argument("--label", default="default", help="name of the token within the tenant (default: default)")
    maker.add_argument("--admin", action="store_true", help="let it see and do everything")
    maker.add_argument("--expires", type=_seconds, metavar="30d", help="lifetime, after which it is refused")
    lister = verbs.add_parser(
        "list", help="list the tokens of each tenant, and when each was used; never the tokens themselves"
    )
    lister.add_argument("tenant", nargs="?", default="", metavar="TENANT", help="tenant to list (default: all)")
    lister.add_argument("--all", action="store_true", help="also those that were revoked or have expired")
    revoker = verbs.add_parser("revoke", help="make tokens worth nothing")
    revoker.add_argument("tenant", metavar="TENANT")
    revoker.add_argument("--label", default="default", help="name of the token (default: default)")
    for each, func in ((maker, create), (lister, list_), (revoker, revoke)):
        connection.options(each)
        each.set_defaults(func=func)


async def create(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        made = await client.make_token(args.tenant, args.label, admin=args.admin, expires_in=args.expires)
    page.answered(args, made, made.token)
    until = "" if made.expires_at is None else f", until {clock(made.expires_at, now=0)} {zone_name(made.expires_at)}"
    page.note(f"for {made.tenant}, label {made.label}{until}; keep it: only its hash is stored")
    return 0


async def list_(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        found = await client.tokens(tenant=args.tenant, every=args.all)
    if args.json:
        page.json_line(found)
    else:
        page.show(token_table(found.tokens, page.look()))
    return 0


async def revoke(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        told = await client.revoke(args.tenant, args.label)
    page.answered(args, told, f"{count(told.revoked, 'token')} revoked")
    return 0 if told.revoked else 1


def _seconds(text: str) -> int:
    try:
        seconds = int(duration_seconds(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not 1 <= seconds <= EXPIRES_SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"{text}: from one second to ten years")
    return seconds
