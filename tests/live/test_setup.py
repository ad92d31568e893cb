"""`weft setup` makes secrets once; `weft migrate` waits for Postgres and brings it to this version."""

import asyncio
import os
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from weft.credentials import Credentials
from weft.servers import Servers, temporary

SECONDS_MAX = 60


async def weft(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "weftd.cli", *arguments]
    settings = {name: value for name, value in os.environ.items() if not name.startswith("WEFT_")}
    return await asyncio.to_thread(
        subprocess.run,
        command,
        env={**settings, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
    )


def secrets_of(folder: Path) -> dict[Path, str]:
    return {path: path.read_text() for path in folder.rglob("*") if path.is_file() and path.suffix != ".conf"}


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    done = await weft("setup", "--into", tmp_path / "secrets", "--nodes", "node-1,node-2")
    assert done.returncode == 0, done.stderr
    return tmp_path / "secrets"


@pytest.fixture
async def servers(tmp_path: Path, folder: Path) -> AsyncIterator[Servers]:
    async with temporary(tmp_path / "home", credentials=Credentials(folder)) as servers:
        yield servers


async def test_setup_again_keeps_every_secret_and_adds_the_new_node(folder: Path) -> None:
    before = secrets_of(folder)
    done = await weft("setup", "--into", folder, "--nodes", "node-3")
    assert "node-1, node-2, node-3" in done.stdout
    assert "automatic systems, by the settings here: on: placement by measured GPU speed, " in done.stdout
    assert {path: text for path, text in secrets_of(folder).items() if path in before} == before


async def test_setup_makes_files_that_others_may_read_only_when_told(folder: Path, tmp_path: Path) -> None:
    assert stat.S_IMODE((folder / "admin-token").stat().st_mode) == 0o600
    await weft("setup", "--into", tmp_path / "shared", "--nodes", "node-1", "--mode", "644")
    assert stat.S_IMODE((tmp_path / "shared" / "admin-token").stat().st_mode) == 0o644


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [(["--nodes", "node.1"], "not a node id: 'node.1'"), (["--nodes", "a", "--mode", "777"], "nobody execute")],
)
async def test_setup_refuses_what_makes_no_sense_and_makes_nothing(
    arguments: list[str], reason: str, tmp_path: Path
) -> None:
    done = await weft("setup", "--into", tmp_path / "none", *arguments)
    assert done.returncode != 0
    assert reason in done.stderr
    assert not (tmp_path / "none").exists()


async def test_migrate_brings_the_database_to_this_version_once(folder: Path, servers: Servers) -> None:
    settings = {
        "WEFT_PG_DSN": servers.pg_dsn,
        "WEFT_PG_PASSWORD_FILE": str(folder / "postgres" / "owner"),
        "WEFT_CREDENTIALS": str(folder),
    }
    first = await weft("migrate", **settings)
    assert (first.returncode, first.stdout.startswith("migrated: 0001_first")) == (0, True), first
    second = await weft("migrate", **settings)
    assert (second.returncode, second.stdout) == (0, "the database is up to date\n")
    connection = await asyncpg.connect(
        servers.pg_dsn, user="weft_gateway", password=(folder / "postgres" / "gateway").read_text().strip(), timeout=5
    )
    await connection.close()


async def test_migrate_says_when_postgres_does_not_come(folder: Path) -> None:
    done = await weft(
        "migrate",
        "--wait",
        "0.5",
        WEFT_PG_DSN="postgresql://weft_owner@127.0.0.1:1/weft",
        WEFT_PG_PASSWORD_FILE=str(folder / "postgres" / "owner"),
        WEFT_CREDENTIALS=str(folder),
    )
    assert done.returncode == 1
    assert "Postgres did not answer within 0.5 s" in done.stderr


async def test_migrate_names_the_setting_that_is_missing() -> None:
    done = await weft("migrate")
    assert (done.returncode, done.stderr) == (1, "weft: WEFT_PG_DSN is not set\n")
