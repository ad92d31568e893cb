"""Secrets from the command line to the environment of a run, on a whole cluster; and where their values are not."""

import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from tests.support.cluster import Cluster, embedded_cluster
from tests.support.person import Person
from tests.support.runs import until
from weft import servers
from weft.domain.job import JobState
from weft.servers.postgres import DATABASE, OWNER

VALUE = "a value: $HOME ✓ 5c1d0e77"
SHOWN = 'printf %s "$HF_TOKEN" | sha256sum | cut -c 1-16'


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with embedded_cluster(tmp_path_factory.mktemp("secrets"), nodes=2, gpus=2) as cluster:
        yield cluster


@pytest.fixture
def person(cluster: Cluster) -> Person:
    return Person(cluster, cluster.local.token)


async def test_a_stored_value_is_in_the_environment_of_the_run_and_in_nothing_that_weft_keeps_but_its_table(
    cluster: Cluster, person: Person, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(f"{VALUE}\n")
    stored = await person.types("secret", "set", "hf-token", "--from", str(tmp_path / "token"))
    assert (stored.status, VALUE in stored.out + stored.err) == (0, False)
    ran = await person.types("run", "--name", "once", "--secret", "HF_TOKEN", "-f", "--", "sh", "-c", SHOWN)
    assert (ran.status, ran.out.strip()) == (0, hashlib.sha256(VALUE.encode()).hexdigest()[:16])
    (tmp_path / "job.yaml").write_text(f"name: filed\ncommand: [sh, -c, '{SHOWN}']\nsecrets: {{HF_TOKEN: hf-token}}\n")
    filed = await person.types("submit", str(tmp_path / "job.yaml"), "-f")
    assert filed.out == ran.out
    assert VALUE not in (await person.types("secret", "list")).out
    assert await tables_with(cluster, "5c1d0e77") == {"secrets"}
    assert files_with(cluster, b"5c1d0e77") == []


async def test_a_secret_is_a_file_in_memory_that_goes_with_its_run(
    cluster: Cluster, person: Person, tmp_path: Path
) -> None:
    assert (await person.types("secret", "set", "hf-token", stdin=f"{VALUE}\n".encode())).status == 0
    script = 'printf %s "$(cat "$TOKEN_FILE")" | sha256sum | cut -c 1-16; stat -c %a "$TOKEN_FILE"; echo "$TOKEN_FILE"'
    ran = await person.types("run", "--secret-file", "TOKEN_FILE=hf-token", "-f", "--", "sh", "-c", script)
    hashed, mode, path = ran.out.strip().splitlines()
    assert (hashed, mode) == (hashlib.sha256(VALUE.encode()).hexdigest()[:16], "400")
    assert path.startswith("/dev/shm/weft-")
    await until(lambda: not os.path.lexists(path))
    assert files_with(cluster, b"5c1d0e77") == []


async def test_a_run_whose_secret_was_deleted_fails_and_names_it(cluster: Cluster, person: Person) -> None:
    assert (await person.types("secret", "set", "gone", stdin=b"x\n")).status == 0
    holder = await person.runs("--gpus", "2", "--replicas", "2", "--", "sleep", "600")
    await cluster.state(holder, JobState.RUNNING)
    waits = await person.runs("--secret", "A=gone", "--gpus", "1", "--retries", "0", "--", "true")
    assert (await person.types("secret", "delete", "gone")).status == 0
    refused = await person.types("run", "--secret", "A=gone", "--", "true")
    assert refused.status == 1
    assert "--secret: tenant admin has no secret gone; `weft secret set gone` stores one" in refused.err
    await cluster.client.cancel(holder)
    failed = await cluster.ended(waits)
    assert failed.state is JobState.FAILED
    told = await person.types("explain", waits)
    assert "no such secret: gone" in told.out


async def test_an_empty_value_and_a_file_that_is_not_there_are_refused(person: Person, tmp_path: Path) -> None:
    for stdin in (b"", b"\n", b"\r\n"):
        empty = await person.types("secret", "set", "empty", stdin=stdin)
        assert (empty.status, "value: is empty" in empty.err) == (1, True)
    nowhere = await person.types("secret", "set", "empty", "--from", str(tmp_path / "none"))
    assert (nowhere.status, "--from: " in nowhere.err) == (1, True)
    huge = await person.types("secret", "set", "empty", stdin=b"x" * 100_000)
    assert (huge.status, "value: is more than 32768 bytes" in huge.err) == (1, True)
    assert "empty" not in (await person.types("secret", "list")).out


async def tables_with(cluster: Cluster, text: str) -> set[str]:
    """The tables that have this text in any row."""
    up = await servers.status(cluster.local.home.root)
    assert up.postgres
    password = cluster.local.credentials.postgres_password("owner")
    dsn = f"postgresql://{OWNER}@127.0.0.1:{up.postgres.port}/{DATABASE}"
    connection = await asyncpg.connect(dsn, password=password)
    try:
        tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        found = set()
        for (name,) in tables:
            if await connection.fetchval(f'SELECT 1 FROM "{name}" t WHERE t::text LIKE $1 LIMIT 1', f"%{text}%"):
                found.add(name)
        return found
    finally:
        await connection.close()


def files_with(cluster: Cluster, text: bytes) -> list[Path]:
    """The files of a cluster that have this text, outside its database."""
    database = cluster.local.postgres_folder
    assert database is not None
    files = (path for path in cluster.local.home.root.rglob("*") if path.is_file() and not path.is_symlink())
    return [path for path in files if not path.is_relative_to(database) and text in path.read_bytes()]
