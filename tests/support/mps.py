"""The emulated MPS daemons of a node, and programs that share its emulated GPU as their clients."""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from libs.sharing.places import pipes_of
from services.executor.shares.mps_daemon import LOG_VARIABLE, PIPE_VARIABLE
from services.executor.shares.mps_processes import environment_of

LAUNCHES = """
from tests.support.driver_client import Driver
driver = Driver()
driver.launch(1000)
driver.synchronize()
print("ready", flush=True)
while True:
    driver.launch(1000)
    driver.synchronize()
"""


def daemons(home: Path) -> dict[str, int]:
    """The living daemons of the executor of this home by the UUID of their GPU."""
    found: dict[str, int] = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        environment = environment_of(int(name))
        if environment.get(LOG_VARIABLE, "").startswith(f"{home.absolute()}/") and _is_daemon(name):
            found[environment["CUDA_VISIBLE_DEVICES"]] = int(name)
    return found


def _is_daemon(pid: str) -> bool:
    """And not the control program as somebody asks a daemon."""
    try:
        return Path("/proc", pid, "cmdline").read_bytes().endswith(b"\0-d\0")
    except OSError:
        return False


def pipe_of(pid: int) -> Path:
    """The pipe folder of a daemon."""
    return Path(environment_of(pid)[PIPE_VARIABLE])


@contextmanager
def no_daemon_is_left(home: Path) -> Iterator[None]:
    """Kill the daemons that are left at the end, as those of an executor that was killed."""
    try:
        yield
    finally:
        for pid in daemons(home).values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(pipes_of(home), ignore_errors=True)
