"""The certificates that an operator makes with `deploy/make-certificates`, and the compose files that use them."""

import asyncio
import json
import os
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.engine import need_compose
from tests.support.tls import Pair, TlsNats
from weft.bus.nats import NatsBus
from weft.credentials import provision
from weft.service import Connections
from weft.service.keys import ServerCertificate, nats_keys

ROOT = Path(__file__).parents[2]
RUN_SECONDS_MAX = 60


def make(folder: Path, *names: str) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed here")
    subprocess.run([ROOT / "deploy" / "make-certificates", folder, *names], check=True, timeout=RUN_SECONDS_MAX)


def pair(folder: Path) -> Pair:
    return Pair(folder / "cert.pem", folder / "key.pem")


async def test_the_certificates_prove_who_a_server_is_and_are_renewed_under_one_authority(tmp_path: Path) -> None:
    make(tmp_path / "tls", "127.0.0.1", "weft.example.org")
    authority = tmp_path / "tls" / "authority" / "ca.pem"
    believed = authority.read_bytes()
    credentials = provision(tmp_path / "credentials", nodes=[])
    to = Connections(
        nats_user="scheduler",
        nats_password_file=str(credentials.nats_password_file("scheduler")),
        nats_ca_file=str(authority),
    )
    first = (tmp_path / "tls" / "nats" / "cert.pem").read_bytes()
    for _ in range(2):
        server = TlsNats(tmp_path / "nats", credentials, pair(tmp_path / "tls" / "nats"), ca_file=authority)
        try:
            async with NatsBus.connect(server.url, name="test", **nats_keys(to)) as bus:
                assert bus.connected
        finally:
            server.kill()
        make(tmp_path / "tls", "127.0.0.1", "weft.example.org")
    assert authority.read_bytes() == believed
    assert (tmp_path / "tls" / "nats" / "cert.pem").read_bytes() != first


async def test_the_gateway_is_believed_under_the_names_that_were_given(tmp_path: Path) -> None:
    make(tmp_path, "weft.example.org", "10.0.0.5")
    files = pair(tmp_path / "gateway")
    shown = ServerCertificate(str(files.cert), str(files.key))
    listener = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=shown.context)
    port = listener.sockets[0].getsockname()[1]
    believing = ssl.create_default_context(cafile=tmp_path / "authority" / "ca.pem")
    async with listener:
        for name in ("weft.example.org", "10.0.0.5", "localhost", "127.0.0.1"):
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=believing, server_hostname=name)
            writer.transport.abort()
        with pytest.raises(ssl.SSLCertVerificationError, match=r"(?i)hostname mismatch"):
            await asyncio.open_connection("127.0.0.1", port, ssl=believing, server_hostname="other.example.org")


def test_nobody_else_reads_a_key(tmp_path: Path) -> None:
    make(tmp_path, "weft.example.org")
    keys = [*tmp_path.rglob("*.key"), *tmp_path.rglob("key.pem")]
    assert len(keys) == 5
    assert {path.stat().st_mode & 0o077 for path in keys} == {0}
    assert {path.name for path in (tmp_path / "authority").iterdir()} == {"ca.pem"}


def composed(*files: str, **settings: str) -> dict[str, Any]:
    """The services of these Compose files, as Compose itself reads them."""
    need_compose()
    arguments = [part for file in files for part in ("-f", str(ROOT / file))]
    done = subprocess.run(
        ["docker", "compose", *arguments, "--profile", "two-nodes", "config", "--format", "json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_SECONDS_MAX,
        env={**os.environ, **settings},
    )
    assert done.returncode == 0, done.stderr
    services: dict[str, Any] = json.loads(done.stdout)["services"]
    return services


def test_with_the_overlay_every_connection_is_over_tls_and_each_key_is_seen_by_its_own_container(
    tmp_path: Path,
) -> None:
    services = composed("docker-compose.yml", "deploy/compose.tls.yml", WEFT_TLS=str(tmp_path))
    for name, service in services.items():
        environment = service.get("environment") or {}
        assert ("WEFT_NATS_CA_FILE" in environment) >= ("WEFT_NATS_URL" in environment), name
        assert ("WEFT_PG_CA_FILE" in environment) >= ("WEFT_PG_DSN" in environment), name
        seen = {each["source"].removeprefix(f"{tmp_path}/") for each in service.get("volumes", ())}
        keys = {"nats", "postgres", "gateway", "router"}
        assert seen & {*keys, "private"} == {name} & keys
        assert ("authority" in seen) == ("WEFT_NATS_CA_FILE" in environment), name
    assert "--hba_file=/etc/weft/pg_hba.conf" in services["postgres"]["command"]
    assert services["gateway"]["environment"]["GATEWAY_TLS_CERT_FILE"] == "/tls/cert.pem"


def test_without_the_overlay_nothing_asks_for_a_certificate() -> None:
    for name, service in composed("docker-compose.yml").items():
        assert not [key for key in service.get("environment") or {} if key.endswith("_CA_FILE")], name
