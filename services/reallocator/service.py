"""The reallocator's shell: samples and the store's jobs go in, findings come out."""

import asyncio
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge

from libs.bus import Bus
from libs.messages.signals import NodeSampled, PoolReviewed
from libs.service.run import Every, Listen, serve
from libs.store import ReviewStore, StoreUnavailableError
from services.reallocator.core import Reallocator


async def run(
    *,
    bus: Bus,
    store: ReviewStore,
    stop: asyncio.Event,
    clock: Callable[[], float],
    pool: str,
    review_seconds: float = 5.0,
    admin_port: int | None = None,
    admin_host: str = "127.0.0.1",
) -> None:
    """Review `pool` every `review_seconds` until `stop`."""
    reallocator = Reallocator()
    registry = CollectorRegistry(auto_describe=True)
    found = Gauge("weft_reallocator_findings", "What would have to be done now.", ["code"], registry=registry)

    async def hear(sampled: NodeSampled) -> None:
        if sampled.pool == pool:
            reallocator.observe(sampled)

    async def review() -> None:
        reallocator.learn(jobs=await store.open_jobs(pool=pool), nodes=await store.nodes(pool=pool))
        findings = reallocator.decide(clock())
        found.clear()
        for finding in findings:
            found.labels(finding.code).inc()
        await bus.publish(PoolReviewed(pool=pool, at=clock(), findings=findings))

    await serve(
        "reallocator",
        bus=bus,
        stop=stop,
        listens=[Listen(NodeSampled, hear, group="")],
        loops=[Every(review_seconds, review, retry_on=(StoreUnavailableError,), name="review")],
        registry=registry,
        admin_port=admin_port,
        admin_host=admin_host,
    )
