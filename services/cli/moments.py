"""`--at`: a moment in the past, as people write it."""

from datetime import datetime

from libs.domain.quantity import duration_seconds
from services.cli.complaint import Complaint

HELP = "as it was then: 10m ago (-10m), 2026-01-31T12:00 (here) or …Z, @1769860800, or the cursor of an event"


def moment(text: str, *, now: float) -> str:
    """What the API takes for it. Raises `Complaint` where it is no moment."""
    if text.startswith("@"):
        return text[1:]
    head, dash, tail = text.partition("-")
    if dash and head.isdigit() and tail.isdigit():
        return text  # a cursor
    ago = text.removeprefix("-").removesuffix(" ago")
    try:
        return repr(now - duration_seconds(ago))
    except ValueError:
        pass
    try:
        return repr(datetime.fromisoformat(text).timestamp())  # without a zone: the one of this machine
    except (ValueError, OverflowError):
        raise Complaint(
            f"expected a time such as 10m, 2026-01-31T12:00 or @1769860800, got {text}", field="at"
        ) from None
