"""Dorm's table: its workload with static sizes, with its planner as published in three settings, and with ours."""

import time
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from statistics import fmean

from msgspec import Struct, structs

from tests.bench.figures import Aim
from tests.bench.partition.published import dorm
from tests.bench.partition.workload import CLUSTER, dorm_workload
from tests.bench.policies.tables import table
from weft.planning.partition import Rules
from weft.planning.policy import Policy
from weft.service.config import load
from weft.simulator.model import World
from weft.simulator.run import simulate
from weft.simulator.sized import SizeMetrics, size_metrics
from weft.simulator.sizing import Partitioning, partitioning_of
from weftd.reallocator.settings import ReallocatorSettings
from weftd.scheduler.settings import SchedulerSettings

POLICY = Policy("fifo", "packed-sticky", "none")
STATIC, OURS = "static", "weft"
PAPER = {"Dorm (0.2, 0.1)": (0.2, 0.1), "Dorm (0.1, 0.1)": (0.1, 0.1), "Dorm (0.1, 0.2)": (0.1, 0.2)}
EXPONENTS = (1.0, 0.85, 0.7, 0.5)

SPEED_UPS = {1.0: 2.72, 0.7: 1.7}
FAIRER = 4.0
OF_PAPERS_UTILISATION = 0.98
OVERHEAD_PERCENT = 5.0
LINEAR = 1.0
HEADER = (
    "exponent",
    "sizes by",
    "U 5 h",
    "U 24 h",
    "F 24 h",
    "U 5 h ÷ static",
    "U 24 h ÷ static",
    "static's F ÷ F",
    "speed-up",
    "least",
    "adjusted per event",
    "overhead",
    "seconds a plan",
)


class DormCase(Struct, frozen=True, kw_only=True):
    planner: str
    exponent: float
    seed: int


class DormRun(Struct, frozen=True, kw_only=True):
    """`jct_s`: by job. `took_s`: processor seconds of the simulation, almost all of them the planner's."""

    sizes: SizeMetrics
    jct_s: Mapping[str, float]
    took_s: float


class Compared(Struct, frozen=True, kw_only=True):
    """One planner against static sizes: ratios, and means over the seeds. `speed_up`: the mean over all jobs."""

    first: float
    day: float
    unfairness: float
    times_first: float
    times_day: float
    fairer: float
    speed_up: float
    speed_up_least: float
    adjusted: float
    overhead: float
    plan_s: float


Runs = Mapping[DormCase, DormRun]
Table = Mapping[tuple[float, str], Compared]


def cases(seeds: Iterable[int], exponents: Iterable[float], paper: Iterable[str]) -> list[DormCase]:
    """The longest first, so that two processes end at about the same time."""
    planners = [*paper, OURS, STATIC]
    return [
        DormCase(planner=planner, exponent=exponent, seed=seed)
        for planner in planners
        for exponent in exponents
        for seed in seeds
    ]


def run_dorm(case: DormCase) -> DormRun:
    workload = dorm_workload(Random(case.seed), exponent=case.exponent)
    began = time.process_time()
    outcome = simulate(workload, CLUSTER, POLICY, World(penalty=1.0), partitioning=_partitioning(case.planner))
    took_s = time.process_time() - began
    return DormRun(sizes=size_metrics(outcome), jct_s={job.id: job.jct_s for job in outcome.jobs}, took_s=took_s)


def _partitioning(planner: str) -> Partitioning | None:
    if planner == STATIC:
        return None
    if planner == OURS:
        return shipped_planner()
    theta1, theta2 = PAPER[planner]
    return as_published(Rules(theta1=theta1, theta2=theta2), name=planner)


def shipped_settings() -> ReallocatorSettings:
    """The settings as a reallocator reads them where nothing is set."""
    return load(ReallocatorSettings, prefix="REALLOCATOR_", environ={})


def shipped_scheduler() -> SchedulerSettings:
    """The settings as a scheduler reads them where nothing is set."""
    return load(SchedulerSettings, prefix="SCHEDULER_", environ={})


def shipped_planner() -> Partitioning:
    """The planner as it is shipped."""
    plans = shipped_settings().plans
    return structs.replace(
        partitioning_of(OURS, plans.rules),
        every_s=plans.seconds,
        at_most_s=plans.seconds,
        cooldown_s=plans.cool_down_seconds,
    )


def as_published(rules: Rules, *, name: str = "dorm") -> Partitioning:
    """Dorm's planner. It plans when an application comes or ends and at no other time, and resizes as often as it
    likes."""
    return Partitioning(
        name=name,
        planner=dorm,
        rules=rules,
        every_s=0.0,
        at_most_s=0.0,
        cooldown_s=0.0,
        cooldown_restarts=0.0,
        exact=True,
    )


def compared(runs: Runs) -> Table:
    """By exponent and planner."""
    seeds: dict[tuple[float, str], list[int]] = {}
    for case in runs:
        seeds.setdefault((case.exponent, case.planner), []).append(case.seed)
    return {key: _compared(runs, *key, of_key) for key, of_key in seeds.items()}


def _compared(runs: Runs, exponent: float, planner: str, seeds: Sequence[int]) -> Compared:
    pairs = [
        (
            runs[DormCase(planner=STATIC, exponent=exponent, seed=seed)],
            runs[DormCase(planner=planner, exponent=exponent, seed=seed)],
        )
        for seed in seeds
    ]
    ups = [static.jct_s[job] / run.jct_s[job] for static, run in pairs for job in run.jct_s]
    static, its = [static.sizes for static, _ in pairs], [run.sizes for _, run in pairs]
    first, day = fmean(one.utilisation_first for one in its), fmean(one.utilisation_day for one in its)
    unfairness = fmean(one.unfairness_day for one in its)
    return Compared(
        first=first,
        day=day,
        unfairness=unfairness,
        times_first=first / fmean(one.utilisation_first for one in static),
        times_day=day / fmean(one.utilisation_day for one in static),
        fairer=fmean(one.unfairness_day for one in static) / unfairness,
        speed_up=fmean(ups),
        speed_up_least=min(ups),
        adjusted=fmean(one.adjusted_per_event for one in its),
        overhead=fmean(one.overhead_mean for one in its),
        plan_s=sum(run.took_s for _, run in pairs) / max(1, sum(one.plans for one in its)),
    )


def dorm_table(found: Table) -> str:
    order = [STATIC, *PAPER, OURS]
    keys = sorted(found, key=lambda key: (-key[0], order.index(key[1])))
    return table(HEADER, [_row(exponent, planner, found[exponent, planner]) for exponent, planner in keys])


def _row(exponent: float, planner: str, it: Compared) -> list[str]:
    row = [f"{exponent:g}", planner, f"{it.first:.2f}", f"{it.day:.2f}", f"{it.unfairness:.2f}"]
    if planner == STATIC:
        return [*row, "1", "1", "1", "1", "1", "", "", ""]
    return [
        *row,
        f"{it.times_first:.2f}",
        f"{it.times_day:.2f}",
        f"{it.fairer:.2f}",
        f"{it.speed_up:.2f}",
        f"{it.speed_up_least:.2f}",
        f"{it.adjusted:.2f}",
        f"{it.overhead * 100:.1f} %",
        f"{it.plan_s:.2f}",
    ]


def dorm_aims(found: Table) -> dict[str, Aim]:
    """Where Dorm's planner was not run there is nothing to hold our utilisation against."""
    ours = found[LINEAR, OURS]
    paper = [found[LINEAR, planner] for planner in PAPER if (LINEAR, planner) in found]
    aims: dict[str, Aim] = {}
    for name, value, best in (
        ("first_5h", ours.first, max((one.first for one in paper), default=0.0)),
        ("24h", ours.day, max((one.day for one in paper), default=0.0)),
    ):
        if best:
            aims[f"dorm.utilisation_{name}_of_papers"] = _at_least(value / best, OF_PAPERS_UTILISATION)
    aims["dorm.fairness_loss_divided_by"] = _at_least(ours.fairer, FAIRER)
    for exponent, aim in SPEED_UPS.items():
        if (exponent, OURS) in found:
            aims[f"dorm.speed_up_at_{exponent:g}"] = _at_least(found[exponent, OURS].speed_up, aim)
    worst = max(one.overhead for (_, planner), one in found.items() if planner == OURS)
    aims["dorm.sharing_overhead_percent"] = Aim(value=round(worst * 100, 2), aim=OVERHEAD_PERCENT)
    return aims


def _at_least(value: float, aim: float) -> Aim:
    return Aim(value=round(value, 3), aim=aim, at_least=True)
