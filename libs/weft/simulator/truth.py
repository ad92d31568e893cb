"""The true speed of the simulated GPUs, its changes, what distance costs; and what the scheduler knows of them."""

from collections.abc import Iterable, Mapping
from random import Random

from weft.messages.signals import GangPoint
from weft.planning.scores import GpuKey
from weft.simulator.model import Cluster, World
from weft.simulator.pool import by_gpu, locality_of
from weft.variability.estimate import ScoreEstimate, observed
from weft.variability.penalties import believed, joined, measured, penalty_of

BELIEFS = ("oracle", "offline", "online")
NOTABLE = 0.005  # a smaller change of an estimate is not passed on


class Truth:
    """`belief`: `oracle`, always the truth; `offline`, the truth at the beginning, or the median of a GPU's own runs
    where those are known; `online`, the same, corrected by the step times of running jobs."""

    def __init__(self, cluster: Cluster, world: World, *, belief: str, dice: Random) -> None:
        if belief not in BELIEFS:
            raise ValueError(f"scores: no such belief as {belief!r}; there are {', '.join(BELIEFS)}")
        self._cluster = cluster
        self._world = world
        self._dice = dice
        self._belief = belief
        self.now = {name: dict(by_gpu(scores, cluster.gpus_per_node)) for name, scores in cluster.scores.items()}
        self._offline = {name: dict(scores) for name, scores in self.now.items()}
        self._runs = {
            name: dict(zip(self.now[name], runs, strict=True))
            for name, runs in cluster.runs.items()
            if name in self.now
        }
        if world.drift_s and self._runs:
            self.drift()
        self._estimates: dict[tuple[str, GpuKey], ScoreEstimate] = {}
        self.locality = locality_of(world)
        self._gangs: dict[str, tuple[GangPoint, ...]] = {}  # by workload

    @property
    def believed(self) -> Mapping[str, Mapping[GpuKey, float]]:
        """The scores that the scheduler begins with."""
        return self.now if self._belief == "oracle" else self._offline

    @property
    def learns(self) -> bool:
        return self._belief == "online"

    @property
    def learns_penalties(self) -> bool:
        return not self._world.penalties_known

    def drift(self) -> None:
        """Every GPU gets another score: one of its own runs, or any GPU's if those are not known."""
        for name, scores in self.now.items():
            everybody = list(self._offline[name].values())
            runs = self._runs.get(name, {})
            for gpu in scores:
                scores[gpu] = self._dice.choice(runs.get(gpu) or everybody)

    def known_after_drift(self) -> Mapping[str, Mapping[GpuKey, float]]:
        """The scores that an oracle gets after a drift."""
        return self.now if self._belief == "oracle" else {}

    def of(self, job_class: str) -> Mapping[GpuKey, float]:
        """The true scores for that class; an unknown class counts as the first."""
        return self.now.get(job_class) or next(iter(self.now.values()), {})

    def sample(self, job_class: str, gpus: Iterable[GpuKey], now: float) -> dict[GpuKey, float]:
        """Take one noisy step time of each GPU; returns the scores that changed notably."""
        name = job_class if job_class in self.now else next(iter(self.now), "")
        changed: dict[GpuKey, float] = {}
        for gpu in gpus:
            true = self.now.get(name, {}).get(gpu, 1.0)
            prior = self._offline.get(name, {}).get(gpu, 1.0)
            before = self._estimates.get((name, gpu)) or ScoreEstimate(prior=prior)
            after = observed(before, true * self._dice.lognormvariate(0.0, self._world.noise), now)
            self._estimates[name, gpu] = after
            if abs(after.score(now) - before.score(now)) > NOTABLE:
                changed[gpu] = after.score(now)
        return changed

    def gang(self, workload: str, alike: str, *, spread: float, seconds: float, now: float) -> float:
        """Take one noisy time of a gang; returns the locality penalty of its workload that is believed then."""
        point = measured(alike, spread, [seconds * self._dice.lognormvariate(0.0, self._world.noise)], at=now)
        points = self._gangs[workload] = joined(self._gangs.get(workload, ()), [point] if point else [])
        return believed(*penalty_of(points, now), usual=self._world.penalty)

    def aged(self, now: float) -> dict[str, dict[GpuKey, float]]:
        """By class, the scores at their present age."""
        found: dict[str, dict[GpuKey, float]] = {}
        for (name, gpu), estimate in self._estimates.items():
            found.setdefault(name, {})[gpu] = estimate.score(now)
        return found
