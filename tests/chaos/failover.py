"""Servers that fail over, under faults: three NATS servers, and a Postgres whose commits wait for a standby."""

import asyncio
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from tests.chaos.faults import Fault
from tests.support.nats_cluster import SERVERS, NatsCluster
from tests.support.places import HERE, Place
from tests.support.postgres_pair import PostgresPair
from weft import servers
from weft.credentials import Credentials
from weft.servers import postgres

UP_SECONDS_MAX = 60.0


class FailoverStores:
    """Which of the three NATS servers a fault strikes goes by its time, so that a seed gives the same."""

    def __init__(self, home: Path, credentials: Credentials, *, places: Sequence[Place] = (HERE,) * SERVERS) -> None:
        """`places`: of the NATS servers, and the first two of them of the primary and its standby."""
        self.cluster = NatsCluster(home / "nats-cluster", credentials, places=places)
        self.pair = PostgresPair(home, credentials, places=places[:2])

    async def start(self) -> servers.Servers:
        await self.cluster.start()
        await self.pair.start(synchronous=True)
        return servers.Servers(nats_url=self.cluster.url, pg_dsn=self.pair.dsn)

    async def stop(self) -> None:
        """Also the data go."""
        await self.cluster.stop()
        await self.pair.stop()

    async def do(self, fault: Fault) -> None:
        """Do it and undo it. Raises ServersError, OSError or TimeoutError where that fails."""
        if fault.target == "nats":
            await self._nats(fault)
        elif fault.what == "fail over":
            await self._fail_over(fault.seconds)
        else:
            pair = self.pair
            struck = pair.standby if fault.what.endswith("standby") else pair.primary
            if fault.what.startswith("freeze"):
                await pair.send(struck, signal.SIGSTOP)
                try:
                    await asyncio.sleep(fault.seconds)
                finally:
                    await pair.send(struck, signal.SIGCONT)
                return
            await pair.kill(struck)
            try:
                await asyncio.sleep(fault.seconds)
            finally:
                await pair.run(struck)

    async def _nats(self, fault: Fault) -> None:
        first = int(fault.at * 1000) % SERVERS
        struck = [first, (first + 1) % SERVERS][: 2 if fault.what == "kill two" else 1]
        undo: Callable[[], None]
        if fault.what == "split":
            self.cluster.cut_off(first, "cut" if int(fault.at * 1000) % 2 else "break")
            undo = self.cluster.mend
        elif fault.what == "freeze one":
            self._signal(first, signal.SIGSTOP)
            undo = lambda: self._signal(first, signal.SIGCONT)  # noqa: E731
        else:
            for number in struck:
                self.cluster.end(number)
            if fault.what == "lose one":
                self.cluster.lose(first)
            undo = lambda: [self.cluster.run(number) for number in struck] and None  # noqa: E731
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            undo()
        for number in struck:
            await self.cluster.up(number, seconds_max=UP_SECONDS_MAX)

    def _signal(self, number: int, how: signal.Signals) -> None:
        if (pid := self.cluster.pid(number)) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, how)

    async def _fail_over(self, seconds: float) -> None:
        """The primary is lost; `seconds` later its standby is promoted, and then the old primary follows it."""
        await self.pair.kill(self.pair.primary)
        await asyncio.sleep(seconds)
        await self.pair.promote()
        await self.take_back()

    async def take_back(self) -> None:
        """Make the old primary, which does not run, the standby on whose word commits wait."""
        pair = self.pair
        try:
            await pair.rejoin()
        except servers.ServersError:
            await asyncio.to_thread(postgres.stop, pair.setups[pair.standby].folder)
            await asyncio.to_thread(shutil.rmtree, pair.setups[pair.standby].folder)
            await pair.follow(synchronous=False)
        await pair.do("have commits wait for the standby")
