"""`weft up`: a cluster on this machine until Ctrl-C or `weft down`; where it runs already, say where."""

import argparse
import asyncio
import contextlib
import os
import sys
from pathlib import Path

from weft.client import Client
from weft.client.place import weft_home
from weft.domain.spec import TuningMode
from weft.gpus import inventory_in_time
from weftd.cli.cli_error import CliError
from weftd.cli.formatting import clean_lines
from weftd.cli.local import AlreadyRunsError, ClusterHome, ClusterState, LocalCluster, LocalError, Options
from weftd.cli.local.process import opened
from weftd.cli.local.signals import Stops, stops_on_signals
from weftd.cli.services.endpoints import dashboard_address

ATTACH_SECONDS_MAX = 120.0
ATTACH_POLL_SECONDS = 0.1
LAST_WORDS = "`weft down` or Ctrl-C stops the cluster and keeps them"
EMULATED_GPUS = 8
NODES = 2


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("up", help="start a cluster on this machine, or attach to it", description=__doc__)
    parser.add_argument(
        "--home", type=Path, metavar="DIR", help="folder of its data (or WEFT_HOME; default: in your home)"
    )
    parser.add_argument(
        "--port", type=int, help="port of the gateway; 0 for any (default: 8470, or any if it is taken)"
    )
    parser.add_argument("--router-port", type=int, help="port of the router; 0 for any (default: 8480, or any)")
    parser.add_argument("--nodes", type=int, metavar="N", help=f"nodes (default: {NODES}, or 1 with real GPUs)")
    parser.add_argument(
        "--gpus",
        choices=("auto", "real", "emulated"),
        default="auto",
        help="GPUs to offer; auto: real ones if there are any",
    )
    parser.add_argument(
        "--emulated-gpus",
        type=int,
        metavar="N",
        help=f"GPUs per node; implies --gpus emulated (default: {EMULATED_GPUS})",
    )
    parser.add_argument("--cpus", type=float, metavar="N", help="CPU cores per node (default: two per emulated GPU)")
    parser.add_argument(
        "--partition",
        choices=[mode.value for mode in TuningMode],
        help="plan the sizes of elastic jobs together: off, advise or on (default: REALLOCATOR_PARTITION, or on)",
    )
    parser.add_argument(
        "--detach",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="return when the cluster is up; its output goes to up.log in the folder, and `weft down` stops it",
    )
    parser.set_defaults(func=up)


async def up(args: argparse.Namespace) -> int:
    home = ClusterHome(args.home or weft_home(os.environ))
    if args.detach:
        return await _detached(home)
    try:
        cluster = LocalCluster(home, await options(args), tell=say)
        with stops_on_signals() as stops:
            say(f"weft: starting in {home.root}")
            await _stay(cluster, stops)
    except AlreadyRunsError:
        return await _attach(home)
    except (LocalError, ValueError) as error:
        raise CliError(str(error)) from error
    return 0


async def options(args: argparse.Namespace) -> Options:
    """The options of the requested cluster. Raises ValueError."""
    emulated = await _emulated(args)
    return Options(
        nodes=(NODES if emulated else 1) if args.nodes is None else args.nodes,
        emulated_gpus=emulated,
        cpus=args.cpus,
        port=args.port,
        router_port=args.router_port,
        benchmarks=True,
        partition=None if args.partition is None else TuningMode(args.partition),
        nats_url=os.environ.get("WEFT_NATS_URL"),
        pg_dsn=os.environ.get("WEFT_PG_DSN"),
    )


async def _emulated(args: argparse.Namespace) -> int:
    wanted = EMULATED_GPUS if args.emulated_gpus is None else int(args.emulated_gpus)
    if args.gpus == "emulated" or (args.gpus == "auto" and args.emulated_gpus is not None):
        return wanted
    real = await inventory_in_time(stop=asyncio.Event()) or ()
    if args.gpus == "real" and not real:
        raise ValueError("--gpus real: this machine's driver offers none; --gpus emulated pretends to have some")
    return 0 if real else wanted


async def _stay(cluster: LocalCluster, stops: Stops) -> None:
    """Run until a signal, also while it starts."""
    asked = asyncio.create_task(stops.asked.wait())
    starting = asyncio.create_task(cluster.start())
    await asyncio.wait({asked, starting}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        say("stopping before it was up")
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        return
    try:
        await starting
        say(welcome(cluster, await dashboard(cluster)))
        await asked
        say("stopping: jobs get their grace and go on from their checkpoint at the next `weft up`; Ctrl-C again kills")
    finally:
        asked.cancel()
        if not starting.exception():
            await cluster.stop(hurry=stops.hurry)
            say("stopped; nothing is left running, the data stay")


async def dashboard(cluster: LocalCluster) -> str:
    """The URL that signs a browser in, once."""
    async with Client(cluster.url, cluster.token) as client:
        return await dashboard_address(client, cluster.url)


def welcome(cluster: LocalCluster, dashboard: str) -> str:
    """The text for a person about a cluster that has just come up; `dashboard`: the URL that signs a browser in."""
    pretended = cluster.options.pretended()
    lines = [
        "",
        f"Weft is up: {cluster.url}",
        f"  the dashboard, signed in: {dashboard}",
        "  (the link works once, within minutes: `weft open` prints another)",
        "  the API is described at /v1/openapi.json",
        f"  {cluster.options.in_words()}{f' ({pretended})' if pretended else ''}",
        "  jobs run as processes of this machine",
        *([f"  {cluster.systems}"] if cluster.systems else []),
        *([f"  services answer at {cluster.router_url}/s/JOB/"] if cluster.router_url else []),
        "",
        f'in another terminal (`export PATH="$PATH:{Path(sys.executable).parent}"` finds weft):',
        "  weft run --gpus 1 -- python3 train.py   a job",
        "  weft top                                the nodes, their GPUs and the queue, live",
        "  weft ps, weft logs -f JOB               lists jobs; shows the log of one",
        "  weft explain JOB, weft describe JOB     why a job waits or failed; its history",
        "from a program:",
        f"  export WEFT_URL={cluster.url} WEFT_TOKEN={cluster.token}",
        "",
        f"data and logs are in {cluster.home.root}{_apart(cluster)}; {LAST_WORDS}",
    ]
    return "\n".join(lines)


def _apart(cluster: LocalCluster) -> str:
    """Postgres does not run as root, and the account that it runs as may not enter every folder."""
    folder = cluster.postgres_folder
    inside = folder is None or folder.is_relative_to(cluster.home.root)
    return "" if inside else f", those of Postgres in {folder}"


async def _detached(home: ClusterHome) -> int:
    """Start `weft up` in a session of its own, and print its output until the cluster is up."""
    home.make()
    if home.runs() is None:
        home.up_log.unlink(missing_ok=True)
    with opened(home.up_log) as log:
        begins = log.tell()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "weftd.cli", *sys.argv[1:], "--no-detach"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    ended, heard = asyncio.create_task(process.wait()), ""
    try:
        with home.up_log.open("rb") as said:
            said.seek(begins)
            while True:
                done, _ = await asyncio.wait({ended}, timeout=ATTACH_POLL_SECONDS)
                text = said.read().decode(errors="replace")
                if text:
                    say(text.rstrip("\n"))
                heard += text
                if done or LAST_WORDS in heard:
                    return process.returncode or 0
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await ended
        raise


async def _attach(home: ClusterHome) -> int:
    """Another process runs it: print its address, once it is ready."""
    state = await _ready_state(home)
    say(f"weft is already up: {state.url} (pid {state.pid}, data in {home.root})")
    return 0


async def _ready_state(home: ClusterHome) -> ClusterState:
    """Wait while the other process starts it. Raises CliError."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ATTACH_SECONDS_MAX):
            while (state := _current(home)) is None or state.phase == "starting":  # noqa: ASYNC110 -- another process
                await asyncio.sleep(ATTACH_POLL_SECONDS)
            if state.phase == "ready":
                return state
            raise CliError(f"the cluster of {home.root} is {state.phase}; try again when it has ended")
    raise CliError(f"the cluster of {home.root} has been starting for {ATTACH_SECONDS_MAX:g} s")


def _current(home: ClusterHome) -> ClusterState | None:
    """The state as the present process wrote it, not an earlier one."""
    state = home.state()
    return state if state and state.pid == home.runner() else None


def say(line: str) -> None:
    """Print to the terminal, if it is still there: a closed one must not break the orderly stop."""
    with contextlib.suppress(OSError):
        print(clean_lines(line), flush=True)
