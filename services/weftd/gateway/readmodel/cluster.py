"""The newest telemetry of each node and progress of each job: in memory, bounded, and lost at a restart."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from msgspec import Struct

from weft.domain.idling import IDLE_USE_MAX
from weft.domain.job import Job
from weft.messages.nodes import ProgressSeen, RunProgressed
from weft.messages.signals import NOT_TUNED, Finding, NodeSampled, PoolReviewed, RankVerdict, RunSample
from weftd.gateway.readmodel.serving import LiveServing

T = TypeVar("T")

JOBS_PER_NODE_MAX = 2_000
NODES_MAX = 10_000
POOLS_MAX = 100
SAMPLE_SECONDS_MAX = 10.0  # older samples are not shown as current
FINDINGS_SECONDS_MAX = 300.0


class Newest(Generic[T]):
    """The newest value by key; of more than `most` keys, those updated last."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[str, T] = OrderedDict()

    def put(self, key: str, value: T) -> None:
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self._most:
            self._values.popitem(last=False)

    def get(self, key: str) -> T | None:
        return self._values.get(key)

    def forget(self, key: str) -> None:
        self._values.pop(key, None)

    def values(self) -> list[T]:
        return list(self._values.values())


class JobProgress(Struct):
    """The newest progress of the ranks of one epoch."""

    epoch: int
    ranks: dict[int, RunProgressed]


class _Heard(Struct, Generic[T], frozen=True):
    at: float
    what: T


class LiveCluster:
    """The newest messages: `hear_…` receives messages of services, the other methods return the newest. `clock` does
    not jump. `serving` holds the messages about services, whose requests go to `router_url`."""

    def __init__(self, *, clock: Callable[[], float], router_url: str = "") -> None:
        self._clock = clock
        self.serving = LiveServing(clock=clock, router_url=router_url)
        self._progress: Newest[Newest[JobProgress]] = Newest(NODES_MAX)  # by node, then by job
        self._samples: Newest[_Heard[NodeSampled]] = Newest(NODES_MAX)
        self._unused: Newest[dict[int, float]] = Newest(NODES_MAX)  # by node, the time since which a GPU is unused
        self._reviews: Newest[_Heard[PoolReviewed]] = Newest(POOLS_MAX)

    async def hear_progress(self, seen: ProgressSeen) -> None:
        """Store the progress by node; readers know the node of each rank."""
        told = self._progress.get(seen.node_id) or Newest(JOBS_PER_NODE_MAX)
        self._progress.put(seen.node_id, told)
        for run in seen.runs:
            known = told.get(run.job_id)
            if known is None or run.epoch > known.epoch:
                known = JobProgress(run.epoch, {})
            if run.epoch == known.epoch:
                known.ranks[run.rank] = run
                told.put(run.job_id, known)

    async def hear_sample(self, sampled: NodeSampled) -> None:
        now, known = self._clock(), self._unused.get(sampled.node_id)
        before = {} if known is None or self.sample(sampled.node_id) is None else known
        unused = (gpu.index for gpu in sampled.gpus if gpu.utilisation is not None and gpu.utilisation <= IDLE_USE_MAX)
        self._unused.put(sampled.node_id, {index: before.get(index, now) for index in unused})
        self._samples.put(sampled.node_id, _Heard(now, sampled))

    async def hear_review(self, reviewed: PoolReviewed) -> None:
        self._reviews.put(reviewed.pool, _Heard(self._clock(), reviewed))

    def progress(self, job: Job) -> dict[int, RunProgressed]:
        """Progress by rank, each from the node on which the rank is placed; other nodes' messages do not count."""
        found: dict[int, RunProgressed] = {}
        for allocation in job.placement.allocations if job.placement is not None else ():
            told = self._progress.get(allocation.node_id)
            known = told.get(job.id) if told is not None else None
            if known is not None and known.epoch == job.epoch and allocation.rank in known.ranks:
                found[allocation.rank] = known.ranks[allocation.rank]
        return found

    def sample(self, node_id: str) -> NodeSampled | None:
        heard = self._samples.get(node_id)
        if heard is None or self._clock() - heard.at > SAMPLE_SECONDS_MAX:
            return None
        return heard.what

    def unused_seconds(self, node_id: str, gpu: int) -> float | None:
        """The seconds for which this gateway saw a GPU unused; None: it is used, or its use is unknown."""
        unused = self._unused.get(node_id)
        if unused is None or gpu not in unused or self.sample(node_id) is None:
            return None
        return self._clock() - unused[gpu]

    def run_sample(self, node_id: str, job_id: str, epoch: int, rank: int) -> RunSample | None:
        sample = self.sample(node_id)
        wanted = (job_id, epoch, rank)
        runs = sample.runs if sample is not None else ()
        return next((run for run in runs if (run.job_id, run.epoch, run.rank) == wanted), None)

    def verdicts(self, job: Job) -> tuple[RankVerdict, ...]:
        """The bottlenecks of this epoch of the job and of its present ranks, from the last review of its pool."""
        heard = self._reviews.get(job.pool)
        if heard is None or self._clock() - heard.at > FINDINGS_SECONDS_MAX:
            return ()
        ranks = {-1, *(allocation.rank for allocation in job.held if not allocation.leaving)}
        of_job = {
            (one.rank, one.code): one
            for one in heard.what.verdicts
            if (one.job_id, one.epoch) == (job.id, job.epoch) and one.rank in ranks
        }
        return tuple(sorted(of_job.values(), key=lambda verdict: verdict.rank))

    def findings_on(self, job: Job) -> tuple[Finding, ...]:
        """The findings on a job in the last review of its pool."""
        heard = self._reviews.get(job.pool)
        if heard is None or self._clock() - heard.at > FINDINGS_SECONDS_MAX:
            return ()
        return tuple(finding for finding in heard.what.findings if finding.job_id == job.id)

    def findings(self) -> tuple[Finding, ...]:
        """All findings on which a person can act. A missing tuning is shown only at its job."""
        now = self._clock()
        return tuple(
            finding
            for heard in self._reviews.values()
            if now - heard.at <= FINDINGS_SECONDS_MAX
            for finding in heard.what.findings
            if finding.code != NOT_TUNED
        )
