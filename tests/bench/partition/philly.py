"""Sia-Philly made elastic, with our planner, against the same jobs rigid under our best policy, and PAL's artifact."""

import time
from collections.abc import Iterable, Mapping

from msgspec import Struct

from tests.bench.figures import Aim
from tests.bench.policies.rounds import simulate_rounds
from tests.bench.policies.setups import SEED_42, cluster, sia, workload
from tests.bench.policies.tables import geomean, hours, table
from weft.planning.policy import Policy
from weft.simulator.metrics import metrics
from weft.simulator.model import LOCALITY_PENALTY, World
from weft.simulator.outcome import Outcome
from weft.simulator.run import simulate
from weft.simulator.sizing import partitioning_of
from weftd.cli.study.simulation.inputs import made_elastic

POLICY = Policy("las", "weft-best", "easy")
PAL, RIGID = "PAL's artifact", "rigid"
PLANNERS = ("weft",)
WORKLOADS = ("1", "2", "3", "4")
RESTARTS_S = (30.0, 120.0)
TIMES, EXPONENT = 2.0, 0.85

MEAN, WORST, P99 = 0.75, 1.0, 0.70
HEADER = (
    "workload",
    "sizes by",
    "average JCT",
    "÷ rigid",
    "p99",
    "÷ PAL's artifact",
    "makespan",
    "resizes",
    "moves",
    "evictions",
    "seconds a plan",
)


class PhillyCase(Struct, frozen=True, kw_only=True):
    """`restart_s`: of an elastic run; 0: rigid."""

    workload: str
    by: str
    restart_s: float = 0.0


class PhillyRun(Struct, frozen=True, kw_only=True):
    mean_s: float
    p99_s: float
    makespan_s: float
    resizes: int
    moves: int
    evictions: int
    plan_s: float


Runs = Mapping[PhillyCase, PhillyRun]


def cases(workloads: Iterable[str], restarts_s: Iterable[float]) -> list[PhillyCase]:
    return [case for name in workloads for case in _of(name, restarts_s)]


def _of(name: str, restarts_s: Iterable[float]) -> list[PhillyCase]:
    elastic = [PhillyCase(workload=name, by=by, restart_s=restart_s) for restart_s in restarts_s for by in PLANNERS]
    return [*elastic, PhillyCase(workload=name, by=RIGID), PhillyCase(workload=name, by=PAL)]


def run_philly(case: PhillyCase) -> PhillyRun:
    began = time.process_time()
    outcome = _outcome(case)
    took_s = time.process_time() - began
    found = metrics(outcome)
    return PhillyRun(
        mean_s=found.jct_mean_s,
        p99_s=found.jct_p99_s,
        makespan_s=found.makespan_s,
        resizes=sum(job.resizes for job in outcome.jobs),
        moves=found.moves,
        evictions=found.evictions,
        plan_s=took_s / max(1, len(outcome.partitions)),
    )


def _outcome(case: PhillyCase) -> Outcome:
    jobs, where = workload(sia(case.workload)), cluster(SEED_42)
    if case.by == PAL:
        return simulate_rounds(jobs, where, "pal", penalty=LOCALITY_PENALTY)
    if case.by == RIGID:
        return simulate(jobs, where, POLICY, World())
    elastic = made_elastic(jobs, times=TIMES, exponent=EXPONENT, resize_s=case.restart_s, gpus_most=where.gpus)
    return simulate(elastic, where, POLICY, World(), partitioning=partitioning_of(case.by))


def philly_table(runs: Runs) -> str:
    return table(HEADER, [_row(case, run, runs) for case, run in sorted(runs.items(), key=_place)])


def _place(item: tuple[PhillyCase, PhillyRun]) -> tuple[str, bool, bool, str, float]:
    case = item[0]
    return case.workload, case.by != PAL, case.by != RIGID, case.by, case.restart_s


def _row(case: PhillyCase, run: PhillyRun, runs: Runs) -> list[str]:
    of_rigid, of_pal = _ratios(case, run, runs)
    name = f"{case.by}, restarts of {case.restart_s:g} s" if case.restart_s else case.by
    row = [case.workload, name, hours(run.mean_s), f"{of_rigid:.3f}", hours(run.p99_s), f"{of_pal:.3f}"]
    row.append(hours(run.makespan_s))
    if case.by == PAL:
        return [*row, "", f"{run.moves:,}", "", ""]
    plan_s = f"{run.plan_s:.2f}" if case.restart_s else ""
    return [*row, f"{run.resizes:,}", f"{run.moves:,}", f"{run.evictions:,}", plan_s]


def _ratios(case: PhillyCase, run: PhillyRun, runs: Runs) -> tuple[float, float]:
    rigid, pal = (runs[PhillyCase(workload=case.workload, by=by)] for by in (RIGID, PAL))
    return run.mean_s / rigid.mean_s, run.p99_s / pal.p99_s


def philly_aims(runs: Runs) -> dict[str, Aim]:
    """Averages over the workloads are geometric."""
    aims: dict[str, Aim] = {}
    for by, restart_s in sorted({(case.by, case.restart_s) for case in runs if case.restart_s}):
        ratios = [
            _ratios(case, run, runs) for case, run in runs.items() if (case.by, case.restart_s) == (by, restart_s)
        ]
        means, tails = [mean for mean, _ in ratios], [tail for _, tail in ratios]
        name = f"philly.{by}.restart_{restart_s:g}s"
        aims[f"{name}.jct_of_rigid"] = Aim(value=round(geomean(means), 3), aim=MEAN)
        aims[f"{name}.jct_of_rigid_worst"] = Aim(value=round(max(means), 3), aim=WORST)
        aims[f"{name}.p99_of_pal"] = Aim(value=round(geomean(tails), 3), aim=P99)
        aims[f"{name}.p99_of_pal_worst"] = Aim(value=round(max(tails), 3), aim=P99)
    return aims
