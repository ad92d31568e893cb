"""The cluster that a command uses, and the client for it."""

import argparse
import asyncio
import os
import re
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from weft.client import Client, ClientError, Refused, Unreachable
from weftd.cli.complaint import Complaint
from weftd.cli.parsing import meant

_MISSING = re.compile(r"no job has the id or the name (?P<job>[a-z0-9-]{1,63})|there is no node (?P<node>\S{1,63})$")
_WITHOUT_SUBJECT = ("expected ", "is ", "must ")
_NODES_MAX = 8
_CLOSE_AMONG = 200  # of the newest jobs, whose names are compared with a name that no job has
QUICK_SECONDS = 3.0  # a person waits: an error should come soon
RESTART_SECONDS = 10.0  # a gateway that is known to be there starts again in less
PATIENT_SECONDS = 60.0  # for commands that follow: longer than a gateway takes to restart


class Place(Struct, frozen=True, kw_only=True):
    """The address and token of a cluster. `token_from`: the source of the token, to explain a refusal. `is_known`: the
    address is one that has been used before, and not typed for this command."""

    url: str
    token: str
    token_from: str
    ca_file: str = ""
    is_known: bool = False

    @property
    def first_seconds(self) -> float:
        """How long to wait for the first answer."""
        return RESTART_SECONDS if self.is_known else QUICK_SECONDS


class _ClientFile(Struct, frozen=True, kw_only=True):
    url: str
    token: str


def options(parser: argparse.ArgumentParser) -> None:
    """The options of every command that uses a cluster."""
    group = parser.add_argument_group("the cluster")
    group.add_argument(
        "--url",
        help="gateway URL (default: WEFT_URL, or the cluster that `weft up` started); over https, WEFT_CA_FILE has the"
        " authorities to believe, if not those of the system",
    )
    group.add_argument("--token", help="access token (default: WEFT_TOKEN)")
    group.add_argument("--json", action="store_true", help="print what the API answers, as JSON")


def find_place(args: argparse.Namespace, environment: Mapping[str, str]) -> Place:
    """The place from the options, else the environment, else the files of `weft up`. Raises `Complaint`."""
    path = weft_home(environment) / "client.json"
    url = args.url or environment.get("WEFT_URL")
    token = args.token or environment.get("WEFT_TOKEN")
    token_from = "--token" if args.token else "WEFT_TOKEN"
    if url and not _is_address(url):
        raise Complaint(f"expected an address such as http://127.0.0.1:8470, got {url}", field="--url")
    if token and not (token.isascii() and token.isprintable()):
        raise Complaint(f"what {token_from} has is not a token")
    ca_file = environment.get("WEFT_CA_FILE", "")
    if url and token:
        is_known = not args.url
        return Place(url=url, token=token, token_from=token_from, ca_file=ca_file, is_known=is_known)
    left = _left_by_up(path)
    if left is None:
        raise Complaint(_what_to_do(url, token, path))
    if url and url.rstrip("/") != left.url.rstrip("/"):  # a token is sent to its own cluster only
        raise Complaint(f"no token for {url}: give --token, or set WEFT_TOKEN")
    return Place(
        url=left.url,
        token=token or left.token,
        token_from=token_from if token else str(path),
        ca_file=ca_file,
        is_known=_is_up(path.with_name("up.lock")),
    )


def _is_up(lock: Path) -> bool:
    """Return True while the process that wrote its id into the lock of a home lives. The lock itself is not tried: a
    `weft up` that starts at that moment would find it taken."""
    try:
        os.kill(int(lock.read_text()), 0)
    except PermissionError:
        return True  # it is another user's
    except (OSError, ValueError, OverflowError):
        return False
    return True


def weft_home(environment: Mapping[str, str]) -> Path:
    if home := environment.get("WEFT_HOME"):
        return Path(home)
    data = environment.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "weft"


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
            return Complaint(f"{error.reason} (the token is from {place.token_from})")
        case Refused():
            more = "".join(f"\n  also {field}: {reason}" for field, reason in error.errors[1:])
            return Complaint(error.reason + more)  # its field is a name of the API, which the user did not type
        case Unreachable():
            return Complaint(f"no answer from {_why_none(error, place)}; is the cluster up? `weft up` starts one here")
        case ClientError():
            return Complaint(str(error))
        case _:
            return error


def _why_none(error: Unreachable, place: Place) -> str:
    """The reason, in the system's words if the system refused."""
    cause = error.__cause__
    if isinstance(cause, ssl.SSLError):
        return f"{place.url}: what listens there does not speak TLS; try http:// in place of https://"
    if isinstance(cause, OSError) and cause.errno:
        return f"{place.url}: {os.strerror(cause.errno) if cause.errno > 0 else cause.strerror}"
    return str(error)


def leaf(error: BaseException) -> BaseException:
    """The first error of a group of them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _left_by_up(path: Path) -> _ClientFile | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_ClientFile)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Complaint(f"cannot read {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise Complaint(f"{path} is not what `weft up` wrote: {error}") from error


def _what_to_do(url: str | None, token: str | None, path: Path) -> str:
    if url or token:
        missing = "token: give --token, or set WEFT_TOKEN" if url else "address: give --url, or set WEFT_URL"
        return f"no {missing}"
    return f"no cluster is known: start one with `weft up`, or set WEFT_URL and WEFT_TOKEN (looked in {path})"
