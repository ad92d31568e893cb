"""`weft quota`: what tenants and groups are guaranteed, may hold at most, hold and borrow."""

import argparse

from msgspec import structs

from weft.domain.quotas import GPUS_MAX
from weft.messages.http_quotas import QuotaView, QuotaWanted
from weftd.cli import connection, page
from weftd.cli.complaint import Complaint
from weftd.cli.drawing.quotas import quota_table

NONE = "none"  # the word that takes a bound away


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("quota", help="show and set guarantees and limits of tenants", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="list|set|delete")
    lister = verbs.add_parser("list", help="every quota, and what its tenant or group holds")
    setter = verbs.add_parser(
        "set",
        help="set or change a quota; what is not given stays as it is",
        epilog=f"`{NONE}` instead of GPUs: no guarantee, or no limit. GPUS is a number, or MODEL=NUMBER, and may be"
        " repeated: `--guaranteed 8 --guaranteed H100=4`.",
    )
    setter.add_argument("name", metavar="NAME", help="tenant, or group with --is-group")
    setter.add_argument("--guaranteed", metavar="GPUS", action="append", help="GPUs that it always gets back")
    setter.add_argument("--limit", metavar="GPUS", action="append", help="GPUs that it may hold at most")
    setter.add_argument("--weight", metavar="N", type=int, help="weight of its borrowing, compared with others")
    setter.add_argument("--group", metavar="GROUP", help=f"the group it belongs to, or `{NONE}`")
    setter.add_argument("--is-group", action="store_true", help="make it a group of tenants")
    deleter = verbs.add_parser("delete", help="take a quota away")
    deleter.add_argument("name", metavar="NAME")
    for each, func in ((lister, list_), (setter, set_), (deleter, delete)):
        each.add_argument("--pool", default="default")
        connection.options(each)
        each.set_defaults(func=func)


async def list_(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        found = await client.quotas(pool=args.pool)
    if args.json:
        page.json_line(found)
    elif not found.quotas:
        page.show(f"no quota is set in pool {args.pool}: every tenant may hold what is free")
    else:
        page.show(quota_table(found.quotas, page.look()))
    return 0


async def set_(args: argparse.Namespace) -> int:
    if args.guaranteed is args.limit is args.weight is args.group is None and not args.is_group:
        raise Complaint("what to set is missing: see `weft quota set --help`", status=2)
    guaranteed, limit = _bounds("--guaranteed", args.guaranteed), _bounds("--limit", args.limit)
    async with connection.connected(args) as client:
        known = (await client.quotas(pool=args.pool)).quotas
        before = next((one for one in known if one.name == args.name), None)
        wanted = _as_it_is(before) if before else QuotaWanted(pool=args.pool)
        if args.guaranteed is not None:
            wanted = structs.replace(wanted, guaranteed=guaranteed.pop("", None), guaranteed_models=guaranteed)
        if args.limit is not None:
            wanted = structs.replace(wanted, limit=limit.pop("", None), limit_models=limit)
        if args.weight is not None:
            wanted = structs.replace(wanted, weight=args.weight)
        if args.group is not None:
            wanted = structs.replace(wanted, group="" if args.group == NONE else args.group)
        if args.is_group:
            wanted = structs.replace(wanted, is_group=True)
        quota = await client.set_quota(args.name, wanted)
    if args.json:
        page.json_line(quota)
    else:
        page.show(quota_table((quota,), page.look()))
    return 0


async def delete(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        found = await client.delete_quota(args.name, pool=args.pool)
    if args.json:
        page.json_line(found)
    else:
        page.show(f"the quota of {found.deleted} is gone")
    return 0


def _as_it_is(quota: QuotaView) -> QuotaWanted:
    return QuotaWanted(**{name: getattr(quota, name) for name in QuotaWanted.__struct_fields__})


def _bounds(option: str, given: list[str] | None) -> dict[str, float]:
    """GPUs by model, empty: of all models."""
    found: dict[str, float] = {}
    for text in given or ():
        model, _, number = text.rpartition("=")
        if text == NONE:
            continue
        try:
            gpus = float(number)
        except ValueError:
            gpus = -1.0
        if not 0 <= gpus <= GPUS_MAX:
            expected = f"expected a number of GPUs, MODEL=NUMBER or `{NONE}`, got {text!r}"
            raise Complaint(expected, field=option, status=2)
        if model in found:
            what = f"GPUs of {model}" if model else "GPUs of all models"
            raise Complaint(f"{what} are given twice", field=option, status=2)
        found[model] = gpus
    return found
