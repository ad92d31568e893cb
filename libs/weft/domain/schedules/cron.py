"""The times of a schedule: five fields as in crontab(5), read in a time zone.

Where clocks change, a schedule with fixed hours runs once a day all the same: a time that does not exist is moved to
the end of the gap, and of a time that exists twice the first counts. A schedule whose hours begin with `*` follows the
hours that pass: it leaves out times that do not exist, and runs at both of those that exist twice. So does Debian's
cron.
"""

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from itertools import product
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import Struct

from weft.domain.schedules import Schedule

MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
YEARS_MAX = 41  # between two times: a 29th of February on one day of the week, across a year such as 2100
_DAYS_MAX = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_OF_THE_MACHINE = frozenset({"localtime", "posixrules", "Factory"})
_ONE_DAY = timedelta(days=1)
_NUMBER = re.compile(r"[0-9]{1,4}")


class CronError(ValueError):
    """The text names no times; the message says why, with the field of the five."""


class Times(Struct, frozen=True):
    """The times that five fields name. `any_day`, `any_weekday`, `every_hour`: the field begins with `*`."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool
    any_weekday: bool
    every_hour: bool

    def on(self, day: date) -> bool:
        """Return True if it has times on that day. If both fields for days are limited, one of them is enough."""
        of_month, of_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        either = not self.any_day and not self.any_weekday
        return day.month in self.months and (of_month or of_week if either else of_month and of_week)


@lru_cache(maxsize=1024)
def times_of(cron: str) -> Times:
    """The times of `0 3 * * mon-fri`, or of a word such as `@daily`. Raises CronError."""
    text = cron.strip()
    if text.startswith("@"):
        if text not in MACROS:
            raise CronError(f"expected one of {', '.join(MACROS)}, not {text[:40]!r}")
        text = MACROS[text]
    fields = text.split()
    if len(fields) != 5:
        more = "; nothing starts more often than once a minute, so there is no field for seconds"
        raise CronError(
            "expected five fields (minute, hour, day of the month, month, day of the week), such as 0 3 * * *,"
            f" not {len(fields)}{more if len(fields) > 5 else ''}"
        )
    minute, hour, day, month, weekday = fields
    found = Times(
        minutes=tuple(sorted(_values(minute, "minute", 0, 59))),
        hours=tuple(sorted(_values(hour, "hour", 0, 23))),
        days=frozenset(_values(day, "day of the month", 1, 31)),
        months=frozenset(_values(month, "month", 1, 12, _MONTHS)),
        weekdays=frozenset(value % 7 for value in _values(weekday, "day of the week", 0, 7, _WEEKDAYS)),
        any_day=day.startswith("*"),
        any_weekday=weekday.startswith("*"),
        every_hour=hour.startswith("*"),
    )
    only_days = found.any_day or found.any_weekday
    if only_days and not any(one <= _DAYS_MAX[in_month - 1] for one, in_month in product(found.days, found.months)):
        raise CronError(f"day of the month: no month that it names has a day {min(found.days)}")
    return found


def zone_of(name: str) -> tzinfo:
    """The time zone. Raises CronError."""
    if name == "UTC":
        return UTC
    try:
        if name in _OF_THE_MACHINE or name.startswith(("posix/", "right/")):
            raise ValueError(name)
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: a folder of zones
        raise CronError(f"no time zone {name} is known here; expected one such as Europe/Berlin, or UTC") from None


def next_after(schedule: Schedule, at: float) -> float:
    """The first time of the schedule after `at`. Raises CronError."""
    times, zone = times_of(schedule.cron), zone_of(schedule.timezone)
    for day in _days(times, datetime.fromtimestamp(at, zone).date(), ahead=True):
        found = min((each for each in _instants(times, day, zone) if each > at), default=None)
        if found is not None:
            return found
    raise CronError(f"it has no time within {YEARS_MAX} years")


def latest_until(schedule: Schedule, due: float, until: float) -> float:
    """The last time of the schedule that is not after `until`; `due`: an earlier one. Raises CronError."""
    times, zone = times_of(schedule.cron), zone_of(schedule.timezone)
    first = datetime.fromtimestamp(due, zone).date()
    for day in _days(times, datetime.fromtimestamp(until, zone).date(), ahead=False):
        if day < first:
            break
        found = max((each for each in _instants(times, day, zone) if each <= until), default=None)
        if found is not None:
            return max(found, due)
    return due


def _values(text: str, field: str, least: int, most: int, names: tuple[str, ...] = ()) -> Iterator[int]:
    """The values of one of the five fields. Raises CronError."""
    for part in text.split(","):
        span, slash, step_text = part.partition("/")
        first_text, dash, last_text = span.partition("-")
        if span == "*":
            first, last = least, most
        else:
            first = last = _value(first_text, field, least, most, names)
            if dash:
                last = _value(last_text, field, least, most, names)
                last = 7 if last == 0 and names is _WEEKDAYS else last  # sat-sun
        if last < first:
            raise CronError(f"{field}: {span[:20]} goes down")
        if slash and not (span == "*" or dash):
            raise CronError(f"{field}: a step follows * or a range, such as */5 or 0-30/5, not {first_text[:20]}")
        step = _value(step_text, f"{field}: step", 1, max(most, 1)) if slash else 1
        yield from range(first, last + 1, step)


def _value(text: str, field: str, least: int, most: int, names: tuple[str, ...] = ()) -> int:
    if text.lower() in names:
        return names.index(text.lower()) + (1 if names is _MONTHS else 0)
    if _NUMBER.fullmatch(text) is None or not least <= int(text) <= most:
        named = f", or {names[0]} to {names[-1]}" if names else ""
        raise CronError(f"{field}: expected {least} to {most}{named}, not {text[:20]!r}")
    return int(text)


def _days(times: Times, first: date, *, ahead: bool) -> Iterator[date]:
    """The days with times from `first` on, or back from it. Months without any are passed over whole."""
    day = first
    while abs(day.year - first.year) <= YEARS_MAX:
        if day.month not in times.months:
            begin = day.replace(day=1)
            day = (begin + timedelta(days=31)).replace(day=1) if ahead else begin - _ONE_DAY
            continue
        if times.on(day):
            yield day
        day += _ONE_DAY if ahead else -_ONE_DAY


def _instants(times: Times, day: date, zone: tzinfo) -> Iterator[float]:
    """The times of that day in seconds since 1970, in no order."""
    begin, end = (datetime.combine(each, time(), zone) for each in (day, day + _ONE_DAY))
    if begin.utcoffset() == end.utcoffset():  # the clocks do not change
        first = begin.timestamp()
        yield from (first + 3600.0 * hour + 60.0 * minute for hour, minute in product(times.hours, times.minutes))
        return
    for hour, minute in product(times.hours, times.minutes):
        local = datetime.combine(day, time(hour, minute), zone)
        first, second = local.timestamp(), local.replace(fold=1).timestamp()
        if first > second:  # it does not exist
            yield from () if times.every_hour else (_change_between(second, first, zone),)
        else:
            yield from {first, second} if times.every_hour else {first}


def _change_between(before: float, after: float, zone: tzinfo) -> float:
    """The moment between the two at which the clocks change, to the second."""
    low, high = int(before), int(after)
    offset = datetime.fromtimestamp(low, zone).utcoffset()
    while high - low > 1:
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == offset:
            low = middle
        else:
            high = middle
    return float(high)
