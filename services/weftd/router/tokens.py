"""The tenant behind a token. A recent look-up is used again; while the store is away, an older one too."""

import hashlib
from collections.abc import Callable
from typing import Protocol, TypeVar

from msgspec import Struct

from weft.store import StoreUnavailableError
from weft.store.tenants import Access

V = TypeVar("V")

REMEMBERED_SECONDS = 2.0  # a token that was revoked is refused after this time
KEPT_SECONDS = 3600.0  # while the store is away
REMEMBERED_MAX = 20_000
TOKEN_CHARACTERS_MAX = 512
GUESSES_BURST, GUESSES_PER_SECOND = 50.0, 5.0  # unknown tokens from one address


class TokenStore(Protocol):
    async def access(self, token_hash: bytes, *, at: float) -> Access | None: ...


class TooManyGuessesError(Exception):
    """Too many unknown tokens came from one address."""


class _Found(Struct):
    access: Access | None
    at: float


class _Guesses(Struct):
    count: float
    at: float


class TokenCache:
    """`now`: seconds since the epoch; `clock`: any that does not jump."""

    def __init__(self, store: TokenStore, *, now: Callable[[], float], clock: Callable[[], float]) -> None:
        self._store, self._now, self._clock = store, now, clock
        self._found: dict[str, _Found] = {}
        self._guesses: dict[str, _Guesses] = {}

    def fresh(self, token: str) -> tuple[bool, Access | None]:
        """Whether the token was looked up lately, and what it gives access to."""
        found = self._found.get(token)
        if found is None or self._clock() - found.at > REMEMBERED_SECONDS:
            return False, None
        return True, found.access

    async def of(self, token: str, *, source: str) -> Access | None:
        """None: it is unknown, revoked or expired. Raises TooManyGuessesError; StoreUnavailableError where the store is
        away and the token was not in force before."""
        if len(token) > TOKEN_CHARACTERS_MAX or not token.isascii() or not token:
            return None
        before = self._found.get(token)
        if (before is None or before.access is None) and self._guessed(source) >= GUESSES_BURST:
            raise TooManyGuessesError
        try:
            access = await self._store.access(hashlib.sha256(token.encode()).digest(), at=self._now())
        except StoreUnavailableError:
            if before is None or before.access is None or self._clock() - before.at > KEPT_SECONDS:
                raise
            return before.access
        _bounded(self._found)[token] = _Found(access, self._clock())
        if access is None:
            _bounded(self._guesses)[source] = _Guesses(self._guessed(source) + 1.0, self._clock())
        return access

    def _guessed(self, source: str) -> float:
        guesses = self._guesses.get(source)
        if guesses is None:
            return 0.0
        return max(0.0, guesses.count - GUESSES_PER_SECOND * (self._clock() - guesses.at))


def _bounded(cache: dict[str, V]) -> dict[str, V]:
    if len(cache) >= REMEMBERED_MAX:
        del cache[next(iter(cache))]
    return cache
