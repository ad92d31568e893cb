"""Which GPUs need a benchmark now. Pure.

A benchmark is a job like any other: it takes a free GPU, and gives way to every real job. A GPU is
measured when it joins, when its driver or power limit changed, when it was idle for long and its last result is old,
and once more when a result surprises.
"""

from collections.abc import Collection, Iterable
from math import inf

from msgspec import Struct

from weft.domain.cluster import Gpu, Node
from weft.domain.job import Job
from weft.domain.spec import JobSpec
from weft.messages.signals import GpuSample, GpuScore, ModelSpeed
from weft.planning.scores import GpuKey
from weft.samples.benchmark_job import Measured, benchmark_spec, measured
from weftd.scorer.thinking.benchmark_results import RESULTS_KEPT, Conditions, Results

BUSY = 0.05  # utilisation of a GPU that is in use though no job holds it


class BenchmarkSettings(Struct, frozen=True, kw_only=True):
    on: bool = True
    idle_seconds: float = 1800.0  # the GPU was free for this long
    every_seconds: float = 6 * 3600.0  # and its last result is older
    at_once: int = 2  # of a pool; of a node never more than one
    deadline_seconds: float = 900.0  # then a submitted benchmark is given up, and submitted again later
    backoff_seconds_max: float = 24 * 3600.0
    group_least: int = 3  # GPUs of the same conditions, for a meaningful median
    image: str = ""  # Weft's own; without it nodes that run containers are not measured
    seconds: float | None = None  # of steady computing; None: as the program has it


class Wanted(Struct, frozen=True, kw_only=True):
    """One benchmark to submit. The same `key` again is the same job."""

    spec: JobSpec
    key: str
    uuid: str
    cause: str


class _Known(Struct):
    """One GPU in its place."""

    gpu: Gpu
    place: GpuKey
    pool: str
    runtime: str
    takes_work: bool
    free_since: float | None  # None: a job holds it
    driver: str = ""
    power: float | None = None
    seen: bool = False  # by telemetry, which alone has the driver and the power limit
    hindered: bool = False  # the driver reports a problem, or a process of no job uses the GPU

    @property
    def conditions(self) -> Conditions:
        return Conditions.of(model=self.gpu.model, driver=self.driver, power=self.power, emulated=self.gpu.emulated)


class _Asked(Struct):
    """The last benchmark that was submitted for a GPU, and until when it counts as under way."""

    cause: str
    attempt: int
    until: float
    pool: str
    node_id: str


class Benchmarks:
    """`observe…` nodes and samples, `due` to submit, `asked` once submitted, `ended` with each job that succeeded."""

    def __init__(self, settings: BenchmarkSettings | None = None, *, trusted: Collection[str] = ()) -> None:
        """`trusted`: the tenants whose benchmarks count; every tenant may submit a job with a benchmark's labels."""
        self.settings = settings or BenchmarkSettings()
        self._trusted = frozenset(trusted)
        self._gpus: dict[str, _Known] = {}
        self._results = Results(group_least=self.settings.group_least)
        self._asked: dict[str, _Asked] = {}

    @property
    def under_way(self) -> int:
        return len(self._asked)

    @property
    def without_image(self) -> bool:
        """True if nodes are not measured because no image is set."""
        return not self.settings.image and any(known.runtime == "docker" for known in self._gpus.values())

    # what there is

    def observe_nodes(self, nodes: Iterable[Node], held: Collection[GpuKey], *, now: float) -> None:
        """All nodes of this scorer, and which of their GPUs jobs hold. Of a GPU that is gone only results are kept."""
        before, self._gpus = self._gpus, {}
        for node in nodes:
            for gpu in node.capacity.gpus:
                place = (node.id, gpu.index)
                known = before.get(gpu.uuid)
                if known is None or known.place != place:
                    known = _Known(gpu, place, node.pool, node.runtime, takes_work=False, free_since=now)
                known.gpu, known.pool, known.runtime = gpu, node.pool, node.runtime
                known.takes_work = node.takes_work and gpu.index not in node.closed_gpus
                if place in held:
                    known.free_since = None
                elif known.free_since is None:
                    known.free_since = now
                self._gpus[gpu.uuid] = known
        self._asked = {uuid: asked for uuid, asked in self._asked.items() if uuid in self._gpus}
        self._results.forget(but=frozenset(self._gpus), now=now)

    def observe_sample(self, sample: GpuSample) -> None:
        known = self._gpus.get(sample.uuid)
        if known is None:
            return
        known.seen = True
        known.driver = sample.driver or known.driver
        known.power = sample.power_limit_watts or known.power
        used = known.free_since is not None and (sample.utilisation or 0.0) > BUSY
        known.hindered = bool(sample.problem) or used

    def model_speeds(self) -> tuple[ModelSpeed, ...]:
        return self._results.model_speeds()

    # what to submit

    def due(self, now: float) -> list[Wanted]:
        """The due benchmarks, the most urgent first. Changes nothing: call `asked`, or `refused`, for each."""
        if not self.settings.on:
            return []
        under_way = [one for one in self._asked.values() if one.until > now]
        busy = {one.node_id for one in under_way}
        pools = [one.pool for one in under_way]
        chosen: list[Wanted] = []
        for _, _, uuid, cause in sorted(self._needy(now)):
            known = self._gpus[uuid]
            if known.place[0] not in busy and pools.count(known.pool) < self.settings.at_once:
                busy.add(known.place[0])
                pools.append(known.pool)
                chosen.append(self._wanted(known, cause))
        return chosen

    def asked(self, wanted: Wanted, *, now: float) -> None:
        """It was submitted, and counts as under way until its deadline. Without a result it is submitted again after as
        long a pause, after twice as long the next time, and so on."""
        self._note(wanted, until=now + self.settings.deadline_seconds)

    def refused(self, wanted: Wanted, *, now: float) -> None:
        """It could not be submitted: try again after such a pause."""
        self._note(wanted, until=now)

    def used_up(self, wanted: Wanted) -> None:
        """Its key was used before: the next key is tried at once."""
        self._note(wanted, until=-inf)

    def _note(self, wanted: Wanted, *, until: float) -> None:
        spec = wanted.spec
        node_id = spec.pin.node if spec.pin else ""
        attempt = self._attempt(wanted.uuid, wanted.cause)
        self._asked[wanted.uuid] = _Asked(wanted.cause, attempt, until, spec.pool, node_id)

    def _attempt(self, uuid: str, cause: str) -> int:
        """The number of the next try."""
        asked = self._asked.get(uuid)
        return asked.attempt + 1 if asked is not None and asked.cause == cause else 0

    def _needy(self, now: float) -> Iterable[tuple[int, float, str, str]]:
        """Rank, since when it is free, uuid and why: of each GPU that needs measuring and can be measured."""
        for uuid, known in self._gpus.items():
            if known.free_since is None or not known.takes_work or known.hindered:
                continue
            if not (known.gpu.emulated or known.seen) or (known.runtime == "docker" and not self.settings.image):
                continue
            rank, cause = self._cause(uuid, known, known.free_since, now)
            if cause and not self._waits(uuid, cause, now):
                yield rank, known.free_since, uuid, cause

    def _cause(self, uuid: str, known: _Known, free_since: float, now: float) -> tuple[int, str]:
        """Why the GPU needs measuring, the more urgent the lower the number; "" if it does not."""
        last = self._results.newest(uuid)
        if last is None:
            return 0, "joined"
        if self._results.conditions(uuid) != known.conditions:
            power = "" if known.power is None else f"-{known.power:g}W"
            return 1, f"changed-{known.driver}{power}-{last.at:.0f}"
        # One whose results never agree would be measured without end.
        few = self._results.lately(uuid, since=now - self.settings.idle_seconds) < RESULTS_KEPT
        if few and self._results.surprising(uuid):
            return 2, f"confirm-{last.at:.0f}"
        idle = now - free_since >= self.settings.idle_seconds
        old = now - last.at >= self.settings.every_seconds
        return 3, f"idle-{last.at:.0f}" if idle and old else ""

    def _waits(self, uuid: str, cause: str, now: float) -> bool:
        """Whether a benchmark is under way, or its pause is not over."""
        asked = self._asked.get(uuid)
        if asked is None or asked.cause != cause:
            return False
        pause = min(self.settings.deadline_seconds * 2.0 ** min(asked.attempt, 60), self.settings.backoff_seconds_max)
        return now < asked.until + pause

    def _wanted(self, known: _Known, cause: str) -> Wanted:
        uuid = known.gpu.uuid
        spec = benchmark_spec(
            known.gpu,
            node_id=known.place[0],
            pool=known.pool,
            image=self.settings.image if known.runtime == "docker" else None,
            driver=known.driver,
            power_limit_watts=known.power,
            seconds=self.settings.seconds,
        )
        return Wanted(spec=spec, key=f"bench-{uuid}-{cause}-{self._attempt(uuid, cause)}", uuid=uuid, cause=cause)

    # what came of it

    def ended(self, job: Job) -> Measured | None:
        """Take in a job that is over. None: it is no benchmark that counts, or was taken in already."""
        if job.tenant not in self._trusted or (found := measured(job)) is None or not self._results.add(found):
            return None
        self._asked.pop(found.uuid, None)
        return found

    def results(self) -> dict[str, Measured]:
        """The newest result of each GPU, by its uuid."""
        return self._results.all_newest()

    def scores(self) -> list[GpuScore]:
        """For each class and each GPU measured in its present conditions: its time over that of comparable GPUs."""
        found: list[GpuScore] = []
        for uuid, known in sorted(self._gpus.items(), key=lambda item: item[1].place):
            if self._results.conditions(uuid) != known.conditions:
                continue
            compared = self._results.compared(uuid)
            found += [
                GpuScore(
                    node_id=known.place[0],
                    gpu_index=known.place[1],
                    job_class=job_class,
                    score=score,
                    confidence=compared.confidence[job_class],
                    source="benchmark",
                    measured_at=compared.at,
                    samples=compared.samples,
                )
                for job_class, score in compared.by_class.items()
            ]
        return found
