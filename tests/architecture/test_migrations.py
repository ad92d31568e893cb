"""A migration runs under services that do not know it yet: it may add, not take away (expand).

What nobody uses any more is taken away a release later (contract), by a file that says so in its name. Functions and
views are no part of a migration: their current text lies in `sql/functions`, and every `migrate` applies it.
"""

import hashlib
import re
from pathlib import Path

import pytest

MIGRATIONS = Path(__file__).parents[2] / "libs/store/sql/migrations"
FUNCTIONS = MIGRATIONS.parent / "functions"
FIRST_SHA256 = (
    "8bb4fc90d7ff4971ba78bd3420a92ee73abaaca6ceaefde900dacd1bc21dcad4"  # it runs in clusters: never again another
)

TAKES_AWAY = {
    r"\bDROP\s+(TABLE|COLUMN|VIEW|FUNCTION|TYPE)\b": "an earlier service may still use it",
    r"\bRENAME\b": "an earlier service knows it by its old name",
    r"\bALTER\s+COLUMN\s+\w+\s+(SET\s+DATA\s+)?TYPE\b": "an earlier service expects the old type",
    r"\bALTER\s+COLUMN\s+\w+\s+SET\s+NOT\s+NULL\b": "an earlier service may still write nothing there",
    r"\bADD\s+COLUMN\b(?![^,;]*\bDEFAULT\b)[^,;]*\bNOT\s+NULL\b": "an earlier service does not write it",
    r"\bREVOKE\b": "an earlier service may still need it",
    r"\bTRUNCATE\b": "it loses what is there",
}
LATER = [path for path in sorted(MIGRATIONS.glob("*.sql")) if path.name > "0001_first.sql"]


def test_the_first_migration_is_what_it_was() -> None:
    assert hashlib.sha256((MIGRATIONS / "0001_first.sql").read_bytes()).hexdigest() == FIRST_SHA256


def test_a_later_migration_only_adds() -> None:
    for path in LATER:
        sql = _but_for_what_it_makes(re.sub(r"--[^\n]*", "", path.read_text()))
        found = {what: why for what, why in TAKES_AWAY.items() if re.search(what, sql, re.IGNORECASE)}
        assert not found or "_contract_" in path.name, f"{path.name} takes away: {found}"


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
    assert any(re.search(what, sql, re.IGNORECASE) for what in TAKES_AWAY)


@pytest.mark.parametrize(
    "sql", ["ALTER TABLE jobs ADD COLUMN share integer NOT NULL DEFAULT 0;", "CREATE TABLE more ();"]
)
def test_what_adds_is_let_through(sql: str) -> None:
    assert not any(re.search(what, sql, re.IGNORECASE) for what in TAKES_AWAY)


def test_the_numbers_of_the_migrations_have_no_gap_and_no_double() -> None:
    numbers = [int(path.name[:4]) for path in sorted(MIGRATIONS.glob("*.sql"))]
    assert numbers == list(range(1, len(numbers) + 1))
