"""`weft demo`: a cluster in a folder of its own, the script played on it, the verdict, and nothing left."""

import argparse
import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

from weft import servers
from weft.client import Client, ClientError
from weft.servers.process import command_of
from weft.sharing.places import root_of
from weftd.cli.demo import parts
from weftd.cli.demo.board import Board, in_words
from weftd.cli.demo.checks import CheckResult, Evidence, judge
from weftd.cli.demo.script import play
from weftd.cli.demo.show import Show, console
from weftd.cli.local import ClusterHome, LocalCluster, LocalError, Options, running
from weftd.cli.local.leftovers import kill_runs, living_runs
from weftd.cli.local.signals import Stops, stops_on_signals
from weftd.cli.local.up import dashboard

PREFIX = "weft-demo-"
KEPT_PREFIX = "weft-kept-demo-"
SECONDS_MAX = 1800.0
STALL_SECONDS_MAX = 300.0  # a slow machine takes as long as it needs, as long as something changes
ENDLESS = frozenset({"doomed", "starved"})
INTERRUPTED = 130
QUICK = {
    "REALLOCATOR_SERVING_POLICY": "weft-quick",  # a day of the service lasts half a minute
    "SCHEDULER_PREEMPTION_AFTER_SECONDS": "1",  # jobs last seconds
    "REALLOCATOR_WINDOW_SECONDS": "3",
    "REALLOCATOR_REVIEW_SECONDS": "1",
    "REALLOCATOR_PARTITION_SECONDS": "1",
    "REALLOCATOR_PARTITION_COOL_DOWN_SECONDS": "2",
}


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("demo", help="run a demo: jobs share a cluster, in about two minutes")
    parser.add_argument("--keep", action="store_true", help="keep the cluster's folder, with every log")
    parser.add_argument(
        "--seconds-max",
        type=float,
        default=SECONDS_MAX,
        metavar="N",
        help=f"give up after this many seconds, or {STALL_SECONDS_MAX:g} without a change (default: {SECONDS_MAX:g})",
    )
    parser.set_defaults(func=demo)


async def demo(args: argparse.Namespace) -> int:
    await clear_abandoned(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=KEPT_PREFIX if args.keep else PREFIX))
    show = Show(console())
    with stops_on_signals() as stops:
        try:
            status = await _until_stopped(_demo(folder, show, stops, args), stops)
        finally:
            if args.keep:
                show.close(f"kept: {folder}")
            else:
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    return status


async def _until_stopped(work: Coroutine[Any, Any, int], stops: Stops) -> int:
    """The demo's result; at a signal the demo is cancelled and cleans up, and the status shows it."""
    working, asked = asyncio.create_task(work), asyncio.create_task(stops.asked.wait())
    await asyncio.wait({working, asked}, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if working.done():
        return working.result()
    working.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await working
    return INTERRUPTED


async def _demo(folder: Path, show: Show, stops: Stops, args: argparse.Namespace) -> int:
    options = Options(nodes=parts.NODES, emulated_gpus=parts.GPUS_PER_NODE, port=0, settings=QUICK)
    started: list[int] = []
    try:
        with show.live():
            show.say(f"a cluster of {options.in_words()} ({options.pretended()})")
            async with running(folder, options, tell=show.say, erase=True, hurry=stops.hurry) as cluster:
                show.say(f"the dashboard: {await dashboard(cluster)}")
                good = await _played(cluster, show, args.seconds_max)
                started = await _processes(cluster)
                show.say("stopping the cluster")
    except LocalError as error:
        show.close(f"weft demo: the cluster does not start: {error}")
        return 1
    left = [pid for pid in started if command_of(pid)]
    if left:
        show.close(f"still running: {', '.join(map(str, left))}")
    else:
        show.close(f"nothing is left running ({len(started)} processes checked)")
    return 0 if good and not left else 1


async def _played(cluster: LocalCluster, show: Show, seconds_max: float) -> bool:
    """Play the script; whether every job did its part."""
    async with Client(cluster.url, cluster.token) as client:
        board = Board(client, told=show.tell, drawn=show.draw, endless=ENDLESS)
        show.watch(board.jobs)
        playing = asyncio.create_task(play(client, board, token=cluster.token, nodes=cluster.home.nodes))
        stalled = asyncio.create_task(board.stalled(STALL_SECONDS_MAX))
        try:
            await asyncio.wait({playing, stalled}, timeout=seconds_max, return_when=asyncio.FIRST_COMPLETED)
            if not playing.done():
                show.say(_gave_up(board, stalled=stalled.done(), seconds_max=seconds_max))
                return False
            evidence = await playing
        except ClientError as error:
            show.say(f"the gateway: {error}")
            return False
        finally:
            stalled.cancel()
            playing.cancel()
            await asyncio.wait({playing, stalled})
    return _judged(show, evidence, board.left_out)


def _gave_up(board: Board, *, stalled: bool, seconds_max: float) -> str:
    """Why the demo ends early, which jobs have not ended, and how to see more."""
    why = f"no job has changed for {STALL_SECONDS_MAX:g} s" if stalled else f"the demo has run for {seconds_max:g} s"
    open_jobs = [f"{name}: {in_words(job)}" for name, job in board.jobs.items() if not job.state.final]
    return f"{why}; jobs that have not ended: {'; '.join(open_jobs) or 'none'}. `weft demo --keep` keeps every log"


def _judged(show: Show, evidence: Mapping[str, Evidence], left_out: Mapping[str, str]) -> bool:
    """True if every job did its part. Parts that this machine cannot show are named and not judged."""
    seen = {name: left for name, left in evidence.items() if name not in left_out}
    verdicts = {name: judge(name, left) for name, left in seen.items()}
    missing = {
        name: CheckResult(False, "was never seen") for name in parts.NAMES if name not in seen and name not in left_out
    }
    evidence = seen
    show.ends(evidence, verdicts)
    for name, verdict in missing.items():
        show.tell(name, verdict.why)
    for name, why in left_out.items():
        show.tell(name, f"left out: {why}")
    return all(verdict.good for verdict in (*verdicts.values(), *missing.values()))


async def _processes(cluster: LocalCluster) -> list[int]:
    """Every process of this cluster: servers, services, and processes of jobs."""
    found = await servers.status(cluster.home.root)
    of_servers = [server.pid for server in (found.nats, found.postgres) if server and server.pid]
    return [*of_servers, *cluster.pids.values(), *living_runs(cluster.home.nodes)]


async def clear_abandoned(temporary: Path) -> None:
    """Remove files and processes of killed demos."""
    for home in await asyncio.to_thread(_abandoned, temporary):
        await asyncio.to_thread(kill_runs, home.nodes)
        for node in await asyncio.to_thread(_nodes, home):
            await asyncio.to_thread(shutil.rmtree, root_of(node), ignore_errors=True)
        await servers.erase(home.root)
        home.release()
        await asyncio.to_thread(shutil.rmtree, home.root, ignore_errors=True)


def _nodes(home: ClusterHome) -> list[Path]:
    return sorted(home.nodes.iterdir()) if home.nodes.is_dir() else []


def _abandoned(temporary: Path) -> list[ClusterHome]:
    """Claim the folders of earlier demos that no process uses, so that no two demos remove the same folder."""
    found = []
    for lock in sorted(temporary.glob(f"{PREFIX}*/up.lock")):
        home = ClusterHome(lock.parent)
        try:
            if lock.stat().st_uid == os.geteuid():
                home.take()
                found.append(home)
        except (LocalError, OSError):
            continue  # It runs, or has just been cleared.
    return found
