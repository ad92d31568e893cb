"""Which run is where: the running jobs, and their ranks on this scorer's nodes."""

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from weft.domain.classes import workload_of
from weft.domain.job import Job
from weft.messages.signals import GpuSample, NodeSampled, RunSample, ShareSample
from weftd.scorer.thinking.sharing import RunKey, is_busy
from weftd.scorer.thinking.windows import ScoredRun

JobKey = tuple[str, int]
"""A job, and its epoch."""


class OnNode(Struct):
    """The runs on one of our nodes."""

    by_key: dict[RunKey, ScoredRun]
    by_gpu: dict[int, ScoredRun]  # those that hold whole GPUs
    sharing: dict[int, list[ScoredRun]]  # those that hold shares, by GPU

    def saw_gpu(self, gpu: GpuSample) -> None:
        """Take in one sample of a GPU."""
        holder = self.by_gpu.get(gpu.index)
        if holder is not None:
            holder.saw_gpu(gpu)
        sharing = self.sharing.get(gpu.index, [])
        if sharing and gpu.processes:
            keys = {run.key for run in sharing}
            if any((one.job_id, one.epoch, one.rank) not in keys and is_busy(one) for one in gpu.processes):
                for run in sharing:
                    run.use_of_share.foreign = True

    def saw_runs(self, sampled: NodeSampled) -> None:
        """Take in one sample of each run."""
        told = {(one.job_id, one.epoch, one.rank): one for one in sampled.runs}
        for key, run in self.by_key.items():
            run.saw(told.get(key), sampled.host)
        for sharing in self.sharing.values():
            used = {run.key: _used(told.get(run.key)) for run in sharing}
            uuids = {share.gpu_uuid for run in sharing if (share := _share(told.get(run.key))) is not None}
            strays = {key: _used(one) for key, one in told.items() if one.share and one.share.gpu_uuid in uuids}
            for run in sharing:
                others = {key: part for key, part in {**strays, **used}.items() if key != run.key}
                run.use_of_share.add(_share(told.get(run.key)), others)


def _share(run: RunSample | None) -> ShareSample | None:
    return None if run is None else run.share


def _used(run: RunSample | None) -> float | None:
    share = _share(run)
    return None if share is None else share.used


class Whereabouts:
    """The runs of this scorer. `leads`: all runs, on any node, of the jobs whose first rank is on our nodes."""

    def __init__(self) -> None:
        self.jobs: Mapping[JobKey, Job] = {}  # that run
        self.workload_of: dict[JobKey, str] = {}
        self.leads: dict[JobKey, list[ScoredRun]] = {}
        self._since: dict[JobKey, float] = {}  # since when we know them
        self._runs: dict[RunKey, ScoredRun] = {}
        self._on: dict[str, OnNode] = {}

    def learn(self, running: Mapping[JobKey, Job], now: float) -> list[JobKey]:
        """Take in all running jobs. Returns those that run no more."""
        gone = [key for key in self.jobs if key not in running]
        for key in gone:
            self._displace(key)
            del self._since[key], self.workload_of[key]
        for key, job in running.items():
            known = self.jobs.get(key)
            if known is None:
                self._since[key] = now
                self.workload_of[key] = workload_of(job.spec)
            # In a store that was restored a job may come to the same version again with other ranks.
            if known is None or known.version != job.version or known.placement != job.placement:
                self._place(key, job, now, self._displace(key))
        self.jobs = running
        return gone

    def own(self, node_ids: Iterable[str], now: float) -> None:
        """These nodes are ours from now on, and no others."""
        known, self._runs, self.leads = self._runs, {}, {}
        self._on = {node_id: OnNode({}, {}, {}) for node_id in sorted(node_ids)}
        for key, job in self.jobs.items():
            self._place(key, job, now, known)

    def on(self, node_id: str) -> OnNode | None:
        return self._on.get(node_id)

    def run(self, key: RunKey) -> ScoredRun | None:
        """The run, if it is on our nodes or of a job that we lead."""
        return self._runs.get(key)

    def runs_here(self) -> Iterator[ScoredRun]:
        return (run for on in self._on.values() for run in on.by_key.values())

    def known_for(self, key: JobKey, now: float) -> float:
        """For how many seconds we know the job."""
        return now - self._since.get(key, now)

    def nodes_led_to(self) -> frozenset[str]:
        """The nodes with runs of jobs that we lead."""
        return frozenset(run.node_id for runs in self.leads.values() for run in runs)

    def _place(self, key: JobKey, job: Job, now: float, known: Mapping[RunKey, ScoredRun]) -> None:
        """Note a job's ranks on our nodes; all of its ranks if the first is there: then its curve is ours."""
        assert job.placement is not None
        allocations = job.placement.allocations
        leads = bool(allocations) and allocations[0].node_id in self._on
        ranks = sum(bool(one.gpus) for one in allocations)
        first = min((one.rank for one in allocations if one.gpus), default=-1)
        for allocation in allocations:
            on = self._on.get(allocation.node_id)
            if on is None and not leads:
                continue
            run = known.get((*key, allocation.rank))
            if run is None or run.place != (allocation.node_id, allocation.gpus, allocation.share is not None):
                workload = self.workload_of[key]
                run = ScoredRun(
                    job, allocation, workload=workload, ranks=ranks, first=allocation.rank == first, now=now
                )
            if run.cpus != allocation.cpus:
                run.cpus = allocation.cpus
                run.begin(now)  # its pace is still from before the change
            self._runs[*key, allocation.rank] = run
            if leads:
                self.leads.setdefault(key, []).append(run)
            if on is not None:
                on.by_key[*key, allocation.rank] = run
                if run.has_share:
                    on.sharing.setdefault(allocation.gpus[0], []).append(run)
                else:
                    on.by_gpu.update(dict.fromkeys(allocation.gpus, run))

    def _displace(self, key: JobKey) -> dict[RunKey, ScoredRun]:
        """Drop a job that has ended or has changed. Returns its runs."""
        self.leads.pop(key, None)
        job = self.jobs.get(key)
        found: dict[RunKey, ScoredRun] = {}
        if job is None or job.placement is None:
            return found
        for allocation in job.placement.allocations:
            run = self._runs.pop((*key, allocation.rank), None)
            if run is None:
                continue
            found[*key, allocation.rank] = run
            if (on := self._on.get(run.node_id)) is not None:
                on.by_key.pop((*key, allocation.rank), None)
                on.by_gpu = {gpu: holder for gpu, holder in on.by_gpu.items() if holder is not run}
                for sharing in (on.sharing.get(gpu, []) for gpu in run.gpus):
                    sharing[:] = [other for other in sharing if other is not run]
        return found
