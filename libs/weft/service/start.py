"""From `python -m services.x` to a running service: log, event loop, signals and exit status.

Read from the environment: WEFT_LOG ("text" or "json"), WEFT_LOG_LEVEL, and WEFT_EXIT_WITH_PARENT ("1", or the parent's
pid, which also covers a parent that ended before this process could ask).
"""

import asyncio
import ctypes
import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping

from weft.bus import BusError
from weft.service import log
from weft.service.config import SettingsError
from weft.version import version

logger = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
STATUS_CRASHED = 1
STATUS_SETTINGS = 2
GARBAGE_EVERY = (50_000, 50, 20)
"""Allocations, and young and middle collections, between two of Python's garbage collections. Decoded messages
have no cycles and are freed without a collection, and a full collection costs more the more GPUs there are.
"""


def main(
    name: str,
    run: Callable[[asyncio.Event], Awaitable[None]],
    *,
    environ: Mapping[str, str] = os.environ,
    environment_errors: tuple[type[Exception], ...] = (BusError, OSError),
) -> int:
    """Run the service until a signal sets its `stop` event. 0: it ended; 1: it crashed; 2: wrong settings.

    `environment_errors` are logged in one line, without a traceback: a server that is away is no bug.
    """
    log.configure(name, style=environ.get("WEFT_LOG", "text"), level=environ.get("WEFT_LOG_LEVEL") or "INFO")
    logger.info("%s %s starts", name, version())
    gc.set_threshold(*GARBAGE_EVERY)
    try:
        exit_with_parent(environ.get("WEFT_EXIT_WITH_PARENT", ""))
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_until_signal(run))
    except SettingsError as error:
        for line in str(error).splitlines():
            logger.critical("%s cannot start: %s", name, line)
        return STATUS_SETTINGS
    except environment_errors as error:
        logger.critical("%s has to end: %s: %s", name, type(error).__name__, error)
        return STATUS_CRASHED
    except Exception:
        logger.critical("%s crashed", name, exc_info=True)
        return STATUS_CRASHED
    return 0


def stop_on_signals() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set. A second signal changes nothing: a supervisor may send both."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def exit_with_parent(asked: str) -> None:
    """Have the kernel send this process SIGTERM when its parent ends. Linux only; elsewhere it does nothing."""
    if not asked or asked == "0" or not sys.platform.startswith("linux"):
        return
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if asked != "1" and asked != str(os.getppid()):
        raise SettingsError(f"WEFT_EXIT_WITH_PARENT: our parent is not {asked}; it has ended already")


async def _until_signal(run: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    await run(stop_on_signals())


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop
