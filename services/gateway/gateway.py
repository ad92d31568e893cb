"""All that the operations of one gateway share."""

import re
from collections.abc import Callable

from msgspec import Struct

from libs.bus import Bus
from libs.domain.cluster import Node
from libs.domain.job import Job
from libs.domain.spec import TOKEN_PATTERN
from libs.store import Access, GatewayStore
from services.gateway.access import AccessCache
from services.gateway.cluster import Cluster
from services.gateway.errors import RejectedError
from services.gateway.feed import Feed
from services.gateway.meters import Meters
from services.gateway.nudges import Nudges
from services.gateway.snapshots import Snapshots
from services.gateway.streams import Streams
from services.gateway.submissions import Submissions
from services.gateway.views import may_see

_matches_token = re.compile(TOKEN_PATTERN).fullmatch


class Limits(Struct, frozen=True, kw_only=True):
    """What one gateway holds open at most, and how often it shows that it is there."""

    connections_max: int = 4096
    streams_max: int = 1024
    streams_per_tenant_max: int = 256
    heartbeat_seconds: float = 15.0


class Gateway:
    """`now` is the time of day, `clock` does not jump, `characters` is a source of randomness."""

    def __init__(
        self,
        *,
        store: GatewayStore,
        bus: Bus,
        now: Callable[[], float],
        clock: Callable[[], float],
        characters: Callable[[int], str],
        default_pool: str = "default",
        volumes_allowed: tuple[str, ...] = (),
        limits: Limits | None = None,
    ) -> None:
        self.store = store
        self.bus = bus
        self.now = now
        self.clock = clock
        self.characters = characters
        self.limits = limits or Limits()
        self.access = AccessCache(store, clock=clock)
        self.snapshots = Snapshots(store, clock=clock, default_pool=default_pool, volumes_allowed=volumes_allowed)
        self.cluster = Cluster(clock=clock)
        self.feed = Feed(store)
        self.streams = Streams(self.limits.streams_max, self.limits.streams_per_tenant_max)
        self.nudges = Nudges(bus)
        self.meters = Meters(self.streams)
        self.submissions = Submissions(
            store=store, snapshots=self.snapshots, nudges=self.nudges, now=now, characters=characters
        )

    async def job(self, who: Access, job: str) -> Job:
        """By its id, or the newest of that name. Another tenant's job is not there. Raises RejectedError."""
        if not _matches_token(job):
            raise RejectedError(400, "job", "not an id or a name: lower-case letters, digits and '-', at most 63")
        found = await self.store.job(job)
        if found is None or not may_see(who, found.tenant):
            named = await self.store.jobs(tenant=None if who.admin else who.tenant, name=job, limit=1)
            found = named[0] if named else None
        if found is None:
            raise RejectedError(404, "job", f"no job has the id or the name {job}")
        return found

    async def node(self, node_id: str) -> Node:
        if not _matches_token(node_id):
            raise RejectedError(400, "node", "not an id: lower-case letters, digits and '-', at most 63")
        found = next((node for node in await self.store.nodes() if node.id == node_id), None)
        if found is None:
            raise RejectedError(404, "node", f"there is no node {node_id}")
        return found
