"""The errors of the servers of one machine.

ServersError
├── ServerMissingError   no usable program here; names what to install
├── ServerFailedError    it did not start, answer or stop; has the last lines of its log
└── ServersBusyError     another process has been starting or stopping the same servers for too long
"""

from pathlib import Path

LOG_LINES = 15


class ServersError(Exception):
    """The servers of this machine cannot be had."""


class ServerMissingError(ServersError):
    pass


class ServerFailedError(ServersError):
    def __init__(self, what: str, *, log: Path | None = None) -> None:
        self.log_tail = _last_lines(log) if log else ""
        super().__init__(f"{what}\n{log}:\n{self.log_tail}" if self.log_tail else what)


class ServersBusyError(ServersError):
    pass


def _last_lines(log: Path) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
    except OSError:
        return ""
