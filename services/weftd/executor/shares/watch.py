"""The executor's side of the arbiter: it is started when the first run needs it, and again whenever it ends.

It ends with the executor, and the next executor's finds all that it needs in the slot folders. Jobs go on meanwhile, as
their shares say.
"""

import asyncio
import logging
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.2
END_SECONDS_MAX = 3.0
LOG_BYTES_MAX = 1 << 20
INHERITED = ("PATH", "LANG", "HOME", "PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "LD_LIBRARY_PATH")


class ArbiterWatch:
    """Keeps one arbiter alive for the slots below `root`; it writes its log to `log`."""

    def __init__(self, root: Path, *, log: Path) -> None:
        self._root, self._log = root, log
        self._child: subprocess.Popen[bytes] | None = None
        self._wanted = False

    def begin(self) -> None:
        """Start it, unless it runs."""
        self._wanted = True
        if self._child is not None:
            return
        try:
            self._child = self._spawned()
        except OSError as error:
            logger.error("no arbiter runs, so shares are not enforced: %s", error)

    async def keep(self) -> None:
        """Start it again whenever it ends, for ever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._child is None:
                if self._wanted:
                    self.begin()
            elif (status := self._child.poll()) is not None:
                logger.warning("the arbiter ended with status %d, it is started again", status)
                self._child = None

    async def close(self) -> None:
        """End it. Its jobs go on as their shares say."""
        child = self._child
        if child is None:
            return
        child.terminate()
        try:
            await asyncio.to_thread(child.wait, END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            child.kill()
            await asyncio.to_thread(child.wait)

    def _spawned(self) -> subprocess.Popen[bytes]:
        with suppress(OSError):
            if self._log.stat().st_size > LOG_BYTES_MAX:
                os.truncate(self._log, 0)
        with open(self._log, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as err:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "weftd.arbiter", "--root", str(self._root)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=err,
                cwd="/",
                env={name: os.environ[name] for name in INHERITED if name in os.environ}
                | {"WEFT_EXIT_WITH_PARENT": str(os.getpid())},
                start_new_session=True,
            )
