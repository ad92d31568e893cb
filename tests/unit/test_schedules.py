"""The times of schedules: fields as in crontab(5), days on which clocks change, and text that names no times."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.domain.decoding.spec_decoder import SpecError, decode_spec
from weft.domain.schedules import Schedule
from weft.domain.schedules.cron import CronError, latest_until, next_after, times_of, zone_of

BERLIN = "Europe/Berlin"  # 2026: 03-29 02:00 becomes 03:00, 10-25 03:00 becomes 02:00


def at(text: str, zone: str = "UTC", fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def following(cron: str, begin: str, *, zone: str = "UTC", count: int = 1) -> list[str]:
    """The next times in UTC, without seconds."""
    moment, found = at(begin, zone), []
    for _ in range(count):
        moment = next_after(Schedule(cron=cron, timezone=zone), moment)
        found.append(f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M:%S}".removesuffix(":00"))
    return found


@pytest.mark.parametrize(
    ("cron", "times"),
    [
        ("0 3 * * *", ["2026-02-27 03:00", "2026-02-28 03:00", "2026-03-01 03:00"]),
        ("*/20 9-10 * * mon-fri", ["2026-02-27 09:00", "2026-02-27 09:20", "2026-02-27 09:40"]),
        ("5 0 29 2 *", ["2028-02-29 00:05", "2032-02-29 00:05", "2036-02-29 00:05"]),
        ("0 0 13 * fri", ["2026-02-27 00:00", "2026-03-06 00:00", "2026-03-13 00:00"]),  # one of the two is enough
        ("0 0 1 * */7", ["2026-03-01 00:00", "2026-11-01 00:00", "2027-08-01 00:00"]),  # a Sunday that is a first
        ("0 12 * * sat-sun", ["2026-02-28 12:00", "2026-03-01 12:00", "2026-03-07 12:00"]),
        ("0 12 * * 7", ["2026-03-01 12:00", "2026-03-08 12:00", "2026-03-15 12:00"]),
        ("30 8 31 Jan,DEC *", ["2026-12-31 08:30", "2027-01-31 08:30", "2027-12-31 08:30"]),
        ("0-30/15 0 * 3 *", ["2026-03-01 00:00", "2026-03-01 00:15", "2026-03-01 00:30"]),
        ("@weekly", ["2026-03-01 00:00", "2026-03-08 00:00", "2026-03-15 00:00"]),
    ],
)
def test_the_next_times_are_those_of_crontab(cron: str, times: list[str]) -> None:
    assert following(cron, "2026-02-26T23:59:30", count=3) == times


def test_a_fixed_hour_that_does_not_exist_runs_once_at_the_end_of_the_gap() -> None:
    assert following("30 2 * * *", "2026-03-28T02:30", zone=BERLIN, count=2) == ["2026-03-29 01:00", "2026-03-30 00:30"]
    assert following("0,30 2 * * *", "2026-03-28T03:00", zone=BERLIN, count=2) == [
        "2026-03-29 01:00",
        "2026-03-30 00:00",
    ]


def test_a_fixed_hour_that_exists_twice_runs_once() -> None:
    assert following("30 2 * * *", "2026-10-24T12:00", zone=BERLIN, count=2) == ["2026-10-25 00:30", "2026-10-26 01:30"]


def test_a_schedule_of_every_hour_follows_the_hours_that_pass() -> None:
    spring = ["2026-03-29 00:30", "2026-03-29 01:30", "2026-03-29 02:30"]
    assert following("30 * * * *", "2026-03-29T01:00", zone=BERLIN, count=3) == spring
    autumn = ["2026-10-25 00:30", "2026-10-25 01:30", "2026-10-25 02:30"]
    assert following("30 * * * *", "2026-10-25T02:00", zone=BERLIN, count=3) == autumn


def test_a_day_that_a_zone_left_out_runs_when_the_next_day_begins() -> None:
    """Samoa had no 30 December 2011."""
    apia = "Pacific/Apia"
    assert following("0 12 30 12 *", "2011-12-01T00:00", zone=apia) == [
        f"{datetime.fromtimestamp(at('2011-12-31T00:00', apia), UTC):%Y-%m-%d %H:%M}"
    ]


FIELDS = st.tuples(
    st.sampled_from(["*", "*/7", "0", "30", "59", "10-50/20", "0,31"]),
    st.sampled_from(["*", "*/5", "0", "2", "3", "1-4", "23"]),
    st.sampled_from(["*", "1", "15", "29", "*/9"]),
    st.sampled_from(["*", "3", "10", "mar,oct"]),
    st.sampled_from(["*", "sun", "mon-fri", "0", "*/2"]),
)


@settings(max_examples=150, deadline=None)
@given(
    FIELDS, st.sampled_from([BERLIN, "UTC", "America/New_York", "Australia/Lord_Howe"]), st.integers(0, 3 * 365 * 1440)
)
def test_times_are_those_that_a_clock_on_the_wall_passes(fields: tuple[str, ...], zone: str, minute: int) -> None:
    """Minute by minute, for schedules that follow the hours; the others have at least one run on each such day."""
    schedule, begin = Schedule(cron=" ".join(fields), timezone=zone), at("2025-01-01T00:00") + 60.0 * minute
    found, times, where = next_after(schedule, begin), times_of(schedule.cron), zone_of(zone)
    assert found > begin
    assert latest_until(schedule, found, found + 59) == found
    ended = min(found, begin + 2 * 86400)
    for passed in range(int(begin) // 60 * 60 + 60, int(ended), 60):
        clock = datetime.fromtimestamp(passed, where)
        matches = clock.minute in times.minutes and clock.hour in times.hours and times.on(clock.date())
        assert not matches or (clock.fold and not times.every_hour), clock
    clock = datetime.fromtimestamp(found, where)
    exact = clock.minute in times.minutes and clock.hour in times.hours and times.on(clock.date())
    just_changed = clock.utcoffset() != datetime.fromtimestamp(found - 1, where).utcoffset()
    assert exact or (just_changed and not times.every_hour)


def test_the_latest_of_the_missed_times_is_found_whatever_passed_since() -> None:
    schedule = Schedule(cron="*/5 * * * *")
    due = at("2016-01-01T00:05")
    assert latest_until(schedule, due, at("2026-01-01T00:04:59")) == at("2026-01-01T00:00")
    assert latest_until(schedule, due, due) == due
    yearly = Schedule(cron="0 3 29 2 *", timezone=BERLIN)
    assert latest_until(yearly, at("2024-02-29T02:00"), at("2031-01-01T00:00")) == at("2028-02-29T02:00")


def refused(schedule: object, **more: object) -> tuple[str, str]:

    body = {"name": "nightly", "kind": "batch", "command": ["true"], "schedule": schedule, **more}
    with pytest.raises(SpecError) as found:
        decode_spec(msgspec.json.encode(body))
    return found.value.field, found.value.reason


@pytest.mark.parametrize(
    ("schedule", "field", "words"),
    [
        ("* * * * * *", "schedule", "not 6; nothing starts more often than once a minute"),
        ("*/10 * * * * * *", "schedule", "no field for seconds"),
        ("0 3 * *", "schedule", "five fields"),
        ("@reboot", "schedule", "@hourly"),
        ("60 3 * * *", "schedule", "minute: expected 0 to 59, not '60'"),
        ("0 24 * * *", "schedule", "hour: expected 0 to 23"),
        ("0 3 0 * *", "schedule", "day of the month: expected 1 to 31"),
        ("0 3 * smarch *", "schedule", "jan to dec, not 'smarch'"),
        ("0 3 * * 8", "schedule", "day of the week: expected 0 to 7"),
        ("0 5-3 * * *", "schedule", "hour: 5-3 goes down"),
        ("5/10 * * * *", "schedule", "a step follows"),
        ("*/0 * * * *", "schedule", "minute: step: expected 1 to 59"),
        ("0,,3 * * * *", "schedule", "minute: expected 0 to 59, not ''"),
        ("²0 3 * * *", "schedule", "minute: expected 0 to 59"),
        ("0 3 30 2 *", "schedule", "no month that it names has a day 30"),
        ("0 3 31 2,4,6,9,11 *", "schedule", "no month"),
        ("", "schedule", "characters"),
        (7, "schedule", "expected text or names and values"),
        ({"timezone": "UTC"}, "schedule.cron", "is required"),
        ({"cron": "61 * * * *"}, "schedule.cron", "minute"),
        ({"cron": "@daily", "timezone": "Europe/Berlyn"}, "schedule.timezone", "no time zone Europe/Berlyn"),
        ({"cron": "@daily", "timezone": "../../etc/passwd"}, "schedule.timezone", "expected a time zone such as"),
        ({"cron": "@daily", "timezone": "America"}, "schedule.timezone", "no time zone America"),
        ({"cron": "@daily", "timezone": "localtime"}, "schedule.timezone", "no time zone localtime"),
        ({"cron": "@daily", "overlap": "forbid"}, "schedule.overlap", "expected one of skip, wait, allow, replace"),
        ({"cron": "@daily", "start_within": "5s"}, "schedule.start_within", "at least 60s"),
        ({"cron": "@daily", "start_within": "500d"}, "schedule.start_within", "longer than 366 days"),
        ({"cron": "@daily", "time_zone": "UTC"}, "schedule.time_zone", "did you mean timezone"),
    ],
)
def test_a_schedule_that_names_no_times_is_refused_by_its_field(schedule: object, field: str, words: str) -> None:
    told = refused(schedule)
    assert told[0] == field
    assert words in told[1], told


def test_only_single_jobs_that_end_recur() -> None:
    assert refused("@daily", array="0-3")[0] == "schedule"
    assert refused("@daily", kind="inference", service={"port": 80})[0] == "schedule"
    assert refused(None, scheduled={"schedule": "r-1", "due_at": 1.0})[0] == "scheduled"


def test_every_zone_error_is_one_error() -> None:
    for name in ("posix/UTC", "right/UTC", "leapseconds", "Europe", "A" * 32):
        with pytest.raises(CronError):
            zone_of(name)


def test_a_search_for_the_rarest_time_ends() -> None:
    """A 29th of February that is a Monday, from before 2100, which is no leap year."""
    moment = at("2088-03-01T00:00")
    found = next_after(Schedule(cron="0 0 29 2 */7"), moment)
    assert datetime.fromtimestamp(found, UTC).date() - datetime.fromtimestamp(moment, UTC).date() > timedelta(days=365)
