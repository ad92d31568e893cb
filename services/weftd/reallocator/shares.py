"""The shell of shares that follow their use: reads whether jobs wait, and stores the asks."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter

from weft.bus import Bus
from weft.domain.cluster import Node
from weft.domain.job import Job
from weft.messages.asks import AskStored
from weft.messages.signals import Finding, NodeSampled
from weft.store import ReviewStore
from weftd.reallocator.thinking.sharing import ShareTuner


class ShareReview:
    def __init__(
        self, tuner: ShareTuner, *, pool: str, bus: Bus, store: ReviewStore, registry: CollectorRegistry
    ) -> None:
        self._tuner, self._pool, self._bus, self._store = tuner, pool, bus, store
        self._queued: dict[str, Job] = {}
        self.findings: tuple[Finding, ...] = ()
        self._asked = Counter("weft_reallocator_shares_asked", "ShareReview asked for by their use.", registry=registry)

    def observe(self, sampled: NodeSampled, *, now: float) -> None:
        self._tuner.observe(sampled, now=now)

    async def review(self, holding: Sequence[Job], nodes: Sequence[Node], now: float) -> None:
        """Ask for other shares of the jobs whose use calls for it."""
        sharing = any(one.share is not None for job in holding for one in job.held)
        if not sharing:
            self.findings = ()
            return
        self._queued = {job.id: job for job in await self._store.queued_jobs(pool=self._pool, known=self._queued)}
        decided = self._tuner.decide(holding, nodes, waiting=bool(self._queued), now=now)
        self.findings = decided.findings
        if decided.shares:
            asked = await self._store.ask_shares(decided.shares, pool=self._pool, at=now)
            self._tuner.asked({job_id: decided.shares[job_id] for job_id in asked}, now=now)
            self._asked.inc(len(asked))
            if asked:
                await self._bus.publish(AskStored(pool=self._pool))
