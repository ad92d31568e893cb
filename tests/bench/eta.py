"""How well it is foretold when jobs start and end: `python -m tests.bench eta [--quick] [--seed N]`.

Traces are replayed in the simulator, by the production walk. Of jobs that wait it is asked when they start, as they are
submitted and again later, and of jobs that run when they end, as they start and again later. Nothing is known but what
a gateway would know then: how long the jobs lasted that had ended by then, and how earlier estimates came true. With
`steps` running jobs report their progress, as jobs may; each keeps its pace for as long as it keeps its place.

The seed chooses the part of Philly and which jobs are asked of. The last line is one JSON object with the aims.
"""

import argparse
import os
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from math import inf
from pathlib import Path
from random import Random
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from tests.bench.figures import Aim, line_of, quantile
from tests.support.data import ROOT
from weft.messages.eta import Basis, EtaOf
from weft.planning.eta.ends import Steps, time_left
from weft.planning.eta.learnt import Kinds, Lasted, Lasting, RunsSoLong
from weft.planning.eta.record import Range, Track, TrackRecords
from weft.planning.eta.runs import Holds, Stopping, WaitingJob
from weft.planning.eta.spread import TimeSpread
from weft.planning.eta.starts import LookAhead
from weft.planning.eta.told import foreseen_end
from weft.planning.policy import Policy
from weft.planning.queue import place_of
from weft.simulator import traces
from weft.simulator.engine import Simulation
from weft.simulator.job import SimulatedJob
from weft.simulator.model import Cluster, World
from weft.simulator.workload import TraceJob, Workload, with_checkpoints
from weftd.cli.study.simulation.inputs import scaled

POLICY = Policy("fifo", "packed-sticky", "easy")
PREEMPTS = Policy("priority", "packed-sticky", "easy")
WORLD = World(start_s=5.0)
SIA = Cluster(nodes=16, gpus_per_node=4)
PHILLY = Cluster(nodes=16, gpus_per_node=8)
PHILLY_LOAD = 1.1
SIA_NUMBERS = (1, 2, 3, 4)
PHILLY_JOBS = 1_500
AGAIN = (0.25, 0.5, 1.0)  # later asks, as parts of what was foretold at first
COVERED = (0.75, 0.85)
ERROR_MAX = 1 / 3
WAITED_S = 1.0  # of a job that started, or ended, sooner nothing was to be foretold


class Asked(Struct):
    """One estimate of when a job starts, or ends; `wait_s`: how long that then still took."""

    job: str
    at: float
    first: bool
    basis: Basis
    raw: Range | None = None
    told: Range | None = None
    wait_s: float = inf


class Asks:
    """Estimates of one kind: of which jobs they are asked, and when again, and what came true."""

    def __init__(self, *, part: float, dice: Random) -> None:
        self.asked: list[Asked] = []
        self.open: dict[str, list[Asked]] = {}
        self._part, self._dice = part, dice
        self._seen: set[str] = set()
        self._later: list[tuple[float, str]] = []

    def due(self, jobs: Collection[str], now: float) -> Iterator[tuple[str, bool]]:
        """Of which of these jobs an estimate is asked now, and whether it is the first of that job."""
        for job_id in jobs:
            if job_id not in self._seen:
                self._seen.add(job_id)
                if self._dice.random() < self._part:
                    yield job_id, True
        while self._later and self._later[0][0] <= now:
            _, job_id = heappop(self._later)
            if job_id in jobs:
                yield job_id, False

    def add(self, asked: Asked, track: Track[str]) -> None:
        self.asked.append(asked)
        self.open.setdefault(asked.job, []).append(asked)
        if asked.raw is not None and asked.told is not None:
            track.expect(asked.job, asked.raw, asked.told, at=asked.at)
            if asked.first and asked.told.likely < inf:
                for part in AGAIN:
                    heappush(self._later, (asked.at + part * asked.told.likely, asked.job))

    def came(self, job_id: str, at: float) -> None:
        for asked in self.open.pop(job_id, ()):
            asked.wait_s = at - asked.at


class Watch:
    """Stands in for the decisions of a simulation: after each of them it asks what a user would."""

    def __init__(self, simulation: Simulation, *, policy: Policy, part: float, steps: bool, seed: int) -> None:
        self.starts = Asks(part=part, dice=Random(seed))
        self.ends = Asks(part=part, dice=Random(seed))
        self.thought_s: list[float] = []
        self._deciding, self._lives = simulation._deciding, simulation._lives
        self._gpus = float(simulation._cluster.gpus)
        self._jobs = {job.trace.id: job for job in simulation._jobs}
        self._policy, self._steps = policy, steps
        self._durations = Lasted()
        self._records: TrackRecords[str] = TrackRecords()
        self._known_ended = 0

    @property
    def decisions(self) -> int:
        return self._deciding.decisions

    @property
    def placements(self) -> int:
        return self._deciding.placements

    def decide(self, now: float) -> None:
        self._deciding.decide(now)
        self._learn(now)
        waiting = {job_id: job for job_id, job in self._jobs.items() if job_id in self._lives.queue}
        outlook: LookAhead | None = None
        for job_id, first in self.starts.due(waiting, now):
            outlook = outlook or self._outlook(now, list(waiting.values()))
            self._ask_start(job_id, outlook, first=first)
        running = {job.trace.id: job for job in self._lives.running.jobs.values()}
        lasting: Lasting | None = None
        for job_id, first in self.ends.due(running, now):
            lasting = lasting or self._lasting(now)
            self._ask_end(running[job_id], lasting, now=now, first=first)

    def _learn(self, now: float) -> None:
        ended = self._lives.ended
        if len(ended) > self._known_ended:
            for number in list(ended)[self._known_ended :]:
                outcome = ended[number]
                self._durations.add(kinds_of(self._jobs[outcome.id].trace), outcome.held_s)
                for basis in (Basis.PROGRESS, Basis.LEARNT):
                    self._records.of(EtaOf.END, basis).came(outcome.id, outcome.completed_s)
                self.ends.came(outcome.id, outcome.completed_s)
            self._known_ended = len(ended)
        for job_id in list(self.starts.open):
            begun = self._jobs[job_id].begun
            if begun is not None:
                self._records.of(EtaOf.START, Basis.LEARNT).came(job_id, begun)
                self.starts.came(job_id, begun)

    def _lasting(self, now: float) -> Lasting:
        return self._durations.beside(self._runs(job, now) for job in self._lives.running.jobs.values())

    def _left(self, job: SimulatedJob, lasting: Lasting, now: float) -> TimeSpread:
        age = job.held_s + now - job.since
        return time_left(lasting, kinds_of(job.trace), age=age, steps=self._told(job, now))

    def _outlook(self, now: float, waiting: Sequence[SimulatedJob]) -> LookAhead:
        lives, order = self._lives, self._policy.ordering
        durations = self._lasting(now)
        tiered = order.tier is not None
        held = [
            Holds(
                job_id=job.trace.id,
                allocations=job.allocations,
                gpus=job.gpus_needed,
                left=self._left(job, durations, now),
                tenant=job.trace.tenant,
                since_s=job.settled_at - now,
                began_s=job.settled_at - now,
                attained_s=job.held_s + now - job.since,
                standing=job.standing(now, known=False) if tiered else None,
                stopping=stopping_of(job),
            )
            for job in lives.running.jobs.values()
        ]

        def waits(job: SimulatedJob) -> WaitingJob:
            standing = job.standing(now, known=False)
            return WaitingJob(
                job_id=job.trace.id,
                place=place_of(order, standing),
                group=job.group(order, backfills=True),
                resource_request=job.resource_request,
                asked=job.asked,
                gpus=job.gpus_needed,
                lasts=time_left(durations, kinds_of(job.trace), age=job.held_s),
                standing=standing,
                tenant=job.trace.tenant,
                stopping=stopping_of(job),
            )

        queue = sorted(map(waits, waiting), key=lambda one: one.place)
        return LookAhead(
            lives.free_capacity,
            held,
            queue,
            now=now,
            policy=self._policy,
            gpus=self._gpus,
            records=self._records,
            minimum_run=WORLD.minimum_run,
            again=lambda job_id: waits(self._jobs[job_id]),
        )

    def _runs(self, job: SimulatedJob, now: float) -> RunsSoLong:
        age, steps = job.held_s + now - job.since, self._told(job, now)
        left = None if steps is None else steps.left()
        return RunsSoLong(kinds_of(job.trace), age, None if left is None else age + left.at(0.5))

    def _told(self, job: SimulatedJob, now: float) -> Steps | None:
        """What a job reports that reports its steps: the part of them that is done, and how fast they go now."""
        if not self._steps:
            return None
        worked = max(0.0, now - max(job.since, job.paused_until)) / job.stretch
        rate = 1 / (job.stretch * job.trace.work_s)
        return Steps(min(1.0, (job.done_s + worked) / job.trace.work_s), 1.0, rate)

    def _ask_start(self, job_id: str, outlook: LookAhead, *, first: bool) -> None:
        one = next(one for one in outlook.queue if one.job_id == job_id)
        began = time.thread_time()
        foreseen = outlook.seen(one)
        self.thought_s.append(time.thread_time() - began)
        asked = Asked(job_id, outlook.now, first, foreseen.estimate.basis, foreseen.raw or foreseen.told, foreseen.told)
        self.starts.add(asked, self._records.of(EtaOf.START, asked.basis))

    def _ask_end(self, job: SimulatedJob, lasting: Lasting, *, now: float, first: bool) -> None:
        left = self._left(job, lasting, now)
        asked = Asked(job.trace.id, now, first, left.basis)
        if left.known:
            foreseen = foreseen_end(left, now=now, records=self._records)
            asked.raw, asked.told = foreseen.raw, foreseen.told
        self.ends.add(asked, self._records.of(EtaOf.END, left.basis))


def stopping_of(job: SimulatedJob) -> Stopping:
    every = job.trace.checkpoint_s
    return Stopping(lost_s=None if every is None else every / 2, tries=job.evictions)


def kinds_of(trace: TraceJob) -> Kinds:
    return (
        ("model", trace.model, trace.gpus) if trace.model else ("tenant", trace.tenant, trace.gpus),
        ("model", trace.model) if trace.model else ("gpus", trace.gpus),
        "any",
    )


def replayed(
    workload: Workload, cluster: Cluster, *, part: float, steps: bool, seed: int, policy: Policy = POLICY
) -> Watch:
    simulation = Simulation(workload, cluster, policy, WORLD, seed=seed, keep_spells=False)
    watch = Watch(simulation, policy=policy, part=part, steps=steps, seed=seed)
    simulation._deciding = watch  # type: ignore[assignment]
    simulation.run()
    return watch


class Scored(Struct, frozen=True):
    asked: int  # of jobs that then waited, or ran on
    unknown: int
    covered: float  # part of those that were foretold
    covered_raw: float
    error: float  # median of the error as a part of the wait
    error_of_all: float  # median error as a part of the median wait
    wide: float  # median of the range as a part of the wait
    wait_s: float


def scored(asked: Iterable[Asked]) -> Scored:
    waited = [one for one in asked if WAITED_S <= one.wait_s < inf]
    known = [one for one in waited if one.told is not None and one.told.high < inf]
    pairs = [(one, one.told, one.raw) for one in known if one.told is not None and one.raw is not None]
    count = max(1, len(pairs))
    errors = [abs(told.likely - one.wait_s) for one, told, _ in pairs]
    return Scored(
        asked=len(waited),
        unknown=len(waited) - len(pairs),
        covered=sum(told.low <= one.wait_s <= told.high for one, told, _ in pairs) / count,
        covered_raw=sum(raw.low <= one.wait_s <= raw.high for one, _, raw in pairs) / count,
        error=quantile([error / one.wait_s for error, (one, _, _) in zip(errors, pairs, strict=True)], 0.5),
        error_of_all=quantile(errors, 0.5) / max(1.0, quantile([one.wait_s for one in known], 0.5)),
        wide=quantile([(told.high - told.low) / one.wait_s for one, told, _ in pairs], 0.5),
        wait_s=quantile([one.wait_s for one in waited], 0.5),
    )


def sia(number: int) -> Workload:
    return traces.read(data() / f"traces/sia-philly/workload-{number}.csv")


def sia_anew(seed: int) -> Workload:
    """The arrivals of one workload of Sia-Philly, with jobs drawn from all four: a trace on which nothing was tuned."""
    dice = Random(seed)
    all_jobs = [job for number in SIA_NUMBERS for job in sia(number).jobs]
    whole = sia(dice.choice(SIA_NUMBERS))
    drawn = [
        replace(dice.choice(all_jobs), id=f"{seed}-{place}", arrival_s=job.arrival_s)
        for place, job in enumerate(whole.jobs)
    ]
    return replace(whole, name=f"Sia-Philly drawn by {seed}", jobs=tuple(drawn))


def philly(seed: int, jobs: int) -> Workload:
    """So many jobs of Philly in a row, from a place that the seed draws."""
    whole = _philly()
    begin = Random(seed).randrange(len(whole.jobs) - jobs)
    cut = [job for job in whole.jobs[begin : begin + jobs] if job.gpus <= PHILLY.gpus]
    first = cut[0].arrival_s
    part = replace(whole, jobs=tuple(replace(job, arrival_s=job.arrival_s - first) for job in cut))
    return scaled(part, PHILLY_LOAD, PHILLY.gpus)


def prioritised(seed: int) -> Workload:
    """The same jobs with priorities, half of them with checkpoints: jobs give way to others."""
    dice = Random(seed)
    whole = with_checkpoints(philly(seed, PHILLY_JOBS), 0.5, seed=seed)
    return replace(whole, jobs=tuple(replace(job, priority=dice.choice((0, 0, 0, 1, 2))) for job in whole.jobs))


_whole: list[Workload] = []


def _philly() -> Workload:
    if not _whole:
        _whole.append(traces.read(data() / "traces/philly/philly.csv"))
    return _whole[0]


def data() -> Path:
    return ROOT / os.environ.get("WEFT_DATA", "../shared/data")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench eta", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer traces")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    if not data().is_dir():
        print("no measured data here: WEFT_DATA names no folder", file=sys.stderr)
        return 2
    seed = chosen.seed
    anew, windows = (2, 2) if chosen.quick else (6, 6)
    found: dict[str, list[Asked]] = {}
    thought: list[float] = []
    for steps in (False, True):
        told = "with steps" if steps else "no steps"

        def replay(
            name: str,
            workload: Workload,
            cluster: Cluster,
            part: float,
            *,
            policy: Policy = POLICY,
            steps: bool = steps,
        ) -> None:
            watch = replayed(workload, cluster, part=part, steps=steps, seed=seed, policy=policy)
            found.setdefault(name, []).extend(watch.starts.asked)
            found.setdefault(f"{name}, ends", []).extend(watch.ends.asked)
            thought.extend(watch.thought_s)
            _show(f"  {workload.name}", scored(watch.starts.asked))
            _show(f"  {workload.name}, ends", scored(watch.ends.asked))

        for number in () if chosen.quick else SIA_NUMBERS:
            replay(f"Sia-Philly, {told}", sia(number), SIA, 1.0)
        for number in range(anew):
            replay(f"Sia-Philly drawn anew, {told}", sia_anew(1_000 * seed + number), SIA, 0.7)
        for number in range(windows):
            replay(f"Philly, {told}", philly(1_000 * seed + number, PHILLY_JOBS), PHILLY, 0.2)
        for number in range(windows):
            replay(f"Philly by priority, {told}", prioritised(1_000 * seed + number), PHILLY, 0.2, policy=PREEMPTS)
    aims: dict[str, Aim] = {}
    for name, asked in found.items():
        score = scored(asked)
        _show(name, score)
        _show(f"  {name}, asked at first", scored(one for one in asked if one.first))
        _show(f"  {name}, asked later", scored(one for one in asked if not one.first))
        aims[f"{name}: covered at least"] = Aim(value=round(score.covered, 3), aim=COVERED[0], at_least=True)
        aims[f"{name}: covered at most"] = Aim(value=round(score.covered, 3), aim=COVERED[1])
        aims[f"{name}: error / wait"] = Aim(value=round(score.error, 3), aim=round(ERROR_MAX, 3))
    slowest = max(thought) * 1000
    print(f"one estimate: median {median(thought) * 1000:.1f} ms of CPU, slowest {slowest:.0f} ms")
    print(line_of(aims, seed=chosen.seed))
    return 0


def _show(name: str, score: Scored) -> None:
    print(
        f"{name:40} asked {score.asked:5}, unknown {score.unknown:4}; held {score.covered:.3f}"
        f" (uncorrected {score.covered_raw:.3f}); error / wait {score.error:.3f}"
        f" (of medians {score.error_of_all:.3f}); range / wait {score.wide:.2f}; median wait {score.wait_s:.0f} s",
        flush=True,
    )
