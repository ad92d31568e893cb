"""Times as people write them: `--at`, a moment in the past, and `--until`, one to come."""

import re
from datetime import UTC, datetime, timedelta

from weft.domain.quantity import duration_seconds
from weftd.cli.cli_error import CliError
from weftd.cli.formatting import clean

_CLOCK = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?")
MOST_SECONDS = 10 * 366 * 86_400.0
HELP = (
    "past time to show: 10m or -10m (ago), 14:57 (the latest), 2026-01-31T12:00 (local) or …Z (UTC), @1769860800,"
    " or the cursor of an event"
)


def moment(text: str, *, now: float, field: str = "--at") -> str:
    """The API's parameter for it. Raises `CliError` if it is no moment."""
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
    if (found := _CLOCK.fullmatch(text)) is not None:
        return repr(_last_time_at(int(found[1]), int(found[2]), int(found[3] or 0), now=now))
    try:
        return repr(datetime.fromisoformat(text).timestamp())  # without a zone: the one of this machine
    except (ValueError, OverflowError):
        raise CliError(
            f"expected a time such as 10m, 14:57, 2026-01-31T12:00 or @1769860800, got {clean(text[:100])}", field=field
        ) from None


def later(text: str, *, now: float, field: str = "--until") -> float:
    """A time to come, in seconds since 1970. Raises `CliError` if it is none."""
    try:
        if text.startswith("@"):
            at = float(text[1:])
        elif (found := _CLOCK.fullmatch(text)) is not None:
            at = _last_time_at(int(found[1]), int(found[2]), int(found[3] or 0), now=now, back=False)
        else:
            try:
                at = now + duration_seconds(text)
            except ValueError:
                at = datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise CliError(
            f"expected a time such as 2h, 18:00, 2026-01-31T12:00 or @1769860800, got {clean(text[:100])}", field=field
        ) from None
    if not now < at < now + MOST_SECONDS:
        raise CliError(f"{clean(text[:100])} is not a time in the next ten years", field=field)
    return at


def _last_time_at(hour: int, minute: int, second: int, *, now: float, back: bool = True) -> float:
    """When clocks here showed that time last: today, or yesterday if it has not come yet. Not `back`: when they show it
    next."""
    here = datetime.fromtimestamp(now, UTC).astimezone()
    today = here.replace(hour=hour, minute=minute, second=second, microsecond=0)
    if not back:
        return (today if today.timestamp() > now else today + timedelta(days=1)).timestamp()
    return (today if today.timestamp() <= now else today - timedelta(days=1)).timestamp()
