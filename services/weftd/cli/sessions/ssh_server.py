"""The SSH server of `weft ssh-proxy`: each channel of the SSH client becomes a session in the job's run.

A command, a shell and SFTP become a session with a command, and a forwarded connection becomes a connection to a port
of the run. The server opens no file and no socket itself: all that it can reach is what the token may reach.
"""

import asyncio
import socket
from collections.abc import Awaitable
from contextlib import aclosing, suppress
from importlib.resources import files

import asyncssh
from msgspec import Struct

from weft.client import Client, ClientError
from weft.client.sessions import RunSession
from weft.messages.sessions import SIDE_MAX, WINDOW_BYTES, SessionKind
from weftd.cli.formatting import clean

SFTP = "sftp"
BROKEN_STATUS = 255  # as ssh reports an error of its own
TERM = "xterm-256color"
END_SECONDS_MAX = 5.0
OWN_NAMES = ("localhost", "127.0.0.1", "::1")
_SHELL = "command -v bash >/dev/null && exec bash; exec sh"
# $1 is the SFTP server in Python.
_SFTP = """
for python in python3 python; do command -v $python >/dev/null && exec $python -I -S -c "$1"; done
for server in /usr/lib/openssh /usr/lib/ssh /usr/libexec/openssh /usr/libexec; do
  [ -x $server/sftp-server ] && exec $server/sftp-server
done
echo "weft: SFTP needs python3 or sftp-server in the job; weft cp needs neither" >&2
exit 127
"""

Channel = asyncssh.SSHServerChannel[bytes] | asyncssh.SSHTCPChannel[bytes]


class Target(Struct, frozen=True, kw_only=True):
    """The run that an SSH connection reaches. `host`: its name, as the SSH client has it."""

    job: str
    rank: int
    role: str
    host: str


class Keys(Struct, frozen=True):
    """The server's own key, and the public keys that it lets in."""

    host: asyncssh.SSHKey
    users: asyncssh.SSHAuthorizedKeys


async def serve(client: Client, target: Target, keys: Keys, sock: socket.socket) -> None:
    """Serve the one SSH connection on a socket until it is closed."""
    channels = Channels(client, target)
    connection = await asyncssh.run_server(
        sock,
        server_factory=lambda: Server(channels),
        server_host_keys=[keys.host],
        authorized_client_keys=keys.users,
        password_auth=False,
        kbdint_auth=False,
        host_based_auth=False,
        gss_host=None,
        agent_forwarding=False,
        x11_forwarding=False,
        allow_scp=False,
        line_editor=False,
        compression_algs=None,
        encoding=None,
    )
    try:
        await connection.wait_closed()
    finally:
        connection.abort()
        await channels.end()


class Channels:
    """The open channels of one connection, each a task."""

    def __init__(self, client: Client, target: Target) -> None:
        self.target = target
        self._client = client
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        """Wait until every session has been ended, for a while."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=END_SECONDS_MAX)

    def enter(
        self,
        kind: SessionKind,
        command: tuple[str, ...] = (),
        *,
        size: tuple[int, int] | None = None,
        term: str = "",
        port: int = 0,
    ) -> RunSession:
        target = self.target
        return self._client.enter(
            target.job,
            kind,
            command=command,
            rank=target.rank,
            role=target.role,
            tty=size is not None,
            size=size,
            term=term,
            port=port,
        )


class Server(asyncssh.SSHServer):
    """Lets in whoever has the key, and refuses every channel that is no session and no port of the run."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn

    def session_requested(self) -> tuple[asyncssh.SSHServerChannel[bytes], asyncssh.SSHServerSession[bytes]]:
        assert self._connection is not None
        return self._connection.create_server_channel(encoding=None), CommandChannel(self._channels)

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> Awaitable[asyncssh.SSHTCPSession[bytes]]:
        return self._connected(dest_host, dest_port)

    async def _connected(self, host: str, port: int) -> asyncssh.SSHTCPSession[bytes]:
        if host.lower() not in (*OWN_NAMES, self._channels.target.host):
            why = f"only the run's own ports can be reached, as localhost, not {clean(host[:80])}"
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, why)
        if not 1 <= port <= 65535:
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, "a port is from 1 to 65535")
        session = self._channels.enter(SessionKind.PORT, port=port)
        try:
            await session.__aenter__()
        except ClientError as error:
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, clean(str(error))) from error
        return PortChannel(self._channels, session)


class Carrier:
    """Carries bytes between one SSH channel and one session, each way no faster than the other side reads."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._channel: Channel | None = None
        self._closed = asyncio.Event()
        self._received = bytearray()
        self._over = False  # no more input follows
        self._size: tuple[int, int] | None = None
        self._changed = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    def data_received(self, data: bytes, datatype: int | None) -> None:
        self._received += data
        if len(self._received) >= WINDOW_BYTES and self._channel is not None:
            self._channel.pause_reading()
        self._changed.set()

    def eof_received(self) -> bool:
        self._over = True
        self._changed.set()
        return True  # the channel stays open for the output

    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        self._size = _size(width, height)
        self._changed.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed.set()
        self._writable.set()

    async def carry(self, session: RunSession) -> None:
        """Carry until the session is over or the channel is closed. Raises Refused."""
        tasks = [asyncio.create_task(work) for work in (self._out(session), self._gone(), self._in(session))]
        try:
            done, _ = await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    async def _gone(self) -> None:
        await self._closed.wait()

    async def _in(self, session: RunSession) -> None:
        while True:
            self._changed.clear()
            size, self._size = self._size, None
            if size is not None:
                await session.resize(*size)
            if self._received:
                piece = bytes(self._received)
                self._received.clear()
                if self._channel is not None:
                    self._channel.resume_reading()
                await session.write(piece)
            elif self._over:
                await session.close_input()
                return
            else:
                await self._changed.wait()

    async def _out(self, session: RunSession) -> None:
        assert self._channel is not None
        async with aclosing(session.output()) as pieces:
            async for stream, data in pieces:
                await self._writable.wait()
                try:
                    self._channel.write(data, asyncssh.EXTENDED_DATA_STDERR if stream == 2 else None)
                except OSError:  # the client has closed the channel
                    return


class CommandChannel(Carrier, asyncssh.SSHServerSession[bytes]):
    """A shell, a command or SFTP."""

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        self._channel = chan
        self._client = chan

    def pty_requested(self, term_type: str, term_size: tuple[int, int, int, int], term_modes: object) -> bool:
        return True

    def shell_requested(self) -> bool:
        return True

    def exec_requested(self, command: str) -> bool:
        return True

    def subsystem_requested(self, subsystem: str) -> bool:
        return subsystem == SFTP

    def session_started(self) -> None:
        self._channels.begin(self._run())

    async def _run(self) -> None:
        channel = self._client
        words, status = "", BROKEN_STATUS
        try:
            async with self._session(channel) as session:
                await self.carry(session)
            if session.status is not None:
                status = session.status
            else:
                words = f"the session ended: {session.reason or 'its node does not say why'}"
        except ClientError as error:
            words = str(error)
        with suppress(OSError):  # the client has closed the channel
            if words:
                channel.write(f"weft: {clean(words)}\r\n".encode(), asyncssh.EXTENDED_DATA_STDERR)
            channel.exit(status)

    def _session(self, channel: asyncssh.SSHServerChannel[bytes]) -> RunSession:
        command = channel.get_command()
        if channel.get_subsystem() is not None:
            program = files(__package__).joinpath("sftp_program.py").read_text()
            return self._channels.enter(SessionKind.COPY, ("sh", "-c", _SFTP, SFTP, program))
        words = ("sh", "-c", command) if command is not None else ()
        if (term := channel.get_terminal_type()) is not None:
            width, height, _, _ = channel.get_terminal_size()
            return self._channels.enter(SessionKind.SHELL, words, size=_size(width, height), term=term or TERM)
        return self._channels.enter(SessionKind.EXEC, words or ("sh", "-c", _SHELL))


class PortChannel(Carrier, asyncssh.SSHTCPSession[bytes]):
    """A connection to a port of the run."""

    def __init__(self, channels: Channels, session: RunSession) -> None:
        super().__init__(channels)
        self._session = session

    def connection_made(self, chan: asyncssh.SSHTCPChannel[bytes]) -> None:
        self._channel = chan

    def session_started(self) -> None:
        self._channels.begin(self._run())

    async def _run(self) -> None:
        assert self._channel is not None
        try:
            with suppress(ClientError):  # a connection has no words for it
                await self.carry(self._session)
        finally:
            await self._session.__aexit__(None, None, None)
            self._channel.close()


def _size(width: int, height: int) -> tuple[int, int]:
    """Rows and columns within their bounds; a client that has no size sends 0."""
    return min(max(1, height or 24), SIDE_MAX), min(max(1, width or 80), SIDE_MAX)
