"""A Postgres that is restored from an older copy under a running cluster: nothing runs twice, and all goes on."""

import asyncio
import signal
from pathlib import Path

import asyncpg
import pytest

from tests.chaos.stores import Stores
from tests.support import postgres
from tests.support.builders import spec
from tests.support.cluster import until
from weft.client import Client, ClientError
from weft.credentials import Credentials, provision
from weft.domain.job import JobState
from weft.messages.asks import AskKind
from weft.messages.http import JobView
from weftd.cli.local import ClusterHome, Options, running

LEASE_SECONDS = 30.0  # and a fence that outlasts what a restore takes on a slow machine
TIMES = {
    "EXECUTOR_FENCE_SECONDS": "25",
    "EXECUTOR_FENCE_GRACE_MAX": "1",
    "EXECUTOR_DRIFT_SECONDS": "2",
    "EXECUTOR_LEASE_SECONDS": f"{LEASE_SECONDS:g}",
    "EXECUTOR_SYNC_SECONDS": "0.5",
    "SCHEDULER_LEASE_SECONDS": f"{LEASE_SECONDS:g}",
    "SCHEDULER_LEADER_SECONDS": "3",
}
ANSWERS_SECONDS_MAX = 90.0


async def submitted(client: Client, name: str, gpus: int) -> str:
    wanted = spec(name, gpus=gpus, command=["sleep", "600"], role={"cpus": 1, "memory": "64MiB"})
    async with asyncio.timeout(ANSWERS_SECONDS_MAX):
        while True:
            try:
                return (await client.submit(wanted, key=name)).id
            except ClientError:  # the store is away still
                await asyncio.sleep(0.2)


async def is_in(client: Client, job: str, *states: JobState) -> None:
    await until(client, job, lambda view: view.state in states, seconds_max=ANSWERS_SECONDS_MAX)


async def renewals(dsn: str, home: ClusterHome) -> int:
    """How often the leaders of all pools have renewed their leases, by the store."""
    connection = await asyncpg.connect(dsn, password=Credentials(home.credentials).postgres_password("owner"))
    try:
        return int(await connection.fetchval("SELECT sum(seq) FROM leases"))
    finally:
        await connection.close()


def waits_for_restored(view: JobView) -> bool:
    assert view.state is JobState.QUEUED, view
    return view.waiting_for is not None and view.waiting_for.code == "store-restored"


async def test_no_ask_has_the_number_of_one_that_a_restore_has_undone(tmp_path: Path) -> None:
    """A scheduler that hung meanwhile drops what it read before by its number."""
    async with postgres.embedded(tmp_path) as server, postgres.stores(server) as stores:

        async def asked() -> set[int]:
            for number in range(20):
                wanted = {"subject_id": f"j-{number}", "pool": "default", "tenant": "alice", "at": 1.0}
                await stores.gateway.ask(AskKind.CANCEL, **wanted)
            found = {ask.id for ask in await stores.scheduler.asks(pool="default", limit=100)}
            sequences = await stores.owner.fetch("SELECT oid::regclass::text AS name FROM pg_class WHERE relkind = 'S'")
            for sequence in sequences:
                await stores.owner.execute(f"ALTER SEQUENCE {sequence['name']} RESTART")
            await stores.owner.execute("DELETE FROM asks")
            return found

        before, after = await asked(), await asked()
        assert len(before) == len(after) == 20
        assert before.isdisjoint(after)


@pytest.mark.timeout(300)
async def test_a_restored_store_starts_nothing_beside_what_it_has_forgotten(tmp_path: Path) -> None:
    home = ClusterHome(tmp_path / "cluster")
    home.make()
    options = Options(nodes=1, emulated_gpus=2, port=0, settings=TIMES)
    provision(home.credentials, nodes=options.node_ids)
    stores = Stores(tmp_path / "servers", Credentials(home.credentials))
    up = await stores.start()
    try:
        options = Options(nodes=1, emulated_gpus=2, port=0, settings=TIMES, nats_url=up.nats_url, pg_dsn=up.pg_dsn)
        async with running(home.root, options) as local, Client(local.url, local.token) as client:
            kept = await submitted(client, "kept", 1)
            await is_in(client, kept, JobState.RUNNING)
            stores.hold("postgres")
            await stores.back_up()
            await stores.release("postgres")
            kept_until = await renewals(up.pg_dsn, home)

            forgotten = await submitted(client, "forgotten", 1)
            await is_in(client, forgotten, JobState.RUNNING)
            async with asyncio.timeout(ANSWERS_SECONDS_MAX):
                # By its renewals a leader knows a time that was lost; where it was shorter, strays alone protect.
                while await renewals(up.pg_dsn, home) < kept_until + 2:  # noqa: ASYNC110 - it is told to nobody
                    await asyncio.sleep(0.1)
            stores.hold("postgres")
            await stores.end("postgres", signal.SIGKILL)
            await stores.restore()
            await stores.release("postgres")

            after = await submitted(client, "after", 1)
            # Until the gateway's snapshot is of the restored store, it may tell of the room that was there before.
            waits = await until(client, after, waits_for_restored, seconds_max=ANSWERS_SECONDS_MAX)
            with pytest.raises(ClientError, match=forgotten):
                await client.job(forgotten)
            began = await until(
                client, after, lambda view: view.state is JobState.RUNNING, seconds_max=ANSWERS_SECONDS_MAX
            )
            assert began.since - waits.submitted_at > LEASE_SECONDS / 2
            stays = await client.job(kept)
            assert (stays.state, stays.epoch) == (JobState.RUNNING, 0)
            log = local.home.log("scheduler").read_text()
            assert log.count("the store went back in time") == 1
    finally:
        await stores.stop()
