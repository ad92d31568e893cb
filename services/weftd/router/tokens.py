"""The tenant behind a token. A recent look-up is used again; while the store is away, an older one too. A one-time code
is exchanged for the token of a session."""

import hashlib
import secrets
from collections.abc import Callable
from typing import Protocol, TypeVar

from msgspec import Struct

from weft.domain.tenants import Role
from weft.store import StoreUnavailableError
from weft.store.sign_ins import SignIn
from weft.store.tenants import Access
from weftd.router.thinking.credentials import WEFT_TOKEN

V = TypeVar("V")

REMEMBERED_SECONDS = 2.0  # a token that was revoked is refused after this time
KEPT_SECONDS = 3600.0  # while the store is away
REMEMBERED_MAX = 20_000
TOKEN_CHARACTERS_MAX = 512
SESSION_BYTES = 20
GUESSES_BURST, GUESSES_PER_SECOND = 50.0, 5.0  # unknown tokens from one address


def opens(access: Access | None, job_id: str, tenant: str) -> bool:
    """Return True if this access opens this service of the tenant."""
    if access is None or access.job not in ("", job_id) or access.role == Role.VIEWER:
        return False
    return access.admin or access.tenant == tenant


class TokenStore(Protocol):
    async def access(self, token_hash: bytes, *, at: float) -> Access | None: ...

    async def redeem_code(
        self,
        code_hash: bytes,
        session_hash: bytes,
        *,
        job: str,
        at: float,
        source: str,
        request: str = "",
        challenge: str = "",
    ) -> SignIn | None: ...


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
        """True if the token was looked up recently, and its access."""
        found = self._found.get(token)
        if found is None or self._clock() - found.at > REMEMBERED_SECONDS:
            return False, None
        return True, found.access

    async def of(self, token: str, *, source: str) -> Access | None:
        """The access of a token; None if it is unknown, revoked or expired. Raises TooManyGuessesError, and
        StoreUnavailableError if the store is away and the token was not valid before."""
        if len(token) > TOKEN_CHARACTERS_MAX or not token.isascii() or not token:
            return None
        before = self._found.get(token)
        if (before is None or before.access is None) and self._guessed(source) >= GUESSES_BURST:
            raise TooManyGuessesError
        try:
            access = await self._store.access(_hash(token), at=self._now())
        except StoreUnavailableError:
            if before is None or before.access is None or self._clock() - before.at > KEPT_SECONDS:
                raise
            return before.access
        _bounded(self._found)[token] = _Found(access, self._clock())
        if access is None:
            _bounded(self._guesses)[source] = _Guesses(self._guessed(source) + 1.0, self._clock())
        return access

    async def redeem(self, code: str, *, job: str, source: str) -> str | None:
        """The token of a new session that opens this job's service. None: the code is unknown, was used, is too old, or
        is for another job. Raises TooManyGuessesError, StoreUnavailableError."""
        if self._guessed(source) >= GUESSES_BURST:
            raise TooManyGuessesError
        token = WEFT_TOKEN + secrets.token_hex(SESSION_BYTES)
        made = await self._store.redeem_code(_hash(code), _hash(token), job=job, at=self._now(), source=source)
        if made is None:
            _bounded(self._guesses)[source] = _Guesses(self._guessed(source) + 1.0, self._clock())
        return None if made is None else token

    def _guessed(self, source: str) -> float:
        guesses = self._guesses.get(source)
        if guesses is None:
            return 0.0
        return max(0.0, guesses.count - GUESSES_PER_SECOND * (self._clock() - guesses.at))


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _bounded(cache: dict[str, V]) -> dict[str, V]:
    if len(cache) >= REMEMBERED_MAX:
        del cache[next(iter(cache))]
    return cache
