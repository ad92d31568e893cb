"""Processes that outlive the process that starts them: starting, recognising, waiting, stopping, all within bounds."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from weft.servers.account import Account
from weft.servers.errors import ServerFailedError

POLL_SECONDS = 0.01
SHELL_SECONDS_MAX = 10
KILL_SECONDS_MAX = 10
PROC = Path("/proc")

# The shell that starts a server ends at once, so the server is a child of init, which reaps it.
BACKGROUND = '"$@" </dev/null >&2 & echo $!'


def environment() -> Mapping[str, str]:
    """The environment of a server: nothing of ours, which may hold secrets."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}


def run_as(
    account: Account | None, command: Sequence[str | Path], *, seconds_max: float, stdin: IO[bytes] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run to the end as that account, without our terminal and outside folders that the account may not enter."""
    return subprocess.run(
        command,
        stdin=stdin or subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=seconds_max,
        cwd="/",
        env=environment(),
        start_new_session=True,
        **(account.as_user() if account else {}),
    )


def start_in_background(command: Sequence[str | Path], *, log: Path) -> int:
    """Start a server in a session of its own and return its pid."""
    with open_log(log) as output:
        started = subprocess.run(
            ["/bin/sh", "-c", BACKGROUND, "sh", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            check=True,
            timeout=SHELL_SECONDS_MAX,
            cwd="/",
            env=environment(),
            start_new_session=True,
        )
    return int(started.stdout)


def open_log(log: Path) -> IO[bytes]:
    return open(log, "ab", opener=lambda path, flags: os.open(path, flags, 0o600))


def command_of(pid: int) -> list[str]:
    """The command line of a living process; empty when there is none, or only a zombie."""
    if PROC.is_dir():
        try:
            return os.fsdecode((PROC / str(pid) / "cmdline").read_bytes()).split("\0")[:-1]
        except OSError:
            return []
    listed = subprocess.run(
        ["ps", "-ww", "-o", "command=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
        timeout=SHELL_SECONDS_MAX,
    )
    return listed.stdout.split()


def is_running(pid: int, program: str, argument: Path) -> bool:
    """True if that pid is still this program with this argument, and not another process that got the number."""
    command = command_of(pid)
    return bool(command) and Path(command[0]).name == program and str(argument) in command


def exists(pid: int) -> bool:
    """True if a process has this pid, be it a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def working_in(folder: Path) -> list[int]:
    """The processes whose working directory this is, as far as we may see them."""
    found = []
    for link in PROC.glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if link.readlink() == folder:
                found.append(int(link.parent.name))
    return found


def stop(pid: int, program: str, argument: Path, *, signals: Sequence[tuple[signal.Signals, float]]) -> None:
    """Send each signal and wait its seconds for the process to end, then kill it."""
    for number, patience in (*signals, (signal.SIGKILL, KILL_SECONDS_MAX)):
        if not is_running(pid, program, argument):
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        if wait_until(lambda: not is_running(pid, program, argument), patience):
            return
    raise ServerFailedError(f"{program} (pid {pid}) is still there after SIGKILL")


def wait_until(condition: Callable[[], bool], seconds_max: float) -> bool:
    """Poll, in a thread that may block; False if the time is up."""
    until = time.monotonic() + seconds_max
    while not condition():
        if time.monotonic() >= until:
            return False
        time.sleep(POLL_SECONDS)
    return True


def pick_port(wanted: int, remembered: int) -> int:
    """The requested port; else the last one if it is free, so that clients find the server again; else any."""
    if wanted:
        return wanted
    for port in (remembered, 0):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise ServerFailedError("no free port on 127.0.0.1")
