"""The caller of a request: a bearer token, or that of a session, found by its hash. A recent look-up is used again."""

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import TypeVar

from msgspec import Struct

from weft.domain.tenants import Role
from weft.store import GatewayStore, StoreUnavailableError
from weft.store.audit import Actor
from weft.store.sign_ins import SignIn
from weft.store.tenants import Access
from weftd.gateway.errors import RejectedError, too_fast
from weftd.gateway.thinking.rates import Rate, RateLimit

T = TypeVar("T")

REMEMBERED_SECONDS = 2.0
REMEMBERED_MAX = 10_000
TOLD_USED_SECONDS = 60.0
TOKEN_PREFIX = "weft_"
TOKEN_CHARACTERS = 40
CODE_PREFIX = "code_"
PER_TENANT_MAX = 1000  # valid codes and sessions of one tenant
TOKEN_CHARACTERS_MAX = 512
LOOKED_UP_AT_ONCE = 4  # tokens that were not known before
LOOKED_UP_SECONDS_MAX = 5.0
NETWORK_BITS = 64  # IPv6 clients are counted by /64, since one host has a whole /64


def must_change(who: Access) -> None:
    """Raises RejectedError 403 if the person may only read."""
    if who.role == Role.VIEWER:
        raise RejectedError(403, "Authorization", "your role, viewer, may only read")


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


@lru_cache(maxsize=REMEMBERED_MAX)
def source_of(remote: str | None) -> str:
    """The source for which guesses are counted: an IPv4 address, or the /64 network of an IPv6 address."""
    try:
        address = ip_address((remote or "").partition("%")[0])
    except ValueError:
        return remote or ""
    if not isinstance(address, IPv6Address):
        return str(address)
    return str(address.ipv4_mapped or IPv6Address(int(address) >> NETWORK_BITS << NETWORK_BITS))


class Remembered(Struct):
    """A token that was valid at its look-up, in seconds of the cache's clock."""

    access: Access
    until: float
    told_used: float


class AccessCache:
    """Looks tokens up. A token that was revoked or has expired is refused REMEMBERED_SECONDS later at the latest.

    Unknown tokens from one source are looked up no faster than `refusals` allows: beyond it, that source can use only
    tokens that were known before. A source over NATS can choose its name, so look-ups of all sources together run a few
    at a time, in the order of arrival: guesses delay a new token, which gets 429 after 5 s.
    """

    def __init__(
        self,
        store: GatewayStore,
        *,
        clock: Callable[[], float],
        now: Callable[[], float],
        refusals: Rate,
    ) -> None:
        self._store = store
        self._clock = clock
        self._now = now
        self._refusals = RateLimit(refusals)
        self._guessing = asyncio.Semaphore(LOOKED_UP_AT_ONCE)
        self._known: dict[str, Remembered] = {}
        self._unknown: dict[str, float] = {}

    async def of(self, header: str | None, *, source: str) -> Access:
        """The caller of the `Authorization` header. Raises RejectedError 401, or 429 if `source` guesses too fast."""
        key = header or ""
        known = self._known.get(key)
        if known is not None and known.until > self._clock():
            return known.access
        if self._unknown.get(key, 0.0) > self._clock():
            raise _unknown()
        token = bearer(header)
        access = await (self._looked_up(token) if known is not None else self._let_in(token, source))
        if access is None:
            self._known.pop(key, None)
            _bounded(self._unknown)[key] = self._clock() + REMEMBERED_SECONDS
            raise _unknown()
        known = known or Remembered(access, 0.0, 0.0)
        known.until = self._clock() + REMEMBERED_SECONDS
        _bounded(self._known)[key] = known
        await self._tell_used(known, token)
        return access

    async def redeem(self, code: str, session: str, *, source: str, actor: Actor, challenge: str = "") -> SignIn:
        """Exchange a one-time code for the session of this token. Raises RejectedError 401, or 429 if `source` guesses
        too fast."""
        if wait := self._refusals.wait(source, self._clock()):
            raise too_fast("code", f"too many unknown codes come from {source}", wait)
        hashes = token_hash(code), token_hash(session)
        made = await self._store.redeem_code(
            *hashes, job="", at=self._now(), source=actor.source, request=actor.request, challenge=challenge
        )
        if made is None:
            self._refusals.owe(source, self._clock())
            raise RejectedError(
                401, "code", "this code is not known, was used, or is too old: `weft open` prints another"
            )
        return made

    async def join(self, public_part: str, *, node: str, source: str) -> str:
        """Use a join token; returns the sealed credentials of its node. Raises RejectedError 401, 403 or 410, or 429 if
        `source` guesses too fast."""
        if wait := self._refusals.wait(source, self._clock()):
            raise too_fast("public_part", f"too many unknown join tokens come from {source}", wait)
        kept = await self._store.use_join_token(token_hash(public_part), node_id=node, at=self._now())
        if kept is None:
            self._refusals.owe(source, self._clock())
            raise RejectedError(
                401, "public_part", f"this join token is not known, or a newer one has replaced it: {_another(node)}"
            )
        if kept.node_id != node:
            raise RejectedError(403, "node", f"this join token is for node {kept.node_id}, not for {node}")
        if kept.used_at is not None:
            reason = f"this join token was used at {_utc(kept.used_at)}, and works once: {_another(node)}"
            raise RejectedError(410, "public_part", reason)
        if not kept.sealed:
            reason = f"this join token expired at {_utc(kept.expires_at)}: {_another(node)}"
            raise RejectedError(410, "public_part", reason)
        return kept.sealed

    def forget(self) -> None:
        """Drop all look-ups: some token has changed."""
        self._unknown.clear()
        for known in self._known.values():
            known.until = 0.0

    async def _let_in(self, token: str, source: str) -> Access | None:
        if wait := self._refusals.wait(source, self._clock()):
            raise too_fast("Authorization", f"too many unknown tokens come from {source}", wait)
        try:
            async with asyncio.timeout(LOOKED_UP_SECONDS_MAX):
                await self._guessing.acquire()
        except TimeoutError:
            raise too_fast("Authorization", "too many unknown tokens are looked up", LOOKED_UP_SECONDS_MAX) from None
        try:
            access = await self._looked_up(token)
        finally:
            self._guessing.release()
        if access is None:
            self._refusals.owe(source, self._clock())
        return access

    async def _looked_up(self, token: str) -> Access | None:
        access = await self._store.access(token_hash(token), at=self._now())
        return None if access is not None and access.job else access  # a session of one service is for routers

    async def _tell_used(self, known: Remembered, token: str) -> None:
        """Store the time of last use of tokens now and then, without delay for the request."""
        if known.told_used and self._clock() - known.told_used < TOLD_USED_SECONDS:
            return
        known.told_used = self._clock()
        with suppress(StoreUnavailableError):
            await self._store.token_used(token_hash(token), at=self._now(), not_within=TOLD_USED_SECONDS)


def _bounded(cache: dict[str, T]) -> dict[str, T]:
    if len(cache) >= REMEMBERED_MAX:
        del cache[next(iter(cache))]
    return cache


def _another(node: str) -> str:
    return f"`weft node add {node}` prints another"


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _unknown() -> RejectedError:
    return RejectedError(401, "Authorization", "this token is not known, was revoked, or has expired")
