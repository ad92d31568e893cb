"""Sessions: a shell, a command or a connection that a person has in a run, from the gateway to the run's node.

All goes by requests of the gateway, as reading a log does: a node sends nothing unasked, and listens on no port. Every
request says from which byte it goes on, so a message that is lost, or comes twice, changes nothing. What a gateway asks
for is the credit that a node has: it keeps at most what was not acknowledged, and stops reading from its process then.
"""

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from weft.messages import Message
from weft.messages.bounds import Epoch, ExitCode, JobId, Rank, Token, Word

WINDOW_BYTES = 256 << 10  # on the way to a person and not acknowledged, and as many on the way back
SIDE_MAX = 1000  # of a terminal, in rows or columns


class SessionKind(StrEnum):
    SHELL = "shell"
    EXEC = "exec"
    PORT = "port"
    COPY = "copy"


class OpenSession(Message, frozen=True, kw_only=True):
    """Gateway → executor, a request: begin a session in a run, or with `resumes` go on with it from another line.
    Answered by `SessionOpened`.

    `session_id`: as the gateway drew it; only the person that opened the session and that gateway know it. `command`:
    empty for a shell: that of the run. `port`: of a connection.
    """

    subject: ClassVar[str] = "weft.sessions.{node_id}.open"
    node_id: str
    session_id: str
    job_id: str
    epoch: int
    rank: int
    kind: SessionKind = SessionKind.SHELL
    command: tuple[str, ...] = ()
    tty: bool = False
    rows: int = 0
    columns: int = 0
    term: str = ""
    port: int = 0
    resumes: bool = False


class SessionOpened(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`line` numbers the lines of a session: only the newest is served. `taken`: how many bytes of input the session
    has. `refused`: why not; `full`: for lack of room, so that it may be tried again."""

    line: int = 0
    taken: int = 0
    refused: str = ""
    full: bool = False


class ReadSession(Message, frozen=True, kw_only=True):
    """Gateway → executor, a request: at most `limit` bytes of output from `offset`. Answered by `SessionRead`.

    The node waits for them for `wait` seconds at most, and forgets all before `acked`. A session whose gateway asks no
    more is ended after a while; `looks` does not count as asking.
    """

    subject: ClassVar[str] = "weft.sessions.{node_id}.read"
    node_id: str
    session_id: str
    line: int
    offset: int = 0
    acked: int = 0
    limit: int = 0
    wait: float = 0.0
    looks: bool = False


class SessionRead(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`data` begins at the asked offset, and is all of one `stream`: 1 of the command's output, 2 of its errors.

    `ended`: nothing follows; with `status`, of a command that ended, and with `reason`, if something ended it.
    `gone`: the node has no such session. `elsewhere`: another line has it now.
    """

    data: bytes = b""
    stream: int = 1
    ended: bool = False
    status: int | None = None
    reason: str = ""
    gone: bool = False
    elsewhere: bool = False


class WriteSession(Message, frozen=True, kw_only=True):
    """Gateway → executor, a request: input from its byte `offset` on, and what else comes from a terminal. Answered by
    `SessionWritten`. `rows` 0: the terminal's size is as it was. `over`: no input follows. `end`: end the session."""

    subject: ClassVar[str] = "weft.sessions.{node_id}.write"
    node_id: str
    session_id: str
    line: int
    offset: int = 0
    data: bytes = b""
    over: bool = False
    rows: int = 0
    columns: int = 0
    end: bool = False


class SessionWritten(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`taken`: how many bytes of input the session has by now; what is beyond them is sent again."""

    taken: int = 0
    gone: bool = False


class SessionLeft(Message, frozen=True, kw_only=True):
    """Executor → gateway, a request: a session ended a while ago, so that its job's story should have that. Asked
    again until it is answered, by `SessionLeftNoted`. Which session it was, and whose, is in the story of the job.
    `port`: of a connection."""

    subject: ClassVar[str] = "weft.left.{node_id}"
    node_id: Token
    session_id: Word
    job_id: JobId
    epoch: Epoch
    rank: Rank
    port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    status: ExitCode | None = None
    reason: Word = ""


class SessionLeftNoted(Struct, frozen=True, kw_only=True):
    """The story has it, or needs it no more."""


# between a person's program and the gateway, on one WebSocket


class SessionSaid(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A text frame from a person's program; its binary frames are input. The first says the `command`, if there is one.

    `acked`: up to where it has the output. `rows`, `columns`: its terminal's size, if it changed. `over`: no input
    follows. `end`: end the session. An empty one says that the line lives.
    """

    command: tuple[str, ...] = ()
    acked: int | None = None
    rows: int = 0
    columns: int = 0
    over: bool = False
    end: bool = False


class SessionTold(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A text frame from the gateway; its binary frames are a byte, the stream (1 output, 2 errors), and bytes of it.

    `session`: it is open, and by this name it is gone on with from another line; with `node` and `rank`. `taken`: how
    many bytes of input the session has. `ended`: nothing follows; with the command's `status`, or a `reason`.
    `refused`: the HTTP status of a refusal, with its `reason`. `lost`: the gateway cannot reach the node; the line may
    be tried again. An empty one says that the line lives.
    """

    session: str = ""
    node: str = ""
    rank: int | None = None
    taken: int | None = None
    ended: bool = False
    status: int | None = None
    reason: str = ""
    refused: int = 0
    lost: bool = False


ALIVE_SECONDS = 4.0  # between two signs of life on a line, from either side
DEAD_SECONDS = 12.0  # without one, a line is dead
FRAME_BYTES_MAX = 64 << 10
