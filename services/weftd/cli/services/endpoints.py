"""`weft endpoints`: list the replicas of a service, with their addresses. `weft open`: its URL, for a browser."""

import argparse
import os
import webbrowser
from urllib.parse import quote

from weft.messages.http.services import EndpointsView
from weftd.cli import connection, page
from weftd.cli.cli_error import CliError
from weftd.cli.rendering.services import endpoints_table

SERVICE_HELP = "its id, or its name: then the newest of that name that has, or had, a ready replica"
TOKEN_PARAMETER = "weft_token"  # the router takes it once, for a cookie

_OPEN = (
    "print the URL of a service, or of a notebook, with the token that its router asks for: the token is as good as a"
    " password, so give the URL to nobody who may not have it"
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
    parser = commands.add_parser("open", help="the URL of a service, for a browser", description=_OPEN)
    parser.add_argument("job", metavar="JOB", help=SERVICE_HELP)
    parser.add_argument("--browser", action="store_true", help="open it in this machine's browser")
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
        view = await client.endpoints(args.job)
    url = address(view, place.token)
    if not any(each.ready for each in view.endpoints):
        page.remark(f"note: no replica of {view.name} is ready; its router waits for one")
    if args.browser and not webbrowser.open(url):
        raise CliError(f"no browser was found here; open {url} yourself")
    page.answered(args, {"url": url}, url)
    return 0


def address(view: EndpointsView, token: str) -> str:
    """The URL of a service, with the token if it asks for one. Raises `CliError` where there is no router."""
    if not view.url:
        raise CliError("this cluster has no router: GATEWAY_ROUTER_URL is not set at its gateway")
    return f"{view.url}?{TOKEN_PARAMETER}={quote(token, safe='')}" if view.token else view.url
