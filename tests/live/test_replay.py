"""A whole cluster lives, loses its leader and lives on: what was decided is derived again, and what was can be seen."""

import asyncio
import json
import os
import signal
import sys
import time
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import msgspec
import pytest
from msgspec import Struct, structs

from tests.support.builders import spec
from tests.support.cluster import Cluster, embedded_cluster
from weft import servers
from weft.client import Client, Refused
from weft.domain.job import JobState, Step
from weft.messages.history import Record
from weftd.scheduler.thinking.record.entries import Decided, encode, entries_of

SECONDS_MAX = 60.0


class Ended(Struct, frozen=True):
    status: int
    out: str
    err: str


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """Two nodes whose scheduler was killed in the midst of work."""
    async with embedded_cluster(tmp_path_factory.mktemp("replay"), nodes=2, gpus=2) as made:
        await _work(made)
        sleeps = spec("sleeps", command=["sleep", "3"], role={"cpus": 0.1, "memory": "64MiB"})
        sleeping = (await made.client.submit(sleeps)).id
        await made.state(sleeping, JobState.RUNNING)
        old = made.local.pids["scheduler"]
        os.kill(old, signal.SIGKILL)
        async with asyncio.timeout(SECONDS_MAX):
            while made.local.pids.get("scheduler", old) == old:  # noqa: ASYNC110 -- bounded
                await asyncio.sleep(0.05)
        await _work(made)
        await made.ended(sleeping)
        yield made


async def _work(cluster: Cluster) -> None:
    client = cluster.client
    wanted = [
        spec("short", gpus=1, role={"cpus": 0.1, "memory": "64MiB"}),
        spec("gang", gpus=2, replicas=2, role={"cpus": 0.1, "memory": "64MiB"}),
        spec("bad", gpus=1, command=["false"], role={"cpus": 0.1, "memory": "64MiB"}),
        spec("late", gpus=2, command=["sleep", "0.5"], role={"cpus": 0.1, "memory": "64MiB"}),
    ]
    jobs = [(await client.submit(one)).id for one in wanted]
    blocked = (await client.submit(spec("blocked", gpus=2, replicas=2, role={"cpus": 0.1, "memory": "64MiB"}))).id
    await client.prioritise(blocked, 5)
    for job in jobs:
        await cluster.ended(job, seconds_max=SECONDS_MAX)
    await cluster.ended(blocked, seconds_max=SECONDS_MAX)


async def weft(cluster: Cluster, *typed: str) -> Ended:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "weftd.cli", *typed),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "WEFT_URL": cluster.local.url, "WEFT_TOKEN": cluster.local.token},
    )
    try:
        async with asyncio.timeout(SECONDS_MAX):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(), err.decode())


def altered(record: Record) -> tuple[Record, Step] | None:
    """The record with another cause in its first step, if it has steps."""
    entries = entries_of(record)
    for place, entry in enumerate(entries):
        if isinstance(entry, Decided) and (steps := msgspec.msgpack.decode(entry.steps, type=list[Step])):
            cause = structs.replace(steps[0].cause, sentence="because")
            changed = [structs.replace(steps[0], cause=cause), *steps[1:]]
            entries[place] = structs.replace(entry, steps=msgspec.Raw(encode(changed)))
            return structs.replace(record, body=zlib.compress(encode(entries))), steps[0]
    return None


def is_record(line: bytes) -> bool:
    return line.startswith(b'{"epoch":')


async def test_what_two_leaders_decided_is_derived_again(cluster: Cluster) -> None:
    made = await weft(cluster, "replay", "--json")
    assert (made.status, made.err) == (0, "")
    told = json.loads(made.out)
    assert told["identical"] is True
    assert told["decisions"] >= 40
    records = (await cluster.client.history()).records
    assert len({record.epoch for record in records}) == 2
    events = await cluster.client.events(limit=1000)
    stored = sum(event.subject.startswith("j-") and not event.type.endswith("submitted") for event in events)
    assert stored <= told["decisions"]
    page = await weft(cluster, "replay")
    assert page.status == 0
    assert page.out.endswith(": identical\n")


async def test_a_history_is_saved_and_replayed_from_its_file(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "history"
    saved = await weft(cluster, "replay", "--save", str(file))
    again = await weft(cluster, "replay", "--file", str(file))
    assert (saved.status, again.status) == (0, 0)
    assert again.out.endswith(": identical\n")
    lines = file.read_bytes().splitlines(keepends=True)
    specs = [json.loads(line)["job_id"] for line in lines if not is_record(line)]
    assert len(specs) == len(set(specs)) > 10, "each specification is in the file once"
    at, (changed, step) = next(
        (at, found)
        for at, line in enumerate(lines)
        if at > 3 and is_record(line) and (found := altered(msgspec.json.decode(line, type=Record)))
    )
    lines[at] = msgspec.json.encode(changed) + b"\n"
    file.write_bytes(b"".join(lines))
    found = await weft(cluster, "replay", "--file", str(file))
    assert found.status == 1
    assert f"leader epoch {changed.epoch}, record {changed.number}, " in found.out
    assert "step was decided otherwise then" in found.out
    assert f"  recorded: {step.job_id} version {step.version} {step.event}, epoch {step.epoch}" in found.out
    assert "because" in found.out
    assert f"  derived:  {step.job_id} version {step.version} {step.event}, epoch {step.epoch}" in found.out
    file.write_bytes(b"{}")
    broken = await weft(cluster, "replay", "--file", str(file))
    assert broken.status == 1
    assert "is no history that was saved" in broken.err


async def test_a_step_altered_in_the_database_is_found(cluster: Cluster) -> None:
    state = await servers.status(cluster.local.home.root)
    assert state.postgres is not None
    password = cluster.local.credentials.postgres_password("owner")
    dsn = f"postgresql://weft_owner@127.0.0.1:{state.postgres.port}/weft"
    owner = await asyncpg.connect(dsn, password=password, timeout=5, command_timeout=5)
    try:
        records = (await cluster.client.history()).records
        changed, _ = next(found for one in reversed(records) if (found := altered(one)))
        place = (changed.epoch, changed.number)
        body = next(one.body for one in records if (one.epoch, one.number) == place)
        update = "UPDATE decisions SET body = $3 WHERE epoch = $1 AND number = $2"
        assert await owner.execute(update, *place, changed.body) == "UPDATE 1"
        try:
            found = await weft(cluster, "replay", "--json")
        finally:
            await owner.execute(update, *place, body)
    finally:
        await owner.close(timeout=5)
    assert found.status == 1
    difference = json.loads(found.out)["difference"]
    assert (difference["epoch"], difference["record"]) == (changed.epoch, changed.number)


async def test_only_an_administrator_reads_the_history(cluster: Cluster) -> None:
    token = await cluster.client.make_token("carol", "laptop")
    async with Client(cluster.local.url, token.token) as carol:
        with pytest.raises(Refused) as refused:
            await carol.history()
    assert refused.value.status == 403


async def test_a_job_is_described_as_it_was(cluster: Cluster) -> None:
    job = (await cluster.client.jobs(name="late", limit=1)).jobs[0]
    story = await cluster.client.story(job.id)
    running = next(event for event in story if event.type == "weft.jobs.started")
    then = await cluster.client.job(job.id, at=running.cursor)
    assert (then.state, then.version, then.epoch) == ("running", running.data.version, 0)
    assert then.nodes == job.nodes
    shown = await weft(cluster, "describe", job.id, "--at", running.cursor)
    assert shown.status == 0
    assert "running for 0s" in shown.out
    assert "succeeded" not in shown.out
    early = await weft(cluster, "describe", job.id, "--at", f"@{job.submitted_at - 5:.3f}")
    assert (early.status, early.out) == (1, "")
    assert "did not exist then: it was submitted at" in early.err


async def test_every_job_as_it_was_at_its_last_event_is_the_job_as_it_is(cluster: Cluster) -> None:
    jobs = (await cluster.client.jobs(limit=1000)).jobs
    assert len(jobs) > 10
    for job in jobs:
        last = (await cluster.client.story(job.id))[-1]
        assert await cluster.client.job(job.id, at=last.cursor) == await cluster.client.job(job.id)


async def test_the_cluster_is_described_as_it_was(cluster: Cluster) -> None:
    """While `late` held two GPUs, `blocked` waited for four."""
    late = (await cluster.client.jobs(name="late", limit=1)).jobs[0]
    story = await cluster.client.story(late.id)
    running = next(event for event in story if event.type == "weft.jobs.started")
    then = await cluster.client.cluster(at=running.cursor)
    held = [gpu.held_by.name for node in then.nodes for gpu in node.gpus if gpu.held_by]
    assert held.count("late") == 2
    assert then.totals.gpus == 4
    assert sum(then.states.values()) == len(then.running) + len(then.queued)
    shown = await weft(cluster, "describe", "--at", running.cursor)
    assert shown.status == 0
    assert "late" in shown.out
    now = await weft(cluster, "describe", "--json")
    assert json.loads(now.out)["states"] == {}
    ago = await weft(cluster, "describe", "--at", "-1s", "--json")
    assert abs(json.loads(ago.out)["at"] - (time.time() - 1.0)) < SECONDS_MAX
