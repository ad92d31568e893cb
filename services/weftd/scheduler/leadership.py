"""One scheduler leads a pool; the others stand by. The lease is a row in the store, judged by our own clock.

Wall clocks are never compared: a lease whose `seq` has not moved for `leader_seconds` of our own time is abandoned.
Safety does not depend on this: every write carries the lease's epoch, and the store refuses a stale one.

If a node was answered under a lease that the store does not know, the store has lost that time: it was restored from
a backup (docs/decisions/0006-detect-a-restored-database.md).
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

from weft.domain.lease import Lease
from weft.messages import Connection
from weft.messages.leaders import LeadershipTold
from weft.messages.nodes import Leader
from weft.store import LeaseLostError, SchedulerStore, StoreUnavailableError
from weftd.scheduler.thinking.peers import Peers

logger = logging.getLogger(__name__)

BELIEVED_AHEAD = 1_000_000  # leaders change seldom: a report of an epoch further ahead than this is ignored
BELIEVED_AGAIN_SECONDS = (
    3600.0  # between two accepted reports of one node, which alone must not block its pool for ever
)


def is_lost(heard: Leader, lease: Lease, ended: Mapping[int, Lease]) -> bool:
    """Return True if `heard` is a leader of a time that the store has lost. `ended`: the leaderships before `lease`, by
    epoch.

    Nothing is concluded from an epoch without a known leadership.
    """
    if heard.epoch > lease.epoch:
        return heard.epoch - lease.epoch <= BELIEVED_AHEAD
    known = lease if heard.epoch == lease.epoch else ended.get(heard.epoch)
    return known is not None and (heard.holder != known.holder or heard.seq > known.seq)


class Leadership:
    def __init__(
        self,
        *,
        name: str,
        holder: str,
        store: SchedulerStore,
        clock: Callable[[], float],
        leader_seconds: float,
        holds_seconds: float = 0.0,
        connection: Callable[[], Connection | None] = lambda: None,
    ) -> None:
        """`holds_seconds`: how long nodes may be held while the store is away; `connection`: that of the bus."""
        self.name = name
        self.holder = holder
        self.leader_seconds = leader_seconds
        self._store = store
        self._clock = clock
        self._lease: Lease | None = None
        self._sure_until = 0.0
        self._seen: Lease | None = None
        self._seen_at = 0.0  # when the store first answered with it
        self._looked_at: float | None = None  # when we sent the latest read of the lease that was answered
        self._ended: dict[int, Lease] = {}
        self._latest: Leader | None = None  # the latest lease that we saw ourselves, of any holder
        self._above: int | None = None  # the store went back: our lease must be raised above this epoch
        self._believed: dict[str, float] = {}
        self._peers = Peers(pool=name, name=holder, holds_seconds=holds_seconds)
        self._connection = connection
        self._taking = False
        self._taken: tuple[Lease, float] | None = None  # our lease as we took it, and the time
        self._pledges = False  # no earlier leader holds a node any more, so the pledge in the store may be ours
        self.spoken = asyncio.Event()  # set when the other schedulers need our message at once
        self._claimed = asyncio.Event()  # set when a message of ours came back
        self._turn = asyncio.Lock()  # one call about the lease at a time, so that no older answer is taken in last

    @property
    def lease(self) -> Lease | None:
        """Our lease, if it was renewed so lately that no other scheduler can have taken it; else None."""
        return self._lease if self._clock() < self._sure_until else None

    @property
    def leader(self) -> Leader | None:
        """Our name in the answers to nodes."""
        return None if self._lease is None else _named(self._lease)

    @property
    def abandoned(self) -> bool:
        """True if no scheduler leads, as far as our answered reads of the lease show; False if they are too old."""
        if self._looked_at is None or self._clock() - self._looked_at > self.leader_seconds:
            return False
        free = self._seen is None or self._seen.holder == ""
        return free or self._looked_at - self._seen_at > self.leader_seconds

    @property
    def may_answer(self) -> bool:
        """False while another scheduler leads, as far as we know: then a report is none of our business."""
        if self._lease is not None or self._looked_at is None or self.abandoned:
            return True
        return self._clock() - self._looked_at > self.leader_seconds

    @property
    def store_went_back(self) -> bool:
        """The store has lost a time that we know of: `overtake` before anything else."""
        return self._above is not None

    def lost(self) -> None:
        self._lease, self._sure_until = None, 0.0

    # among the schedulers of the pool

    def tell(self) -> LeadershipTold:
        """Our present message to the other schedulers."""
        self.spoken.clear()
        known = [lease.epoch for lease in (self._seen, self._lease) if lease is not None]
        return self._peers.tell(
            self._clock(), leads=self._taking or self._lease is not None, epoch=max(known, default=0)
        )

    def hear_told(self, told: LeadershipTold) -> None:
        self._peers.hear(told, self._clock(), self._connection())
        if told.scheduler == self.holder:
            self._claimed.set()

    @property
    def why_not_hold(self) -> str:
        """Why nodes may not be held now, while the store is away; empty if they may."""
        if self._lease is None:
            return "this scheduler does not lead"
        if self.lease is not None:
            return ""
        return self._peers.why_not_hold(self._clock(), epoch=self._lease.epoch, connection=self._connection())

    async def claim(self, *, seconds_max: float) -> None:
        """If we are at the previous leader's NATS server, wait until all its listeners know that we lead."""
        if self._taken is None:
            return
        lease, at = self._taken
        pledge, connection = lease.pledge, self._connection()
        if not pledge.seconds or self.holder in pledge.members or connection is None:
            return
        if connection.server != pledge.nats or self._clock() > at + seconds_max:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                while self._peers.claimed_at(lease.epoch, pledge.nats) is None:
                    self._claimed.clear()
                    self.spoken.set()
                    await self._claimed.wait()

    @property
    def held_until(self) -> float:
        """Until when an earlier leader may hold nodes that we have not answered."""
        return 0.0 if self._taken is None else self._peers.held_until(*self._taken)

    def alone(self) -> None:
        """No earlier leader holds a node any more: our renewals may carry our own pledge."""
        self._pledges = True

    def hear(self, heard: Leader | None, *, of: str) -> None:
        """Note the leader that answered a node last; `of`: the node that reports it."""
        lease, now = self._lease, self._clock()
        if heard is None or lease is None or heard.pool != self.name or not is_lost(heard, lease, self._ended):
            return
        if of != self.holder and now - self._believed.get(of, -BELIEVED_AGAIN_SECONDS) < BELIEVED_AGAIN_SECONDS:
            return
        self._believed[of] = now
        if self._above is None:
            logger.critical(
                "the store went back in time",
                extra={"pool": self.name, "told_by": of, "epoch": lease.epoch, "heard": heard.epoch, "seq": heard.seq},
            )
        self._above = max(self._above or 0, heard.epoch, lease.epoch)

    async def overtake(self) -> Lease:
        """Raise our lease above every epoch heard of. Raises LeaseLostError."""
        async with self._turn:
            lease, asked_at = self.require(), self._clock()
            assert self._above is not None, "nothing is ahead of the store"
            raised = await self._store.raise_lease(lease, above=self._above)
            if raised is None:
                raise LeaseLostError(f"{self.holder} lost {self.name} while raising it")
            self._above, self._latest, self._ended = None, None, {}
            self._taken, self._pledges = (raised, self._clock()), False
            self._hold(raised, asked_at)
        logger.warning("leads on with numbers above the lost ones", extra={"pool": self.name, "epoch": raised.epoch})
        return raised

    async def settle(self) -> None:
        """The time after the store went back is over. Raises LeaseLostError."""
        async with self._turn:
            lease, asked_at = self.require(), self._clock()
            settled = await self._store.settle_lease(lease)
            if settled is None:
                raise LeaseLostError(f"{self.holder} lost {self.name} while settling it")
            self._hold(settled, asked_at)

    async def beat(self, *, may_take: Callable[[], bool] = lambda: True) -> None:
        """Renew the lease if it is ours, take it if it is abandoned and we `may_take` it, else watch it."""
        async with self._turn:
            if self._lease is not None:
                await self._renew(self._lease)
            else:
                await self._watch(may_take)

    async def _renew(self, lease: Lease) -> None:
        asked_at, connection = self._clock(), self._connection()
        pledge = self._peers.pledge(asked_at, connection) if self._pledges else None
        self._peers.renews(pledge, asked_at)
        try:
            renewed = await self._store.renew_lease(lease, pledge=pledge)
        except StoreUnavailableError:
            await self._look()  # a store that takes no writes may still answer whether another scheduler leads
            raise
        if renewed is None:
            logger.warning("lost the lease", extra={"pool": self.name, "epoch": lease.epoch})
            self.lost()
        else:
            self._hold(renewed, asked_at)
            self._peers.renewed(pledge, epoch=renewed.epoch, at=asked_at, connection=connection)

    async def _look(self) -> Lease | None:
        asked_at = self._clock()
        seen = await self._store.lease(self.name)
        # After a long time without an answer, a renewal may have gone unseen: the count begins again.
        blind = self._looked_at is None or asked_at - self._looked_at > 2 * self.leader_seconds
        if seen != self._seen or blind:
            self._seen, self._seen_at = seen, self._clock()
            self._note(seen)
        self._looked_at = asked_at
        lease = self._lease
        if lease is not None and (seen is None or (seen.holder, seen.epoch) != (lease.holder, lease.epoch)):
            self.lost()
        return seen

    async def _watch(self, may_take: Callable[[], bool]) -> None:
        asked_at = self._clock()
        seen = await self._look()
        if self.abandoned and may_take():
            self._taking = True  # from here on our messages do not deny that we lead
            try:
                await self._take(seen, asked_at)
            finally:
                self._taking = False

    async def _take(self, seen: Lease | None, asked_at: float) -> None:
        taken = await self._store.take_lease(self.name, holder=self.holder, seen=seen)
        if taken is not None:
            self._ended = {ended.epoch: ended for ended in await self._store.leaderships(self.name)}
            self._above = None
            self._taken, self._pledges = (taken, self._clock()), False
            logger.info("leads", extra={"pool": self.name, "epoch": taken.epoch})
            self._hold(taken, asked_at)
            self.spoken.set()

    async def give_up(self) -> None:
        """Resign, while no other call about the lease is under way."""
        async with self._turn:
            await self.resign()
            self.spoken.set()

    async def resign(self) -> None:
        if self._lease is not None:
            lease = self._lease
            self.lost()
            await self._store.release_lease(lease, pledge_ends=self._pledges)

    def require(self) -> Lease:
        if (lease := self.lease) is None:
            raise LeaseLostError(f"{self.holder} does not lead {self.name}")
        return lease

    def _hold(self, lease: Lease, asked_at: float) -> None:
        # Counted from before the call, and shorter than the wait of other schedulers: we stop first.
        self._lease, self._sure_until = lease, asked_at + 0.8 * self.leader_seconds
        self.hear(self._latest, of=self.holder)
        self._note(lease)

    def _note(self, lease: Lease | None) -> None:
        if lease is not None and lease.holder:
            named, latest = _named(lease), self._latest
            if latest is None or (latest.epoch, latest.seq) < (named.epoch, named.seq):
                self._latest = named


def _named(lease: Lease) -> Leader:
    return Leader(pool=lease.name, epoch=lease.epoch, holder=lease.holder, seq=lease.seq)
