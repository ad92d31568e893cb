"""The state that all operations of one gateway share."""

import logging
import re
from collections.abc import Callable
from datetime import UTC, datetime

from aiohttp import web

from weft.bus import Bus
from weft.domain.arrays import IndicesError, element_id, split_elements
from weft.domain.cluster import Node
from weft.domain.job import Job
from weft.domain.selection import ID_PREFIX_LEAST
from weft.domain.spec import TOKEN_PATTERN
from weft.store import GatewayStore
from weft.store.tenants import Access
from weftd.gateway.accounting.accounts import Accounts
from weftd.gateway.accounting.billing import read_prices_file
from weftd.gateway.accounting.kept import KeptFiles
from weftd.gateway.allowances import Allowances
from weftd.gateway.dependencies import array_id
from weftd.gateway.errors import RejectedError, too_fast
from weftd.gateway.limits.access import AccessCache, source_of
from weftd.gateway.limits.auditing import Auditing
from weftd.gateway.limits.concurrency import ConcurrencyLimit
from weftd.gateway.limits.cookies import credentials
from weftd.gateway.limits.cpu_budget import CpuBudgets, no_time
from weftd.gateway.limits.streams import Streams
from weftd.gateway.metrics import RequestMeters
from weftd.gateway.oidc.provider import Provider
from weftd.gateway.readmodel.cluster import LiveCluster
from weftd.gateway.readmodel.estimates import Estimates
from weftd.gateway.readmodel.feed import Feed
from weftd.gateway.readmodel.live_stream import Live
from weftd.gateway.readmodel.processes import Processes
from weftd.gateway.readmodel.queue_estimates import QueueEstimates
from weftd.gateway.readmodel.queue_lines import Lines
from weftd.gateway.readmodel.reasons import Reasons
from weftd.gateway.readmodel.sampling import Samples
from weftd.gateway.readmodel.snapshots import Snapshots
from weftd.gateway.readmodel.visibility import may_see
from weftd.gateway.registry.tickets import Tickets, as_bearer
from weftd.gateway.registry.upstream import Registry
from weftd.gateway.sessions.records import Records
from weftd.gateway.settings import GatewaySettings
from weftd.gateway.submissions import ID_BEGINS, ID_CHARACTERS, Submissions
from weftd.gateway.thinking.notifications.addresses import networks_of
from weftd.gateway.thinking.oidc import grant_of
from weftd.gateway.thinking.rates import Rate, RateLimit
from weftd.gateway.wakeup import Wakeups

logger = logging.getLogger(__name__)

TICKET_SECRET_CHARACTERS = 40
UPLOADS_MAX = 64  # each has up to a MiB in memory
UPLOADS_PER_TENANT_MAX = 8
HEARTBEAT_SECONDS = 15.0  # between two signs of life on a stream that has nothing else to send
TOLD_AWAY_SECONDS = 1.0
OPENING_MAX = 64  # tenants of which a session begins
OPENING_SECONDS_MAX = 10.0
TENANTS_AT_ONCE = 3  # long reads at once: the other store connections serve all other requests
AT_WORK_MAX = 256  # requests in progress; the others wait for their tenant's turn
AT_WORK_PER_TENANT_MAX = 8
AT_WORK_WAITING_MAX = 4096  # of one tenant
OVER_NATS_WAITING_MAX = 120  # submissions of one tenant
AWAY_SECONDS = 10.0  # the store counts as away for this long after it did not answer
PAST_WAITING_MAX = 4  # concurrent views of the past of one tenant; each reads all jobs that were open then
PAST_WAIT_SECONDS = 10.0
SAME_NAME_MAX = 100  # jobs of one name that are looked at for one that serves
SAME_BEGINNING_MAX = 5  # matching ids that the error about an ambiguous one lists
METRICS_AT_ONCE = 2  # each may have tens of MiB
EXPLAINED_AT_ONCE = 2  # each looks at every job of its pool, in a thread
DEVICES = Rate(0.2, 10.0)  # sign-ins from machines without a browser, of one source
POLLS = Rate(2.0, 20.0)  # looks at whether such a sign-in is done
WHAT_IFS_AT_ONCE = 2  # each of them has two processes
_matches_token = re.compile(TOKEN_PATTERN).fullmatch


class Gateway:
    """`now` is the time of day, `clock` does not jump, `characters` is a source of randomness, `processor` is the CPU
    time of the calling thread; with `no_time` no tenant pays. `ticket_secret`: all gateways of the cluster have the
    same; without one, each makes one of its own."""

    def __init__(
        self,
        *,
        store: GatewayStore,
        bus: Bus,
        now: Callable[[], float],
        clock: Callable[[], float],
        characters: Callable[[int], str],
        settings: GatewaySettings,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        processor: Callable[[], float] = no_time,
        ticket_secret: str = "",
        oidc_secret: str = "",
    ) -> None:
        self.store = store
        self.bus = bus
        self.now = now
        self.clock = clock
        self.characters = characters
        self.heartbeat_seconds = heartbeat_seconds
        self.access = AccessCache(store, clock=clock, now=now, refusals=settings.refusals)
        self.auditing = Auditing(store, now=now, clock=clock, characters=characters)
        self._reads = RateLimit(settings.reads)
        self._changes = RateLimit(settings.changes)
        self.cpu_budgets = CpuBudgets(settings.processor, clock=clock, processor=processor)
        self.snapshots = Snapshots(
            store,
            clock=clock,
            default_pool=settings.default_pool,
            volumes_allowed=settings.volumes_allowed,
            shares=settings.shares,
        )
        self.reasons = Reasons(self.snapshots)
        self.samples = Samples()
        self.accounts = Accounts(store, self.samples.ledger, now=now, clock=clock)
        self.webhooks_allowed = settings.webhooks
        self.networks = networks_of(settings.webhooks_networks)
        self.mail_domains = settings.mail.mail_domains
        self.prices = read_prices_file(settings.prices_file)
        self.cluster = LiveCluster(clock=clock, router_url=settings.router_url)
        self.kept = KeptFiles(clock=clock)
        self.processes = Processes(clock=clock)
        self.estimates = Estimates(store, self.cluster, now=now, clock=clock)
        self.unheard = LiveCluster(
            clock=clock, router_url=settings.router_url
        )  # empty: for views of the past, which have no live data
        at_once = settings.reads_at_once_max
        self.reading = ConcurrencyLimit(
            "reads of lists and events", at_once=TENANTS_AT_ONCE * at_once, per_tenant=at_once
        )
        self.at_work = ConcurrencyLimit(
            "requests", at_once=AT_WORK_MAX, per_tenant=AT_WORK_PER_TENANT_MAX, waiting_max=AT_WORK_WAITING_MAX
        )
        self.over_nats = ConcurrencyLimit(
            "submissions over NATS",
            at_once=AT_WORK_MAX,
            per_tenant=AT_WORK_PER_TENANT_MAX,
            waiting_max=OVER_NATS_WAITING_MAX,
        )
        self.looking_back = ConcurrencyLimit(
            "requests with `at`", at_once=1, per_tenant=1, waiting_max=PAST_WAITING_MAX, wait_seconds=PAST_WAIT_SECONDS
        )
        self.adding_up = ConcurrencyLimit(
            "requests for usage", at_once=1, per_tenant=1, waiting_max=PAST_WAITING_MAX, wait_seconds=PAST_WAIT_SECONDS
        )
        self.metrics = ConcurrencyLimit("reads of metrics", at_once=METRICS_AT_ONCE, per_tenant=1)
        self.explaining = ConcurrencyLimit("explanations", at_once=EXPLAINED_AT_ONCE, per_tenant=1)
        self.supposing = ConcurrencyLimit(
            "what-ifs", at_once=WHAT_IFS_AT_ONCE, per_tenant=1, waiting_max=PAST_WAITING_MAX
        )
        self.opening = ConcurrencyLimit(
            "sessions that begin",
            at_once=OPENING_MAX,
            per_tenant=1,
            waiting_max=settings.sessions_per_tenant_max,
            wait_seconds=OPENING_SECONDS_MAX,
        )
        self._told_away_at = -TOLD_AWAY_SECONDS
        self._away_at = -AWAY_SECONDS
        self.feed = Feed(store, self.reading, bus, paying=lambda tenant: self.cpu_budgets.elsewhere(tenant))
        self.streams = Streams(settings.streams_max, settings.streams_per_tenant_max)
        self.settings = settings
        self.registry = (
            Registry(
                settings.registry_url,
                settings.registry_address,
                bytes_max=settings.tenant_images_bytes_max,
                tickets=Tickets(ticket_secret or characters(TICKET_SECRET_CHARACTERS), now=now),
                clock=clock,
            )
            if settings.registry_url
            else None
        )
        oidc = settings.oidc
        self.provider = Provider(oidc, oidc_secret, now=now, clock=clock) if oidc.oidc_issuer else None
        self.grants = tuple(map(grant_of, oidc.oidc_grants))
        self.devices, self.polls = RateLimit(DEVICES), RateLimit(POLLS)
        self.entered = ConcurrencyLimit(
            "sessions", at_once=settings.sessions_max, per_tenant=settings.sessions_per_tenant_max, wait_seconds=0
        )
        self.uploads = ConcurrencyLimit(
            "uploads", at_once=UPLOADS_MAX, per_tenant=UPLOADS_PER_TENANT_MAX, wait_seconds=0
        )
        self.live = Live(store, self.snapshots, self.cluster, clock=clock, now=now)
        self.queue_estimates = QueueEstimates(self.estimates, clock=clock)
        self.lines = Lines(store, self.snapshots, self.reasons, self.queue_estimates, clock=clock, now=now)
        self.wakeups = Wakeups(bus)
        self.entries = Records(store, bus, self.wakeups, now=now, clock=clock)
        self.meters = RequestMeters(self.streams)
        self.allowances = Allowances(settings.tenants)
        self.submissions = Submissions(
            store=store,
            snapshots=self.snapshots,
            allowances=self.allowances,
            registry=self.registry,
            bus=bus,
            wakeups=self.wakeups,
            charge=lambda tenant, seconds: self.cpu_budgets.charge(tenant, seconds),
            now=now,
            characters=characters,
        )

    def tell_away(self, what: str) -> None:
        """Log that the store is away, once a second, however many requests are refused."""
        self._away_at = self.clock()
        if self.clock() - self._told_away_at >= TOLD_AWAY_SECONDS:
            self._told_away_at = self.clock()
            logger.warning("the store is away: %s", what)

    @property
    def store_is_away(self) -> bool:
        """True if the store failed to answer a moment ago."""
        return self.clock() - self._away_at < AWAY_SECONDS

    def count(self, who: Access, *, changes: bool) -> None:
        """Count one request of a tenant. Raises RejectedError 429 if the tenant exceeds its rate."""
        rates, what = (self._changes, "submissions and changes") if changes else (self._reads, "reads")
        if wait := rates.take(who.tenant, self.clock()):
            reason = f"tenant {who.tenant} may make {rates.rate.per_second:g} {what} a second here"
            raise too_fast("", reason, wait)

    async def sample(self) -> None:
        """Take the next sample of every figure that is kept. Raises StoreUnavailableError."""
        await self.samples.take(self.snapshots, self.cluster, now=self.now)

    async def foresee(self) -> None:
        """Prepare the durations and places that the next explanation needs. Raises StoreUnavailableError."""
        await self.estimates.prepare(self.snapshots)

    async def end_refused_streams(self) -> None:
        """End streams of tokens that were revoked or have expired. After StoreUnavailableError all streams continue."""

        async def may_go_on(request: web.Request) -> bool:
            header = request.headers.get("Authorization")
            if self.registry is not None and self.registry.tickets.of(header):
                return True
            header = as_bearer(header) if request.path.startswith("/v2/") else credentials(request)
            try:
                await self.access.of(header, source=source_of(request.remote))
            except RejectedError as error:
                return error.status != 401
            return True

        await self.streams.end_unless(may_go_on)

    async def job(self, who: Access, job: str) -> Job:
        """Find a job by its id, its name (the newest), or an unambiguous beginning of its id.

        Another tenant's job counts as missing. Raises RejectedError.
        """
        job = await self._element_named(who, job)
        if not _matches_token(job):
            raise RejectedError(400, "job", "not an id or a name: lower-case letters, digits and '-', at most 63")
        found = await self.store.job(job)
        if found is None or not may_see(who, found.tenant):
            named = await self.store.jobs(tenant=None if who.admin else who.tenant, name=job, limit=1)
            found = named[0] if named else await self._beginning(who, job)
        if found is None:
            raise RejectedError(404, "job", f"no job has the id or the name {job}{await self._kept()}")
        return found

    async def service(self, who: Access, job: str) -> Job:
        """Like `job`. If several open services have the name: the newest that has, or had, a ready replica, else the
        newest, as routers choose."""
        found = await self.job(who, job)
        if found.id == job or found.name != job:
            return found
        named = await self.store.jobs(tenant=found.tenant, name=job, limit=SAME_NAME_MAX)
        serving = [each for each in named if each.spec.is_service and not each.state.final]
        return max(serving, key=lambda each: (bool(each.worked), each.seq), default=found)

    async def _beginning(self, who: Access, prefix: str) -> Job | None:
        """The one visible job whose id begins with the prefix; None if the prefix is too short."""
        if not prefix.startswith(ID_BEGINS) or not ID_PREFIX_LEAST <= len(prefix) < len(ID_BEGINS) + ID_CHARACTERS:
            return None
        async with self.reading.one(who.tenant):
            ids = await self.store.ids_beginning(
                prefix, tenant=None if who.admin else who.tenant, limit=SAME_BEGINNING_MAX + 1
            )
        if len(ids) > 1:
            some = ", ".join(ids[:SAME_BEGINNING_MAX]) + (", …" if len(ids) > SAME_BEGINNING_MAX else "")
            raise RejectedError(400, "job", f"several jobs have an id that begins with {prefix}: {some}")
        return await self.store.job(ids[0]) if ids else None

    async def _element_named(self, who: Access, job: str) -> str:
        """`A_3` as the id of that element; any other text as it is."""
        try:
            array, indices = split_elements(job)
        except IndicesError as error:
            raise RejectedError(400, "job", str(error)) from None
        if indices is None or len(indices) != 1 or not _matches_token(array):
            return job
        found = await array_id(self.store, None if who.admin else who.tenant, array)
        return job if found is None else element_id(found, indices[0])

    async def _kept(self) -> str:
        """The sentence about the retention, for a job that is not found."""
        kept = [one.seconds for one in await self.store.jobs_kept()]
        return f"; a job is kept for {_days(min(kept))} after its end" if kept else ""

    async def must_be_kept(self, at: float) -> None:
        """Raises RejectedError if jobs that were open at that time may have been deleted since."""
        forgotten = [one for one in await self.store.jobs_kept() if one.forgotten_before > at]
        if forgotten:
            last = max(forgotten, key=lambda one: one.forgotten_before)
            until = datetime.fromtimestamp(last.forgotten_before, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            kept = _days(last.seconds)
            raise RejectedError(
                404, "at", f"how it was before {until} is not known: a job is kept for {kept} after its end"
            )

    async def node(self, node_id: str) -> Node:
        if not _matches_token(node_id):
            raise RejectedError(400, "node", "not an id: lower-case letters, digits and '-', at most 63")
        found = next((node for node in await self.store.nodes() if node.id == node_id), None)
        if found is None:
            raise RejectedError(404, "node", f"there is no node {node_id}")
        return found


def _days(seconds: float) -> str:
    return f"{seconds / 86400:g} days"
