"""`weft tenant`: what each tenant may take and has taken, and how to change it. For administrators."""

import argparse
from collections.abc import Callable
from typing import TypeVar

from msgspec import UNSET, UnsetType

from weft.domain.quantity import size_bytes
from weft.messages.http import TenantWanted
from weftd.cli import connection, page
from weftd.cli.complaint import Complaint
from weftd.cli.drawing.tenants import tenant_table

T = TypeVar("T")

DEFAULT = "default"  # the word that takes a choice back


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "tenant", help="show and set limits on the submissions of tenants", description=__doc__
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="list|set")
    lister = verbs.add_parser("list", help="every tenant, what it may take and what it has taken")
    setter = verbs.add_parser(
        "set",
        help="change what a tenant may take",
        epilog=f"`{DEFAULT}` instead of a value: as the gateway's settings say.",
    )
    setter.add_argument("tenant", metavar="TENANT")
    setter.add_argument("--jobs-open", metavar="N", help="jobs that wait or run")
    setter.add_argument("--spec-bytes", metavar="SIZE", help="bytes of the specifications of those jobs, such as 64MiB")
    setter.add_argument("--priority", metavar="N", help="the highest priority that it may ask for")
    setter.add_argument("--unpreemptible", metavar="yes|no", help="may its jobs refuse to be pre-empted?")
    for each, func in ((lister, list_), (setter, set_)):
        connection.options(each)
        each.set_defaults(func=func)


async def list_(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        found = await client.tenants()
    if args.json:
        page.json_line(found)
    else:
        page.show(tenant_table(found.tenants, page.look()))
    return 0


async def set_(args: argparse.Namespace) -> int:
    wanted = TenantWanted(
        jobs_open_max=_chosen(args.jobs_open, int, "--jobs-open"),
        spec_bytes_max=_chosen(args.spec_bytes, _size, "--spec-bytes"),
        priority_max=_chosen(args.priority, int, "--priority"),
        may_be_unpreemptible=_chosen(args.unpreemptible, _yes, "--unpreemptible"),
    )
    if wanted == TenantWanted():
        raise Complaint("what to change is missing: see `weft tenant set --help`", status=2)
    async with connection.connected(args) as client:
        tenant = await client.change_tenant(args.tenant, wanted)
    if args.json:
        page.json_line(tenant)
    else:
        page.show(tenant_table((tenant,), page.look()))
    return 0


def _chosen(text: str | None, read: Callable[[str], T], option: str) -> T | UnsetType | None:
    """The change: empty without the option, None for the default."""
    if text is None:
        return UNSET
    if text == DEFAULT:
        return None
    try:
        return read(text)
    except ValueError as error:
        raise Complaint(f"{error}, or `{DEFAULT}`", field=option, status=2) from None


def _size(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else size_bytes(text)


def _yes(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError(f"expected yes or no, got {text!r}")
    return text == "yes"
