"""`weft status`: is the cluster well? Its services, its servers and its nodes; what is wrong, and what to do.

The exit status is 0 if there is no problem, and 1 if there is one; warnings change nothing.
"""

import argparse

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from weft.domain.quantity import size_text
from weft.domain.text import listed, plural
from weft.messages.http.status import Grave, ServiceView, StatusView
from weft.version import version
from weftd.cli import connection, page
from weftd.cli.formatting import NAMED_MAX, span
from weftd.cli.rendering.context import RenderContext, plain, table


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "status", help="show problems of the cluster with a remedy for each", description=__doc__
    )
    connection.options(parser)
    parser.set_defaults(func=status)


async def status(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        view = await client.status()
    page.drawn(args, view, lambda context: drawing(view, context))
    return 1 if any(one.grave is Grave.PROBLEM for one in view.findings) else 0


def drawing(view: StatusView, context: RenderContext) -> RenderableType:
    parts: list[RenderableType] = [_findings(view, context), Text(), _services(view.services, context), Text()]
    return Group(*parts, *(plain(line) for line in _servers(view)))


def _findings(view: StatusView, context: RenderContext) -> RenderableType:
    if not view.findings:
        return Text("all is well", "green")
    made = table("", "ABOUT", "PROBLEM", "REMEDY", context=context, flexible="PROBLEM")
    for one in view.findings:
        style = "bold red" if one.grave is Grave.PROBLEM else "yellow"
        made.add_row(Text(one.grave, style), plain(one.about), plain(one.sentence), plain(one.act))
    return made


def _services(services: tuple[ServiceView, ...], context: RenderContext) -> Table:
    made = table("SERVICE", "PROCESS", "STATE", "UP", "HEARD", "VERSION", "LEADS", context=context, flexible="PROCESS")
    for one in services:
        state = f"stuck: {listed(one.stuck, NAMED_MAX)}" if one.stuck else "ready" if one.ready else "not ready"
        made.add_row(
            plain(one.service),
            plain(one.instance),
            plain(state),
            span(one.up_seconds),
            f"{span(one.silent_seconds)} ago",
            plain(one.version),
            plain(listed(one.leads, NAMED_MAX) if one.leads else "-"),
        )
    return made


def _servers(view: StatusView) -> list[str]:
    database = view.database
    postgres = "does not answer"
    if database is not None:
        postgres = (
            f"{database.version}, {size_text(database.bytes)}, {database.connections} of {database.connections_max}"
            f" connections, {plural(len(database.ran), 'migration')} to {database.ran[-1] if database.ran else 'none'},"
            f" {plural(database.asks, 'ask')} and {plural(database.unsent, 'event')} waiting"
        )
    return [
        f"postgres  {postgres}",
        f"nats      {'connected' if view.nats else 'not connected'}",
        f"nodes     {view.nodes_ready} of {view.nodes} report, with {plural(view.gpus, 'GPU')}",
        f"versions  gateway {view.version}, this command {version()}",
    ]
