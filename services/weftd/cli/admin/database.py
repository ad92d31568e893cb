"""The database of a cluster as its owner reaches it: by settings, or in the home of `weft up`."""

import ssl
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from weft.credentials import Credentials, CredentialsError
from weft.service.keys import client_tls
from weft.store.migrate import ROLES


class Database(Struct, frozen=True, kw_only=True):
    """`password` None: the DSN has it."""

    dsn: str
    credentials: Credentials
    password: str | None = None
    tls: ssl.SSLContext | None = None

    def role_passwords(self) -> dict[str, str]:
        """Raises CredentialsError."""
        return {role: self.credentials.postgres_password(role) for role in ROLES}


def database_of(environ: Mapping[str, str]) -> Database:
    """The database that WEFT_PG_DSN and related variables name. Raises CredentialsError and SettingsError."""
    dsn, folder = environ.get("WEFT_PG_DSN", ""), environ.get("WEFT_CREDENTIALS", "")
    if not dsn or not folder:
        raise CredentialsError(f"{'WEFT_CREDENTIALS' if dsn else 'WEFT_PG_DSN'} is not set")
    ca_file = environ.get("WEFT_PG_CA_FILE", "")
    return Database(
        dsn=dsn,
        credentials=Credentials(Path(folder)),
        password=_secret(environ.get("WEFT_PG_PASSWORD_FILE", "")),
        tls=client_tls(ca_file=ca_file) if ca_file else None,
    )


def _secret(path: str) -> str | None:
    if not path:
        return None
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise CredentialsError(f"cannot read {path}: {error.strerror}") from error
