"""An authority of the tests' own, and servers that speak TLS alone with its certificates."""

import asyncio
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
from msgspec import Struct

from weft.credentials import Credentials
from weft.servers import postgres
from weft.servers.account import reachable_folder, server_account
from weft.servers.find import find_nats

START_SECONDS_MAX = 60
DEBIAN = Path("/usr/lib/postgresql")
LET_IN_OVER_TLS_ALONE = "local all all reject\nhostnossl all all all reject\nhostssl all all all scram-sha-256\n"


class Pair(Struct, frozen=True):
    """The files of a certificate and its key."""

    cert: Path
    key: Path


class Authority:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._authority = trustme.CA()
        self.ca_file = folder / "ca.pem"
        self._authority.cert_pem.write_to_path(str(self.ca_file))

    def issue(self, *names: str, into: str) -> Pair:
        """For these names; what is in the files already is replaced at once, as a renewal does."""
        pair = Pair(self._folder / f"{into}.pem", self._folder / f"{into}.key")
        issued = self._authority.issue_cert(*names)
        for path, text in (
            (pair.cert, b"".join(blob.bytes() for blob in issued.cert_chain_pems)),
            (pair.key, issued.private_key_pem.bytes()),
        ):
            unfinished = path.with_suffix(".new")
            unfinished.write_bytes(text)
            unfinished.chmod(0o600)
            unfinished.replace(path)
        return pair


class TlsNats:
    """A NATS server that takes TLS alone, and a client's certificate where `verify`."""

    def __init__(
        self, folder: Path, credentials: Credentials, pair: Pair, *, ca_file: Path, verify: bool = False
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"nats://127.0.0.1:{self.port}"
        self._log = folder / "log"
        self._config = folder / "nats.conf"
        users = shutil.copy(credentials.nats_users_file, folder / "users.conf")
        verified = f'ca_file: "{ca_file}", verify: true' if verify else ""
        self._config.write_text(
            f'listen: "127.0.0.1:{self.port}"\njetstream {{ store_dir: "{folder / "jetstream"}" }}\n'
            f'tls {{ cert_file: "{pair.cert}", key_file: "{pair.key}", {verified} }}\ninclude "{Path(users).name}"\n'
        )
        self.start()

    def start(self) -> None:
        with self._log.open("wb") as log:
            command = [str(find_nats().path), "--config", str(self._config)]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until = time.monotonic() + START_SECONDS_MAX
        while "Server is ready" not in self._log.read_text():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < until, self._log.read_text()
            time.sleep(0.005)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@asynccontextmanager
async def tls_postgres(folder: Path, pair: Pair, *, password: str) -> AsyncIterator[int]:
    """A Postgres that lets nobody in without TLS; yields its port. Skips where none that knows TLS is installed."""
    programs = await asyncio.to_thread(_programs)
    account = server_account(folder)
    home = reachable_folder(folder, account)
    setup = postgres.PostgresSetup(programs=programs, folder=home, log=folder / "postgres.log", account=account)
    try:
        await asyncio.to_thread(postgres.initialise, setup, password)
        for source, name in ((pair.cert, "server.crt"), (pair.key, "server.key")):
            shutil.copy(source, setup.data / name)
            (setup.data / name).chmod(0o600)
            if account is not None:
                shutil.chown(setup.data / name, account.uid, account.gid)
        (setup.data / "pg_hba.conf").write_text(LET_IN_OVER_TLS_ALONE)
        with (setup.data / "postgresql.conf").open("a") as settings:
            settings.write("ssl = on\n")
        started = await asyncio.to_thread(postgres.start, setup, port=0, remembered_port=0)
        yield started.port
    finally:
        await asyncio.to_thread(postgres.stop, home)
        shutil.rmtree(home, ignore_errors=True)


def _programs() -> Path:
    """The wheel's Postgres is built without OpenSSL, the distribution's with it."""
    for programs in sorted(DEBIAN.glob("[0-9]*/bin"), reverse=True):
        asked = subprocess.run([programs / "postgres", "--version"], capture_output=True, check=False, timeout=10)
        linked = subprocess.run(["ldd", programs / "postgres"], capture_output=True, text=True, check=False, timeout=10)
        if asked.returncode == 0 and "libssl" in linked.stdout:
            return programs
    pytest.skip("no Postgres with TLS here: the one of the wheel is built without OpenSSL, and no other is installed")
