"""The times of gangs on one node and across nodes, collected until it is time to store what they show.

A window counts if every rank of a job with whole GPUs reports steady steps. The time for a unit of work is the inverse
of the job's speed, divided by the score of its slowest GPU, so that slow GPUs are not taken for a slow network.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from weft.domain.cluster import Node
from weft.messages.signals import GangPoint, WorkloadPenalty
from weft.planning.capacity.near import near_of, spread_within
from weft.planning.scores import GpuKey
from weft.variability.penalties import joined, measured, penalty_of
from weftd.scorer.thinking.throughput import speed_of
from weftd.scorer.thinking.windows import ScoredRun, is_steady

SAVE_SECONDS = 60.0
WINDOWS_LEAST = 2
WINDOWS_KEPT = 64

Gang = tuple[str, str]
"""The pool and the workload of a gang."""
Setup = tuple[str, float]
"""The gangs that compare, and the spread of one."""


class GangTimes(Struct, frozen=True, kw_only=True):
    """The new times of the gangs of one workload, to be merged into what is stored of it."""

    pool: str
    workload: str
    points: tuple[GangPoint, ...]


class _Job(Struct):
    gang: Gang
    seconds: dict[Setup, list[float]]


class Gangs:
    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}
        self._due_at = 0.0

    def window(
        self,
        job_id: str,
        runs: Sequence[ScoredRun],
        now: float,
        *,
        nodes: Mapping[str, Node],
        model: str,
        believed: Callable[[GpuKey], float],
    ) -> None:
        """Take in one window of a job with all its `runs`, on GPUs of `model`. `believed`: the score of a GPU."""
        places = [(run.node_id, gpu) for run in runs for gpu in run.gpus]
        if len(places) < 2 or not model or any(run.has_share or not is_steady(run.pace) for run in runs if run.gpus):
            return
        spread, found = spread_of(places, nodes), speed_of(runs, now)
        if spread is None or found is None:
            return
        (replicas, cpus), speed = found
        first = runs[0]
        unit = "samples" if first.pace is not None and first.pace.samples_rate else "steps"
        alike = f"{replicas}x{len(places)}/{cpus:g}/{model}/{first.settings}/{unit}"
        job = self._jobs.setdefault(job_id, _Job((first.pool, first.workload), {}))
        seconds = job.seconds.setdefault((alike, spread), [])
        if len(seconds) < WINDOWS_KEPT:
            seconds.append(1.0 / (speed * max(map(believed, places))))

    def forget(self, *, but: Iterable[str]) -> None:
        kept = set(but)
        self._jobs = {job_id: job for job_id, job in self._jobs.items() if job_id in kept}

    def due(self, now: float) -> list[GangTimes]:
        """The times to store now. They are returned once: lost if they cannot be stored."""
        if now < self._due_at:
            return []
        self._due_at = now + SAVE_SECONDS
        found: dict[Gang, list[GangPoint]] = {}
        for job in self._jobs.values():
            enough = {setup: times for setup, times in job.seconds.items() if len(times) >= WINDOWS_LEAST}
            for (alike, spread), times in sorted(enough.items()):
                if point := measured(alike, spread, times, at=now):
                    found.setdefault(job.gang, []).append(point)
            job.seconds = {setup: times for setup, times in job.seconds.items() if setup not in enough}
        return [GangTimes(pool=pool, workload=name, points=tuple(of)) for (pool, name), of in sorted(found.items())]


def spread_of(places: Sequence[GpuKey], nodes: Mapping[str, Node]) -> float | None:
    """The part of the locality penalty that a gang pays there; None across racks, and where a node is not known."""
    there = {node_id: nodes.get(node_id) for node_id, _ in places}
    known = [node for node in there.values() if node is not None]
    if len(known) < len(there) or len({node.rack for node in known}) > 1:
        return None
    return 1.0 if len(known) > 1 else spread_within(near_of(known[0].capacity), [gpu for _, gpu in places])


def penalties(known: Iterable[WorkloadPenalty], times: Iterable[GangTimes], *, at: float) -> list[WorkloadPenalty]:
    """The penalties that the stored points of these workloads show together with the new ones."""
    stored = {one.workload: one.points for one in known}
    found = []
    for one in times:
        points = joined(stored.get(one.workload, ()), one.points)
        penalty, confidence = penalty_of(points, at)
        found.append(
            WorkloadPenalty(workload=one.workload, penalty=penalty, confidence=confidence, points=points, at=at)
        )
    return found
