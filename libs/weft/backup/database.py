"""The rows of a database: copied out of one moment of it, and into an empty one, in one transaction each."""

import hashlib
from collections.abc import AsyncIterator, Mapping
from graphlib import TopologicalSorter
from typing import IO

import asyncpg
from msgspec import Struct

from weft.backup.archive import Backup, BackupError, Manifest, Table, Writer
from weft.credentials import Credentials
from weft.domain.text import listed
from weft.store.migrate import MigrationError, make_roles, make_tables, migrate_over
from weft.version import version

COPY_SECONDS_MAX = 6 * 3600.0  # to copy one table
ROWS_SECONDS_MAX = 60.0
# Everything that changes how a value is written is set here, so that equal rows have equal texts.
SESSION: Mapping[str, str] = {
    "application_name": "weft backup",
    "search_path": "public",
    "timezone": "UTC",
    "datestyle": "ISO, YMD",
    "intervalstyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "lock_timeout": "10s",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}
_TABLES = """
    SELECT c.relname AS name,
           (SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_attribute a
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '') AS columns,
           (SELECT array_agg(quote_ident(a.attname) || CASE WHEN a.attcollation <> 0 THEN ' COLLATE "C"' ELSE '' END
                             ORDER BY array_position(i.indkey::int2[], a.attnum))
              FROM pg_index i JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey)
             WHERE i.indrelid = c.oid AND i.indisprimary) AS key,
           (SELECT array_agg(DISTINCT f.confrelid::regclass::text) FROM pg_constraint f
             WHERE f.conrelid = c.oid AND f.contype = 'f' AND f.confrelid <> c.oid) AS needs
      FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' ORDER BY c.relname
"""
_OTHERS = """
    SELECT DISTINCT usename::text AS name FROM pg_stat_activity
     WHERE datname = current_database() AND pid <> pg_backend_pid() AND usename LIKE 'weft\\_%'
       AND usename <> current_user
"""

Owner = asyncpg.Connection


class _Shape(Struct, frozen=True):
    """A table without its rows."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]


class _Read:
    """Passes on the text of a table, and counts and sums it."""

    def __init__(self, into: IO[bytes] | None) -> None:
        self._into = into
        self.sha256 = hashlib.sha256()
        self.bytes = 0

    async def take(self, piece: bytes) -> None:
        self.sha256.update(piece)
        self.bytes += len(piece)
        if self._into is not None:
            self._into.write(piece)


async def save(
    connection: "Owner[asyncpg.Record]", into: Writer, *, credentials: Credentials | None, now: float
) -> Manifest:
    """Write all rows as they are at one moment, while the cluster goes on. Raises BackupError."""
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        shapes = await _shapes(connection)
        if "migrations" not in (shape.name for shape in shapes):
            raise BackupError("this is not the database of a cluster: no `weft migrate` has run in it")
        ran = await connection.fetch("SELECT name, sha256 FROM migrations")
        tables = []
        for shape in shapes:
            with into.table(shape.name) as entry:
                tables.append(await _copied_out(connection, shape, entry))
    # Read last: a sequence knows no transaction, and none may be behind the rows.
    used = await connection.fetch(
        "SELECT sequencename::text AS name, last_value FROM pg_sequences"
        " WHERE schemaname = 'public' AND last_value IS NOT NULL"
    )
    manifest = Manifest(
        version=version(),
        made_at=now,
        migrations={row["name"]: row["sha256"] for row in ran},
        tables=tuple(tables),
        sequences={row["name"]: row["last_value"] for row in used},
        credentials={} if credentials is None else into.credentials(credentials),
    )
    into.end(manifest)
    return manifest


async def restore(
    connection: "Owner[asyncpg.Record]", backup: Backup, *, role_passwords: Mapping[str, str], replace: bool
) -> list[str]:
    """Put the rows of a backup into an empty database, or with `replace` in the place of those that are there.

    All of it, or nothing. Every table is read again and compared before it is committed. A database of an earlier
    version is then brought to this one: returns the migrations that ran. Raises BackupError.
    """
    manifest = backup.manifest
    try:
        async with connection.transaction():
            await _make_empty(connection, replace=replace)
            await make_roles(connection, role_passwords)
            await make_tables(connection, manifest.migrations)
            shapes = await _shapes(connection)
            _compare(manifest, shapes)
            # Migrations fill some of them.
            await connection.execute(f"TRUNCATE {', '.join(_quoted(shape.name) for shape in shapes)}")
            for shape in shapes:
                await _copied_in(connection, shape, backup)
            for name, value in manifest.sequences.items():
                await connection.execute("SELECT setval($1::text::regclass, $2)", f'public."{name}"', value)
            # Set by `migrate` for the transactions that this server has counted.
            await connection.execute("UPDATE event_offset SET xids = 0")
            ran = await migrate_over(connection)
            await connection.execute("ANALYZE", timeout=COPY_SECONDS_MAX)
            return ran
    except MigrationError as error:
        raise BackupError(f"the backup does not fit this version of weft: {error}") from error
    except asyncpg.PostgresError as error:
        raise BackupError(f"the backup was not restored: {error}") from error


async def _make_empty(connection: "Owner[asyncpg.Record]", *, replace: bool) -> None:
    there = [shape.name for shape in await _shapes(connection)]
    if not there:
        return
    if "migrations" not in there:
        raise BackupError(f"the database has tables that are not of weft: {listed(there, 5)}")
    if not replace:
        jobs = await connection.fetchval("SELECT count(*) FROM jobs") if "jobs" in there else 0
        raise BackupError(
            f"the database is not empty, it has {jobs:,} jobs; --replace gives them up for those of the backup"
        )
    if others := [row["name"] for row in await connection.fetch(_OTHERS)]:
        raise BackupError(f"services use the database ({listed(sorted(others), 5)}): stop them first")
    await connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public; GRANT USAGE ON SCHEMA public TO PUBLIC")


def _compare(manifest: Manifest, shapes: list[_Shape]) -> None:
    ours = {shape.name: shape.columns for shape in shapes}
    theirs = {table.name: table.columns for table in manifest.tables}
    if ours != theirs:
        other = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
        raise BackupError(f"the backup has other tables or columns than its migrations make: {listed(other, 5)}")


async def _copied_in(connection: "Owner[asyncpg.Record]", shape: _Shape, backup: Backup) -> None:
    """Without its triggers: they would count again what other tables of the backup have as counted."""
    await connection.execute(f"ALTER TABLE {_quoted(shape.name)} DISABLE TRIGGER USER")
    await connection.copy_to_table(
        shape.name,
        schema_name="public",
        columns=list(shape.columns),
        source=_pieces(backup, shape.name),
        timeout=COPY_SECONDS_MAX,
    )
    await connection.execute(f"ALTER TABLE {_quoted(shape.name)} ENABLE TRIGGER USER")
    wanted = next(table for table in backup.manifest.tables if table.name == shape.name)
    found = await _copied_out(connection, shape, None)
    if found != wanted:
        raise BackupError(f"the rows of {shape.name} are not those of the backup once they are stored")


async def _pieces(backup: Backup, table: str) -> AsyncIterator[bytes]:
    for piece in backup.table(table):
        yield piece


async def _copied_out(connection: "Owner[asyncpg.Record]", shape: _Shape, into: IO[bytes] | None) -> Table:
    read = _Read(into)
    columns = ", ".join(_quoted(column) for column in shape.columns)
    status = await connection.copy_from_query(
        f"SELECT {columns} FROM {_quoted(shape.name)} ORDER BY {', '.join(shape.key)}",
        output=read.take,
        timeout=COPY_SECONDS_MAX,
    )
    return Table(
        name=shape.name,
        columns=shape.columns,
        rows=int(status.removeprefix("COPY ")),
        bytes=read.bytes,
        sha256=read.sha256.hexdigest(),
    )


async def _shapes(connection: "Owner[asyncpg.Record]") -> list[_Shape]:
    """Every table, behind those that it names in its foreign keys."""
    rows = {row["name"]: row for row in await connection.fetch(_TABLES, timeout=ROWS_SECONDS_MAX)}
    if without := [name for name, row in rows.items() if not row["key"] and "migrations" in rows]:
        raise BackupError(f"a table without a primary key has no order: {listed(without, 5)}")
    order = TopologicalSorter({name: row["needs"] or () for name, row in rows.items()}).static_order()
    return [_Shape(name, tuple(rows[name]["columns"]), tuple(rows[name]["key"] or ())) for name in order]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
