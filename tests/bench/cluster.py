"""Running a cluster: `python -m tests.bench cluster [--quick] [--seed N]`.

*Backup*: a database with jobs that ended (a million; `--quick`: 20,000) is saved, and restored into an empty one; all
rows are compared. *Live*: `weft status` of a cluster on this machine; 10,000 waiting jobs cancelled by one request,
until the gateway has answered and until the last one has ended; and a node that joins, from the start of the command
that `weft node add` prints until the scheduler calls it ready. Nothing here is random; the seed is only printed.

The last line is one JSON object with the aims.
"""

import argparse
import asyncio
import os
import resource
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tests.bench.figures import Aim, Figures, line_of, quantile
from tests.support import postgres
from tests.support.builders import spec
from tests.support.cluster import Cluster, embedded_cluster
from tests.support.filled import fill_ended
from weft import backup
from weft.backup.database import SESSION
from weft.client import Client
from weft.domain.arrays import element_id
from weft.domain.decoding.spec_decoder import decode_spec
from weft.domain.job import JobEvent, JobState
from weft.domain.quantity import size_text
from weft.store.migrate import ROLES, owner

JOBS, QUICK_JOBS = 1_000_000, 20_000
CANCELLED = 10_000
STATUS_ASKED = 20
STATUS_SECONDS, CANCEL_SECONDS, JOIN_SECONDS = 0.3, 3.0, 30.0
ENDED_SECONDS_MAX = 300.0
LOOK_SECONDS = 0.05


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench cluster", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_JOBS:,} jobs in the backup")
    parser.add_argument("--seed", type=int, default=1, help="random seed")
    asked = parser.parse_args(arguments)
    figures, aims = Figures(), dict[str, Aim]()
    with tempfile.TemporaryDirectory(prefix="weft-cluster-") as home:
        aims |= asyncio.run(saved(Path(home), QUICK_JOBS if asked.quick else JOBS, figures))
        aims |= asyncio.run(live(Path(home) / "live", figures))
    figures.show()
    print(line_of(aims, seed=asked.seed))
    return 0 if all(aim.met for aim in aims.values()) else 1


async def saved(folder: Path, jobs: int, figures: Figures) -> dict[str, Aim]:
    async with postgres.embedded(folder / "servers") as server:
        other = await server.make("other", template="template0")
        await server.migrate()
        connection = await server.connect()
        await fill_ended(connection, jobs, began=time.time() - 86400, lasting=80000.0)
        await connection.close()
        passwords = {role: server.passwords[role] for role in ROLES}
        keys = {"user": None, "password": server.passwords["owner"], "tls": None, "settings": SESSION}
        path, began = folder / "backup", time.monotonic()
        async with owner(server.dsn, **keys) as source:
            with backup.written(path, key=None) as into:
                first = await backup.save(source, into, credentials=None, now=time.time())
        save_seconds, began = time.monotonic() - began, time.monotonic()
        async with owner(other.dsn, **keys) as target:
            with backup.opened(path, key=None) as found:
                await backup.restore(target, found, role_passwords=passwords, replace=False)
            restore_seconds = time.monotonic() - began
            with backup.written(folder / "again", key=None) as into:
                second = await backup.save(target, into, credentials=None, now=time.time())
        size = path.stat().st_size
    pairs = zip(first.tables, second.tables, strict=True)
    differ = {one.name for one, same in pairs if one != same} - {"event_offset"}  # counts the server's transactions
    figures.add(f"backup of {jobs:,} jobs, {first.rows():,} rows", f"{save_seconds:.1f} s, {size_text(size)}")
    figures.add("restore, with the check of the file and of the rows", f"{restore_seconds:.1f} s")
    figures.add("memory of this process at most", size_text(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10))
    figures.add("tables whose rows differ after the restore", f"{len(differ)}", "0")
    return {"tables_that_differ": Aim(value=len(differ), aim=0)}


async def _taken(client: Client, last: str) -> None:
    """Wait until the scheduler has said why the last of the jobs waits: how long that takes is measured elsewhere."""
    async with asyncio.timeout(ENDED_SECONDS_MAX):
        while all(event.type.rpartition(".")[2] != JobEvent.WAITING for event in await client.story(last)):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)


async def _joined(cluster: Cluster, elsewhere: Path) -> float:
    """Seconds from the start of the printed command until the node is ready."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("WEFT_")}
    program = [sys.executable, "-m", "weftd.cli"]
    adding = await asyncio.create_subprocess_exec(
        *(*program, "node", "add", "joined"),
        env={**plain, "WEFT_HOME": str(cluster.local.home.root)},
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await adding.communicate()
    began = time.monotonic()
    node = await asyncio.create_subprocess_exec(
        *(*program, *shlex.split(printed.decode())[1:], "--emulated-gpus", "1"),
        env={**plain, "WEFT_HOME": str(elsewhere)},
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(ENDED_SECONDS_MAX):
            while not any(one.id == "joined" and one.ready for one in (await cluster.client.nodes()).nodes):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_SECONDS)
        return time.monotonic() - began
    finally:
        node.terminate()
        await node.wait()


async def live(home: Path, figures: Figures) -> dict[str, Aim]:
    async with embedded_cluster(home, nodes=1, gpus=1, settings={"SCORER_BENCHMARKS": "off"}) as cluster:
        client = cluster.client
        holder = await client.submit(spec("holder", gpus=1, command=["sleep", "600"]))
        await cluster.state(holder.id, JobState.RUNNING)
        wanted = {"name": "many", "command": ["true"], "array": f"1-{CANCELLED}", "roles": {"worker": {"gpus": 1}}}
        array = await client.submit(decode_spec(msgspec.json.encode(wanted)))
        await _taken(client, element_id(array.id, CANCELLED))
        told = []
        for _ in range(STATUS_ASKED):
            began = time.monotonic()
            await client.status()
            told.append(time.monotonic() - began)
        began = time.monotonic()
        asked = await client.cancel_selected(name="many*", states=[JobState.QUEUED])
        answered = time.monotonic() - began
        assert asked.jobs == CANCELLED, asked
        async with asyncio.timeout(ENDED_SECONDS_MAX):
            while (await client.array(array.id)).states.get("cancelled", 0) < CANCELLED:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_SECONDS)
        ended = time.monotonic() - began
        joined = await _joined(cluster, home.with_name("joined"))
    status = quantile(told, 0.99)
    figures.add("weft status, asked of the gateway", f"p99 {status * 1000:.0f} ms", f"{STATUS_SECONDS * 1000:.0f} ms")
    figures.add(f"{CANCELLED:,} waiting jobs: cancel answered", f"{answered:.2f} s")
    figures.add(f"{CANCELLED:,} waiting jobs: all cancelled", f"{ended:.2f} s", f"{CANCEL_SECONDS:g} s")
    figures.add("a node joins, from the printed command", f"{joined:.1f} s", f"{JOIN_SECONDS:g} s")
    return {
        "node_joins_seconds": Aim(value=round(joined, 1), aim=JOIN_SECONDS),
        "status_p99_seconds": Aim(value=round(status, 3), aim=STATUS_SECONDS),
        "cancel_seconds": Aim(value=round(ended, 2), aim=CANCEL_SECONDS),
    }
