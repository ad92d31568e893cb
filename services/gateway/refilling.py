"""The history of figures from before this gateway began: from stored events, and from Prometheus where one is named.

Events tell how many GPUs were held and how many jobs waited, and since when a job has its replicas. What GPUs and nodes
did is stored nowhere: only Prometheus may have it. Paces come again as jobs report them: a stored curve has speeds by
size, in samples or in steps, and no history.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from math import nan

from libs.domain.job import Job
from libs.messages.series import GpuChanges
from libs.store import GatewayStore
from services.gateway.errors import RejectedError
from services.gateway.prometheus import Prometheus, PrometheusError
from services.gateway.sampling import CLUSTER, Samples
from services.gateway.snapshots import Snapshots
from services.gateway.thinking.rings import COARSE_SECONDS, COARSE_STEPS, FINE_SECONDS, FINE_STEPS
from services.gateway.thinking.usage import Stretch, by_step, summed
from services.gateway.usages import changes_of

logger = logging.getLogger(__name__)

RESOLUTIONS = ((FINE_SECONDS, FINE_STEPS), (COARSE_SECONDS, COARSE_STEPS))


class Refill:
    """`once` fills the history; called again, it does nothing."""

    def __init__(self, samples: Samples, *, now: Callable[[], float], prometheus: Prometheus | None) -> None:
        self._samples = samples
        self._now = now
        self._prometheus = prometheus
        self._done = False

    async def once(self, store: GatewayStore, snapshots: Snapshots) -> None:
        """Raises StoreUnavailableError: then the next call tries again."""
        if self._done:
            return
        ends = self._now()
        try:
            changes = await changes_of(store, ends - COARSE_SECONDS * COARSE_STEPS, ends)
        except RejectedError as error:
            changes = []
            logger.warning("the history begins now: %s", error)
        figures = await asyncio.to_thread(_of_cluster, changes, ends)
        for name, begins, values, seconds in figures:
            self._samples.cluster.fill(CLUSTER, name, begins, values, seconds)
        nodes = await snapshots.nodes.aside()
        for pool in snapshots.pools_of(nodes):
            for job in await snapshots.holding(pool, aside=True):
                for begins, values, seconds in _of_job(job, ends):
                    self._samples.jobs.fill(job.id, "replicas", begins, values, seconds)
        self._done = True
        if self._prometheus is not None:
            try:
                count = await self._prometheus.fill(nodes.all, self._samples.nodes, now=ends)
                logger.info("%d figures of nodes and GPUs came from Prometheus", count)
            except PrometheusError as error:
                logger.warning("the history of nodes and GPUs begins now: %s", error)


def _of_cluster(changes: Iterable[GpuChanges], ends: float) -> list[tuple[str, int, list[float], int]]:
    """GPUs held and jobs queued: each by its name, when its values begin, the values, and the seconds of a step."""
    changes = list(changes)
    found = []
    for what, name in (("held", "held"), ("waiting", "queued")):
        whole = summed(
            [GpuChanges(what=what, at=one.at, by=one.by) for one in changes if one.what == what]
            or [GpuChanges(what=what)]
        )
        for seconds, count in RESOLUTIONS if changes else ():
            last = int(ends // seconds)  # the step that is not over is sampled
            begins = (last - count + 1) * seconds
            stretch = Stretch(begins=begins * 1_000_000, ends=last * seconds * 1_000_000, step_seconds=seconds)
            amounts = by_step(whole[0], stretch.edges) / (seconds * 1e9)
            found.append((name, begins, amounts.tolist(), seconds))
    return found


def _of_job(job: Job, ends: float) -> Iterable[tuple[int, list[float], int]]:
    """Its replicas, since it has so many."""
    replicas = float(len(job.placement.staying)) if job.placement is not None else nan
    since = max(job.held_since, job.sized_at or 0.0)
    for seconds, count in RESOLUTIONS:
        last = int(ends // seconds)
        first = max(int(since // seconds) + 1, last - count + 1)
        if first < last:
            yield first * seconds, [replicas] * (last - first), seconds
