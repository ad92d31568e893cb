"""The simulator: how fast time goes by in it, from 64 to 16,384 GPUs, and what one decision of its planning costs.

All of it is one thread that waits for nothing, and seconds are of processor time: the machine is shared.
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from msgspec import Struct

from tests.bench.figures import Figures, milliseconds
from tests.bench.policies.setups import SEED_42, cluster, data, sia, workload
from weft.domain.job import Allocation
from weft.planning.backfill import Easy
from weft.planning.capacity import FreeCapacity
from weft.planning.choosing_again import Movable
from weft.planning.finding import find
from weft.planning.moves import moves_for
from weft.planning.order import Standing
from weft.planning.policy import Policy
from weft.planning.queue import Queue
from weft.planning.resource_request import PlacementRequest, ResourceRequest
from weft.simulator import traces
from weft.simulator.generate import GeneratorSettings, generate
from weft.simulator.model import Cluster, World
from weft.simulator.outcome import Outcome
from weft.simulator.pool import room_of, shape_of
from weft.simulator.run import simulate
from weft.simulator.workload import Workload
from weftd.cli.study.simulation.inputs import scaled

OURS, BASELINE = Policy("las", "weft-best", "easy"), Policy("fifo", "packed-sticky", "easy")
GPUS_PER_NODE = 8
CLASSES = ("A", "B", "C")
LOAD = 0.9
SIZES = {64: 1500, 512: 5000, 4096: 10_000, 16_384: 16_000}  # GPUs: jobs

PHILLY_GPUS = 2048
PHILLY_ALONE = "philly"  # what a process of its own is started for: its memory is that of nothing else

LARGE_GPUS, WAITING, FREED = 16_384, 10_000, 60
SIZES_OF_JOBS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 32)  # with the three classes, 30 kinds
MIXED = (1, 1, 1, 2, 2, 4, 4, 8, *SIZES_OF_JOBS)  # GPUs by turns: of such jobs most wait
SMALL = (1,) * 150 + SIZES_OF_JOBS  # and of these all start


async def measure(home: Path, figures: Figures) -> None:
    del home
    for gpus, jobs in SIZES.items():
        _at_size(gpus, jobs, figures)
    if data().is_dir():
        _sia(figures)
        _philly(figures)
    else:
        figures.add("Sia-Philly, Philly", "not measured: WEFT_DATA names no folder")
    for policy in (OURS, BASELINE):
        _deciding(policy, figures)


def cluster_of(gpus: int) -> Cluster:
    dice = Random(gpus)
    return Cluster(
        nodes=gpus // GPUS_PER_NODE,
        gpus_per_node=GPUS_PER_NODE,
        scores={name: tuple(dice.lognormvariate(0.0, 0.04) for _ in range(gpus)) for name in CLASSES},
    )


def _at_size(gpus: int, jobs: int, figures: Figures) -> None:
    settings = GeneratorSettings(jobs=jobs, durations="log-uniform", classes=dict.fromkeys(CLASSES, 1.0))
    asked = scaled(generate(settings, Random(1)), LOAD, gpus)
    outcome, took = _timed(asked, cluster_of(gpus), OURS)
    simulated = max(job.completed_s for job in outcome.jobs)
    figures.add(
        f"simulated, {gpus:,} GPUs, {jobs:,} generated jobs, load {LOAD:g}, {OURS}",
        f"{simulated / took:,.0f} s a second, {outcome.decisions / took:,.0f} decisions a second ({took:.1f} s in all)",
    )


def _timed(asked: Workload, where: Cluster, policy: Policy) -> tuple[Outcome, float]:
    began = time.process_time()
    outcome = simulate(asked, where, policy, World(), keep_spells=False)
    return outcome, time.process_time() - began


# traces


def _sia(figures: Figures) -> None:
    took = [_timed(workload(sia(number)), cluster(SEED_42), OURS)[1] for number in "1234"]
    figures.add(
        f"Sia-Philly, workloads 1 to 4, 64 GPUs, {OURS}", ", ".join(f"{one:.2f} s" for one in took), "< 0.2 s each"
    )


def _philly(figures: Figures) -> None:
    for policy in (OURS, BASELINE):
        command = [sys.executable, "-m", "tests.bench.simulating", PHILLY_ALONE, str(policy)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        figures.add(
            f"Philly, all {found['jobs']:,} jobs on {PHILLY_GPUS:,} GPUs, {policy}",
            f"{found['took_s']:.1f} s, and {found['read_s']:.1f} s to read them; at most {found['most_mib']:.0f} MiB",
            "< 60 s, < 1,024 MiB",
        )


def _philly_alone(policy: Policy) -> None:
    began = time.process_time()
    asked = traces.read(data() / "traces/philly/philly.csv")
    read_s = time.process_time() - began
    _, took_s = _timed(asked, cluster(f"philly {PHILLY_GPUS}"), policy)
    most_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"jobs": len(asked.jobs), "read_s": read_s, "took_s": took_s, "most_mib": most_mib}))


# planning alone, asked as the engine asks it


class _Waiting(Struct, frozen=True):
    standing: Standing
    resource_request: ResourceRequest
    asked: PlacementRequest


class _Pool:
    """A room, a queue, and what was started of it."""

    def __init__(self, free_capacity: FreeCapacity, policy: Policy, mix: Sequence[int]) -> None:
        self.free_capacity = free_capacity
        self._kinds = [(gpus, name) for gpus in mix for name in CLASSES]
        self.queue = Queue(policy.ordering)
        self.jobs: dict[str, _Waiting] = {}
        self.running: dict[str, tuple[Allocation, ...]] = {}
        self._free = free_capacity.gpus_free
        self._numbers = iter(range(10**9))

    def fill(self, waiting: int) -> None:
        """So many wait, of all kinds in turn."""
        while len(self.queue) < waiting:
            number = next(self._numbers)
            gpus, name = self._kinds[number % len(self._kinds)]
            standing = Standing(id=f"j-{number:06d}", seq=number, gpus=gpus)
            self.jobs[standing.id] = _Waiting(standing, shape_of(gpus), PlacementRequest(name, standing.id))
            self.queue.add(standing, (gpus, name))

    def scheduling_pass(self) -> int:
        """All that fits starts; how many that were."""
        backfill = Easy(now=0.0, free=self._free, endings=lambda: ())
        served, started = self.queue.served(), 0
        while (job_id := served.next()) is not None:
            job = self.jobs[job_id]
            found = None
            if job.standing.gpus <= self._free and backfill.may_start(job.standing.gpus, None):
                found = find(self.free_capacity, job.resource_request, job.asked)
            if found is None:
                served.blocked()
                if not backfill.blocked(job.standing.gpus, None):
                    break
                continue
            for allocation in found:
                self.free_capacity.take(allocation)
            self.queue.remove(job_id)
            served.taken()
            backfill.started(job.standing.gpus, None)
            self.running[job_id] = found
            self._free -= job.standing.gpus
            started += 1
        return started

    def end(self, job_id: str) -> None:
        for allocation in self.running.pop(job_id):
            self.free_capacity.give_back(allocation)
        self._free += self.jobs[job_id].standing.gpus

    def review(self) -> int:
        """Who would gain by moving; how many that are."""
        movable = [
            Movable(
                job_id=job_id,
                resource_request=self.jobs[job_id].resource_request,
                asked=self.jobs[job_id].asked,
                allocations=held,
                gpus=self.jobs[job_id].standing.gpus,
                left_s=3600.0,
                cost_s=30.0,
            )
            for job_id, held in self.running.items()
        ]
        return len(moves_for(self.free_capacity, movable))


def _from_nothing(policy: Policy, mix: Sequence[int], figures: Figures) -> "_Pool":
    where = f"{LARGE_GPUS:,} GPUs, {WAITING:,} waiting jobs of 1 to {max(mix)} GPUs in 30 kinds, {policy}"
    began = time.process_time()
    pool = _Pool(room_of(cluster_of(LARGE_GPUS), World(), placer=policy.placing.placer), policy, mix)
    room_s = time.process_time() - began
    began = time.process_time()
    pool.fill(WAITING)
    queue_s = time.process_time() - began
    began = time.process_time()
    started = pool.scheduling_pass()
    walk_s = time.process_time() - began
    figures.add(
        f"one walk from nothing, {where}",
        f"{walk_s:.2f} s, {started:,} started (the room made in {room_s:.2f} s, the queue in {queue_s:.2f} s)",
        "< 1 s",
    )
    return pool


def _deciding(policy: Policy, figures: Figures) -> None:
    _from_nothing(policy, SMALL, figures)
    pool = _from_nothing(policy, MIXED, figures)
    walks, reviews = [], []
    for job_id in _single(pool):
        pool.fill(WAITING)
        pool.end(job_id)
        began = time.process_time()
        pool.scheduling_pass()
        walks.append(time.process_time() - began)
        if policy.placing.moves == "gainful":
            began = time.process_time()
            pool.review()
            reviews.append(time.process_time() - began)
    figures.add(f"one walk when a GPU is freed in the full pool, {policy}", milliseconds(walks), "p99 < 100 ms")
    if reviews:
        what = f"… and looking which of the {len(pool.running):,} running would gain by moving"
        figures.add(what, milliseconds(reviews), "together with the walk")


def _single(pool: _Pool) -> Iterator[str]:
    """Running jobs with one GPU, from all over the cluster."""
    single = [job_id for job_id in pool.running if pool.jobs[job_id].standing.gpus == 1]
    return iter(Random(1).sample(single, min(FREED, len(single))))


if __name__ == "__main__":
    if sys.argv[1:2] != [PHILLY_ALONE]:
        sys.exit("run it with the others: python -m tests.bench simulating")
    _philly_alone(Policy(*sys.argv[2].split("+")))
