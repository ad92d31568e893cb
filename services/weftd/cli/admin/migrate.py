"""`weft migrate`: wait for Postgres, then bring the database to this version.

Settings: WEFT_PG_DSN (the owner's), WEFT_PG_PASSWORD_FILE (unless the DSN has the password), WEFT_CREDENTIALS (the
folder that `weft setup` made, for the passwords of the services' roles), WEFT_PG_CA_FILE (to demand TLS of a server
that this authority vouches for).
"""

import argparse
import asyncio
import os
import ssl

import asyncpg

from weft.credentials import CredentialsError
from weft.service.config import SettingsError
from weft.store import StoreError
from weft.store.migrate import migrate
from weftd.cli.admin.database import database_of
from weftd.cli.cli_error import CliError

BETWEEN_TRIES_SECONDS = 0.5
NOT_YET = (
    OSError,
    TimeoutError,
    asyncpg.CannotConnectNowError,
    asyncpg.ConnectionDoesNotExistError,
    asyncpg.TooManyConnectionsError,
)
NEVER = (StoreError, CredentialsError, SettingsError, asyncpg.PostgresError, asyncpg.InterfaceError)


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "migrate",
        help="bring the database to this version",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--wait", type=float, default=60.0, metavar="SECONDS", help="seconds to wait for Postgres (default: 60)"
    )
    parser.set_defaults(func=run)


async def run(args: argparse.Namespace) -> int:
    try:
        ran = await _migrated(args.wait)
    except (*NEVER, *NOT_YET) as error:
        raise CliError(f"{error}" or type(error).__name__) from error
    print(f"migrated: {', '.join(ran)}" if ran else "the database is up to date")
    return 0


async def _migrated(wait_seconds: float) -> list[str]:
    database = database_of(os.environ)
    passwords = database.role_passwords()
    until = asyncio.get_running_loop().time() + wait_seconds
    while True:
        try:
            return await migrate(
                database.dsn, user=None, password=database.password, role_passwords=passwords, tls=database.tls
            )
        except NOT_YET as error:
            if isinstance(error, ssl.SSLCertVerificationError):
                raise
            if asyncio.get_running_loop().time() >= until:
                raise StoreError(f"Postgres did not answer within {wait_seconds:g} s: {error}") from error
            await asyncio.sleep(BETWEEN_TRIES_SECONDS)
