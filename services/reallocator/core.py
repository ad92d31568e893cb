"""What a pool's running jobs lack or waste, as findings. Nothing is changed by them in this version.

The signs are NEARCHUS's (NOMS'24), each the plainest one: throttled CPU, full memory, idle GPU, too few replicas.
"""

from collections.abc import Iterable, Sequence

from libs.domain.cluster import Node
from libs.domain.job import Job, JobState
from libs.domain.quantity import size_text
from libs.messages.signals import Finding, NodeSampled, RunSample
from libs.planning.explain import room_of
from libs.planning.room import shape_of

THROTTLED_ABOVE = 0.25  # part of the time in which a run wanted CPU and was held back
MEMORY_ABOVE = 0.9  # of its limit
IDLE_BELOW = 0.05  # utilisation of a GPU that a job holds
SETTLED_SECONDS = 60.0  # a job younger than this is still loading
STALE_SECONDS = 10.0


class Reallocator:
    """`observe` samples, `learn` the jobs, then `decide` what would have to be done."""

    def __init__(self) -> None:
        self._samples: dict[str, NodeSampled] = {}
        self._jobs: Sequence[Job] = ()
        self._nodes: Sequence[Node] = ()

    def observe(self, sampled: NodeSampled) -> None:
        self._samples[sampled.node_id] = sampled

    def learn(self, *, jobs: Iterable[Job], nodes: Iterable[Node]) -> None:
        self._jobs, self._nodes = tuple(jobs), tuple(nodes)

    def decide(self, now: float) -> tuple[Finding, ...]:
        running = [job for job in self._jobs if job.state is JobState.RUNNING and job.placement is not None]
        settled = [job for job in running if now - job.since >= SETTLED_SECONDS]
        return (*self._short_of_replicas(running), *self._squeezed(settled, now), *self._idle(settled, now))

    def _short_of_replicas(self, running: Sequence[Job]) -> list[Finding]:
        short = [job for job in running if _missing(job)]
        if not short:
            return []
        room = room_of(self._nodes, [job for job in self._jobs if job.state.holding])
        findings: list[Finding] = []
        for job in short:
            for role, missing in _missing(job).items():
                request = next(want.request for want in shape_of(job.spec) if want.role == role)
                fits = sum(node.count(request, missing) for node in room.open_nodes)
                if fits:
                    sentence = (
                        f"{job.name} runs with {missing} {role} fewer than it wants; {min(fits, missing)} would fit"
                    )
                    numbers = {"missing": float(missing), "would_fit": float(min(fits, missing))}
                    findings.append(Finding(code="grow", job_id=job.id, sentence=sentence, numbers=numbers))
        return findings

    def _squeezed(self, settled: Sequence[Job], now: float) -> list[Finding]:
        findings: list[Finding] = []
        for job in settled:
            for node_id, run in self._runs_of(job, now):
                what = f"rank {run.rank} of {job.name}"
                if run.cpu_throttled is not None and run.cpu_throttled > THROTTLED_ABOVE:
                    sentence = f"{what} is held back by its CPU limit {run.cpu_throttled:.0%} of the time"
                    numbers = {"cpu_throttled": run.cpu_throttled}
                    findings.append(_finding("more-cpu", job, node_id, sentence, numbers))
                if run.memory_used and run.memory_limit and run.memory_used > MEMORY_ABOVE * run.memory_limit:
                    sentence = f"{what} uses {size_text(run.memory_used)} of its {size_text(run.memory_limit)}"
                    numbers = {"memory_used": float(run.memory_used), "memory_limit": float(run.memory_limit)}
                    findings.append(_finding("more-memory", job, node_id, sentence, numbers))
        return findings

    def _idle(self, settled: Sequence[Job], now: float) -> list[Finding]:
        findings: list[Finding] = []
        for job in settled:
            assert job.placement is not None
            for allocation in job.placement.allocations:
                sample = self._fresh(allocation.node_id, now)
                held = [gpu for gpu in sample.gpus if gpu.index in allocation.gpus] if sample else []
                known = [gpu.utilisation for gpu in held if gpu.utilisation is not None]
                if known and max(known) < IDLE_BELOW:
                    sentence = f"rank {allocation.rank} of {job.name} leaves its {len(known)} GPUs idle"
                    numbers = {"utilisation": max(known)}
                    findings.append(_finding("idle-gpu", job, allocation.node_id, sentence, numbers))
        return findings

    def _runs_of(self, job: Job, now: float) -> list[tuple[str, RunSample]]:
        assert job.placement is not None
        nodes = sorted({allocation.node_id for allocation in job.placement.allocations})
        return [
            (node_id, run)
            for node_id in nodes
            if (sample := self._fresh(node_id, now)) is not None
            for run in sample.runs
            if (run.job_id, run.epoch) == (job.id, job.epoch)
        ]

    def _fresh(self, node_id: str, now: float) -> NodeSampled | None:
        sample = self._samples.get(node_id)
        return sample if sample is not None and now - sample.at < STALE_SECONDS else None


def _missing(job: Job) -> dict[str, int]:
    """How many replicas of each role are wanted and not there."""
    assert job.placement is not None
    missing: dict[str, int] = {}
    for name, role in job.spec.roles.items():
        have = sum(allocation.role == name for allocation in job.placement.allocations)
        if have < role.replicas.want:
            missing[name] = role.replicas.want - have
    return missing


def _finding(code: str, job: Job, node_id: str, sentence: str, numbers: dict[str, float]) -> Finding:
    return Finding(code=code, job_id=job.id, node_id=node_id, sentence=sentence, numbers=numbers)
