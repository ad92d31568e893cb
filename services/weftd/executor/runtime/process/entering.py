"""A session beside a run of plain processes: in its folder and control groups, with its environment and its user.

The processes of a session have the run's own variables, so that what ends the stragglers of a run ends them too, and
WEFT_SESSION beside them, by which what began with a session is found when that ends, or after a restart.
"""

import asyncio
import errno
import fcntl
import os
import signal
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from weftd.executor.channel import SessionRefusedError, SessionWanted
from weftd.executor.runtime.process.shim import CGROUP_REFUSED_STATUS
from weftd.executor.runtime.process.stragglers import SESSION_MARK

ENVIRONMENT_BYTES_MAX = 4 << 20
HANGUP_SECONDS = 0.3  # between a hangup and the kill: a shell writes its history
NOT_FOUND_STATUS = 127
PASSES_MAX, PASS_SECONDS = 50, 0.02

# $1 the working directory, $2 the number of control groups; then those, then the command. It becomes the command.
_INTO = f"""
__weft_dir=$1 __weft_left=$2
shift 2
while [ "$__weft_left" -gt 0 ]; do
  echo 0 >"$1/cgroup.procs" || exit {CGROUP_REFUSED_STATUS}
  shift
  __weft_left=$((__weft_left - 1))
done
cd -- "$__weft_dir" || exit {NOT_FOUND_STATUS}
unset __weft_dir __weft_left
exec "$@"
"""
_SHELL = ("/bin/sh", "-c", 'if [ -x "${SHELL:-}" ]; then exec "$SHELL" -i; elif command -v bash >/dev/null; '
          "then exec bash -i; else exec sh -i; fi")  # fmt: skip
_DEFAULTS = [*(set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP})]


def environment_of(pid: int) -> dict[bytes, bytes]:
    """The environment with which a process began, odd bytes and all. Raises SessionRefusedError."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            text = file.read(ENVIRONMENT_BYTES_MAX)
    except OSError as error:
        raise SessionRefusedError("the run is over, or its environment cannot be read here") from error
    pairs = (entry.partition(b"=") for entry in text.split(b"\0"))
    return {name: value for name, equals, value in pairs if name and equals}


def enter(shim: int, wanted: SessionWanted, groups: Sequence[str]) -> "ProcessChannel":
    """Start the command of a session beside the run whose shim has this pid. Raises SessionRefusedError and OSError."""
    env: Mapping[bytes, bytes] = {
        **environment_of(shim),
        b"WEFT_SESSION": wanted.mark.encode(),
        **({b"TERM": wanted.term.encode()} if wanted.tty else {}),
    }
    try:
        workdir = os.readlink(os.fsencode(f"/proc/{shim}/cwd"))
    except OSError as error:
        raise SessionRefusedError("the run is over") from error
    command = [os.fsencode(part) for part in wanted.command or _SHELL]
    if any(b"\0" in part for part in command):
        raise SessionRefusedError("the command has a byte 0")
    arguments = [b"sh", b"-c", _INTO.encode(), b"weft-session", workdir, b"%d" % len(groups)]
    arguments += [*map(os.fsencode, groups), *command]
    return _on_terminal(arguments, env, wanted) if wanted.tty else _on_pipes(arguments, env, wanted)


def _spawn(arguments: list[bytes], env: Mapping[bytes, bytes], actions: list[tuple[int, ...]]) -> int:
    try:
        return os.posix_spawn(
            "/bin/sh", arguments, env, file_actions=actions, setsid=True, setsigmask=(), setsigdef=_DEFAULTS
        )
    except OSError as error:
        if error.errno == errno.E2BIG:
            raise SessionRefusedError("the command and the run's environment are too long for this host") from error
        raise


def _on_terminal(arguments: list[bytes], env: Mapping[bytes, bytes], wanted: SessionWanted) -> "ProcessChannel":
    """The leader of a session of the kernel that opens a terminal has it as its own: so it is opened, not handed on."""
    master = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        fcntl.ioctl(master, termios.TIOCSPTLCK if hasattr(termios, "TIOCSPTLCK") else 0x40045431, struct.pack("i", 0))
        number = struct.unpack("i", fcntl.ioctl(master, getattr(termios, "TIOCGPTN", 0x80045430), b"\0" * 4))[0]
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", wanted.rows, wanted.columns, 0, 0))
        path = os.fsencode(f"/dev/pts/{number}")
        actions = [(os.POSIX_SPAWN_OPEN, 0, path, os.O_RDWR, 0), (os.POSIX_SPAWN_DUP2, 0, 1)]
        pid = _spawn(arguments, env, [*actions, (os.POSIX_SPAWN_DUP2, 0, 2)])  # type: ignore[list-item]
    except BaseException:
        os.close(master)
        raise
    return ProcessChannel(pid, wanted.mark, outputs={master: 1}, to=master, terminal=True)


def _on_pipes(arguments: list[bytes], env: Mapping[bytes, bytes], wanted: SessionWanted) -> "ProcessChannel":
    pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(3)]
    theirs = (pipes[0][0], pipes[1][1], pipes[2][1])
    ours = (pipes[0][1], pipes[1][0], pipes[2][0])
    try:
        actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(theirs)]
        pid = _spawn(arguments, env, actions)  # type: ignore[arg-type]
    except BaseException:
        for fd in ours:
            os.close(fd)
        raise
    finally:
        for fd in theirs:
            os.close(fd)
    for fd in ours:
        os.set_blocking(fd, False)
    return ProcessChannel(pid, wanted.mark, outputs={ours[1]: 1, ours[2]: 2}, to=ours[0], terminal=False)


class ProcessChannel:
    """`outputs`: the file descriptors that are read, each with its stream. `to`: the one that is written."""

    def __init__(self, pid: int, mark: str, *, outputs: dict[int, int], to: int, terminal: bool) -> None:
        self._pid, self._mark = pid, mark
        self._outputs, self._to, self._terminal = outputs, to, terminal
        self._status: int | None = None
        self._exited = asyncio.Event()
        self._writing = True
        self._pidfd = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._reap)

    async def read(self, limit: int) -> tuple[int, bytes]:
        while self._outputs:
            exited = self._exited.is_set()  # before the look: all that it wrote itself is there then
            for fd, stream in list(self._outputs.items()):
                try:
                    data = os.read(fd, limit)
                except BlockingIOError:
                    continue
                except OSError:  # EIO: no process has the terminal open any more
                    data = b""
                if data:
                    self._outputs[fd] = self._outputs.pop(fd)  # the others come first next time
                    return stream, data
                self._close(fd)
            if exited:  # What lives on in the background does not keep the session.
                break
            if self._outputs:
                await self._some()
        return 1, b""

    async def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left and self._writing:
            try:
                left = left[os.write(self._to, left) :]
            except BlockingIOError:
                await self._writable()

    async def close_input(self) -> None:
        if not self._terminal and self._writing:
            self._writing = False
            os.close(self._to)

    async def resize(self, rows: int, columns: int) -> None:
        if self._terminal and self._to in self._outputs:
            fcntl.ioctl(self._to, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def status(self) -> int | None:
        await self._exited.wait()
        return self._status

    async def end(self) -> None:
        """A hangup, as when a terminal is closed, and soon after the kill of all that bears the mark."""
        if not self._exited.is_set():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGHUP)
            with suppress(TimeoutError):
                async with asyncio.timeout(HANGUP_SECONDS):
                    await self._exited.wait()
        if not self._exited.is_set():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)
        await asyncio.to_thread(kill_marked, lambda mark: mark == self._mark)
        await self._exited.wait()
        for fd in [*self._outputs]:
            self._close(fd)
        if not self._terminal and self._writing:
            self._writing = False
            os.close(self._to)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        with suppress(ChildProcessError):
            status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            self._status = status if status >= 0 else 128 - status
        self._exited.set()

    def _close(self, fd: int) -> None:
        self._outputs.pop(fd, None)
        if fd == self._to:
            self._writing = False
        os.close(fd)

    async def _some(self) -> None:
        """Return when there may be something to read, or the process has ended."""
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        fds = list(self._outputs)
        for fd in fds:
            loop.add_reader(fd, ready.set)
        waits = [asyncio.ensure_future(ready.wait()), asyncio.ensure_future(self._exited.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            for fd in fds:
                loop.remove_reader(fd)

    async def _writable(self) -> None:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_writer(self._to, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_writer(self._to)


def kill_marked(which: Callable[[str], bool], *, having: bytes = b"") -> int:
    """SIGKILL every process of such a session; returns their number. `having`: what else is in its environment. Reads
    all of /proc, and sleeps: not for the loop.

    A process that becomes another program, or was born meanwhile, is not seen in one pass: the last two find none.
    """
    count = passes_without = 0
    for _ in range(PASSES_MAX):
        found = _kill_in_one_pass(which, having)
        count += found
        passes_without = 0 if found else passes_without + 1
        if passes_without == 2:
            break
        time.sleep(PASS_SECONDS)
    return count


def _kill_in_one_pass(which: Callable[[str], bool], having: bytes) -> int:
    count = 0
    with suppress(FileNotFoundError):
        for name in os.listdir("/proc"):
            mark = _mark_of(name, having) if name.isdecimal() else None
            if mark is not None and which(mark):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(int(name), signal.SIGKILL)
                    count += 1
    return count


def _mark_of(pid: str, having: bytes) -> str | None:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            text = file.read(ENVIRONMENT_BYTES_MAX)
    except OSError:
        return None
    if SESSION_MARK not in text or having not in text:
        return None
    found = (entry for entry in text.split(b"\0") if entry.startswith(SESSION_MARK))
    return next((entry[len(SESSION_MARK) :].decode(errors="replace") for entry in found), None)
