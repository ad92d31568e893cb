"""The cluster that a command uses, and the client for it."""

import argparse
import asyncio
import os
import re
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from weft.client import Client, ClientError, Refused, Unreachable
from weft.client import place as places
from weft.client.place import QUICK_SECONDS, RESTART_SECONDS, Place, Ways
from weftd.cli.cli_error import CliError
from weftd.cli.parsing import meant

_MISSING = re.compile(r"no job has the id or the name (?P<job>[a-z0-9-]{1,63})|there is no node (?P<node>\S{1,63})$")
_WITHOUT_SUBJECT = ("expected ", "is ", "must ")
_NODES_MAX = 8
_CLOSE_AMONG = 200  # of the newest jobs, whose names are compared with a name that no job has


def options(parser: argparse.ArgumentParser) -> None:
    """The options of every command that uses a cluster."""
    group = parser.add_argument_group("the cluster")
    group.add_argument(
        "--url",
        help="gateway URL (default: WEFT_URL, the current context, or the cluster that `weft up` started); over https,"
        " WEFT_CA_FILE names the CA certificates to trust (default: those of the system)",
    )
    group.add_argument(
        "--context",
        dest="cluster_context",
        metavar="NAME",
        help="context of `weft login` (default: WEFT_CONTEXT, or the current one)",
    )
    group.add_argument("--token", help="access token (default: WEFT_TOKEN)")
    group.add_argument("--json", action="store_true", help="print the answer of the API as JSON")


def find_place(args: argparse.Namespace, environment: Mapping[str, str]) -> Place:
    """The place from the options, else the environment, the contexts, or the files of `weft up`. Raises `CliError`."""
    ways = Ways(url="give --url, or set WEFT_URL", token="give --token, or set WEFT_TOKEN")
    try:
        context = getattr(args, "cluster_context", None) or ""
        return places.find_place(environment, url=args.url or "", token=args.token or "", context=context, ways=ways)
    except ClientError as error:
        raise CliError(str(error)) from error


@asynccontextmanager
async def connected(args: argparse.Namespace, *, patience: float | None = None) -> AsyncIterator[Client]:
    """A client of the chosen cluster; its errors become complaints.

    `patience` is for a gateway that goes away in between. One that never answered is reported soon, unless its address
    is known: then it may be starting again.
    """
    place = find_place(args, os.environ)
    seconds = patience or RESTART_SECONDS
    try:
        async with Client(
            place.url, place.token, retry_seconds=seconds, first_seconds=place.first_seconds, ca_file=place.ca_file
        ) as client:
            try:
                yield client
            except Refused as error:
                raise await _with_close_name(client, error) from error
    except ClientError as error:
        raise complaint_of(_about_an_option(error, args), place) from error
    except BaseExceptionGroup as group:
        raise complaint_of(_about_an_option(leaf(group), args), place) from group


def _about_an_option(error: BaseException, args: argparse.Namespace) -> BaseException:
    """A refusal that is no sentence without its field, with the option or the word that was typed for that."""
    names: Mapping[str, str] = getattr(args, "option_names", {})
    if not isinstance(error, Refused) or not error.reason.lower().startswith(_WITHOUT_SUBJECT):
        return error
    if error.field not in names or len(error.errors) > 1:
        return error
    return Refused(error.status, error.field, f"{names[error.field]}: {error.reason}")


async def _with_close_name(client: Client, error: Refused) -> Refused:
    """The refusal; of a job or a node that is not there, with those that are."""
    missing = _MISSING.match(error.reason) if error.status == 404 else None
    if missing is None:
        return error
    try:
        async with asyncio.timeout(QUICK_SECONDS):
            if missing["node"]:
                known = [node.id for node in (await client.nodes()).nodes]
                return Refused(error.status, error.field, no_node(missing["node"], known))
            if element := await _an_element(client, missing["job"]):
                reason = f"{missing['job']} is an array: say which element is meant, such as {missing['job']}_{element}"
                return Refused(error.status, error.field, reason)
            known = sorted({job.name for job in (await client.jobs(limit=_CLOSE_AMONG)).jobs})
    except (ClientError, TimeoutError):
        return error
    return Refused(error.status, error.field, error.reason + meant(missing["job"], known))


async def _an_element(client: Client, array: str) -> str:
    """The index of the first element of an array; empty if there is no such array."""
    try:
        elements = (await client.elements(array, limit=1)).jobs
    except Refused:
        return ""
    return elements[0].id.rpartition("-")[2] if elements else ""


def no_node(wanted: str, known: Sequence[str]) -> str:
    """The sentence for a node that is not there."""
    if len(known) > _NODES_MAX:
        return f"there is no node {wanted}{meant(wanted, known)}"
    return f"there is no node {wanted}; there is {', '.join(known) or 'none yet'}"


def complaint_of(error: BaseException, place: Place) -> BaseException:
    """The client's error as one line for a person; any other error stays as it is."""
    match error:
        case Refused(status=401):
            return CliError(f"{error.reason} (the token is from {place.token_from})")
        case Refused():
            more = "".join(f"\n  also {field}: {reason}" for field, reason in error.errors[1:])
            return CliError(error.reason + more)  # its field is a name of the API, which the user did not type
        case Unreachable():
            return CliError(f"no answer from {_why_none(error, place)}; is the cluster up? `weft up` starts one here")
        case ClientError():
            return CliError(str(error))
        case _:
            return error


def _why_none(error: Unreachable, place: Place) -> str:
    """The reason, in the system's words if the system refused."""
    cause = error.__cause__
    if isinstance(cause, ssl.SSLError):
        return f"{place.url}: the server there does not speak TLS; try http:// in place of https://"
    if isinstance(cause, OSError) and cause.errno:
        return f"{place.url}: {os.strerror(cause.errno) if cause.errno > 0 else cause.strerror}"
    return str(error)


def leaf(error: BaseException) -> BaseException:
    """The first error of a group of them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
