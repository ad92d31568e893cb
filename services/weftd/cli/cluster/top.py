"""`weft top`: the cluster and its queue, live; q or Ctrl-C ends it. Where there is no terminal: once, as text."""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec
from msgspec import Struct
from rich.live import Live

from weft.client import Client, Unreachable
from weft.client.place import QUICK_SECONDS
from weft.domain.job import FINAL
from weft.messages.http import ClusterView, JobView
from weftd.cli import connection, page
from weftd.cli.formatting import span
from weftd.cli.rendering.cluster import cluster_screen
from weftd.cli.rendering.context import RenderContext

_ENDED_SHOWN = 5
_ENDED_SECONDS = 600.0  # jobs that ended earlier are not shown


class TopView(Struct, frozen=True, kw_only=True):
    view: ClusterView
    ended: tuple[JobView, ...] = ()


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("top", help="show the cluster and its queue, live", description=__doc__)
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="SECONDS", help="seconds between refreshes (default: 1)"
    )
    parser.add_argument("--once", action="store_true", help="print once and exit")
    connection.options(parser)
    parser.set_defaults(func=top)


async def top(args: argparse.Namespace) -> int:
    async with connection.connected(args, patience=QUICK_SECONDS) as client:
        if args.json:
            page.json_line(await client.cluster())
            return 0
        seen = await _look(client)
        if args.once or not (sys.stdout.isatty() and sys.stdin.isatty()):
            page.show(cluster_screen(seen.view, _look_of(seen), ended=seen.ended))
        else:
            await _live(client, seen, max(0.1, args.interval))
    return 0


async def _live(client: Client, seen: TopView, interval: float) -> None:
    screen = page.console(sys.stdout)
    wake, done = asyncio.Event(), asyncio.Event()
    with _ending(wake, done), Live(console=screen, screen=True, auto_refresh=False, redirect_stderr=False) as live:
        note = ""
        while not done.is_set():
            drawn = cluster_screen(seen.view, _look_of(seen), ended=seen.ended, height=screen.height, note=note)
            live.update(drawn, refresh=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await wake.wait()
            wake.clear()
            if not done.is_set():
                seen, note = await _again(client, seen, done)


async def _again(client: Client, seen: TopView, done: asyncio.Event) -> tuple[TopView, str]:
    """A new look; while the gateway is away, the old one, and a note of how old. `q` does not wait for either."""
    looking, ending = asyncio.create_task(_look(client)), asyncio.create_task(done.wait())
    try:
        await asyncio.wait({looking, ending}, return_when=asyncio.FIRST_COMPLETED)
        return (await looking, "") if looking.done() else (seen, "")
    except Unreachable:
        return seen, f"the gateway does not answer; this is the state of {span(page.context().now - seen.view.at)} ago"
    finally:
        looking.cancel()
        ending.cancel()
        await asyncio.wait({looking, ending})


async def _look(client: Client) -> TopView:
    view = await client.cluster()
    newest = (await client.jobs(states=sorted(FINAL), limit=4 * _ENDED_SHOWN)).jobs
    return TopView(view=view, ended=ended_lately(newest, now=view.at))


def ended_lately(jobs: tuple[JobView, ...], *, now: float) -> tuple[JobView, ...]:
    """The last few jobs that ended, the newest first."""
    lately = [job for job in jobs if job.ended_at is not None and now - job.ended_at < _ENDED_SECONDS]
    return tuple(sorted(lately, key=lambda job: -(job.ended_at or 0.0))[:_ENDED_SHOWN])


def _look_of(seen: TopView) -> RenderContext:
    """Render with the gateway's clock, since this machine's may differ."""
    return msgspec.structs.replace(page.context(), now=seen.view.at)


@contextmanager
def _ending(wake: asyncio.Event, done: asyncio.Event) -> Iterator[None]:
    """q, Ctrl-C and SIGTERM end it, a new size of the window redraws it; the terminal is left as it was."""
    import termios  # Windows has none
    import tty

    loop, keyboard = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)

    def end() -> None:
        done.set()
        wake.set()

    def key() -> None:
        if os.read(keyboard, 16) in (b"q", b"Q", b"\x1b", b"\x04", b""):
            end()

    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, key)
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(ending, end)
    loop.add_signal_handler(signal.SIGWINCH, wake.set)
    try:
        yield
    finally:
        for heard in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH):
            loop.remove_signal_handler(heard)
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
