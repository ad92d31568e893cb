"""The speeds of jobs as a planner knows them: as much as Sia knows, or what Weft's curves of workloads have.

Sia knows nothing of a job before it ran, and gives it one GPU. Then it knows the job's speed on every model with up to
twice as many GPUs as the job has run on. Weft measures the sizes at which jobs of the workload run, each on its model,
and expects the others by its curves; of models where the workload never ran it knows the usual ratio of their speeds
with one GPU.
"""

from collections.abc import Mapping
from math import inf

from tests.bench.kinds.ground import SIZE_MOST, Application, Speeds
from weft.messages.signals import Curve, CurvePoint
from weft.simulator.job import SimulatedJob
from weft.variability.curves import joined, speed_at

MEASURED_S = 60.0  # for how long a job works at a size before its speed is measured
UNKNOWN = (1.0,) * SIZE_MOST


def _works_s(job: SimulatedJob, now: float) -> float:
    """For how long it has worked with what it holds."""
    return now - max(job.spell_begin, job.paused_until) if job.allocations else 0.0


class TrueSpeeds:
    """All speeds, as Sia has them of rigid jobs. `ages`: a planner weighs a restart by the job's age."""

    def __init__(self, *, ages: bool) -> None:
        self._ages = ages

    def sees(self, job: SimulatedJob, now: float) -> None:
        pass

    def speeds(self, job: SimulatedJob) -> Speeds:
        assert job.trace.elastic is not None
        return job.trace.elastic.by_model

    def left_s(self, job: SimulatedJob, now: float) -> float:
        """Its age without what restarts cost it, by which Sia weighs another restart: of its work nothing is known."""
        return max(1.0, now - job.trace.arrival_s - job.lost_s) if self._ages else inf


class AsSia(TrueSpeeds):
    def __init__(self, apps: Mapping[str, Application], *, ages: bool) -> None:
        super().__init__(ages=ages)
        self._apps = apps
        self._largest: dict[str, int] = {}

    def sees(self, job: SimulatedJob, now: float) -> None:
        if _works_s(job, now) > 0:
            self._largest[job.trace.id] = max(self._largest.get(job.trace.id, 0), job.size)

    def speeds(self, job: SimulatedJob) -> Speeds:
        app, largest = self._apps[job.trace.model], self._largest.get(job.trace.id, 0)
        if not largest:
            if not job.allocations:
                return dict.fromkeys(app.speeds, UNKNOWN)
            return {model: (speeds[0],) * SIZE_MOST for model, speeds in app.speeds.items()}
        most = min(SIZE_MOST, max(job.size, 2 * largest))
        return {
            model: speeds[:most] + speeds[most - 1 : most] * (SIZE_MOST - most) for model, speeds in app.speeds.items()
        }


class ByWorkload:
    def __init__(self, apps: Mapping[str, Application]) -> None:
        self._apps = apps
        self._curves: dict[str, Curve] = {}
        self._expected: dict[str, Speeds] = {}
        self._measured: set[tuple[str, str, int]] = set()

    def sees(self, job: SimulatedJob, now: float) -> None:
        name = job.trace.model
        if _works_s(job, now) < MEASURED_S or (name, job.model, job.size) in self._measured:
            return
        self._measured.add((name, job.model, job.size))
        speed = self._apps[name].speeds[job.model][job.size - 1]
        point = CurvePoint(model=job.model, replicas=job.size, cpus=float(job.size), speed=speed, windows=20, at=now)
        before = self._curves[name].points if name in self._curves else ()
        self._curves[name] = Curve(subject=f"workload:{name}", pool="simulated", points=joined(before, [point]))
        self._expected.pop(name, None)

    def speeds(self, job: SimulatedJob) -> Speeds:
        name = job.trace.model
        if name not in self._expected:
            self._expected[name] = self._all(name)
        return self._expected[name]

    def _all(self, name: str) -> Speeds:
        app, curve = self._apps[name], self._curves.get(name)
        ratios = {model: speeds[0] for model, speeds in app.speeds.items()}
        found: dict[str, tuple[float, ...]] = {}
        for model, truth in app.speeds.items():
            speeds: list[float] = []
            for size in range(1, SIZE_MOST + 1):
                if speeds and truth[size - 1] == truth[size - 2]:
                    speeds.append(speeds[-1])  # no size at which it can run
                    continue
                speed, _ = speed_at(curve, size, float(size), model=model, ratios=ratios)
                speeds.append(speed or ratios[model] * size**0.85)
            found[model] = tuple(speeds)
        return found

    def left_s(self, job: SimulatedJob, now: float) -> float:
        """Nothing is known of what is left, as in a cluster."""
        return inf
