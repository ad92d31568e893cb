"""`weft migrate`: wait for Postgres, then bring the database to this version.

Settings: WEFT_PG_DSN (the owner's), WEFT_PG_PASSWORD_FILE (unless the DSN has the password), WEFT_CREDENTIALS (the
folder that `weft setup` made, for the passwords of the services' roles), WEFT_PG_CA_FILE (to demand TLS of a server
that this authority vouches for).
"""

import argparse
import asyncio
import os
import ssl
from pathlib import Path

import asyncpg

from weft.credentials import Credentials, CredentialsError
from weft.service.config import SettingsError
from weft.service.keys import client_tls
from weft.store import StoreError
from weft.store.migrate import ROLES, migrate
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
    dsn = os.environ.get("WEFT_PG_DSN", "")
    folder = os.environ.get("WEFT_CREDENTIALS", "")
    if not dsn or not folder:
        raise CredentialsError(f"{'WEFT_CREDENTIALS' if dsn else 'WEFT_PG_DSN'} is not set")
    credentials = Credentials(Path(folder))
    passwords = {role: credentials.postgres_password(role) for role in ROLES}
    password = _secret(os.environ.get("WEFT_PG_PASSWORD_FILE", ""))
    ca_file = os.environ.get("WEFT_PG_CA_FILE", "")
    tls = client_tls(ca_file=ca_file) if ca_file else None
    until = asyncio.get_running_loop().time() + wait_seconds
    while True:
        try:
            return await migrate(dsn, user=None, password=password, role_passwords=passwords, tls=tls)
        except NOT_YET as error:
            if isinstance(error, ssl.SSLCertVerificationError):
                raise
            if asyncio.get_running_loop().time() >= until:
                raise StoreError(f"Postgres did not answer within {wait_seconds:g} s: {error}") from error
            await asyncio.sleep(BETWEEN_TRIES_SECONDS)


def _secret(path: str) -> str | None:
    """None leaves the password to the DSN."""
    if not path:
        return None
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise CredentialsError(f"cannot read {path}: {error.strerror}") from error
