"""`weft endpoints`: list the replicas of a service, with their addresses. `weft open`: its URL, for a browser."""

import argparse
import os
import webbrowser

from weft.client import Client
from weft.messages.http.services import EndpointsView
from weftd.cli import connection, page
from weftd.cli.cli_error import CliError
from weftd.cli.rendering.services import endpoints_table

SERVICE_HELP = "id of the service, or its name (then the newest of that name that has, or had, a ready replica)"
CODE_PARAMETER = "weft_code"  # the router exchanges it for a cookie, once

_OPEN = (
    "print the URL of a service or of a notebook; without JOB, of the dashboard. The URL signs one browser in, once,"
    " within a few minutes: do not give it to people who may not use the service"
)


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "endpoints",
        help="list the replicas of a service, with their addresses",
        description="list the replicas of a service, with their addresses",
    )
    parser.add_argument("job", metavar="JOB", help=SERVICE_HELP)
    connection.options(parser)
    parser.set_defaults(func=endpoints)
    parser = commands.add_parser("open", help="print the URL of a service, or of the dashboard", description=_OPEN)
    parser.add_argument("job", nargs="?", default="", metavar="JOB", help=SERVICE_HELP)
    parser.add_argument("--browser", action="store_true", help="open the URL in this machine's browser")
    connection.options(parser)
    parser.set_defaults(func=open_service)


async def endpoints(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        view = await client.endpoints(args.job)
    page.drawn(args, view, lambda look: endpoints_table(view, look))
    return 0


async def open_service(args: argparse.Namespace) -> int:
    place = connection.find_place(args, os.environ)
    async with connection.connected(args) as client:
        url = await (service_address(client, args.job) if args.job else dashboard_address(client, place.url))
    if args.browser and not webbrowser.open(url):
        raise CliError(f"no browser was found here; open {url} yourself")
    page.answered(args, {"url": url}, url)
    return 0


async def service_address(client: Client, job: str) -> str:
    view = await client.endpoints(job)
    if not any(each.ready for each in view.endpoints):
        page.remark(f"note: no replica of {view.name} is ready; its router waits for one")
    return await address(client, view)


async def dashboard_address(client: Client, url: str) -> str:
    """The URL of the dashboard, with a one-time code in the part that a browser sends to no server."""
    return f"{url.rstrip('/')}/#code={(await client.make_code()).code}"


async def address(client: Client, view: EndpointsView) -> str:
    """The URL of a service, with a one-time code if it wants a token. Raises `CliError` where there is no router."""
    if not view.url:
        raise CliError("this cluster has no router: GATEWAY_ROUTER_URL is not set at its gateway")
    return f"{view.url}?{CODE_PARAMETER}={(await client.make_code(view.job_id)).code}" if view.token else view.url
