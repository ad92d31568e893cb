"""`weft doctor`: check this machine and the cluster, and what to do about each.

The cluster: the gateway, its clock and its certificate, and all that `weft status` finds. This machine: the servers of
`weft up`, if they are here; and the node whose executor's settings (EXECUTOR_…) are in the environment, or the first
node of `weft up`: GPUs, container engine, control groups, disk, NATS. The exit status is 1 if there is a problem.
"""

import argparse
import asyncio
import os
import shutil
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from weft import servers
from weft.client import Client
from weft.client.place import Place, weft_home
from weft.credentials import Credentials
from weft.domain.quantity import duration_text, size_text
from weft.messages.checks import Check, Health, fine, problem, warning
from weft.messages.http.status import Grave, StatusView
from weft.version import version
from weftd.cli import connection, page
from weftd.cli.cli_error import CliError
from weftd.cli.cluster.bundle import write_bundle
from weftd.cli.local import ClusterHome
from weftd.cli.rendering.context import RenderContext, plain, table

CLOCK_SECONDS_MAX = 2.0  # the header that tells the time counts whole seconds
NODE_SECONDS_MAX = 60.0  # a driver is given half of it
CERTIFICATE_SECONDS_MAX = 5.0
CERTIFICATE_DAYS_MIN = 14
DISK_PART_MIN = 0.05
_STYLES = {Health.FINE: "green", Health.WARNING: "yellow", Health.PROBLEM: "bold red"}


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("doctor", help="check this machine and the cluster", description=__doc__)
    parser.add_argument(
        "--home", type=Path, metavar="DIR", help="folder of `weft up` (or WEFT_HOME; default: in your home)"
    )
    parser.add_argument(
        "--bundle", type=Path, metavar="FILE", help="write a ZIP file for support: checks, answers and logs, no secrets"
    )
    connection.options(parser)
    parser.set_defaults(func=doctor)


async def doctor(args: argparse.Namespace) -> int:
    home = ClusterHome(args.home or weft_home(os.environ))
    answers: dict[str, object] = {"version": version()}
    found = [check async for check in _cluster(args, answers)]
    found += [check async for check in _machine(home)]
    found += await _node(home)
    answers["checks"] = found
    page.drawn(args, found, lambda context: drawing(found, context))
    if args.bundle is not None:
        size = await asyncio.to_thread(write_bundle, args.bundle, answers, home=home, environ=os.environ)
        page.remark(f"{args.bundle}: {size_text(size)}; read it before you send it on")
    return 1 if any(check.health is Health.PROBLEM for check in found) else 0


def drawing(found: list[Check], context: RenderContext) -> RenderableType:
    made = table("", "ABOUT", "FINDING", "REMEDY", context=context, flexible="FINDING")
    for check in found:
        made.add_row(
            Text(check.health, _STYLES[check.health]), plain(check.about), plain(check.sentence), plain(check.act)
        )
    return Group(made)


async def _cluster(args: argparse.Namespace, answers: dict[str, object]) -> AsyncIterator[Check]:
    try:
        place = connection.find_place(args, os.environ)
        async with connection.connected(args) as client:
            view = await client.status()
            answers["status"] = view
            answers["nodes"] = await client.nodes()
            yield fine("gateway", f"{place.url} answers; its version is {view.version}")
            for check in _of_status(view):
                yield check
            yield await _clock(client)
        yield await _certificate(place)
    except CliError as error:
        yield problem("gateway", str(error), "start a gateway, or set --url (or WEFT_URL) and its token")


def _of_status(view: StatusView) -> list[Check]:
    """The findings of `weft status`."""
    found = [
        Check(
            about=one.about,
            health=Health.PROBLEM if one.grave is Grave.PROBLEM else Health.WARNING,
            sentence=one.sentence,
            act=one.act,
        )
        for one in view.findings
    ]
    if view.version != version():
        sentence = f"the gateway is {view.version}, this command {version()}"
        found.append(warning("version", sentence, "bring both to one version"))
    return found or [fine("cluster", "`weft status` finds no problem")]


async def _clock(client: Client) -> Check:
    began = time.time()
    told = parsedate_to_datetime(await client.date()).timestamp()
    late = max(began - 1.0 - told, told - time.time(), 0.0)
    if late > CLOCK_SECONDS_MAX:
        sentence = f"the clock of this machine differs from the gateway's by {duration_text(late)}"
        return warning("clock", sentence, "synchronise both with a time server (chrony, systemd-timesyncd)")
    return fine("clock", f"the clock of this machine agrees with the gateway's to {CLOCK_SECONDS_MAX:g} s")


async def _certificate(place: Place) -> Check:
    where = urlsplit(place.url)
    if where.scheme != "https":
        act = "give the gateway a certificate if others than this machine use it: docs/operating.md, TLS"
        near = where.hostname in ("127.0.0.1", "localhost", "::1")
        return fine("certificate", "plain HTTP on this machine") if near else warning("certificate", "plain HTTP", act)
    try:
        ends_at = await asyncio.to_thread(_ends_at, str(where.hostname), where.port or 443, place.ca_file)
    except OSError as error:
        return problem("certificate", f"{place.url}: {error}", "renew it, or name its authority in WEFT_CA_FILE")
    days = (ends_at - time.time()) / 86400
    if days < CERTIFICATE_DAYS_MIN:
        return warning(
            "certificate", f"the gateway's certificate ends in {days:.1f} days", "renew it; no restart is needed"
        )
    return fine("certificate", f"the gateway's certificate is good for {days:.0f} days")


def _ends_at(host: str, port: int, ca_file: str) -> float:
    context = ssl.create_default_context(cafile=ca_file or None)
    with (
        socket.create_connection((host, port), timeout=CERTIFICATE_SECONDS_MAX) as connected,
        context.wrap_socket(connected, server_hostname=host) as secure,
    ):
        return ssl.cert_time_to_seconds(str((secure.getpeercert() or {})["notAfter"]))


async def _machine(home: ClusterHome) -> AsyncIterator[Check]:
    """The servers and the disk of `weft up`, if it has run here."""
    if not home.credentials.is_dir():
        return
    state = await servers.status(home.root)
    for name, server in (("nats", state.nats), ("postgres", state.postgres)):
        if server is None:
            continue
        if server.pid is None and home.runs() is not None:
            sentence = f"the server of {home.root} does not run"
            yield problem(name, sentence, f"`weft up` starts it again; look at {home.root / name}.log")
        else:
            runs = f"runs as process {server.pid}" if server.pid else "is stopped, as the cluster is"
            yield fine(name, f"the server of {home.root} {runs}, at port {server.port}")
    disk = shutil.disk_usage(home.root)
    sentence = f"{size_text(disk.free)} of {size_text(disk.total)} are free in {home.root}"
    low = disk.free < disk.total * DISK_PART_MIN
    yield (
        warning("disk", sentence, "make room: Postgres and NATS stop on a full disk") if low else fine("disk", sentence)
    )


async def _node(home: ClusterHome) -> list[Check]:
    """The checks of the executor, made by the executor's own program."""
    environ = await _node_environment(home)
    if environ is None:
        return []
    program = (sys.executable, "-P", "-m", "weftd.executor.checks")
    pipe = asyncio.subprocess.PIPE
    errors = b""
    process = await asyncio.create_subprocess_exec(*program, env=environ, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(NODE_SECONDS_MAX):
            out, errors = await process.communicate()
        return msgspec.json.decode(out, type=list[Check])
    except TimeoutError:
        process.kill()
        await process.wait()
        sentence = f"the checks of the node did not end within {NODE_SECONDS_MAX:g} s"
        return [problem("node", sentence, "look into dmesg: a driver or an engine hangs")]
    except msgspec.DecodeError:
        last = errors.decode(errors="replace").strip().rpartition("\n")[2]
        return [problem("node", f"the checks of the node failed: {last[:200]}", "pip install 'weft-gpu[cluster]'")]


async def _node_environment(home: ClusterHome) -> Mapping[str, str] | None:
    if "EXECUTOR_NODE_ID" in os.environ:
        return os.environ
    nodes = sorted(path.name for path in home.nodes.iterdir()) if home.nodes.is_dir() else []
    nats = (await servers.status(home.root)).nats if nodes else None
    if nats is None:
        return None
    user = f"executor-{nodes[0]}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WEFT_")}
    return {
        **kept,
        "EXECUTOR_NODE_ID": nodes[0],
        "EXECUTOR_HOME": str(home.node(nodes[0])),
        "WEFT_NATS_URL": f"nats://127.0.0.1:{nats.port}",
        "WEFT_NATS_USER": user,
        "WEFT_NATS_PASSWORD_FILE": str(Credentials(home.credentials).nats_password_file(user)),
    }
