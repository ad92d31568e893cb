"""The shell of early stopping: hears what elements of sweeps report, and stores what follows."""

from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter

from weft.bus import Bus
from weft.domain.job import Job, JobState
from weft.messages.asks import AskStored
from weft.messages.nodes import ProgressSeen
from weft.store import ReviewStore, StoreUnavailableError
from weftd.reallocator.thinking.halving import Halving


class EarlyStops:
    def __init__(self, *, pool: str, bus: Bus, store: ReviewStore, registry: CollectorRegistry) -> None:
        self._halving = Halving()
        self._pool, self._bus, self._store = pool, bus, store
        self._watched: dict[str, str] = {}  # elements that run, with the metric that is compared
        self._newest: dict[str, tuple[int, Mapping[str, float]]] = {}  # by job: of the lowest rank that reports it
        self._stopped = Counter("weft_reallocator_stopped_early", "Elements of sweeps stopped.", registry=registry)

    def hear(self, seen: ProgressSeen) -> None:
        for run in seen.runs:
            metric = self._watched.get(run.job_id)
            if metric is None or metric not in run.progress:
                continue
            before = self._newest.get(run.job_id)
            if before is None or run.rank <= before[0]:
                self._newest[run.job_id] = (run.rank, run.progress)

    async def review(self, holding: Sequence[Job], now: float) -> None:
        """Compare the elements that run at the rungs that they came to."""
        jobs = [job for job in holding if job.spec.early_stop is not None and job.state is JobState.RUNNING]
        self._watched = {job.id: job.spec.early_stop.metric for job in jobs if job.spec.early_stop is not None}
        self._newest = {job_id: newest for job_id, newest in self._newest.items() if job_id in self._watched}
        arrays = {job.spec.element.array for job in jobs if job.spec.element is not None}
        self._halving.forget_others(arrays)
        if new := sorted(array for array in arrays if not self._halving.knows(array)):
            self._halving.learn(new, await self._store.rungs(new))
        judged = self._halving.judge(jobs, {job_id: progress for job_id, (_, progress) in self._newest.items()})
        stopped = 0
        try:
            for one in judged:
                if not await self._store.reach_rung(one.reached, pool=self._pool, why=one.why, at=now):
                    self._halving.forget_others(())  # another reallocator was there first
                    break
                stopped += one.why is not None
        except StoreUnavailableError:
            self._halving.forget_others(())  # what was not stored is judged again
            raise
        finally:
            self._stopped.inc(stopped)
        if stopped:
            await self._bus.publish(AskStored(pool=self._pool))
