"""The link to Postgres fails as links do, on both its ends; and Postgres has no place left for anybody."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from urllib.parse import urlsplit

import asyncpg
import pytest

from tests.support.postgres import Server, Stores, embedded, stores
from tests.support.proxy import Proxy, Way
from weft.domain.lease import Lease
from weft.store import StoreUnavailableError
from weft.store.asking import ACQUIRE_SECONDS_MAX, COMMAND_SECONDS_MAX, CONNECT_SECONDS_MAX, SESSION, WAITING_MAX
from weft.store.postgres import PostgresStore
from weftd.scheduler.leadership import Leadership

POOL = "default"
CONNECTIONS = 4
LEADER_SECONDS = 2.0
LATE_SECONDS_MAX = 5.0  # a machine that is busy is not a wait without a bound
FAILED_SECONDS_MAX = ACQUIRE_SECONDS_MAX + COMMAND_SECONDS_MAX + LATE_SECONDS_MAX
VANISHED_SECONDS_MAX = 10.0 + LATE_SECONDS_MAX  # what SESSION has the server do
RECOVERY_SECONDS_MAX = CONNECT_SECONDS_MAX + COMMAND_SECONDS_MAX + LATE_SECONDS_MAX

FAULTS: dict[str, Callable[[Proxy], None]] = {
    "cut": lambda link: link.cut(),
    "swallow": lambda link: link.swallow(),
    "freeze": lambda link: link.freeze(),
    "deaf": lambda link: link.freeze(Way.TO_CLIENT),
}


@pytest.fixture(scope="module")
async def postgres(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stores]:
    async with embedded(tmp_path_factory.mktemp("network")) as server, stores(server) as opened:
        yield opened


@pytest.fixture
async def link(postgres: Stores) -> AsyncIterator[Proxy]:
    await postgres.clear()
    async with Proxy(urlsplit(postgres.server.dsn).port or 0) as proxy:
        yield proxy


def behind(link: Proxy, server: Server) -> str:
    parts = urlsplit(server.dsn)
    return parts._replace(netloc=f"{parts.username}@127.0.0.1:{link.port}").geturl()


def store_behind(link: Proxy, server: Server, role: str = "scheduler") -> AbstractAsyncContextManager[PostgresStore]:
    return PostgresStore.connect(
        behind(link, server), user=f"weft_{role}", password=server.passwords[role], connections=CONNECTIONS
    )


async def failed(work: Awaitable[object]) -> float:
    """How long it took to say that the store is away."""
    began = asyncio.get_running_loop().time()
    with pytest.raises(StoreUnavailableError):
        await work
    return asyncio.get_running_loop().time() - began


async def until_answered(store: PostgresStore) -> None:
    async with asyncio.timeout(RECOVERY_SECONDS_MAX):
        while True:
            try:
                await store.nodes()
            except StoreUnavailableError:
                await asyncio.sleep(0.05)
            else:
                return


@pytest.mark.parametrize("fault", FAULTS)
async def test_over_a_dead_link_every_question_ends_and_few_try(postgres: Stores, link: Proxy, fault: str) -> None:
    """And it is used again as soon as it is whole."""
    async with store_behind(link, postgres.server) as store:
        await asyncio.gather(*(store.nodes() for _ in range(CONNECTIONS)))
        FAULTS[fault](link)
        took = await asyncio.gather(*(failed(store.nodes()) for _ in range(50)))
        assert max(took) < FAILED_SECONDS_MAX
        trying = [asyncio.create_task(failed(store.nodes())) for _ in range(CONNECTIONS)]
        await asyncio.sleep(0)
        took = await asyncio.gather(*(failed(store.nodes()) for _ in range(50)))
        assert not any(task.done() for task in trying)
        assert max(took) < max(await asyncio.gather(*trying)) < FAILED_SECONDS_MAX
        link.mend()
        await until_answered(store)


async def test_more_than_a_bound_do_not_wait_for_a_store_that_is_slow(postgres: Stores, link: Proxy) -> None:
    async with store_behind(link, postgres.server) as store:
        await store.nodes()
        link.slow(delay_seconds=0.2)
        answers = await asyncio.gather(
            *(store.nodes() for _ in range(2 * WAITING_MAX + CONNECTIONS)), return_exceptions=True
        )
        refused = [answer for answer in answers if isinstance(answer, StoreUnavailableError)]
        assert sum("too many wait" in str(answer) for answer in refused) == WAITING_MAX
        link.mend()
        await until_answered(store)


async def test_a_server_gives_up_whoever_has_vanished_with_all_that_he_locked(postgres: Stores, link: Proxy) -> None:
    """A scheduler that is cut off in the middle of a commit is in nobody's way for more than a bound."""
    loop = asyncio.get_running_loop()
    leader = await postgres.scheduler.take_lease(POOL, holder="vanishes", seen=None)
    assert leader is not None
    async with AsyncExitStack() as stack:
        idle, locking = [
            await asyncpg.connect(
                behind(link, postgres.server),
                user="weft_scheduler",
                password=postgres.server.passwords["scheduler"],
                server_settings={**SESSION, "idle_in_transaction_session_timeout": "0"},
            )
            for _ in range(2)
        ]
        stack.callback(idle.terminate)
        stack.callback(locking.terminate)
        pids = {connection.get_server_pid() for connection in (idle, locking)}
        await locking.execute("BEGIN")
        await locking.execute("SELECT must_hold($1, $2, $3)", POOL, "vanishes", leader.epoch)
        link.cut()
        began = loop.time()
        taken = await _taken(postgres, leader)
        assert taken.epoch == leader.epoch + 1
        assert loop.time() - began < VANISHED_SECONDS_MAX
        async with asyncio.timeout(VANISHED_SECONDS_MAX):
            while pids & await _sessions(postgres):  # noqa: ASYNC110 - another process's state
                await asyncio.sleep(0.1)
        link.reset()


async def _taken(postgres: Stores, seen: Lease) -> Lease:
    async with asyncio.timeout(2 * VANISHED_SECONDS_MAX):
        while True:
            try:
                taken = await postgres.scheduler.take_lease(POOL, holder="next", seen=seen)
            except StoreUnavailableError:  # it is still locked
                continue
            assert taken is not None
            return taken


async def _sessions(postgres: Stores) -> set[int]:
    rows = await postgres.owner.fetch("SELECT pid FROM pg_stat_activity WHERE usename = 'weft_scheduler'")
    return {row["pid"] for row in rows}


async def test_a_session_has_what_has_the_server_give_it_up(postgres: Stores, link: Proxy) -> None:
    async with store_behind(link, postgres.server) as store, store.asking.pool.acquire() as connection:
        shown = {name: await connection.fetchval("SELECT current_setting($1)", name) for name in SESSION}
        assert shown == SESSION


async def test_when_no_place_is_left_it_is_said_at_once_and_whoever_is_in_stays_in(
    postgres: Stores, link: Proxy
) -> None:
    server, loop = postgres.server, asyncio.get_running_loop()
    await postgres.owner.execute("ALTER ROLE weft_scheduler CONNECTION LIMIT 0")
    try:
        async with AsyncExitStack() as stack:
            began = loop.time()
            with pytest.raises(StoreUnavailableError, match="too many connections"):
                await stack.enter_async_context(store_behind(link, server))
            assert loop.time() - began < LATE_SECONDS_MAX
            await postgres.owner.execute("ALTER ROLE weft_scheduler CONNECTION LIMIT -1")
            store = await stack.enter_async_context(store_behind(link, server))
            await postgres.owner.execute("ALTER ROLE weft_scheduler CONNECTION LIMIT 0")
            # Fifteen times as many as it would like to have, and few enough for one connection on a busy machine.
            await asyncio.gather(*(store.nodes() for _ in range(15 * CONNECTIONS)))
            assert store.asking.pool.get_size() < CONNECTIONS, "as many as it got"
    finally:
        await postgres.owner.execute("ALTER ROLE weft_scheduler CONNECTION LIMIT -1")


async def test_a_leader_that_is_cut_off_stops_before_another_begins(postgres: Stores, link: Proxy) -> None:
    """And when the link is whole again it does not lead on."""
    now = asyncio.get_running_loop().time

    def leadership(holder: str, store: PostgresStore) -> Leadership:
        return Leadership(name=POOL, holder=holder, store=store, clock=now, leader_seconds=LEADER_SECONDS)

    async with store_behind(link, postgres.server) as store:
        first, second = leadership("first", store), leadership("second", postgres.scheduler)
        await first.beat()
        await second.beat()
        assert (first.lease is not None, second.lease) == (True, None)
        link.cut()
        cut_off = asyncio.create_task(first.beat())
        async with asyncio.timeout(VANISHED_SECONDS_MAX + LEADER_SECONDS):
            while second.lease is None:
                led = first.lease is not None
                try:
                    await second.beat()
                except StoreUnavailableError:
                    continue
                assert not (led and second.lease is not None), "two lead at once"
                await asyncio.sleep(LEADER_SECONDS / 20)
        with pytest.raises(StoreUnavailableError):
            await cut_off
        link.mend()
        await until_answered(store)
        await first.beat()
        await second.beat()
        assert (first.lease, second.lease is not None) == (None, True)


async def test_a_host_that_is_dead_without_a_word_does_not_keep_us_from_the_other(
    postgres: Stores, link: Proxy
) -> None:
    link.cut()
    parts = urlsplit(postgres.server.dsn)
    for ports in ((link.port, parts.port), (parts.port, link.port)):
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        dsn = parts._replace(netloc=f"{parts.username}@{hosts}", query="target_session_attrs=read-write").geturl()
        async with PostgresStore.connect(
            dsn, user="weft_scheduler", password=postgres.server.passwords["scheduler"], connections=CONNECTIONS
        ) as store:
            await asyncio.gather(*(store.nodes() for _ in range(CONNECTIONS)))
