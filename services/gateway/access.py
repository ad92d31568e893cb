"""Who is asking: a bearer token, by its hash. What was looked up lately is not looked up again."""

import hashlib
from collections.abc import Callable

from libs.store import Access, GatewayStore
from services.gateway.errors import RejectedError

REMEMBERED_SECONDS = 2.0
REMEMBERED_MAX = 10_000
TOKEN_PREFIX = "weft_"
TOKEN_CHARACTERS_MAX = 512


def token_hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def bearer(header: str | None) -> str:
    """The token of an `Authorization` header."""
    scheme, _, token = (header or "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise RejectedError(401, "Authorization", "expected 'Authorization: Bearer TOKEN'")
    if len(token) > TOKEN_CHARACTERS_MAX or not token.isascii():
        raise _unknown()
    return token


class AccessCache:
    """Looks tokens up. A token that was revoked is refused at the latest REMEMBERED_SECONDS later."""

    def __init__(self, store: GatewayStore, *, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._known: dict[str, tuple[float, Access | None]] = {}

    async def of(self, header: str | None) -> Access:
        """Who this header speaks for. Raises RejectedError 401."""
        now = self._clock()
        remembered = self._known.get(header or "")
        if remembered is None or remembered[0] <= now:
            remembered = (now + REMEMBERED_SECONDS, await self._store.access(token_hash(bearer(header))))
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
            self._known[header or ""] = remembered
        if remembered[1] is None:
            raise _unknown()
        return remembered[1]

    def forget(self) -> None:
        """Something about tokens has changed."""
        self._known.clear()


def _unknown() -> RejectedError:
    return RejectedError(401, "Authorization", "this token is not known or was revoked")
