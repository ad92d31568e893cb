"""The cluster over hosts of a laboratory: on each a NATS server, a gateway, a scheduler and a node of processes.

Postgres is on the first, its standby, on whose word commits wait, on the second. A host that is switched off loses its
link first, then everything in it at one stroke; what it had on its disk stays, as it does on a disk. Services of a host
see its clock, which may be minutes off; Postgres, NATS and jobs see the machine's.
"""

import asyncio
import contextlib
import signal
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from tests.chaos.failover import FailoverStores
from tests.chaos.faults import HOSTS, LEADER, PRIMARY, STANDBY, Fault
from tests.chaos.front import Front
from tests.chaos.member import Member
from tests.chaos.world import World, named, remove_groups
from tests.hosts.host import Host, LaboratoryError
from tests.hosts.laboratory import Laboratory, Way
from weftd.cli.local.plan import Addresses, Service, services

POWER = "power"  # holds the members of a host that is off
PROMOTED_SECONDS = 2.0  # after the primary's host was switched off
STORES_SECONDS_MAX = 60.0
LOST, BITS_PER_SECOND = 0.1, 400_000  # of a slow and lossy link
CLOCK_SECONDS = 180.0
AHEAD = "ahead"
SKEWED = Path(__file__).with_name("skewed")  # in PYTHONPATH it has the time of day off
LEADS = "SELECT holder FROM leases WHERE name = 'default' AND holder <> ''"


class HostsWorld(World):
    """Host 1 is `laboratory.hosts[0]`, of node-1, gateway-1 and so on. Users and the tests are on the machine."""

    nodes_in_all = len(HOSTS)

    def __init__(self, root: Path) -> None:
        self.laboratory = Laboratory(len(HOSTS), engines=False)
        super().__init__(root, fencing=True, failover=True)
        self._router_port = 0
        self._members_at: list[list[Member]] = [[] for _ in HOSTS]
        self.why_no_engine = "its hosts have none"

    @property
    def hosts(self) -> Sequence[Host]:
        return self.laboratory.hosts

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(self.options.node_ids)

    def members_of(self, number: int) -> list[Member]:
        return self._members_at[number]

    async def do(self, fault: Fault) -> None:
        """Do it to a host and undo it. Raises LaboratoryError, ServersError, OSError, LookupError or TimeoutError."""
        number = HOSTS.index(fault.target)
        host = self.hosts[number]
        others = [other for other in self.hosts if other is not host]
        if fault.what == "switch off":
            await self._without(number, fault.seconds)
            return
        if fault.what.startswith("clock"):
            await self._at_another_time(number, fault)
            return
        laboratory = self.laboratory
        match fault.what:
            case "split off":
                work = lambda: laboratory.split(others, [host])  # noqa: E731
            case "split off with users":
                work = lambda: laboratory.split([host], others)  # noqa: E731
            case "deafen":
                work = lambda: laboratory.cut_one_way(host, Way.IN)  # noqa: E731
            case "silence":
                work = lambda: laboratory.cut_one_way(host, Way.OUT)  # noqa: E731
            case "spoil":
                work = lambda: self._spoil(host)  # noqa: E731
            case _:
                raise LookupError(f"nothing is called {fault.what}")
        try:
            await asyncio.to_thread(work)
            await asyncio.sleep(fault.seconds)
        finally:
            await asyncio.to_thread(laboratory.mend)

    async def host_of(self, which: str) -> str:
        """The name of the host on which there is now what the target stands for. Raises LookupError."""
        if which == PRIMARY:
            return HOSTS[self._failing.pair.primary]
        if which == STANDBY:
            return HOSTS[self._failing.pair.standby]
        if which != LEADER:
            return which
        async with self.owner() as connection:
            holder = await connection.fetchval(LEADS)
        for name in HOSTS:
            if holder and holder.startswith(f"{name}-"):
                return name
        raise LookupError("no scheduler leads")

    async def stop(self) -> None:
        try:
            await super().stop()
        finally:
            await asyncio.to_thread(self.laboratory.close)

    @property
    def _failing(self) -> FailoverStores:
        assert isinstance(self.stores, FailoverStores)
        return self.stores

    def _made_stores(self, *, failover: bool) -> FailoverStores:
        return FailoverStores(self.home.root, self.credentials, places=self.hosts)

    async def _prepare(self) -> None:
        await asyncio.to_thread(self.laboratory.__enter__)
        for number in range(len(HOSTS)):
            self._clock(number).write_text("+0\n")
        gateways = [(host.address, self.options.port or 0) for host in self.hosts]
        await self._stack.enter_async_context(Front(self.options.port or 0, gateways))

    async def _made_members(self, nats_url: str, pg_dsn: str) -> list[Member]:
        addresses = Addresses(nats_url=nats_url, pg_dsn=pg_dsn, port=self.options.port or 0)
        for service in services(self.options, self.home, self.credentials, addresses):
            kind, _, node = service.name.partition("-")
            if kind in ("gateway", "scheduler"):
                numbers: Sequence[int] = range(len(HOSTS))
            elif node:
                numbers = [self.options.node_ids.index(node)]
            else:
                numbers = [1 if kind == "scorer" else 2]  # the reallocator
            for number in numbers:
                name = service.name if len(numbers) == 1 else f"{kind}-{number + 1}"
                member = Member(self._at(number, named(service, name, self.home)), self.hosts[number])
                self._members_at[number].append(member)
        return [member for members in self._members_at for member in members]

    def _at(self, number: int, service: Service) -> Service:
        address = self.hosts[number].address
        settings = dict(service.settings)
        for setting in ("GATEWAY_HOST", "EXECUTOR_ADDRESS"):
            if setting in settings:
                settings[setting] = address
        settings |= {"PYTHONPATH": str(SKEWED), "CHAOS_CLOCK": str(self._clock(number))}
        return replace(service, settings=settings)

    def _clock(self, number: int) -> Path:
        """By how much the host's clock is off."""
        return self.hosts[number].folder / "clock"

    async def _end_jobs(self) -> None:
        """All that lives on a host ends with it. The numbers of its processes are of its own."""
        for host in self.hosts:
            await asyncio.to_thread(self.laboratory.off, host)
        for node in self.nodes:
            await asyncio.to_thread(remove_groups, self.home, node)

    # ── what is done to hosts ───────────────────────────────────────────────────────────────────────────────────

    async def _without(self, number: int, seconds: float) -> None:
        """Where the primary was on it, its standby is promoted meanwhile, and the old primary made its standby."""
        pair = self._failing.pair
        had_primary = number == pair.primary
        has_postgres = had_primary or number == pair.standby
        try:
            await self._off(number)
            if had_primary:
                await asyncio.sleep(min(PROMOTED_SECONDS, seconds))
                await pair.promote()
                await asyncio.sleep(max(0.0, seconds - PROMOTED_SECONDS))
            else:
                await asyncio.sleep(seconds)
        finally:
            await self._on(number)
        if had_primary:
            await self._failing.take_back()
        elif has_postgres:
            await pair.run(number)
            await pair.until_following()

    async def _off(self, number: int) -> None:
        host = self.hosts[number]
        await asyncio.to_thread(self.laboratory.cut, host)  # nothing that dies there is told to anything elsewhere
        for member in self.members_of(number):
            member.hold(POWER)
            member.expect_end()
        await asyncio.to_thread(host.pull_plug)
        self._failing.cluster.end(number)
        if number < 2:
            await self._failing.pair.kill(number)
        await asyncio.to_thread(self.laboratory.off, host)

    async def _on(self, number: int) -> None:
        host = self.hosts[number]
        if not host.is_on:
            await asyncio.to_thread(self.laboratory.on, host)
        self._failing.cluster.run(number)
        for member in self.members_of(number):
            member.release(POWER)
        await self._failing.cluster.up(number, seconds_max=STORES_SECONDS_MAX)

    async def _at_another_time(self, number: int, fault: Fault) -> None:
        """The clock jumps, and the services that begin there, now and when it is set right, take it as it is."""
        seconds = CLOCK_SECONDS if fault.what.endswith(AHEAD) else -CLOCK_SECONDS
        try:
            await self._set_clock(number, seconds)
            await asyncio.sleep(fault.seconds)
        finally:
            await self._set_clock(number, 0.0)

    async def _set_clock(self, number: int, seconds: float) -> None:
        self._clock(number).write_text(f"{seconds:+g}\n")
        for member in self.members_of(number):
            member.send(signal.SIGTERM)

    def _spoil(self, host: Host) -> None:
        self.laboratory.spoil(host, lost=LOST)
        with contextlib.suppress(LaboratoryError):  # a kernel that has no thin lines: it is lossy alone
            self.laboratory.slow(host, bits_per_second=BITS_PER_SECOND)
