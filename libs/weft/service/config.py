"""Settings from the environment into a frozen Struct. Every mistake is named, and a secret is always a file.

A service's own settings are read from its prefix: `tick_seconds` from SCHEDULER_TICK_SECONDS. A field that is itself a
Struct is a group of settings that is passed on as a whole: its fields are read from the same prefix, under their own
names. The fields of `Connections` are shared by all services and read from WEFT_: `nats_url` from WEFT_NATS_URL.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_origin
from urllib.parse import parse_qsl, urlsplit

import msgspec

C = TypeVar("C", bound=msgspec.Struct)

SHARED = "WEFT_"
NATS_SCHEMES = ("nats", "tls", "ws", "wss")


class SettingsError(Exception):
    """One line for each setting that is missing, unknown or not what it should be. Never shows a value."""


class Connections(msgspec.Struct, frozen=True, kw_only=True):
    """Where the servers are, the user to connect as, and the authority to trust: a `…_ca_file` demands TLS.

    `nats_url` may name all servers of a cluster, with commas; so may the host of `pg_dsn`, of which one takes writes.
    """

    nats_url: str = "nats://127.0.0.1:4222"
    nats_user: str = ""
    nats_password_file: str = ""
    nats_ca_file: str = ""
    nats_cert_file: str = ""
    nats_key_file: str = ""
    pg_dsn: str = ""
    pg_password_file: str = ""
    pg_ca_file: str = ""

    def __post_init__(self) -> None:
        if bool(self.nats_cert_file) != bool(self.nats_key_file):
            raise ValueError("WEFT_NATS_CERT_FILE and WEFT_NATS_KEY_FILE: a certificate and its key come together")
        _check_nats_url(self.nats_url)
        _check_hosts(self.pg_dsn)
        if self.pg_ca_file and _sslmode(self.pg_dsn) not in ("", "require", "verify-ca", "verify-full"):
            raise ValueError(f"WEFT_PG_CA_FILE demands TLS, and WEFT_PG_DSN says sslmode={_sslmode(self.pg_dsn)}")

    def nats_password(self) -> str:
        return read_secret(self.nats_password_file)

    def pg_password(self) -> str:
        return read_secret(self.pg_password_file)


def load(config: type[C], *, prefix: str, environ: Mapping[str, str]) -> C:
    """Fill `config`, or raise SettingsError with all mistakes. An empty value counts as not set."""
    faults: list[str] = []
    found = _filled(config, prefix, environ, faults)
    known = names(config, prefix)
    faults += [f"{name} is not a setting" for name in sorted(environ) if name.startswith(prefix) and name not in known]
    if found is None or faults:
        raise SettingsError("\n".join(faults))
    return found


def read_secret(path: str) -> str:
    """The content of a file; "" when no file is named."""
    if not path:
        return ""
    try:
        secret = Path(path).read_text().strip()
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    if not secret:
        raise SettingsError(f"{path} is empty")
    return secret


def _sslmode(dsn: str) -> str:
    return _options(dsn).get("sslmode", "")


def _options(dsn: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(dsn).query))


def _check_nats_url(url: str) -> None:
    """Raise ValueError, without showing a password, if one of the addresses is none."""
    addresses = [part.strip() for part in url.split(",")]
    for number, address in enumerate(addresses, start=1):
        which = f"address {number} of {len(addresses)}" if len(addresses) > 1 else "it"
        try:
            parts = urlsplit(address if "://" in address else f"nats://{address}")
            good = parts.scheme in NATS_SCHEMES and bool(parts.hostname) and parts.port != 0
        except ValueError:
            good = False
        if not good:
            raise ValueError(f"WEFT_NATS_URL: {which} is not nats://HOST:PORT; several are separated by commas")


def _check_hosts(dsn: str) -> None:
    """Raise ValueError if the DSN names several hosts and does not say that only the one that takes writes will do."""
    hosts = urlsplit(dsn).netloc.rpartition("@")[2].split(",")
    if len(hosts) == 1:
        return
    if not all(hosts):
        raise ValueError("WEFT_PG_DSN: one of its hosts is empty; several are written as HOST:PORT,HOST:PORT")
    if _options(dsn).get("target_session_attrs") not in ("read-write", "primary"):
        raise ValueError("WEFT_PG_DSN names several hosts: it needs ?target_session_attrs=read-write")


def _filled(config: type[C], prefix: str, environ: Mapping[str, str], faults: list[str]) -> C | None:
    values: dict[str, Any] = {}
    faults_before = len(faults)
    for field in msgspec.structs.fields(config):
        name = _name(prefix, field)
        if _is_group(field):
            inside = SHARED if field.type is Connections else prefix
            values[field.name] = _filled(field.type, inside, environ, faults)
        elif text := environ.get(name):
            try:
                values[field.name] = _converted(text, field.type)
            except (msgspec.ValidationError, ValueError) as error:
                faults.append(f"{name}: {error}")
        elif field.required:
            faults.append(f"{name} is not set")
    if len(faults) > faults_before:
        return None
    try:
        return config(**values)
    except ValueError as error:  # from `__post_init__`, which checks settings against each other
        faults.append(str(error))
        return None


def _converted(text: str, kind: Any) -> Any:
    """The value for msgspec: a list is written with commas, a mapping as JSON, everything else as it is."""
    value: Any = text
    if get_origin(kind) in (list, tuple, set, frozenset):
        value = [part.strip() for part in text.split(",") if part.strip()]
    elif get_origin(kind) is dict:
        value = msgspec.json.decode(text)
    return msgspec.convert(value, kind, strict=False, dec_hook=_other)


def _other(kind: Any, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    raise NotImplementedError(f"a setting cannot be a {kind}")


def names(config: type[msgspec.Struct], prefix: str) -> set[str]:
    """The variables that are settings of this service, without those that all services share."""
    found: set[str] = set()
    for field in msgspec.structs.fields(config):
        if not _is_group(field):
            found.add(_name(prefix, field))
        elif field.type is not Connections:
            found |= names(field.type, prefix)
    return found


def _is_group(field: msgspec.structs.FieldInfo) -> bool:
    return isinstance(field.type, type) and issubclass(field.type, msgspec.Struct)


def _name(prefix: str, field: msgspec.structs.FieldInfo) -> str:
    return f"{prefix}{field.name.upper()}"
