"""`weft webhook`: have events of jobs posted to a URL, signed and at least once, or sent by mail. docs/telling.md.

`--events` takes begin, end, fail, requeue, and every name of docs/events.md. The secret that signs is shown once.
With mailto:ADDRESS for a URL they come by mail, many in one: begin, end and requeue unless `--events` says which.
"""

import argparse

from weft.messages.webhooks import WebhookView, WebhookWanted
from weftd.cli import connection, page
from weftd.cli.drawing.webhooks import webhook_table


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("webhook", help="have events posted to a URL", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="add|list|on|remove")
    adder = verbs.add_parser(
        "add", help="post events to a URL, or mail them to mailto:ADDRESS, from now on; prints the secret"
    )
    adder.add_argument("address", metavar="URL")
    adder.add_argument(
        "--events",
        default="",
        metavar="NAMES",
        help="events to post, such as begin,end,fail (default: all; by mail begin,end,requeue)",
    )
    adder.add_argument(
        "--all-tenants", action="store_true", help="post events of all jobs and of nodes; for administrators"
    )
    lister = verbs.add_parser("list", help="list the webhooks and their deliveries")
    on = verbs.add_parser("on", help="switch one on again that was switched off")
    remover = verbs.add_parser("remove", help="post nothing there any more")
    for each in (on, remover):
        each.add_argument("webhook", metavar="ID")
    for each, func in ((adder, add_), (lister, list_), (on, on_), (remover, remove_)):
        connection.options(each)
        each.set_defaults(func=func)


async def add_(args: argparse.Namespace) -> int:
    events = tuple(name.strip() for name in args.events.split(",") if name.strip())
    async with connection.connected(args) as client:
        made = await client.add_webhook(WebhookWanted(url=args.address, events=events, all_tenants=args.all_tenants))
    if args.json:
        page.json_line(made)
    elif not made.secret:
        page.show(f"id      {made.webhook.id}")
    else:
        page.show(f"id      {made.webhook.id}\nsecret  {made.secret}")
        page.note("the secret signs what is posted: it is not shown again")
    return 0


async def list_(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        found = await client.webhooks()
    if args.json:
        page.json_line(found)
    elif found.webhooks:
        page.show(webhook_table(found.webhooks, page.look()))
    else:
        page.note("no webhooks; `weft webhook add URL` makes one")
    return 0


async def on_(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        return _told(args, await client.switch_webhook_on(args.webhook), "is on")


async def remove_(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        return _told(args, await client.remove_webhook(args.webhook), "is removed")


def _told(args: argparse.Namespace, webhook: WebhookView, what: str) -> int:
    page.answered(args, webhook, f"{webhook.id} {what}: {webhook.url}")
    return 0
