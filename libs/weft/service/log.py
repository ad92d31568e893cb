"""The log: one line a record on stderr, as key=value or as JSON. What looks like a secret is masked.

`logger.info("placed", extra={"job_id": job.id})` makes a field of each extra.
"""

import logging
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TextIO

import msgspec

Fields = dict[str, Any]

OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
SECRET_NAME = re.compile(r"password|secret|token|authorization|credential", re.IGNORECASE)
SECRET_TEXT = re.compile(r"(?<=://)[^/@\s]*:[^/@\s]*(?=@)|(?<=Bearer )\S+|\bweft_[A-Za-z0-9_-]{20,}")
SECRET_SIGNS = ("://", "Bearer ", "weft_")  # without one of these nothing in a text looks like a secret
PLAIN = re.compile(r"[^\s\"=]+")
HIDDEN = "***"


def configure(service: str, *, style: str = "text", level: str = "INFO", stream: TextIO | None = None) -> None:
    """Send the log of this process to `stream`, stderr by default. `style` is "text" or "json"."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(OneLine(service, as_json if style == "json" else as_text))
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False  # no line shows them
    logging._srcfile = None  # nor where in the code it was logged, which takes longest to find
    # asyncpg logs every attempt to refill its pool while Postgres is away; the store logs that once.
    logging.getLogger("asyncpg").setLevel(logging.CRITICAL)


class OneLine(logging.Formatter):
    def __init__(self, service: str, write: Callable[[Fields], str]) -> None:
        super().__init__()
        self._service = service
        self._write = write

    def format(self, record: logging.LogRecord) -> str:
        told: Fields = {
            "message": record.getMessage(),
            **{name: value for name, value in vars(record).items() if name not in OWN},
        }
        fields: Fields = {
            "at": f"{_second(int(record.created))}.{int(record.created % 1 * 1000):03}+00:00",
            "level": record.levelname.lower(),
            "service": self._service,
            **{name: without_secrets(name, value) for name, value in told.items()},
            "logger": record.name,
        }
        if record.exc_info:
            fields["error"] = without_secrets("error", self.formatException(record.exc_info))
        return self._write(fields)


@lru_cache(maxsize=2)
def _second(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()[:19]


@lru_cache(maxsize=1000)
def _is_secret(name: str) -> bool:
    return SECRET_NAME.search(name) is not None


def without_secrets(name: str, value: Any) -> Any:
    if _is_secret(name):
        return HIDDEN
    if isinstance(value, int | float | None):
        return value
    text = str(value)
    return SECRET_TEXT.sub(HIDDEN, text) if any(sign in text for sign in SECRET_SIGNS) else text


def as_text(fields: Fields) -> str:
    return " ".join(f"{name}={_quoted(value)}" for name, value in fields.items())


def as_json(fields: Fields) -> str:
    return msgspec.json.encode(fields).decode()


def _quoted(value: Any) -> str:
    text = str(value)
    return text if PLAIN.fullmatch(text) else msgspec.json.encode(text).decode()
