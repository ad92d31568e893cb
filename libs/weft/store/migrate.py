"""Bring the database to this version: roles first, then each numbered migration once, then every function and view.

Migrations change tables. They are plain SQL, and run in order, once. A migration that was changed after it ran, or that
this version does not know, stops everything: guessing is how data is lost. Functions and views have one current text,
in `sql/functions`, and every run replaces them.
"""

import hashlib
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.resources import files

import asyncpg

from weft.store import StoreError
from weft.store.hosts import Hosts

ROLES = ("gateway", "scheduler", "scorer", "reallocator", "router")
MIGRATION_SECONDS_MAX = 3600.0  # an index over many millions of events takes minutes
_LOCK = 0x77656674  # one migration at a time: this number is "weft"
_MIGRATIONS = (
    "CREATE TABLE IF NOT EXISTS migrations (name text PRIMARY KEY, sha256 text NOT NULL, at timestamptz NOT NULL)"
)
_BEFORE_RELEASE = "0002_decisions"  # every database that was made before version 0.1.0 has it
_MADE_BEFORE_RELEASE = (
    "a version before 0.1.0 made this database, and no migration leads from it to this version: give Weft an empty"
    " database (for `weft up`, another folder in WEFT_HOME), or go on with the version that made this one"
)


class MigrationError(StoreError):
    """The database and this version do not fit together."""


async def migrate(
    dsn: str,
    *,
    user: str | None,
    password: str | None,
    role_passwords: Mapping[str, str],
    tls: ssl.SSLContext | None = None,
) -> list[str]:
    """Run what has not been run; returns the names of the migrations that ran now. Needs the owner's rights.

    `role_passwords` has one for each of ROLES; a role that exists gets the password anew.
    """
    async with owner(dsn, user=user, password=password, tls=tls) as connection:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
            await make_roles(connection, role_passwords)
        return await migrate_over(connection)


@asynccontextmanager
async def owner(
    dsn: str, *, user: str | None, password: str | None, tls: ssl.SSLContext | None, settings: Mapping[str, str] = {}
) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """A connection of the owner of the database, to the server that takes writes."""

    async def open_one(dsn: str) -> "asyncpg.Connection[asyncpg.Record]":
        return await asyncpg.connect(
            dsn, user=user, password=password, ssl=tls, timeout=5, command_timeout=60, server_settings=dict(settings)
        )

    connection = await Hosts(dsn).connect(open_one)
    try:
        yield connection
    finally:
        await connection.close(timeout=5)


def migrations() -> tuple[str, ...]:
    """The names of this version's migrations, in order."""
    return tuple(_texts("migrations"))


async def make_tables(connection: "asyncpg.Connection[asyncpg.Record]", names: Mapping[str, str]) -> None:
    """The tables of an empty database as these migrations make them, without a record that they ran.

    `names`: the SHA-256 of each. Raises MigrationError if this version does not know one of them, or another text.
    """
    ours = _texts("migrations")
    if unknown := sorted(names.keys() - ours.keys()):
        raise MigrationError(f"a later version made {', '.join(unknown)}")
    for name, digest in sorted(names.items()):
        if _digest(ours[name]) != digest:
            raise MigrationError(f"migration {name} was changed after it ran there")
    await connection.execute(_MIGRATIONS)
    for name in sorted(names):
        await connection.execute(ours[name], timeout=MIGRATION_SECONDS_MAX)


async def make_roles(connection: "asyncpg.Connection[asyncpg.Record]", passwords: Mapping[str, str]) -> None:
    for role in ROLES:
        name = f"weft_{role}"
        known = await connection.fetchval("SELECT true FROM pg_roles WHERE rolname = $1", name)
        verb = "ALTER" if known else "CREATE"
        # A password cannot be a parameter of CREATE ROLE; the server itself quotes it.
        statement = await connection.fetchval(
            f"SELECT format('{verb} ROLE %I LOGIN PASSWORD %L', $1::text, $2::text)", name, passwords[role]
        )
        await connection.execute(statement)


async def migrate_over(connection: "asyncpg.Connection[asyncpg.Record]") -> list[str]:
    """Run what has not been run in this database; returns the names of it."""
    ran: list[str] = []
    ours = _texts("migrations")
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        await connection.execute(_MIGRATIONS)
        theirs = {row["name"]: row["sha256"] for row in await connection.fetch("SELECT name, sha256 FROM migrations")}
        if _BEFORE_RELEASE in theirs.keys() - ours.keys():
            raise MigrationError(_MADE_BEFORE_RELEASE)
        if unknown := sorted(theirs.keys() - ours.keys()):
            raise MigrationError(f"the database has migrations that this version does not know: {', '.join(unknown)}")
        for name, text in ours.items():
            digest = _digest(text)
            if name not in theirs:
                await connection.execute(text, timeout=MIGRATION_SECONDS_MAX)
                await connection.execute("INSERT INTO migrations VALUES ($1, $2, now())", name, digest)
                ran.append(name)
            elif theirs[name] != digest:
                raise MigrationError(f"migration {name} was changed after it ran here")
        for text in _texts("functions").values():
            await connection.execute(text)
        await connection.execute("SELECT continue_events()")
    return ran


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _texts(folder: str) -> dict[str, str]:
    """The SQL files of a folder beside the queries, by name, in the order of their names."""
    found = sorted(files("weft.store.sql").joinpath(folder).iterdir(), key=lambda entry: entry.name)
    return {entry.name.removesuffix(".sql"): entry.read_text() for entry in found if entry.name.endswith(".sql")}
