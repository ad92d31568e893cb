"""Emulated GPUs that run jobs in virtual time, and what telemetry and executors would tell of them."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from random import Random
from statistics import median
from typing import Any

from msgspec.structs import replace

from tests.support.builders import GIB, job, node
from weft.domain.cluster import Node
from weft.domain.job import Allocation, Job, JobState, Placement
from weft.domain.shares import Share
from weft.messages.nodes import Pace, ProgressSeen, RunProgressed
from weft.messages.signals import GpuProcess, GpuSample, GpuScore, HostSample, NodeSampled, RunSample, ShareSample
from weft.planning.scores import GpuKey
from weftd.scorer.thinking.core import Scorer
from weftd.scorer.thinking.scores import MeasuredGpus

WATCHED_SECONDS = 240.0  # by then a scorer has made up its mind
PERIOD = 5  # seconds between two decisions of a scorer
STEP_SECONDS = 0.25
PACE_SECONDS = 10.0


class Rank:
    """One rank: its steps take as long as its slowest GPU makes them, with some noise and some outliers."""

    def __init__(self, of: Job, allocation: Allocation) -> None:
        self.job, self.allocation = of, allocation
        self.steps: deque[float] = deque(maxlen=round(PACE_SECONDS))

    def pace(self, **fields: Any) -> Pace:
        middle = median(self.steps)
        spread = median(abs(step - middle) for step in self.steps) / middle
        told = {
            "window_seconds": PACE_SECONDS,
            "steps": round(PACE_SECONDS / middle),
            "steps_rate": 1 / middle,
            "step_seconds": middle,
            "step_spread": spread,
        }
        return Pace(**(told | fields))


class Fleet:
    """`slow`: how many times slower each GPU is now. One second of it is one `tick`."""

    def __init__(self, *, nodes: int = 1, gpus: int = 8, seed: int = 1, noise: float = 0.02, outliers: float = 0.0):
        self.nodes: list[Node] = [node(f"node-{number}", gpus=gpus) for number in range(1, nodes + 1)]
        self.ranks: list[Rank] = []
        self.slow: dict[GpuKey, float] = {}
        self.noise, self.outliers = noise, outliers
        self.dice = Random(seed)
        self.now = 1000.0
        self.seq = 0
        self.shape: Callable[[Rank, dict[str, Any]], dict[str, Any]] = lambda rank, run: (
            run
        )  # what a run tells of itself
        self.sample: Callable[[GpuSample], dict[str, Any]] = lambda gpu: {}
        self.paces: Callable[[Rank], dict[str, Any]] = lambda rank: {}
        self.foreign: set[GpuKey] = set()
        self.silent: set[str] = set()
        self.step_of: Callable[[Rank], float] = lambda rank: STEP_SECONDS

    @property
    def places(self) -> list[GpuKey]:
        return [(one.id, gpu.index) for one in self.nodes for gpu in one.capacity.gpus]

    @property
    def jobs(self) -> list[Job]:
        return list({rank.job.id: rank.job for rank in self.ranks}.values())

    def run(
        self,
        job_id: str,
        places: Iterable[tuple[str, tuple[int, ...]]],
        *,
        epoch: int = 1,
        share: Share | None = None,
        **fields: Any,
    ) -> Job:
        """One job with a rank at each of these places."""
        held = list(places)
        allocations = tuple(
            Allocation(rank=rank, role="worker", node_id=node_id, gpus=gpus, cpus=4.0, memory=GIB, share=share)
            for rank, (node_id, gpus) in enumerate(held)
        )
        made = job(
            job_id,
            gpus=len(held[0][1]),
            replicas=len(held),
            state=JobState.RUNNING,
            epoch=epoch,
            placement=Placement(allocations=allocations),
            spec={
                "labels": {"weft/workload": "resnet", **fields.pop("labels", {})},
                "env": fields.pop("env", {}),
            },
            **fields,
        )
        self.ranks += [Rank(made, allocation) for allocation in allocations]
        return made

    def run_one_each(self, places: Iterable[GpuKey] | None = None, **fields: Any) -> None:
        """A job of one GPU on each of them."""
        for node_id, gpu in self.places if places is None else places:
            self.run(f"j-{node_id}-{gpu}", [(node_id, (gpu,))], **fields)

    def end(self, job_id: str) -> None:
        self.ranks = [rank for rank in self.ranks if rank.job.id != job_id]

    # what is told

    def tick(self) -> Iterator[NodeSampled | ProgressSeen]:
        """A second passes."""
        self.now += 1.0
        self.seq += 1
        for rank in self.ranks:
            rank.steps.append(self._step(rank))
        for one in self.nodes:
            if one.id not in self.silent:
                here = [rank for rank in self.ranks if rank.allocation.node_id == one.id]
                yield self._sampled(one, here)
                yield ProgressSeen(node_id=one.id, runs=tuple(self._progressed(rank) for rank in here))

    def _step(self, rank: Rank) -> float:
        held = rank.allocation
        slowest = max((self.slow.get((held.node_id, gpu), 1.0) for gpu in held.gpus), default=1.0)
        usual = self.step_of(rank) * slowest * self.dice.lognormvariate(0.0, self.noise)
        return usual * self.dice.uniform(1.5, 4.0) if self.dice.random() < self.outliers else usual

    def _progressed(self, rank: Rank) -> RunProgressed:
        one = rank.allocation
        pace = rank.pace(**self.paces(rank))
        return RunProgressed(
            job_id=rank.job.id, epoch=rank.job.epoch, rank=one.rank, progress={}, at=self.now, pace=pace
        )

    def _sampled(self, one: Node, here: list[Rank]) -> NodeSampled:
        holders = {gpu: rank for rank in here for gpu in rank.allocation.gpus}
        return NodeSampled(
            node_id=one.id,
            pool=one.pool,
            at=self.now,
            host=HostSample(cpus=64, memory_total=256 * GIB, memory_used=GIB),
            gpus=tuple(
                self._gpu(one, gpu.index, gpu.uuid, gpu.model, holders.get(gpu.index)) for gpu in one.capacity.gpus
            ),
            runs=tuple(
                RunSample(
                    **self.shape(
                        rank,
                        {
                            "job_id": rank.job.id,
                            "epoch": rank.job.epoch,
                            "rank": rank.allocation.rank,
                            "source": "cgroup2",
                            "cpu_throttled": 0.0,
                        },
                    )
                )
                for rank in here
            ),
            boot="b",
            seq=self.seq,
        )

    def _gpu(self, one: Node, index: int, uuid: str, model: str, rank: Rank | None) -> GpuSample:
        processes: tuple[GpuProcess, ...] = ()
        if rank is not None:
            processes = (GpuProcess(pid=1, job_id=rank.job.id, epoch=rank.job.epoch, rank=rank.allocation.rank),)
        if (one.id, index) in self.foreign:
            processes += (GpuProcess(pid=2, sm_utilisation=0.4),)
        plain = GpuSample(index=index, uuid=uuid, model=model, emulated=True, processes=processes)
        more = self.sample(plain)
        return GpuSample(**({name: getattr(plain, name) for name in plain.__struct_fields__} | more)) if more else plain


def share_all(fleet: Fleet) -> None:
    """Every rank holds half of its GPU."""
    jobs = {}
    for rank in fleet.ranks:
        rank.allocation = replace(rank.allocation, share=Share(request=500, memory=1 << 30))
    for rank in fleet.ranks:
        of_job = tuple(other.allocation for other in fleet.ranks if other.job.id == rank.job.id)
        jobs[rank.job.id] = replace(rank.job, placement=Placement(allocations=of_job))
    for rank in fleet.ranks:
        rank.job = jobs[rank.job.id]


def use(fleet: Fleet, of: Mapping[str, float | None], *, usual: float | None = 0.5) -> None:
    """What each job uses of its GPU's time, by its id."""

    def told(rank: Rank, run: dict[str, Any]) -> dict[str, Any]:
        used = of.get(rank.job.id, usual)
        gpu = f"GPU-{rank.allocation.node_id}-{rank.allocation.gpus[0]}"
        return {**run, "share": ShareSample(gpu_uuid=gpu, request=0.5, limit=1.0, used=used)}

    fleet.shape = told


class Watched:
    """One scorer, told all that a fleet tells."""

    def __init__(self, fleet: Fleet, profile: MeasuredGpus | None = None) -> None:
        self.fleet = fleet
        self.scorer = Scorer(profile)
        self.worst: dict[GpuKey, float] = {}
        self.saved: list[GpuScore] = []

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> float | None:
        """After how many seconds `until` was true, at a decision; None if it never was."""
        began = self.fleet.now
        while self.fleet.now - began < seconds:
            for message in self.fleet.tick():
                if isinstance(message, ProgressSeen):
                    self.scorer.observe_progress(message, self.fleet.now)
                else:
                    self.scorer.observe(message, self.fleet.now)
            if self.fleet.seq % PERIOD == 0:
                self._decide()
                if until():
                    return self.fleet.now - began
        return None

    def _decide(self) -> None:
        now = self.fleet.now
        self.scorer.learn(nodes=self.fleet.nodes, jobs=self.fleet.jobs, now=now)
        mine = self.scorer.divide(now)
        if mine != self.scorer.owned:
            self.scorer.own(mine, (), now)
        due = self.scorer.decide(now)
        for scores in due.scores.values():
            self.scorer.stored(scores)
            self.saved += scores
        for place in self.fleet.places if self.scorer.owned else ():
            self.worst[place] = max(self.worst.get(place, 0.0), self.score(place).score)

    def score(self, place: GpuKey, job_class: str = "compute") -> GpuScore:
        found = self.scorer.score(place, job_class)
        assert found is not None
        return found


def after(fleet: Fleet, seconds: float = WATCHED_SECONDS) -> Watched:
    """A scorer that has watched it for so long."""
    watched = Watched(fleet)
    watched.run(seconds)
    return watched
