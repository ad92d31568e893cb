"""Errors of a local cluster; the tree is drawn in `weftd.cli.local`."""

from pathlib import Path

LOG_LINES = 15


class LocalError(Exception):
    """The cluster of this machine cannot be had."""


class AlreadyRunsError(LocalError):
    """Another process runs the cluster of this home."""


class StartFailedError(LocalError):
    def __init__(self, what: str, *, log: Path | None = None) -> None:
        tail = _last_lines(log) if log else ""
        super().__init__(f"{what}\n{log}:\n{tail}" if tail else what)


def _last_lines(log: Path) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
    except OSError:
        return ""
