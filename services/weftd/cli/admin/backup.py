"""`weft backup` and `weft restore`: write the state of a cluster to one file, and restore it from there.

Which cluster: with WEFT_PG_DSN the one of that database, by the settings of `weft migrate`; else the one of `weft up`
in --home, whether it runs or not. A backup is of one moment and stops nothing. A restore wants the services stopped.
"""

import argparse
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg

from weft import backup as saved
from weft import servers
from weft.backup.archive import read_key
from weft.backup.database import SESSION
from weft.client.place import weft_home
from weft.credentials import Credentials, CredentialsError, provision, put_portable
from weft.domain.quantity import size_text
from weft.domain.text import plural
from weft.service.config import SettingsError
from weft.store import StoreError
from weft.store.migrate import owner
from weftd.cli.admin.database import Database, database_of
from weftd.cli.cli_error import CliError
from weftd.cli.local import AlreadyRunsError, ClusterHome

FAILED = (
    saved.BackupError,
    CredentialsError,
    SettingsError,
    StoreError,
    servers.ServersError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    OSError,
    TimeoutError,
)


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    save = _add(commands, "backup", "write the state of a cluster to a file")
    save.set_defaults(func=backup)
    back = _add(commands, "restore", "put the state of a backup into a cluster whose services are stopped")
    back.add_argument("--check", action="store_true", help="read the whole backup and change nothing")
    back.add_argument("--replace", action="store_true", help="replace the present content of the database")
    back.set_defaults(func=restore)


def _add(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, summary: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name, help=summary, description=f"{summary}. {(__doc__ or '').partition(chr(10))[2].strip()}"
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="backup file")
    parser.add_argument(
        "--key-file", type=Path, metavar="FILE", help="encrypt with the key in this file (openssl rand -base64 32)"
    )
    parser.add_argument("--no-credentials", action="store_true", help="leave out tokens and the passwords of NATS")
    parser.add_argument(
        "--home",
        type=Path,
        metavar="DIR",
        help="folder of the cluster of `weft up` (or WEFT_HOME; default: in your home)",
    )
    return parser


async def backup(args: argparse.Namespace) -> int:
    began = time.monotonic()
    with _one_sentence():
        key = _key(args)
        async with _database(args, makes=False) as database, _connected(database) as connection:
            with saved.written(args.file, key=key) as into:
                credentials = None if args.no_credentials else database.credentials
                manifest = await saved.save(connection, into, credentials=credentials, now=time.time())
        size = args.file.stat().st_size
    print(f"{args.file}: {_contents(manifest)}; {size_text(size)} in {time.monotonic() - began:.1f} s")
    if key is None:
        print("it contains the secrets of jobs and of the cluster: store it safely, or encrypt it with --key-file")
    return 0


async def restore(args: argparse.Namespace) -> int:
    with _one_sentence(), saved.opened(args.file, key=_key(args)) as found:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.manifest.made_at))
        told = f"of {at}, by {found.manifest.version}: {_contents(found.manifest)}"
        if args.check:
            print(f"{args.file} is whole; {told}")
            return 0
        async with _database(args, makes=True) as database:
            async with _connected(database) as connection:
                ran = await saved.restore(
                    connection, found, role_passwords=database.role_passwords(), replace=args.replace
                )
            if not args.no_credentials:
                put_portable(database.credentials.folder, found.credentials())
    print(f"restored the state {told}")
    if ran:
        print(f"brought to this version by {plural(len(ran), 'migration')}: {', '.join(ran)}")
    return 0


@asynccontextmanager
async def _database(args: argparse.Namespace, *, makes: bool) -> AsyncIterator[Database]:
    """The database of the cluster that is meant. `makes`: it may be new, and nobody else may run it meanwhile."""
    environ = os.environ
    home = ClusterHome(args.home or weft_home(environ))
    if environ.get("WEFT_PG_DSN"):
        folder = environ.get("WEFT_CREDENTIALS") or str(home.credentials)
        yield database_of({**environ, "WEFT_CREDENTIALS": folder})
        return
    if not makes and not home.credentials.is_dir():
        raise CliError(
            f"no cluster has run in {home.root}: name its folder with --home, or its database in WEFT_PG_DSN"
        )
    try:
        if makes or home.runs() is None:
            home.make()
            home.take()  # so that no `weft up` begins meanwhile
        credentials = provision(home.credentials, nodes=()) if makes else Credentials(home.credentials)
        async with servers.only_postgres(home.root, credentials=credentials) as dsn:
            yield Database(dsn=dsn, credentials=credentials, password=credentials.postgres_password("owner"))
    except AlreadyRunsError as error:
        raise CliError(f"{error}: `weft down` stops it") from error
    finally:
        home.release()


@asynccontextmanager
async def _connected(database: Database) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    password = None if urlsplit(database.dsn).password else database.password
    async with owner(database.dsn, user=None, password=password, tls=database.tls, settings=SESSION) as connection:
        yield connection


@contextmanager
def _one_sentence() -> Iterator[None]:
    try:
        yield
    except FAILED as error:
        raise CliError(f"{error}" or type(error).__name__) from error


def _key(args: argparse.Namespace) -> bytes | None:
    return None if args.key_file is None else read_key(args.key_file)


def _contents(manifest: saved.Manifest) -> str:
    credentials = f", {plural(len(manifest.credentials), 'credential')}" if manifest.credentials else ""
    return f"{plural(manifest.rows('jobs'), 'job')}, {plural(manifest.rows(), 'row')} in all{credentials}"
