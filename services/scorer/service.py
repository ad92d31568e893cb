"""The scorer's shell: nodes and samples go in, stored scores come out."""

import asyncio
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge

from libs.bus import Bus
from libs.messages.signals import GpusScored, NodeSampled
from libs.service.run import Every, Listen, serve
from libs.store import ScorerStore, StoreUnavailableError
from services.scorer.core import MeasuredGpus, Scorer

PERIOD_SECONDS = 5.0
SCORES_AT_ONCE = 6000  # in one statement and one message


async def run(
    *,
    bus: Bus,
    store: ScorerStore,
    stop: asyncio.Event,
    clock: Callable[[], float],
    profile: MeasuredGpus | None = None,
    admin_port: int | None = None,
    admin_host: str = "127.0.0.1",
) -> None:
    """Serve until `stop`. More scorers share the GPUs by hearing the samples as one group."""
    scorer = Scorer(profile)
    registry = CollectorRegistry(auto_describe=True)
    scored = Gauge("weft_scorer_gpus_scored", "GPUs that this scorer has stored scores for.", registry=registry)

    async def hear(sampled: NodeSampled) -> None:
        scorer.observe(sampled)

    async def score() -> None:
        scorer.observe_nodes(await store.nodes())
        for pool, due in scorer.decide().items():
            for begin in range(0, len(due), SCORES_AT_ONCE):
                scores = due[begin : begin + SCORES_AT_ONCE]
                await store.save_scores(scores, at=clock())
                scorer.stored(scores)
                await bus.publish(GpusScored(pool=pool, scores=tuple(scores)))
        scored.set(scorer.gpus_scored)

    await serve(
        "scorer",
        bus=bus,
        stop=stop,
        listens=[Listen(NodeSampled, hear)],
        loops=[Every(PERIOD_SECONDS, score, retry_on=(StoreUnavailableError,), name="score")],
        registry=registry,
        admin_port=admin_port,
        admin_host=admin_host,
    )
