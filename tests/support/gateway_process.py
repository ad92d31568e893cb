"""The gateway as the process that it is in a cluster: settings from the environment, secrets in files."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct

from tests.support.gateway import until
from weft.credentials import Credentials

STOP_SECONDS_MAX = 60.0


class GatewayProcess(Struct, frozen=True):
    url: str
    log: Path
    process: asyncio.subprocess.Process

    def said(self, words: str) -> int:
        """How often its log has them."""
        return self.log.read_text().count(words)

    def tail(self) -> str:
        return self.log.read_text()[-2000:]


@asynccontextmanager
async def gateway_process(
    log: Path, credentials: Credentials, *, nats_url: str, pg_dsn: str, **settings: str
) -> AsyncIterator[GatewayProcess]:
    """Ready when it is yielded; it must end well when it is told to."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with log.open("ab") as stream:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "weftd.gateway"),
            stdout=stream,
            stderr=stream,
            env={
                **os.environ,
                "WEFT_NATS_URL": nats_url,
                "WEFT_NATS_USER": "gateway",
                "WEFT_NATS_PASSWORD_FILE": str(credentials.nats_password_file("gateway")),
                "WEFT_PG_DSN": pg_dsn.replace("weft_owner", "weft_gateway"),
                "WEFT_PG_PASSWORD_FILE": str(credentials.postgres_password_file("gateway")),
                "GATEWAY_PORT": str(port),
                "GATEWAY_ADMIN_TOKEN_FILE": str(credentials.admin_token_file),
                **settings,
            },
        )
    running = GatewayProcess(f"http://127.0.0.1:{port}", log, process)
    begun = running.said("is ready")
    try:
        await until(lambda: running.said("is ready") > begun or process.returncode is not None)
        assert process.returncode is None, running.tail()
        yield running
        process.terminate()
        assert await asyncio.wait_for(process.wait(), STOP_SECONDS_MAX) == 0, running.tail()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
