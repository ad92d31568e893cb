"""A migration runs under services that do not know it yet: it may add, not take away (expand).

What nobody uses any more is taken away a release later (contract), by a file that says so in its name. Functions and
views are no part of a migration: their current text lies in `sql/functions`, and every `migrate` applies it.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.versions import NoEarlierVersionError, files_of, newest_release

ROOT = Path(__file__).parents[2]
MIGRATIONS = ROOT / "libs/weft/store/sql/migrations"
FUNCTIONS = MIGRATIONS.parent / "functions"
TAKES_AWAY = {
    r"\bDROP\s+(TABLE|COLUMN|VIEW|FUNCTION|TYPE)\b": "an earlier service may still use it",
    r"\bRENAME\b": "an earlier service knows it by its old name",
    r"\bALTER\s+COLUMN\s+\w+\s+(SET\s+DATA\s+)?TYPE\b": "an earlier service expects the old type",
    r"\bALTER\s+COLUMN\s+\w+\s+SET\s+NOT\s+NULL\b": "an earlier service may still write nothing there",
    r"\bADD\s+COLUMN\b(?![^,;]*\bDEFAULT\b)[^,;]*\bNOT\s+NULL\b": "an earlier service does not write it",
    r"\bREVOKE\b": "an earlier service may still need it",
    r"\bTRUNCATE\b": "it loses what is there",
}
FIRST = "0001_first.sql"


def taken_away(name: str, text: str) -> dict[str, str]:
    """The objects that the migration takes from an earlier service, and the reason against each."""
    if "_contract_" in name or name == FIRST:  # before the first there is nothing
        return {}
    sql = _but_for_what_it_makes(re.sub(r"--[^\n]*", "", text))
    return {what: why for what, why in TAKES_AWAY.items() if re.search(what, sql, re.IGNORECASE)}


def test_a_later_migration_only_adds() -> None:
    found = {path.name: taken_away(path.name, path.read_text()) for path in MIGRATIONS.glob("*.sql")}
    assert not {name: taken for name, taken in found.items() if taken}


def changed(released: Mapping[str, str], ours: Mapping[str, str]) -> list[str]:
    """The migrations of a release that are not what they were."""
    return sorted(name for name, text in released.items() if ours.get(name) != text)


def test_the_migrations_of_a_release_are_never_changed() -> None:
    """They ran in clusters."""
    try:
        released = files_of(newest_release(), str(MIGRATIONS.relative_to(ROOT)))
    except NoEarlierVersionError as error:
        pytest.skip(str(error))
    assert released
    assert not changed(released, {str(path.relative_to(ROOT)): path.read_text() for path in MIGRATIONS.iterdir()})


def test_a_migration_that_differs_from_its_release_is_found() -> None:
    assert changed({"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "4", "d": "5"}) == ["b", "c"]


def test_every_function_and_view_has_its_current_text_in_one_file() -> None:
    made = re.compile(r"\bCREATE (?:OR REPLACE )?(?:FUNCTION|VIEW) (\w+)")
    now = [name for path in sorted(FUNCTIONS.glob("*.sql")) for name in made.findall(path.read_text())]
    ever = {name for path in MIGRATIONS.glob("*.sql") for name in made.findall(path.read_text())}
    assert len(now) == len(set(now))
    assert ever <= set(now)


def _but_for_what_it_makes(sql: str) -> str:
    """Without what takes nothing from an earlier service: rights to a new function."""
    for name in re.findall(r"\bCREATE FUNCTION (\w+)", sql):
        sql = re.sub(rf"\bREVOKE ALL ON FUNCTION {name}\b", "", sql)
    return sql


@pytest.mark.parametrize(
    "sql",
    [
        "ALTER TABLE jobs DROP COLUMN progress;",
        "alter table jobs rename column progress to step;",
        "ALTER TABLE jobs ALTER COLUMN priority TYPE bigint;",
        "ALTER TABLE jobs ADD COLUMN share integer NOT NULL;",
        "REVOKE SELECT ON jobs FROM weft_gateway;",
    ],
)
def test_what_takes_away_is_found(sql: str) -> None:
    assert taken_away("0002_more.sql", sql)
    assert not taken_away("0003_contract_more.sql", sql)


@pytest.mark.parametrize(
    "sql", ["ALTER TABLE jobs ADD COLUMN share integer NOT NULL DEFAULT 0;", "CREATE TABLE more ();"]
)
def test_what_adds_is_let_through(sql: str) -> None:
    assert not taken_away("0002_more.sql", sql)


def test_the_numbers_of_the_migrations_have_no_gap_and_no_double() -> None:
    numbers = [int(path.name[:4]) for path in sorted(MIGRATIONS.glob("*.sql"))]
    assert numbers == list(range(1, len(numbers) + 1))
