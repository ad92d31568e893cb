"""Who is asking: what is remembered of tokens, for how long, and how fast one may guess."""

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any, cast

import pytest

from tests.support.doubles.store import MemoryStore
from weft.store import GatewayStore, StoreUnavailableError
from weft.store.tenants import Access
from weftd.gateway.errors import RejectedError
from weftd.gateway.limits.access import LOOKED_UP_AT_ONCE, REMEMBERED_SECONDS, AccessCache, source_of, token_hash
from weftd.gateway.thinking.rates import Rate

HOME = "192.0.2.1"


class World:
    """A cache over a store in memory, both at one time that a test moves."""

    def __init__(self, *, refusals: Rate = Rate(1, 3)) -> None:  # noqa: B008 - a frozen value
        self.at = 1000.0
        self.asked: Counter[str] = Counter()
        self.away = False
        self.store = MemoryStore()
        self.cache = AccessCache(
            cast(GatewayStore, self), clock=lambda: self.at, now=lambda: self.at, refusals=refusals
        )

    def __getattr__(self, name: str) -> Any:
        async def ask(*arguments: Any, **named: Any) -> Any:
            self.asked[name] += 1
            if self.away:
                raise StoreUnavailableError("away")
            return await getattr(self.store, name)(*arguments, **named)

        return ask

    async def token(self, token: str, *, tenant: str = "alice", expires_at: float | None = None) -> None:
        await self.store.add_token(
            token_hash(token), tenant=tenant, admin=False, label="x", at=self.at, expires_at=expires_at
        )

    async def of(self, token: str, *, source: str = HOME) -> Access:
        return await self.cache.of(f"Bearer {token}", source=source)

    async def status(self, token: str, *, source: str = HOME) -> int:
        with pytest.raises(RejectedError) as refused:
            await self.of(token, source=source)
        return refused.value.status


async def test_a_token_is_looked_up_once_in_a_while() -> None:
    world = World()
    await world.token("weft_a")
    for _ in range(100):
        assert await world.of("weft_a") == Access(tenant="alice", label="x")
        world.at += REMEMBERED_SECONDS / 50
    assert world.asked["access"] in (2, 3)


async def test_a_token_that_is_revoked_elsewhere_is_refused_within_the_bound() -> None:
    world = World()
    await world.token("weft_a")
    await world.of("weft_a")
    await world.store.revoke_tokens(tenant="alice", label="x", at=world.at)
    world.at += REMEMBERED_SECONDS
    assert await world.status("weft_a") == 401


async def test_a_token_that_is_revoked_here_is_refused_at_once() -> None:
    world = World()
    await world.token("weft_a")
    await world.of("weft_a")
    await world.store.revoke_tokens(tenant="alice", label="x", at=world.at)
    world.cache.forget()
    assert await world.status("weft_a") == 401


async def test_a_token_that_expires_while_it_is_remembered_is_refused_within_the_bound() -> None:
    world = World()
    await world.token("weft_a", expires_at=world.at + 1)
    await world.of("weft_a")
    world.at += REMEMBERED_SECONDS
    assert await world.status("weft_a") == 401


async def test_its_use_is_noted_once_a_minute_and_never_in_the_way() -> None:
    world = World()
    await world.token("weft_a")
    for _ in range(130):
        await world.of("weft_a")
        world.at += 1
    assert world.asked["token_used"] == 3
    assert [token.used_at for token in await world.store.tokens()] == [1120.0]


async def test_guessing_is_slowed_for_its_source_alone() -> None:
    world = World()
    await world.token("weft_good")
    assert [await world.status(f"weft_{number}") for number in range(10)] == [401] * 3 + [429] * 7
    assert world.asked["access"] == 3
    assert await world.of("weft_good", source="192.0.2.2") == Access(tenant="alice", label="x")
    assert await world.status("weft_y", source="192.0.2.2") == 401
    world.at += 1
    assert [await world.status(f"weft_{number}") for number in range(20, 22)] == [401, 429]


async def test_unknown_tokens_of_all_sources_are_looked_up_a_few_at_a_time_in_their_order() -> None:
    """A sender that names another source for each guess is not limited as a source: it only delays new tokens."""
    world = World()
    await world.token("weft_good")
    asked, most = 0, 0
    found, store_access = list[str](), world.store.access

    async def access(*arguments: Any, **named: Any) -> Access | None:
        nonlocal asked, most
        asked += 1
        most = max(most, asked)
        for _ in range(3):
            await asyncio.sleep(0)
        asked -= 1
        return await store_access(*arguments, **named)

    world.store.access = access  # type: ignore[method-assign]

    async def one(token: str, number: int) -> None:
        with suppress(RejectedError):
            await world.of(token, source=f"NATS _INBOX.{number}")
        found.append(token)

    async with asyncio.TaskGroup() as tasks:
        for number in range(100):
            tasks.create_task(one("weft_good" if number == 50 else f"weft_{number}", number))
    assert most == LOOKED_UP_AT_ONCE
    assert abs(found.index("weft_good") - 50) < 2 * LOOKED_UP_AT_ONCE
    assert await world.of("weft_good") == Access(tenant="alice", label="x")


async def test_while_somebody_guesses_who_was_known_before_is_let_in_from_the_same_source() -> None:
    world = World()
    await world.token("weft_good")
    await world.of("weft_good")
    for number in range(10):
        await world.status(f"weft_{number}")
    world.at += REMEMBERED_SECONDS
    for number in range(10):
        await world.status(f"weft_{number + 10}")
    assert await world.of("weft_good") == Access(tenant="alice", label="x")


async def test_one_wrong_token_sent_for_ever_costs_its_source_little() -> None:
    """A program that nobody told its new token does not lock its neighbours out."""
    world = World(refusals=Rate(1, 3))
    await world.token("weft_good")
    for _ in range(1000):
        assert await world.status("weft_old") == 401
        world.at += 0.1
    assert world.asked["access"] <= 1000 * 0.1 / REMEMBERED_SECONDS + 1
    assert await world.of("weft_good") == Access(tenant="alice", label="x")


async def test_a_store_that_is_away_is_nobodys_guess() -> None:
    world = World()
    await world.token("weft_good")
    world.away = True
    for _ in range(10):
        with pytest.raises(StoreUnavailableError):
            await world.of("weft_good")
    world.away = False
    assert await world.of("weft_good") == Access(tenant="alice", label="x")


async def test_what_is_remembered_is_bounded() -> None:
    world = World(refusals=Rate(0))
    for number in range(25_000):
        with pytest.raises(RejectedError):
            await world.of(f"weft_{number}")
    assert len(world.cache._unknown) <= 10_000


@pytest.mark.parametrize(
    ("remote", "source"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("2001:db8:1:2::7%eth0", "2001:db8:1:2::"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("/run/socket", "/run/socket"),
        (None, ""),
    ],
)
def test_a_source_is_an_address_or_the_network_that_one_owner_has(remote: str | None, source: str) -> None:
    assert source_of(remote) == source
