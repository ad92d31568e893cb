"""Scores each GPU for each class of jobs, from the jobs that run on it. The scale is PAL's (SC'24): time
relative to the typical GPU, lower is faster.

`learn` the store's nodes and jobs, `observe…` messages, `decide` what to store and publish. At the end of each window,
the same for all GPUs, a rank that only its GPU held back is a sample: its step time against the typical one of its
workload. A rank whose steps wait for other ranks is a sample of the slowest GPU of its job only. Under load the clocks
of
GPUs of one model are compared, too, as a faint sign.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from math import floor, inf

from msgspec import Struct

from weft.domain.classes import JOB_CLASSES, workload_of
from weft.domain.cluster import Node
from weft.domain.job import Job, JobState
from weft.messages.nodes import ProgressSeen
from weft.messages.signals import GpuPace, GpuScore, NodeSampled, PacesSeen, PairSlowdown, ScorerPresent, WorkloadClass
from weft.planning.scores import GpuKey
from weft.samples.arrivals import Arrivals
from weft.variability.estimate import FAR, SUDDEN
from weftd.scorer.thinking.gangs import Gangs, GangTimes
from weftd.scorer.thinking.interference import Interference
from weftd.scorer.thinking.readings import SpeedReading, clock_pace, clock_reading, shifted_together
from weftd.scorer.thinking.references import ONE_OF_MANY, TOLD_MOST, Alike, Paces, shares
from weftd.scorer.thinking.references import sound as sound_pace
from weftd.scorer.thinking.scores import MeasuredGpus, Standings, weight_of
from weftd.scorer.thinking.sharing import ALONE_MOST
from weftd.scorer.thinking.throughput import Growth, Throughput
from weftd.scorer.thinking.whereabouts import JobKey, Whereabouts
from weftd.scorer.thinking.windows import SETTLED_SECONDS, WINDOW_SECONDS, ScoredRun, Unfit
from weftd.scorer.thinking.workloads import REVIEW_SECONDS, Workloads

SWEEP_SECONDS = 60.0  # between two looks at all scores for those that have aged
TOGETHER = 0.3  # the weight of a sample of the slowest GPU of a whole job
COMMON = 0.34  # the factor for a sample on which all ranks of a job agree: the job itself may have changed
STARTLING = 0.67  # the factor for a sample so slow that it is a transient or a fault
OF_SHARE = 0.3  # the weight of a sample of a run with a share: its arbiter's measure is another source of error
UNSEEN_RUN = 0.5  # the factor for a run whose CPU and memory are not measured
CLOCK = 0.15
CLOCK_SILENT_SECONDS = 120.0  # for this long after a sample of steps a clock does not count
BENCHMARK_MOST = 8.0
APART = 1.05  # ranks of one job do not wait for each other if their steps differ by this factor
APART_SPREAD = 0.05
APART_WINDOWS = 2
HEARD_WITHIN_SECONDS = 5.0
BEGINS_AFTER_SECONDS = 2.0  # by then every other scorer has published twice that it runs


class Due(Struct, frozen=True, kw_only=True):
    """Scores to store and to publish, by pool."""

    scores: dict[str, list[GpuScore]] = {}
    paces: dict[str, list[GpuPace]] = {}
    classes: dict[str, list[WorkloadClass]] = {}
    growths: list[Growth] = []
    gangs: list[GangTimes] = []


class Scorer:
    """`me`: a name that no other scorer has."""

    def __init__(self, profile: MeasuredGpus | None = None, *, me: str = "scorer") -> None:
        self.peers = ScorerPeers(me)
        self.owned: frozenset[str] = frozenset()
        self.also_hears: frozenset[str] = frozenset()  # other nodes with ranks of jobs that we lead
        self.outcomes: Counter[str] = Counter()  # of windows and of messages
        self.arrivals = Arrivals()
        self._interference = Interference()
        self._nodes: dict[str, Node] = {}
        self._divided_among: tuple[tuple[str, ...], frozenset[str]] = ((), frozenset())
        self._share: frozenset[str] = frozenset()
        self._models: dict[GpuKey, str] = {}
        self._where = Whereabouts()
        self._apart: Counter[JobKey] = Counter()
        self._standings = Standings(profile or MeasuredGpus())
        self._paces = Paces()
        self._workloads = Workloads()
        self._throughput = Throughput()
        self._gangs = Gangs()
        self._window = -inf
        self._pending: list[SpeedReading] = []
        self._to_tell: dict[str, dict[Alike, list[GpuPace]]] = {}
        self._swept_at = self._reviewed_at = -inf
        self._now = 0.0

    @property
    def gpus_scored(self) -> int:
        return self._standings.stored

    # from the store

    def learn(self, *, nodes: Iterable[Node], jobs: Iterable[Job], now: float) -> None:
        """All nodes, and all jobs that hold GPUs, of every pool."""
        self._now = now
        self._nodes = {node.id: node for node in nodes}
        running = {
            (job.id, job.epoch): job for job in jobs if job.state is JobState.RUNNING and job.placement is not None
        }
        for key in self._where.learn(running, now):
            self._apart.pop(key, None)
        self._appear()
        self._hear_of_led()

    def recall_classes(self, pool: str, classes: Iterable[WorkloadClass]) -> None:
        """Take in all stored classes."""
        self._workloads.recall(pool, classes)

    def learn_classes(self, pool: str, classes: Iterable[WorkloadClass]) -> None:
        """Take in classes that were just stored."""
        self._workloads.learnt(pool, classes)

    def divide(self, now: float) -> frozenset[str]:
        """The nodes that should be ours now."""
        present = self.peers.present(now)
        among = (present, frozenset(self._nodes))
        if among != self._divided_among:
            self._divided_among = among
            self._share = owned(self.peers.me, self._nodes, present) if present else frozenset()
        return self._share

    def own(self, node_ids: Iterable[str], scores: Iterable[GpuScore], now: float) -> None:
        """These nodes are ours from now on, and no others. `scores`: the stored ones of nodes that are new to us."""
        mine = frozenset(node_ids)
        self._standings.forget(self.owned - mine)
        new, self.owned = mine - self.owned, mine
        self._appear(new)
        self._standings.recall(scores, now)
        self._where.own(mine, now)
        self._hear_of_led()

    def _appear(self, new: frozenset[str] = frozenset()) -> None:
        """Note GPUs as their node reports them, also without telemetry; of `new` nodes before it comes."""
        for node_id in sorted(self.owned & self._nodes.keys()):
            silent = node_id in new or self.arrivals.heard_at(node_id) is None
            for gpu in self._nodes[node_id].capacity.gpus:
                place = (node_id, gpu.index)
                self._models[place] = gpu.model
                if silent:
                    self._standings.appear(place, gpu.uuid)

    def _hear_of_led(self) -> None:
        self.also_hears = self._where.nodes_led_to() - self.owned
        led = [job_id for job_id, _ in self._where.leads]
        self._throughput.forget(but=led)
        self._gangs.forget(but=led)

    # from messages

    def observe_present(self, present: ScorerPresent, now: float) -> None:
        self.peers.heard(present.scorer, now)

    def observe(self, sampled: NodeSampled, now: float) -> None:
        self._now = now
        on = self._where.on(sampled.node_id)
        if on is None:
            return
        if not self.arrivals.take(sampled, heard_at=now):
            self.outcomes["late-sample"] += 1
            return
        node = self._nodes.get(sampled.node_id)
        there = {gpu.index for gpu in node.capacity.gpus} if node is not None else set()
        for gpu in sampled.gpus:
            if gpu.index not in there:
                continue  # a node may invent any number of them
            place = (sampled.node_id, gpu.index)
            self._models[place] = gpu.model
            self._standings.appear(place, gpu.uuid)
            on.saw_gpu(gpu)
        on.saw_runs(sampled)

    def observe_progress(self, seen: ProgressSeen, now: float) -> None:
        """Take in progress, but for runs that are not here, and for older epochs."""
        self._now = now
        for told in seen.runs:
            run = self._where.run((told.job_id, told.epoch, told.rank))
            if run is None or run.node_id != seen.node_id:
                self.outcomes["not-there"] += 1
            elif not run.told(told, now):
                self.outcomes["disbelieved"] += 1

    def observe_paces(self, said: PacesSeen, now: float) -> None:
        """Take in another scorer's paces."""
        if said.scorer == self.peers.me:
            return
        for pace in said.paces:
            if pace.node_id in self.owned:
                continue
            if pace.compute is not None and pace.memory is not None:
                self._workloads.used(said.pool, pace.workload, pace.compute, pace.memory, now)
            if sound_pace(pace):
                self._paces.add(pace, now)

    def observe_benchmarks(self, scores: Iterable[GpuScore]) -> None:
        """Take in results of benchmarks: each is worth several samples of jobs, by its confidence."""
        for score in scores:
            place = (score.node_id, score.gpu_index)
            if score.node_id not in self.owned or not 0.0 < score.confidence <= 1.0:
                continue
            at = min(score.measured_at or self._now, self._now)
            weight = min(BENCHMARK_MOST, weight_of(score))
            self._standings.benchmarked(place, score.job_class, score.score, at, weight=weight)

    # decisions

    def decide(self, now: float) -> Due:
        """What is due. Call `stored` with the scores, and `learn_classes` with the classes, once they are stored."""
        self._now = now
        alone = len(self.peers.present(now)) <= 1
        self._measure(now)
        if (window := floor(now / WINDOW_SECONDS)) != self._window:
            self._window = window
            self._close(now)
            if alone:  # else once the other scorers' paces of this window have come
                self._measure(now)
        sweeping = now - self._swept_at >= SWEEP_SECONDS
        if sweeping:
            self._swept_at = now
        scores: dict[str, list[GpuScore]] = {}
        for score in self._standings.due(now, all_of_them=sweeping):
            if (node := self._nodes.get(score.node_id)) is not None:
                scores.setdefault(node.pool, []).append(score)
        paces = {} if alone else self._told_paces()
        self._to_tell = {}
        return Due(
            scores=scores,
            paces=paces,
            classes=self._classes(now),
            growths=self._growths(now),
            gangs=self._gangs.due(now),
        )

    def stored(self, scores: Iterable[GpuScore]) -> None:
        self._standings.store(scores, self._now)

    def score(self, place: GpuKey, job_class: str) -> GpuScore | None:
        """The present score."""
        return self._standings.score(place, job_class, self._now)

    def stored_scores(self) -> Iterator[tuple[str, GpuScore]]:
        """The stored scores of each GPU here, by its uuid."""
        return self._standings.stored_scores()

    def slowdowns_beside(self) -> Iterator[PairSlowdown]:
        """How much longer a GPU takes for a step of a job beside another, as seen on our nodes, by pairs of classes."""
        return self._interference.learnt(self._now)

    def _told_paces(self) -> dict[str, list[GpuPace]]:
        return {pool: [pace for paces in kinds.values() for pace in paces] for pool, kinds in self._to_tell.items()}

    def _classes(self, now: float) -> dict[str, list[WorkloadClass]]:
        """The new classes of workloads: each workload has one scorer that publishes its class."""
        if now - self._reviewed_at < REVIEW_SECONDS:
            return {}
        self._reviewed_at = now
        present = self.peers.present(now)
        if not present:
            return {}
        names = [name for name in self._workloads.names if owner(name[1], present) == self.peers.me]
        return self._workloads.review(now, names=names)

    def _growths(self, now: float) -> list[Growth]:
        where = self._where
        of = {key[0]: (where.jobs[key].pool, where.workload_of[key]) for key in where.leads}
        return self._throughput.due(of, now)

    # windows

    def _close(self, now: float) -> None:
        """End the windows that are long enough; their paces are published, and kept for `_measure`."""
        self._paces.forget_old(now)
        due = [run for run in self._where.runs_here() if run.due(now)]
        self._mark_apart(due)
        for run in due:
            settled = self._where.known_for(run.job, now) >= SETTLED_SECONDS
            unfit = run.unfit(now, settled=settled)
            self.outcomes[unfit or "fit"] += 1
            self._read(run, unfit, now, settled=settled)
        for key, runs in self._where.leads.items():
            if runs[0].due(now) and self._where.known_for(key, now) >= SETTLED_SECONDS:
                model = self._model_of(runs)
                self._throughput.window(key[0], runs, now, model=model)
                job_class = self._workloads.class_of(self._where.jobs[key].spec, runs[0].workload)
                believed = partial(self._believed, job_class, now)
                self._gangs.window(key[0], runs, now, nodes=self._nodes, model=model, believed=believed)
        for run in due:
            run.begin(now)

    def _believed(self, job_class: str, now: float, place: GpuKey) -> float:
        return self._standings.believed(place, job_class, now)

    def _model_of(self, runs: Iterable[ScoredRun]) -> str:
        """The model of all GPUs of these runs; empty if they have none, or of several models."""
        models = {
            gpu.model
            for run in runs
            if (node := self._nodes.get(run.node_id)) is not None
            for gpu in node.capacity.gpus
            if gpu.index in run.gpus
        }
        return models.pop() if len(models) == 1 else ""

    def _mark_apart(self, due: Sequence[ScoredRun]) -> None:
        """Mark the jobs whose ranks do not wait for each other."""
        steps: defaultdict[JobKey, list[float]] = defaultdict(list)
        for run in due:
            if run.gpus and not run.alone and run.pace is not None and run.pace.step_spread < APART_SPREAD:
                steps[run.job].append(run.pace.step_seconds)
        for job, times in steps.items():
            self._apart[job] += len(times) > 1 and max(times) > APART * min(times)

    def _read(self, run: ScoredRun, unfit: Unfit | None, now: float, *, settled: bool) -> None:
        if not run.gpus:
            return
        job_class = self._workloads.class_of(self._where.jobs[run.job].spec, run.workload)
        use = run.whole_use if settled and not run.shared else None
        if use is not None:
            self._workloads.used(run.pool, run.workload, *use, now)
        pace = run.pace if unfit is None else None
        step_seconds = 0.0 if pace is None else (run.device_seconds or pace.step_seconds)
        of_one = run.alone or self._apart[run.job] >= APART_WINDOWS
        told = GpuPace(
            workload=run.workload,
            job_class=job_class,
            node_id=run.node_id,
            gpu_index=run.gpus[0],
            step_seconds=step_seconds if of_one or run.first else 0.0,
            windows=1,
            at=now,
            alike=run.alike(self._models.get((run.node_id, run.gpus[0]), ""), of_one=of_one),
            score=max(self._standings.believed((run.node_id, gpu), job_class, now) for gpu in run.gpus),
            compute=None if use is None else use[0],
            memory=None if use is None else use[1],
        )
        self._tell(run.pool, told)
        if run.has_share:
            self._interference.window(run, unfit, told, self._classes_beside(run), now)
        clocks = {gpu: clock for gpu, one in run.uses.items() if (clock := one.mean_clock) is not None}
        if pace is not None:
            if told.step_seconds:
                self._paces.add(told, now)
            self._pending.append(
                SpeedReading(
                    kind=(told.workload, told.alike),
                    step_seconds=step_seconds,
                    places=tuple((run.node_id, gpu) for gpu in run.gpus),
                    job_class=job_class,
                    weight=(1.0 if of_one else TOGETHER)
                    * (1.0 if run.seen else UNSEEN_RUN)
                    * (OF_SHARE if run.has_share else 1.0),
                    job=run.job,
                    of_one=of_one,
                    clocks=clocks,
                    of_share=run.has_share,
                )
            )
        if settled and not run.shared and job_class == JOB_CLASSES[0]:
            for gpu, clock in clocks.items():
                self._read_clock(run, gpu, clock, now)

    def _classes_beside(self, run: ScoredRun) -> set[str]:
        """The classes of the jobs that used its GPU in this window; empty of a job that does not run any more."""
        jobs = [self._where.jobs.get(key[:2]) for key, used in run.use_of_share.others.items() if used > ALONE_MOST]
        return {self._workloads.class_of(job.spec, workload_of(job.spec)) if job else "" for job in jobs}

    def _read_clock(self, run: ScoredRun, gpu: int, clock: float, now: float) -> None:
        place, job_class = (run.node_id, gpu), JOB_CLASSES[0]
        score = self._standings.believed(place, job_class, now)
        told = clock_pace(place, self._models.get(place, ""), clock, score=score, now=now)
        self._tell(run.pool, told)
        self._paces.add(told, now)
        self._pending.append(clock_reading(told, run.job, weight=CLOCK))

    def _tell(self, pool: str, pace: GpuPace) -> None:
        if pace.step_seconds or pace.compute is not None:
            paces = self._to_tell.setdefault(pool, {}).setdefault((pace.workload, pace.alike), [])
            if len(paces) < TOLD_MOST:
                paces.append(pace)

    # samples

    def _measure(self, now: float) -> None:
        """Turn ended windows into samples of our GPUs, once the paces that they compare to have come."""
        readings, self._pending = self._pending, []
        ratios = [self._paces.against_typical(one.kind, one.step_seconds) for one in readings]
        common = shifted_together(readings, ratios)
        for reading, ratio in zip(readings, ratios, strict=True):
            if ratio is None:
                self.outcomes["no-reference"] += not reading.clock_only
                continue
            weight = reading.weight * (COMMON if reading.job in common and reading.of_one else 1.0)
            self._sample(reading, ratio, weight, now)

    def _sample(self, reading: SpeedReading, ratio: float, weight: float, now: float) -> None:
        node_id = reading.places[0][0]
        held = [gpu for _, gpu in reading.places]
        for gpu, share in shares(ratio, reading.clocks, held, fine=1.0 + FAR).items():
            place = (node_id, gpu)
            if reading.clock_only and self._standings.strong_within(
                place, reading.job_class, now - CLOCK_SILENT_SECONDS
            ):
                continue
            startling = ratio >= SUDDEN * self._standings.believed(place, reading.job_class, now)
            self._standings.measured(
                place,
                reading.job_class,
                ratio,
                now,
                weight=weight * share * (STARTLING if startling else 1.0),
                faint=reading.clock_only
                or reading.of_share
                or share == ONE_OF_MANY
                or not (reading.of_one or ratio <= 1.0 + FAR),
                witness=reading.witness,
                source="shares" if reading.of_share else "jobs",
            )


def owner(of: str, scorers: Iterable[str]) -> str:
    """Which of these scorers (one at least) has the node, or the workload, of that name."""
    return max(scorers, key=lambda scorer: (_weight(of, scorer), scorer))


def owned(by: str, of: Iterable[str], scorers: Iterable[str]) -> frozenset[str]:
    everybody = tuple(scorers)
    return frozenset(one for one in of if owner(one, everybody) == by)


def _weight(of: str, scorer: str) -> bytes:
    return blake2b(f"{scorer}\0{of}".encode(), digest_size=8).digest()


class ScorerPeers:
    """The scorers with a recent message, and this one once it could have got a message of every other."""

    def __init__(self, me: str) -> None:
        self.me = me
        self._heard: dict[str, float] = {}
        self._began: float | None = None

    def heard(self, scorer: str, now: float) -> None:
        if scorer != self.me:
            self._heard[scorer] = now

    def present(self, now: float) -> tuple[str, ...]:
        """The scorers in order; none before we are sure to know all of them."""
        if self._began is None:
            self._began = now
        if now - self._began < BEGINS_AFTER_SECONDS:
            return ()
        self._heard = {name: at for name, at in self._heard.items() if now - at <= HEARD_WITHIN_SECONDS}
        return tuple(sorted((self.me, *self._heard)))
