"""Passwords and certificates by configuration: who we are, whom we believe, and files that are renewed while we run."""

import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypedDict, TypeVar

from libs.service.config import Connections, SettingsError

T = TypeVar("T")


class NatsKeys(TypedDict):
    user: str
    password: Callable[[], str] | str
    tls: Callable[[], ssl.SSLContext] | None


class PgKeys(TypedDict):
    password: Callable[[], str] | None
    tls: Callable[[], ssl.SSLContext] | None


def nats_keys(to: Connections) -> NatsKeys:
    """What a bus is opened with besides its address; no TLS where nothing says it. Raises SettingsError."""
    wants_tls = to.nats_ca_file or to.nats_cert_file or "tls://" in to.nats_url

    def tls() -> ssl.SSLContext:
        return client_tls(ca_file=to.nats_ca_file, cert_file=to.nats_cert_file, key_file=to.nats_key_file)

    return {
        "user": to.nats_user,
        "password": renewed(to.nats_password) if to.nats_password_file else "",
        "tls": renewed(tls) if wants_tls else None,
    }


def pg_keys(to: Connections) -> PgKeys:
    """What a store is opened with besides its DSN, which says the rest. Raises SettingsError."""
    return {
        "password": renewed(to.pg_password) if to.pg_password_file else None,
        "tls": renewed(lambda: client_tls(ca_file=to.pg_ca_file)) if to.pg_ca_file else None,
    }


def client_tls(*, ca_file: str, cert_file: str = "", key_file: str = "") -> ssl.SSLContext:
    """Believe who this authority vouches for (none named: those that the system knows), under the name we called.

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
    """Speak as who this certificate says. Raises SettingsError naming the file."""
    _check_readable(cert_file, key_file)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    _load(context, cert_file, key_file)
    return context


def renewed(make: Callable[[], T]) -> Callable[[], T]:
    """Makes it anew at each call; where that fails, a file being half renewed, it is what was made last.

    The first is made now, and raises what is wrong.
    """
    last = make()

    def again() -> T:
        nonlocal last
        with suppress(SettingsError):
            last = make()
        return last

    return again


class ServerCertificate:
    """A listening socket's certificate, taken anew when its files change: connections that are open stay."""

    def __init__(self, cert_file: str, key_file: str) -> None:
        self.context = server_tls(cert_file, key_file)
        self._files = (cert_file, key_file)
        self._seen = self._stamp()

    def renew(self) -> bool:
        """Whether it was taken anew. Raises SettingsError while the files make no pair: the old one is used on."""
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        server_tls(*self._files)  # A pair that does not fit would leave the living one without its key.
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
        # A key that wants a passphrase is refused, rather than asked for on a terminal that is not there.
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
