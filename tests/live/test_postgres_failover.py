"""A real Postgres with its standby, by the commands of docs/failover.md: killed, promoted, and an old primary again."""

import asyncio
import logging
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.support.builders import spec
from tests.support.gateway_process import gateway_process
from tests.support.postgres import durable
from tests.support.postgres_pair import PostgresPair
from tests.support.proxy import Proxy
from weft.client import Client, ClientError
from weft.credentials import Credentials, provision
from weft.servers import down, up
from weft.store import StoreUnavailableError
from weft.store.migrate import ROLES, migrate
from weft.store.postgres import PostgresStore
from weftd.scheduler.leadership import Leadership

SECONDS_MAX = 60.0
CUSTOMERS = 4
CANCEL_WAITS = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
AT = 1_700_000_000.0


class Place:
    """The pair, and what its users know."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.credentials: Credentials = provision(root / "credentials", nodes=[])
        self.pair = PostgresPair(root, self.credentials)

    def store(self, role: str, *, dsn: str = "") -> AbstractAsyncContextManager[PostgresStore]:
        return PostgresStore.connect(
            dsn or self.pair.dsn,
            user=f"weft_{role}",
            password=self.credentials.postgres_password(role),
            connections=2,
        )

    async def ask(self, number: int, question: str, *values: object) -> Any:
        connection = await asyncpg.connect(
            self.pair.dsn_of(number), password=self.credentials.postgres_password("owner"), timeout=SECONDS_MAX
        )
        try:
            return await connection.fetch(question, *values)
        finally:
            await connection.close()


@pytest.fixture(scope="module")
async def there() -> AsyncIterator[Place]:
    root = Path(tempfile.mkdtemp(prefix="weft-pair-"))
    os.chmod(root, 0o711)  # so that Postgres' own user reaches its folders
    made = Place(root)
    try:
        with durable():
            await made.pair.start(synchronous=True)
            passwords = {role: made.credentials.postgres_password(role) for role in ROLES}
            owner = made.credentials.postgres_password("owner")
            assert await migrate(made.pair.dsn, user=None, password=owner, role_passwords=passwords)
            yield made
    finally:
        await made.pair.stop()


async def customer(client: Client, name: str, told: dict[str, str], stop: asyncio.Event) -> None:
    """Submits jobs one after another, each with its key until it is acknowledged."""
    number = 0
    while not stop.is_set():
        key = f"{name}-{number}"
        try:
            async with asyncio.timeout(SECONDS_MAX):
                told[key] = (await client.submit(spec(key), key=key)).id
        except (ClientError, TimeoutError):
            await asyncio.sleep(0.05)
        else:
            number += 1


async def answered(store: PostgresStore) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            try:
                await store.nodes()
            except StoreUnavailableError:
                await asyncio.sleep(0.05)
            else:
                return


async def test_what_the_standby_does_not_have_is_not_acknowledged_by_a_second_try_either(
    there: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit whose wait for the standby was cancelled is stored on the primary, and everybody sees it there."""
    monkeypatch.setattr("weft.store.asking.COMMAND_SECONDS_MAX", 1.0)
    wanted: dict[str, Any] = {"job_id": "waits", "tenant": "alice", "key": "waits", "at": AT}
    async with there.store("gateway") as store:
        await there.pair.send(1, signal.SIGSTOP)
        try:
            with pytest.raises(StoreUnavailableError):
                await store.submit(spec("waits"), **wanted)
            async with asyncio.timeout(SECONDS_MAX):
                while not await there.ask(0, "SELECT FROM submissions WHERE id = 'waits'"):
                    await there.ask(0, CANCEL_WAITS)  # as a restart of the primary does
                    await asyncio.sleep(0.05)
            with pytest.raises(StoreUnavailableError):
                await store.submit(spec("waits"), **wanted)
        finally:
            await there.pair.send(1, signal.SIGCONT)
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                try:
                    stored = await store.submit(spec("waits"), **wanted)
                except StoreUnavailableError:
                    continue
                break
        assert (stored.job_id, stored.created) == ("waits", False)


@pytest.mark.timeout(240)
async def test_every_job_acknowledged_beside_a_kill_and_a_promotion_is_there_once(
    there: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the old primary, back as it was, is not written to; made a standby again it takes no writes."""
    monkeypatch.setattr("weft.store.asking.LOOK_SECONDS", 0.5)
    pair, told, stop = there.pair, dict[str, str](), asyncio.Event()
    servers = await up(there.root / "nats", credentials=there.credentials, pg_dsn="elsewhere")
    try:
        async with (
            gateway_process(
                there.root / "gateway.log", there.credentials, nats_url=servers.nats_url, pg_dsn=pair.dsn
            ) as gateway,
            there.store("gateway") as store,
            Client(gateway.url, there.credentials.admin_token()) as client,
        ):
            async with asyncio.TaskGroup() as tasks:
                for number in range(CUSTOMERS):
                    tasks.create_task(customer(client, f"c{number}", told, stop))
                await until_more(told, 10)
                await pair.kill(0)
                await asyncio.sleep(0.5)
                await pair.promote()
                await until_more(told, 10)
                stop.set()
            rows = await there.ask(1, "SELECT id, key FROM submissions WHERE key = ANY ($1)", list(told))
            assert {row["key"]: row["id"] for row in rows} == told
            assert len(rows) == len(told)

            await pair.run(0)  # against the rule: as it was, and it takes writes
            caplog.set_level(logging.CRITICAL)
            await store.submit(spec("late"), job_id="late", tenant="alice", key=None, at=AT)
            async with there.store("gateway") as fresh:
                await fresh.submit(spec("later"), job_id="later", tenant="alice", key=None, at=AT)
            found = "SELECT id FROM submissions WHERE id IN ('late', 'later') ORDER BY id"
            assert [row["id"] for row in await there.ask(1, found)] == ["late", "later"]
            assert await there.ask(0, found) == []
            assert any("an old primary of Postgres" in record.message for record in caplog.records)
            await pair.kill(0)
    finally:
        await down(there.root / "nats")
    async with Proxy(pair.ports[1]) as link:
        pair.link_port = link.port
        await pair.rejoin()
        assert (await there.ask(0, "SHOW transaction_read_only"))[0][0] == "on"
        assert [row["id"] for row in await there.ask(0, found)] == ["late", "later"]
        await a_standby_that_missed_the_tail_is_noticed(there, link)


async def until_more(told: dict[str, str], more: int) -> None:
    wanted = len(told) + more
    async with asyncio.timeout(SECONDS_MAX):
        while len(told) < wanted:  # noqa: ASYNC110 - told by other tasks
            await asyncio.sleep(0.02)


async def a_standby_that_missed_the_tail_is_noticed(there: Place, link: Proxy) -> None:
    """By a leader whose connection is to the old primary, which takes writes still: it leaves that one by itself."""
    now = asyncio.get_running_loop().time
    async with there.store("scheduler") as store:
        leader = Leadership(name="default", holder="me", store=store, clock=now, leader_seconds=SECONDS_MAX)
        await leader.beat()
        kept = leader.lease
        assert kept is not None
        async with asyncio.timeout(SECONDS_MAX):
            while not await there.ask(0, "SELECT FROM leases WHERE seq = $1", kept.seq):  # noqa: ASYNC110 - a server
                await asyncio.sleep(0.05)
        link.cut()  # from here on the standby misses all
        for _ in range(3):
            await leader.beat()
        await there.pair.promote()  # and the old primary, to which the store is connected, lives
        link.mend()
        async with asyncio.timeout(SECONDS_MAX):
            while not leader.store_went_back:
                with suppress(StoreUnavailableError):
                    await leader.beat()
        assert await there.ask(0, "SELECT FROM leases WHERE holder = 'me'")
        await there.pair.kill(1)
        await answered(store)
        raised = await leader.overtake()
        assert raised.epoch > kept.epoch
