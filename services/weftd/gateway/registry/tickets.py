"""Tickets: a node gets one for a run, to pull from one repository for a limited time. All gateways share the key, so
each accepts the tickets of the others."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable

import msgspec
from msgspec import Struct

TICKET_USER = "weft-run"
TICKET_SECONDS = 3600.0
_USE = b"weft: tickets to pull images"


class Ticket(Struct, frozen=True, array_like=True):
    tenant: str  # of the job
    repository: str
    until: float


class Tickets:
    """`secret`: all gateways of the cluster have the same."""

    def __init__(self, secret: str, *, now: Callable[[], float]) -> None:
        self._key = hmac.digest(secret.encode(), _USE, hashlib.sha256)
        self._now = now

    def made(self, tenant: str, repository: str) -> str:
        said = msgspec.json.encode(Ticket(tenant, repository, self._now() + TICKET_SECONDS))
        return base64.urlsafe_b64encode(self._mac(said) + said).decode()

    def of(self, header: str | None) -> Ticket | None:
        """The ticket of an `Authorization` header; None if it has no valid ticket."""
        user, password = basic(header)
        if user != TICKET_USER:
            return None
        try:
            whole = base64.urlsafe_b64decode(password)
            mac, said = whole[: hashlib.sha256().digest_size], whole[hashlib.sha256().digest_size :]
            ticket = msgspec.json.decode(said, type=Ticket) if hmac.compare_digest(mac, self._mac(said)) else None
        except (binascii.Error, ValueError):
            return None
        return ticket if ticket is not None and ticket.until > self._now() else None

    def _mac(self, said: bytes) -> bytes:
        return hmac.digest(self._key, said, hashlib.sha256)


def basic(header: str | None) -> tuple[str, str]:
    """The user and the password of an `Authorization: Basic …` header; both empty for any other."""
    scheme, _, encoded = (header or "").partition(" ")
    if scheme.lower() != "basic":
        return "", ""
    try:
        user, _, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return "", ""
    return user, password


def as_bearer(header: str | None) -> str | None:
    """Convert the header of a registry client, whose password is a token, to a bearer header. Only `/v2/` accepts a
    password: a browser would send a stored one with forms of other pages."""
    password = basic(header)[1]
    return f"Bearer {password}" if password else header
