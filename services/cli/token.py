"""`weft token`: make and revoke access tokens. For administrators."""

import argparse

from services.cli import connection, page
from services.cli.words import count


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("token", help="make and revoke access tokens", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="make|revoke")
    maker = verbs.add_parser("make", help="make a token; it is shown this once")
    maker.add_argument("tenant", metavar="TENANT", help="who may use it; made with the first token")
    maker.add_argument("--label", default="default", help="to tell it from the tenant's others (default: default)")
    maker.add_argument("--admin", action="store_true", help="let it see and do everything")
    revoker = verbs.add_parser("revoke", help="make tokens worth nothing")
    revoker.add_argument("tenant", metavar="TENANT")
    revoker.add_argument("--label", default="default", help="of the token (default: default)")
    for each, func in ((maker, make), (revoker, revoke)):
        connection.options(each)
        each.set_defaults(func=func)


async def make(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        made = await client.make_token(args.tenant, args.label, admin=args.admin)
    page.answered(args, made, made.token)
    page.note(f"for {made.tenant}, label {made.label}; keep it: only its hash is stored")
    return 0


async def revoke(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        told = await client.revoke(args.tenant, args.label)
    page.answered(args, told, f"{count(told.revoked, 'token')} revoked")
    return 0 if told.revoked else 1
