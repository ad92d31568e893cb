"""`weft login`: sign in to a cluster and keep it as a context. `weft logout`, `weft whoami`."""

import argparse
import getpass
import os
import sys
from urllib.parse import urlsplit

from weft.client import Client, ClientError
from weft.client.contexts import LOCAL, Context, read_contexts, write_contexts
from weft.client.place import QUICK_SECONDS, Place, is_address
from weft.messages.http.sign_ins import IdentityView
from weftd.cli import connection, page
from weftd.cli.cli_error import CliError
from weftd.cli.people.provider import by_device, through_browser

TOKEN_CHARACTERS_MAX = 512
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "login",
        help="sign in to a cluster, and use it from now on",
        description="sign in to the cluster at URL, keep it as a context, and use it from now on. A cluster with an"
        " identity provider sends you there in a browser. Any other cluster takes a token, which is typed without an"
        " echo, or read from standard input with `--token -`: never from the command line, which other users of this"
        " machine see.",
    )
    parser.add_argument("gateway", metavar="URL", help="address of the gateway, such as https://weft.example.org")
    parser.add_argument("--token", metavar="-", help="`-`: read a token from standard input")
    parser.add_argument("--device", action="store_true", help="confirm a code in the browser of another machine")
    parser.add_argument(
        "--name", dest="context_name", metavar="NAME", help="name of the context (default: the host of URL)"
    )
    parser.add_argument("--ca-file", metavar="FILE", help="CA certificates for https (default: the system's)")
    parser.set_defaults(func=login)
    parser = commands.add_parser(
        "logout",
        help="forget a context and its token",
        description="forget a context and its token. The token stays valid: `weft token revoke` revokes it",
    )
    parser.add_argument("context_name", nargs="?", metavar="CONTEXT", help="context (default: the current one)")
    parser.set_defaults(func=logout)
    parser = commands.add_parser(
        "whoami",
        help="print the tenant and the token that commands use",
        description="print the cluster, the tenant and the token that commands use",
    )
    connection.options(parser)
    parser.set_defaults(func=whoami)


async def login(args: argparse.Namespace) -> int:
    url = args.gateway.rstrip("/")
    if not is_address(url):
        raise CliError(f"expected an address such as https://weft.example.org, got {url}", field="URL", status=2)
    parts = urlsplit(url)
    if parts.username or parts.query or parts.fragment:
        raise CliError("expected an address without a user, a query or a fragment", field="URL", status=2)
    if args.token not in (None, "-"):
        raise CliError(
            "other users of this machine see a token on the command line: give `-`, and the token on standard input",
            field="--token",
            status=2,
        )
    try:
        contexts = read_contexts(os.environ)
        ca_file = _absolute(args.ca_file) if args.ca_file else os.environ.get("WEFT_CA_FILE", "")
        name = args.context_name or _name_of(url)
        contexts.with_context(name, Context(url=url))  # before a token is asked for
        token = await _signed_in(args, url, ca_file)
        identity = await _identity(url, token, ca_file)
        written = write_contexts(
            os.environ, contexts.with_context(name, Context(url=url, token=token, ca_file=ca_file))
        )
    except ClientError as error:
        raise CliError(str(error)) from error
    if parts.scheme == "http" and parts.hostname not in LOOPBACK:
        page.remark(f"note: {url} is not encrypted: anyone who can listen on the network can read the token")
    page.show(f"signed in to {url} as {in_words(identity)}")
    page.note(
        f"context {name}, in {written}; `weft context` lists them, `weft context use {LOCAL}` goes back to `weft up`"
    )
    return 0


async def logout(args: argparse.Namespace) -> int:
    try:
        contexts = read_contexts(os.environ)
        name = args.context_name or contexts.current
        if not name or contexts.named(name) is None:
            raise CliError(f"{name or 'the current context'} is not stored here: `weft context` lists the contexts")
        write_contexts(os.environ, contexts.without(name))
    except ClientError as error:
        raise CliError(str(error)) from error
    page.show(f"context {name} is forgotten")
    return 0


async def whoami(args: argparse.Namespace) -> int:
    place = connection.find_place(args, os.environ)
    async with connection.connected(args) as client:
        identity = await client.whoami()
    page.answered(args, identity, f"{in_words(identity)} at {place.url} (the token is from {place.token_from})")
    return 0


def in_words(identity: IdentityView) -> str:
    role = "an administrator" if identity.admin else f"tenant {identity.tenant}"
    if identity.person:
        return f"{identity.label}, {identity.role} of tenant {identity.tenant}"
    return f"{role}, token {identity.label}" if identity.label else role


async def _signed_in(args: argparse.Namespace, url: str, ca_file: str) -> str:
    """The token to keep: from a session with the identity provider if there is one, otherwise a given token."""
    if args.token == "-":
        return _token(url, piped=True)
    async with _client(url, "", ca_file) as client:
        if (await client.provider()).issuer:
            made = await (by_device(client) if args.device else through_browser(client, url))
            return made.token
    if args.device:
        raise CliError("this cluster has no identity provider: sign in with a token", field="--device", status=2)
    return _token(url, piped=False)


def _client(url: str, token: str, ca_file: str) -> Client:
    return Client(url, token, retry_seconds=QUICK_SECONDS, first_seconds=QUICK_SECONDS, ca_file=ca_file)


def _absolute(path: str) -> str:
    return os.path.abspath(path)


def _name_of(url: str) -> str:
    """The host, with the port if there is one."""
    parts = urlsplit(url)
    return f"{parts.hostname}-{parts.port}" if parts.port else str(parts.hostname)


def _token(url: str, *, piped: bool) -> str:
    """Raises `CliError`."""
    if piped:
        token = sys.stdin.readline(TOKEN_CHARACTERS_MAX + 2)
    elif sys.stdin.isatty():
        try:
            token = getpass.getpass(f"token for {url}: ")
        except EOFError:
            token = ""
    else:
        raise CliError("there is no terminal to type the token at: pipe it into `weft login URL --token -`", status=2)
    token = token.strip()
    if not token or len(token) > TOKEN_CHARACTERS_MAX or not (token.isascii() and token.isprintable()):
        raise CliError("expected a token: printable ASCII characters", field="--token")
    return token


async def _identity(url: str, token: str, ca_file: str) -> IdentityView:
    """The caller that the gateway takes the token for. Raises `CliError`."""
    try:
        async with _client(url, token, ca_file) as client:
            return await client.whoami()
    except ClientError as error:
        place = Place(url=url, token=token, token_from="standard input or the terminal")
        raise connection.complaint_of(error, place) from error
