"""The arbiter as a process: `python -m weftd.arbiter --root DIR`, or with ARBITER_ROOT.

It ends by SIGTERM or SIGINT, or when the root is removed. Its state: 0 then; 1 after an error; 2 with wrong settings; 3
if another arbiter serves the root.
"""

import fcntl
import gc
import logging
import os
import resource
import signal
import socket
import sys
import time
from contextlib import suppress

from weft.service import log
from weft.service.config import SettingsError, load
from weft.service.start import GARBAGE_EVERY, STATUS_CRASHED, STATUS_SETTINGS, exit_with_parent
from weft.sharing import slots
from weftd.arbiter.service import ArbiterLoop
from weftd.arbiter.settings import ArbiterSettings

logger = logging.getLogger(__name__)

STATUS_TAKEN = 3
TAKE_SECONDS_MAX = 5.0
NICENESS = -10


def main(arguments: list[str]) -> int:
    environ = dict(os.environ)
    log.configure("arbiter", style=environ.get("WEFT_LOG", "text"), level=environ.get("WEFT_LOG_LEVEL") or "INFO")
    if arguments[:1] == ["--root"]:
        environ["ARBITER_ROOT"] = "".join(arguments[1:2])
    try:
        exit_with_parent(environ.get("WEFT_EXIT_WITH_PARENT", ""))
        settings = load(ArbiterSettings, prefix="ARBITER_", environ=environ)
        root = slots.open_folder(settings.root)
        if not _take(root):
            logger.critical("another arbiter serves %s", settings.root)
            return STATUS_TAKEN
        _run(settings, root)
    except SettingsError as error:
        logger.critical("the arbiter cannot start: %s", error)
        return STATUS_SETTINGS
    except OSError as error:
        logger.critical("the arbiter has to end: %s", error)
        return STATUS_CRASHED
    return 0


def _run(settings: ArbiterSettings, root: int) -> None:
    stopped: list[int] = []
    wakes, wake = socket.socketpair()
    wakes.setblocking(False)
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: stopped.append(number))
    _prepare()
    ArbiterLoop(settings, root).run(lambda: bool(stopped), wakes=wakes.fileno())


def _take(root: int) -> bool:
    """Lock the root, which lasts until this process ends. An arbiter before this one may be about to end."""
    deadline = time.monotonic() + TAKE_SECONDS_MAX
    while True:
        try:
            fcntl.flock(root, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        else:
            return True


def _prepare() -> None:
    """Many descriptors, a low niceness if we may, and few collections of garbage: every turn waits for this process."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    gc.freeze()
    gc.set_threshold(*GARBAGE_EVERY)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
