"""Simulations by the hundred: each told by names, each run once, on a few processes."""

import sys
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor, as_completed

from msgspec import Struct

from tests.bench.policies.rounds import simulate_rounds
from tests.bench.policies.setups import cluster, workload
from weft.planning.policy import Policy
from weft.simulator.metrics import metrics
from weft.simulator.model import LOCALITY_PENALTY, World
from weft.simulator.outcome import Outcome
from weft.simulator.run import simulate

ARTIFACT = "artifact"


class Run(Struct, frozen=True, kw_only=True):
    """One simulation. `policy`: order, placement and backfill, or one placement by the PAL artifact's own rules."""

    cluster: str
    workload: str
    policy: str
    penalty: float = LOCALITY_PENALTY
    move_s: float = 30.0
    decide_every_s: float = 0.0
    drift_s: float = 0.0
    durations_known: bool = False
    scores: str = "oracle"
    seed: int = 1


class Result(Struct, frozen=True, kw_only=True):
    mean_s: float
    p50_s: float
    p99_s: float
    makespan_s: float
    slowdown_max: float
    moves: int
    evictions: int
    jct_s: Mapping[str, float]  # by job
    completed_s: Mapping[str, float]
    took_s: float


Results = Mapping[Run, Result]


class Lab:
    """Runs what it is given, and remembers it."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._known: dict[Run, Result] = {}

    def results(self, runs: Iterable[Run]) -> Results:
        runs = list(runs)
        futures = {self._executor.submit(run_one, run): run for run in dict.fromkeys(runs) if run not in self._known}
        for done, future in enumerate(as_completed(futures), 1):
            run, result = futures[future], future.result()
            self._known[run] = result
            what = f"{run.cluster}, {run.workload}, {run.policy}: {result.took_s:.1f} s"
            print(f"{done} of {len(futures)}: {what}", file=sys.stderr, flush=True)
        return {run: self._known[run] for run in runs}


def by_artifact(placement: str, *, cluster: str, workload: str) -> Run:
    return Run(cluster=cluster, workload=workload, policy=f"{ARTIFACT} {placement}", move_s=0.0)


def run_one(run: Run) -> Result:
    began = time.perf_counter()
    outcome = _outcome(run)
    took_s = time.perf_counter() - began
    found = metrics(outcome)
    return Result(
        mean_s=found.jct_mean_s,
        p50_s=found.jct_p50_s,
        p99_s=found.jct_p99_s,
        makespan_s=found.makespan_s,
        slowdown_max=found.slowdown_max,
        moves=found.moves,
        evictions=found.evictions,
        jct_s={job.id: job.jct_s for job in outcome.jobs},
        completed_s={job.id: job.completed_s for job in outcome.jobs},
        took_s=took_s,
    )


def _outcome(run: Run) -> Outcome:
    if run.policy.startswith(ARTIFACT):
        placement = run.policy.removeprefix(ARTIFACT).strip()
        return simulate_rounds(workload(run.workload), cluster(run.cluster), placement, penalty=run.penalty)
    world = World(
        penalty=run.penalty,
        move_s=run.move_s,
        decide_every_s=run.decide_every_s,
        drift_s=run.drift_s,
        durations_known=run.durations_known,
    )
    return simulate(
        workload(run.workload),
        cluster(run.cluster),
        Policy(*run.policy.split("+")),
        world,
        seed=run.seed,
        scores=run.scores,
        keep_spells=False,
    )
