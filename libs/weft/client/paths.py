"""The paths of the gateway's resources, and their queries."""

from collections.abc import Mapping
from urllib.parse import quote

from weft.client.errors import ClientError

NO_TEXT = "a word of the command is no text in UTF-8"


def job_path(job: str, rest: str = "") -> str:
    return f"/v1/jobs/{path_part(job)}{rest}"


def array_path(array: str, rest: str = "") -> str:
    return f"/v1/arrays/{path_part(array)}{rest}"


def schedule_path(schedule: str, rest: str = "") -> str:
    return f"/v1/schedules/{path_part(schedule)}{rest}"


def path_part(text: str) -> str:
    """One part of a path, quoted. An empty text, `.` and `..` become `-`, which names nothing: else the path would be
    another request's. Raises ClientError for bytes that are no UTF-8."""
    return "-" if text in ("", ".", "..") else quote(checked_text("", text), safe="")


def checked_text(name: str, text: str) -> str:
    """The same text. Raises ClientError for bytes that are no UTF-8, as an argument of a command may have: the URL
    would lack them, and so ask for something else."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ClientError(f"{name}: {NO_TEXT}" if name else NO_TEXT) from None
    return text


def without_empty(query: Mapping[str, str]) -> dict[str, str]:
    """A query without the parameters whose value is empty: the gateway's default applies to them."""
    return {name: value for name, value in query.items() if value}
