"""Join tokens: how a new node gets its credentials over a way that nobody needs to trust.

`weft node add` makes the token, seals the node's credentials with it, and gives the gateway the sealed credentials and
the hash of the token's public part. The new node shows the public part, gets the sealed credentials, and opens them
with the token, which never leaves the command line that has it. Neither the gateway, nor its database, nor a listener
on the way can read the credentials or put others in their place.
"""

import base64
import binascii
import hashlib
import re
import secrets

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import Struct

PREFIX = "join_"
SECRET_BYTES = 32
NONCE_BYTES = 12
SEALED_CHARACTERS_MAX = 65536
_matches_token = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{43}}").fullmatch


class JoiningError(Exception):
    """The text is no join token, or the token does not open the sealed credentials. A sentence for a person."""


class NodeCredentials(Struct, frozen=True, kw_only=True):
    """All that a node needs to be one of a cluster. `nats_ca`: the certificates to trust, as PEM; empty: no TLS."""

    node_id: str
    pool: str
    nats_url: str
    executor_password: str
    telemetry_password: str
    nats_ca: str = ""


class JoinToken(Struct, frozen=True):
    text: str

    def __repr__(self) -> str:
        return "JoinToken(…)"  # no log has it

    @property
    def public_part(self) -> str:
        """The part that the gateway is shown."""
        return self._derived(b"public").hex()

    def seal(self, credentials: NodeCredentials) -> str:
        nonce = secrets.token_bytes(NONCE_BYTES)
        about = credentials.node_id.encode()
        sealed = AESGCM(self._derived(b"key")).encrypt(nonce, msgspec.json.encode(credentials), about)
        return base64.b64encode(nonce + sealed).decode()

    def open(self, sealed: str, *, node_id: str) -> NodeCredentials:
        """Raises JoiningError."""
        try:
            data = base64.b64decode(sealed, validate=True)
            opened = AESGCM(self._derived(b"key")).decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], node_id.encode())
            return msgspec.json.decode(opened, type=NodeCredentials)
        except (InvalidTag, binascii.Error, ValueError, msgspec.DecodeError) as error:
            raise JoiningError("the gateway's answer was not sealed for this token and this node") from error

    def _derived(self, use: bytes) -> bytes:
        """The token has 256 random bits, so one hash keeps its uses apart."""
        return hashlib.sha256(b"weft join token, " + use + b"\n" + self.text.encode()).digest()


def new_token() -> JoinToken:
    return JoinToken(PREFIX + secrets.token_urlsafe(SECRET_BYTES))


def token_of(text: str) -> JoinToken:
    """Raises JoiningError, without the text: it may be a mistyped secret."""
    if not _matches_token(text):
        raise JoiningError(f"what was given is no join token: {PREFIX} and 43 letters, as `weft node add` prints it")
    return JoinToken(text)


def hash_of(public_part: str) -> bytes:
    """The hash under which the gateway stores a token."""
    return hashlib.sha256(public_part.encode()).digest()
