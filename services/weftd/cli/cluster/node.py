"""`weft node`: another machine joins the cluster as a node.

`add`, where the credentials of the cluster are, makes those of the new node and prints the one command that the other
machine runs. `join` is that command: it exchanges its join token for the credentials, and runs the node.
"""

import argparse
import asyncio
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from weft import servers
from weft.bus import BusError
from weft.bus.nats import NatsBus
from weft.client import ClientError
from weft.client.joining import exchange
from weft.client.place import QUICK_SECONDS, is_address, weft_home
from weft.credentials import Credentials, CredentialsError, provision
from weft.credentials.joining import JoiningError, NodeCredentials, hash_of, new_token, token_of
from weft.credentials.permissions import NODE_ID
from weft.domain.quantity import duration_seconds
from weft.domain.text import listed
from weft.messages.http.joining import JOIN_SECONDS_MAX
from weft.service import Connections, SettingsError
from weft.service.keys import nats_keys
from weftd.cli import connection, page
from weftd.cli.cli_error import CliError
from weftd.cli.local import ClusterHome, LocalError
from weftd.cli.local.joined import JoinedHome, address_towards, compose_files, run_joined

RELOAD_SECONDS_MAX = 15.0
ACCEPT_SECONDS_MAX = 5.0
JOIN_SECONDS = "1h"
IMAGE = "weft:local"
FILES = "/etc/weft"
FAILED = (
    ClientError,
    CredentialsError,
    JoiningError,
    LocalError,
    SettingsError,
    servers.ServersError,
    OSError,
    ValueError,
)
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class NodeAdded(Struct, frozen=True, kw_only=True):
    """`command` joins the node until `expires_at`, in seconds since 1970."""

    node: str
    command: str
    expires_at: float


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("node", help="let another machine join as a node", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="add|join")
    adder = verbs.add_parser(
        "add",
        help="print the command that joins a new node",
        description="make the credentials of a new node and print the command that joins it. Runs where the credentials"
        " of the cluster are. The command works once, for this node, until its join token expires",
    )
    adder.add_argument("node", metavar="NAME", help="name of the new node: up to 40 of a-z, 0-9 and -")
    adder.add_argument(
        "--for",
        dest="lasts",
        type=_lasting,
        default=_lasting(JOIN_SECONDS),
        metavar="DURATION",
        help=f"time until the join token expires, at most 7d (default: {JOIN_SECONDS})",
    )
    adder.add_argument(
        "--as",
        dest="form",
        choices=("process", "compose"),
        default="process",
        help="process: the machine has Weft installed; compose: it has Docker and the image (default: process)",
    )
    adder.add_argument(
        "--gateway", metavar="URL", help="the gateway as the new node reaches it (default: the one used here)"
    )
    adder.add_argument("--nats", metavar="URL", help="NATS as the new node reaches it (default: the one used here)")
    adder.add_argument("--pool", default="default", metavar="POOL", help="pool of the node (default: default)")
    adder.add_argument("--image", default=IMAGE, help=f"image of Weft, with --as compose (default: {IMAGE})")
    adder.add_argument(
        "--credentials",
        type=Path,
        metavar="DIR",
        help="folder that `weft setup` made (or WEFT_CREDENTIALS; default: that of `weft up`)",
    )
    adder.add_argument(
        "--reload",
        metavar="COMMAND",
        help="command that has NATS read its users again (or WEFT_NATS_RELOAD; not needed with `weft up`)",
    )
    connection.options(adder)
    adder.set_defaults(func=add_node)
    joiner = verbs.add_parser(
        "join",
        help="be a node of a cluster; `weft node add` prints the whole command",
        description="exchange a join token for the credentials of a node, and run the node until Ctrl-C. The"
        " credentials stay on this machine: the same command starts the node again, and needs no token then",
    )
    joiner.add_argument("node", metavar="NAME", help="name of the node, for which the token was made")
    joiner.add_argument("--gateway", metavar="URL", help="the gateway")
    joiner.add_argument(
        "--token", dest="join_token", metavar="TOKEN", help="join token of `weft node add` (or WEFT_JOIN_TOKEN)"
    )
    joiner.add_argument(
        "--home", type=Path, metavar="DIR", help="folder of the node's data (default: joined/NAME in WEFT_HOME)"
    )
    joiner.add_argument(
        "--address",
        metavar="HOST",
        help="address at which other hosts reach this one (default: that of the way to NATS)",
    )
    joiner.add_argument(
        "--emulated-gpus", type=int, default=0, metavar="N", help="pretend to have GPUs (default: 0, the real ones)"
    )
    joiner.add_argument(
        "--into", type=Path, metavar="DIR", help="write a Compose file and its settings there, and run nothing"
    )
    joiner.add_argument("--image", default=IMAGE, help=f"image of Weft in that file (default: {IMAGE})")
    joiner.set_defaults(func=join)


async def add_node(args: argparse.Namespace) -> int:
    _check_name(args.node)
    _check_address("--gateway", args.gateway)
    home = ClusterHome(weft_home(os.environ))
    given = args.credentials or os.environ.get("WEFT_CREDENTIALS")
    folder = Path(given) if given else home.credentials
    if not folder.is_dir():
        raise CliError(
            f"{folder} is no folder: this runs where the credentials of the cluster are, which --credentials names"
        )
    credentials = Credentials(folder)
    with _one_sentence():
        if (args.url or os.environ.get("WEFT_URL")) and not (args.token or os.environ.get("WEFT_TOKEN")):
            args.token = credentials.admin_token()
        place = connection.find_place(args, os.environ)
        here = await _nats_here(args, None if given else home)
        mode = credentials.nats_users_file.stat().st_mode & 0o777
        await asyncio.to_thread(provision, folder, nodes=[args.node], mode=mode)
        await _reload(args, None if given else home)
        sealed_in = await _node_credentials(args, credentials, here)
    token = new_token()
    async with connection.connected(args) as client:
        made = await client.make_join_token(
            args.node,
            token_hash=hash_of(token.public_part).hex(),
            sealed=token.seal(sealed_in),
            seconds=args.lasts,
        )
    gateway = (args.gateway or place.url).rstrip("/")
    command = join_command(args.node, gateway, token.text, image=args.image if args.form == "compose" else "")
    page.answered(args, NodeAdded(node=made.node, command=command, expires_at=made.expires_at), command)
    page.note(f"run it on the machine that is to be {args.node}; it works once, for {args.lasts // 60} minutes")
    near = [url for url in (gateway, sealed_in.nats_url) if _is_near(urlsplit(url).hostname or "")]
    if near:
        page.remark(
            f"note: {listed(near)}: only this machine or its containers reach that; --gateway and --nats name others"
        )
    return 0


def join_command(node: str, gateway: str, token: str, *, image: str) -> str:
    """The command for a machine with Weft; with an image, for a machine with Docker."""
    words = ["weft", "node", "join", node, "--gateway", gateway, "--token", token]
    if not image:
        return shlex.join(words)
    folder = f"{FILES}/{node}"
    run = ["docker", "run", "--rm", "--network", "host", "--user", "0:0", "--volume", f"{FILES}:{FILES}", image]
    up = ["docker", "compose", "--file", f"{folder}/compose.yml", "up", "--detach", "--wait"]
    return f"{shlex.join([*run, *words, '--into', folder, '--image', image])} && {shlex.join(up)}"


async def _nats_here(args: argparse.Namespace, home: ClusterHome | None) -> str:
    """The URL of NATS as this machine reaches it. Raises CliError."""
    if url := os.environ.get("WEFT_NATS_URL"):
        return url
    state = None if home is None else await servers.status(home.root)
    if state is not None and state.nats is not None and state.nats.pid is not None:
        return f"nats://127.0.0.1:{state.nats.port}"
    if args.nats:
        return str(args.nats)
    raise CliError("where NATS is, is not known: set WEFT_NATS_URL, or start the cluster with `weft up`")


async def _reload(args: argparse.Namespace, home: ClusterHome | None) -> None:
    """Have NATS read its users again. Raises CliError, ServersError."""
    command = args.reload or os.environ.get("WEFT_NATS_RELOAD", "")
    if command:
        await _run_reload(command)
    elif home is not None and not os.environ.get("WEFT_NATS_URL"):
        await servers.reload_users(home.root)


async def _run_reload(command: str) -> None:
    try:
        process = await asyncio.create_subprocess_exec(*shlex.split(command))
    except (OSError, ValueError) as error:
        raise CliError(f"{command}: {error}", field="--reload") from error
    try:
        status = await asyncio.wait_for(process.wait(), RELOAD_SECONDS_MAX)
    except TimeoutError:
        process.kill()
        raise CliError(f"{command}: not done within {RELOAD_SECONDS_MAX:g} s", field="--reload") from None
    if status:
        raise CliError(f"{command}: ended with status {status}", field="--reload")


async def _node_credentials(args: argparse.Namespace, credentials: Credentials, here: str) -> NodeCredentials:
    """The credentials of the node, once NATS accepts them. Raises CliError."""
    ca_file = os.environ.get("WEFT_NATS_CA_FILE", "")
    user = f"executor-{args.node}"
    made = NodeCredentials(
        node_id=args.node,
        pool=args.pool,
        nats_url=args.nats or here,
        executor_password=credentials.nats_password(user),
        telemetry_password=credentials.nats_password(f"telemetry-{args.node}"),
        nats_ca=await asyncio.to_thread(Path(ca_file).read_text) if ca_file else "",
    )
    Connections(nats_url=made.nats_url)  # raises ValueError
    keys = nats_keys(Connections(nats_url=here, nats_user=user, nats_ca_file=ca_file))
    try:
        async with NatsBus.connect(
            here,
            name="weft node add",
            user=user,
            password=made.executor_password,
            tls=keys["tls"],
            connect_seconds_max=ACCEPT_SECONDS_MAX,
        ):
            return made
    except BusError as error:
        raise CliError(
            f"{error}: NATS has to read {credentials.nats_users_file} again (docker compose kill --signal HUP nats, or"
            " --reload COMMAND), and then this command goes on"
        ) from error


async def join(args: argparse.Namespace) -> int:
    _check_name(args.node)
    home = JoinedHome(args.home or weft_home(os.environ) / "joined" / args.node)
    with _one_sentence():
        if args.into is not None:
            home = JoinedHome(args.into)
        home.make()
        with home.taken():
            credentials = home.credentials()
            if credentials is None:
                credentials = await _exchanged(args, os.environ)
                home.keep(credentials)
            elif credentials.node_id != args.node:
                raise CliError(f"{home.root} is the folder of node {credentials.node_id}", field="--home")
            address = args.address or address_towards(credentials.nats_url)
            if args.into is not None:
                compose_files(home, credentials, address=address, image=args.image, emulated_gpus=args.emulated_gpus)
                print(f"{args.node} has its credentials, and a Compose file, in {home.root}")
                return 0
            return await run_joined(home, credentials, address=address, emulated_gpus=args.emulated_gpus)


async def _exchanged(args: argparse.Namespace, environment: Mapping[str, str]) -> NodeCredentials:
    """The credentials for the join token. Raises CliError, ClientError, JoiningError."""
    text = args.join_token or environment.get("WEFT_JOIN_TOKEN", "")
    if not text:
        raise CliError(f"is missing: `weft node add {args.node}` prints the whole command", field="--token")
    if not args.gateway:
        raise CliError("is missing: the address of a gateway, such as http://10.0.0.5:8470", field="--gateway")
    _check_address("--gateway", args.gateway)
    token = token_of(text)
    joined = await exchange(args.gateway, args.node, token.public_part, seconds=QUICK_SECONDS)
    return token.open(joined.sealed, node_id=args.node)


def _is_near(host: str) -> bool:
    """True for this machine itself, and for a name without a domain, as containers have."""
    return host in LOOPBACK or not re.search(r"[.:]", host)


def _check_name(node: str) -> None:
    if not NODE_ID.fullmatch(node):
        raise CliError(
            f"not a name for a node: {node!r}; up to 40 of a-z, 0-9 and -, neither first nor last a -",
            field="NAME",
            status=2,
        )


def _check_address(option: str, url: str | None) -> None:
    if url is not None and not is_address(url):
        raise CliError(f"expected an address such as http://10.0.0.5:8470, got {url}", field=option, status=2)


def _lasting(text: str) -> int:
    try:
        seconds = int(duration_seconds(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not 1 <= seconds <= JOIN_SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"expected 1s to 7d, got {text}")
    return seconds


@contextmanager
def _one_sentence() -> Iterator[None]:
    try:
        yield
    except FAILED as error:
        raise CliError(f"{error}" or type(error).__name__) from error
