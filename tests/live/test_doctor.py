"""`weft doctor` on a real cluster: what is wrong is named with an act, and its bundle holds no secret."""

import asyncio
import zipfile
from pathlib import Path

import pytest

from tests.support import postgres
from tests.support.cluster import embedded_cluster
from weft.credentials import Credentials
from weftd.cli.__main__ import main
from weftd.cli.cluster.bundle import BYTES_MAX

UNKNOWN = "weft_unknown-to-this-machine-000"  # looks like a token
PASSWORD = "a-password-in-an-address"


async def typed(*words: str) -> int:
    return await asyncio.to_thread(main, list(words))


async def test_doctor_names_what_is_wrong_and_its_bundle_has_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home, bundle = tmp_path / "home", tmp_path / "bundle.zip"
    with postgres.quick():
        async with embedded_cluster(home, nodes=1, gpus=2) as cluster:
            credentials = Credentials(home / "credentials")
            where = ("--url", cluster.local.url, "--token", cluster.local.token, "--home", str(home))
            monkeypatch.setenv("WEFT_PG_DSN", f"postgresql://weft:{PASSWORD}@nowhere/weft")
            told = [
                path.read_text().strip()
                for path in credentials.folder.rglob("*")
                if path.suffix != ".conf" and path.is_file()
            ]
            with (home / "logs" / "gateway.log").open("a") as log:
                log.write("".join(f"here is {secret}\n" for secret in told) + f"Bearer {UNKNOWN}\n")
            status = await typed("doctor", *where, "--bundle", str(bundle))
            said = capsys.readouterr().out
            assert status == 0, said
            for about in ("gateway", "clock", "certificate", "nats", "postgres", "disk", "gpus", "fence", "shares"):
                assert about in said
            with zipfile.ZipFile(bundle) as found:
                texts = {name: found.read(name).decode() for name in found.namelist()}
            assert {"checks.json", "status.json", "nodes.json", "settings.txt", "logs/logs/gateway.log"} <= texts.keys()
            assert sum(len(text) for text in texts.values()) <= BYTES_MAX
            for secret in (*told, PASSWORD, UNKNOWN):
                assert not any(secret in text for text in texts.values())
            credentials.nats_password_file("executor-node-1").write_text("another\n")
            assert await typed("doctor", *where) == 1
            assert "give the node its credentials" in " ".join(capsys.readouterr().out.split())
