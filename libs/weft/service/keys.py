"""Passwords and certificates from the settings, and files that are renewed while the process runs."""

import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypedDict, TypeVar

from weft.service.config import Connections, SettingsError

T = TypeVar("T")


class NatsKeys(TypedDict):
    user: str
    password: Callable[[], str] | str
    tls: Callable[[], ssl.SSLContext] | None


class PgKeys(TypedDict):
    password: Callable[[], str] | None
    tls: Callable[[], ssl.SSLContext] | None


def nats_keys(to: Connections) -> NatsKeys:
    """Arguments to open a bus, besides its address; no TLS unless a setting demands it. Raises SettingsError."""
    wants_tls = to.nats_ca_file or to.nats_cert_file or "tls://" in to.nats_url

    def tls() -> ssl.SSLContext:
        return client_tls(ca_file=to.nats_ca_file, cert_file=to.nats_cert_file, key_file=to.nats_key_file)

    return {
        "user": to.nats_user,
        "password": renewed(to.nats_password) if to.nats_password_file else "",
        "tls": renewed(tls) if wants_tls else None,
    }


def pg_keys(to: Connections) -> PgKeys:
    """Arguments to open a store, besides its DSN. Raises SettingsError."""
    return {
        "password": renewed(to.pg_password) if to.pg_password_file else None,
        "tls": renewed(lambda: client_tls(ca_file=to.pg_ca_file)) if to.pg_ca_file else None,
    }


def client_tls(*, ca_file: str, cert_file: str = "", key_file: str = "") -> ssl.SSLContext:
    """A TLS context that trusts this authority (none named: the system's), and checks the server's name.

    Raises SettingsError naming the file.
    """
    _check_readable(*(name for name in (ca_file, cert_file, key_file) if name))
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except (ssl.SSLError, ValueError) as error:
        raise SettingsError(f"{ca_file} is not a file of certificates: {_words(error)}") from error
    if cert_file:
        _load(context, cert_file, key_file)
    return context


def server_tls(cert_file: str, key_file: str) -> ssl.SSLContext:
    """A TLS context for a server with this certificate. Raises SettingsError naming the file."""
    _check_readable(cert_file, key_file)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    _load(context, cert_file, key_file)
    return context


def renewed(make: Callable[[], T]) -> Callable[[], T]:
    """A function that makes the value anew at each call; while a file is half renewed, it returns the last good one.

    The first value is made now; its errors are raised.
    """
    last = make()

    def again() -> T:
        nonlocal last
        with suppress(SettingsError):
            last = make()
        return last

    return again


class ServerCertificate:
    """A listening socket's certificate, loaded again when its files change: open connections stay."""

    def __init__(self, cert_file: str, key_file: str) -> None:
        self.context = server_tls(cert_file, key_file)
        self._files = (cert_file, key_file)
        self._seen = self._stamp()

    def renew(self) -> bool:
        """True if it was loaded again. Raises SettingsError while the files do not match: the old one stays in use."""
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        server_tls(*self._files)  # loading files that do not match would leave the one in use without its key
        _load(self.context, *self._files)
        self._seen = stamp
        return True

    def _stamp(self) -> tuple[tuple[int, int, int], ...]:
        try:
            found = [Path(name).stat() for name in self._files]
        except OSError as error:
            raise SettingsError(f"cannot read {error.filename}: {error.strerror}") from error
        return tuple((each.st_mtime_ns, each.st_ino, each.st_size) for each in found)


def _load(context: ssl.SSLContext, cert_file: str, key_file: str) -> None:
    try:
        # A key with a passphrase is refused: there is no terminal on which to ask for it.
        context.load_cert_chain(cert_file, key_file, password="")
    except (ssl.SSLError, ValueError, OSError) as error:
        raise SettingsError(f"{cert_file} and {key_file} are no certificate and its key: {_words(error)}") from error


def _check_readable(*names: str) -> None:
    for name in names:
        try:
            with Path(name).open("rb"):
                pass
        except OSError as error:
            raise SettingsError(f"cannot read {name}: {error.strerror}") from error


def _words(error: Exception) -> str:
    return getattr(error, "reason", "") or str(error) or type(error).__name__
