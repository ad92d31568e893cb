"""The scheduler as the process that it is in a cluster, which a test may kill: settings from the environment."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct

from tests.support.gateway import until
from weft.credentials import Credentials

STOP_SECONDS_MAX = 60.0


class SchedulerProcess(Struct, frozen=True):
    log: Path
    process: asyncio.subprocess.Process

    @property
    def holder(self) -> str:
        """A part of the name under which it has its leases."""
        return f"-{self.process.pid}-"

    def kill(self) -> None:
        self.process.kill()

    def tail(self) -> str:
        return self.log.read_text()[-2000:]


@asynccontextmanager
async def scheduler_process(
    log: Path, credentials: Credentials, *, nats_url: str, pg_dsn: str, **settings: str
) -> AsyncIterator[SchedulerProcess]:
    """Ready when it is yielded. It must end well when it is told to, unless it was killed before."""
    with log.open("wb") as stream:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "weftd.scheduler"),
            stdout=stream,
            stderr=stream,
            env={
                **os.environ,
                "WEFT_EXIT_WITH_PARENT": "1",
                "WEFT_LOG": "json",
                "WEFT_NATS_URL": nats_url,
                "WEFT_NATS_USER": "scheduler",
                "WEFT_NATS_PASSWORD_FILE": str(credentials.nats_password_file("scheduler")),
                "WEFT_PG_DSN": pg_dsn.replace("weft_owner", "weft_scheduler"),
                "WEFT_PG_PASSWORD_FILE": str(credentials.postgres_password_file("scheduler")),
                **settings,
            },
        )
    running = SchedulerProcess(log, process)
    try:
        await until(lambda: "is ready" in log.read_text() or process.returncode is not None)
        assert process.returncode is None, running.tail()
        yield running
        if process.returncode is None:
            process.terminate()
            assert await asyncio.wait_for(process.wait(), STOP_SECONDS_MAX) == 0, running.tail()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
