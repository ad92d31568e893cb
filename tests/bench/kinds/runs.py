"""One workload under one planner, and what is measured of it."""

from pathlib import Path
from statistics import fmean

from msgspec import Struct

from tests.bench.figures import quantile
from tests.bench.kinds.ground import CLUSTER, applications, workload
from tests.bench.kinds.knowledge import AsSia, ByWorkload, TrueSpeeds
from tests.bench.kinds.sia import sia
from weft.planning.policy import Policy
from weft.simulator.model import World
from weft.simulator.outcome import Outcome
from weft.simulator.run import simulate
from weft.simulator.sizing import Knowledge, Partitioning, partitioning_of

POLICY = Policy("fifo", "packed-sticky", "none")
ROUND_S = 60.0
SIA, WEFT, WEFT_AS_SIA = "Sia", "Weft", "Weft, as Sia knows"
PLANNERS = (SIA, WEFT_AS_SIA, WEFT)


class KindsCase(Struct, frozen=True):
    """`seed` 0: the paper's first Philly workload; else a generated one. `rigid`: all jobs have the GPUs with which
    they were submitted, and all planners know their speed on each model."""

    planner: str
    seed: int
    rigid: bool = False


class KindsRun(Struct, frozen=True, kw_only=True):
    """Times in hours, of all jobs; `restarts` and `gpu_hours` a job."""

    mean_h: float
    p50_h: float
    p99_h: float
    makespan_h: float
    gpu_hours: float
    restarts: float
    plans: int


def run(case: KindsCase, data: Path) -> KindsRun:
    found = simulate(
        workload(data, case.seed, rigid=case.rigid),
        CLUSTER,
        POLICY,
        World(start_s=0.0, move_s=0.0),
        partitioning=planner_of(case, data),
    )
    return measured(found)


def planner_of(case: KindsCase, data: Path) -> Partitioning:
    """Both put replicas exactly where they plan them, so that only their plans differ."""
    apps, name = applications(data), case.planner

    def knowledge() -> Knowledge:
        if case.rigid:
            return TrueSpeeds(ages=name == SIA)
        return ByWorkload(apps) if name == WEFT else AsSia(apps, ages=name == SIA)

    if name == SIA:
        return Partitioning(
            name=name,
            planner=sia,
            every_s=ROUND_S,
            at_most_s=ROUND_S,
            cooldown_s=0.0,
            cooldown_restarts=0.0,
            exact=True,
            moves_freely=True,
            knowledge=knowledge,
        )
    shipped = partitioning_of("weft")
    return Partitioning(name=name, planner=shipped.planner, rules=shipped.rules, exact=True, knowledge=knowledge)


def measured(outcome: Outcome) -> KindsRun:
    jcts = [job.jct_s / 3600 for job in outcome.jobs]
    return KindsRun(
        mean_h=fmean(jcts),
        p50_h=quantile(jcts, 0.5),
        p99_h=quantile(jcts, 0.99),
        makespan_h=(max(job.completed_s for job in outcome.jobs) - min(job.arrival_s for job in outcome.jobs)) / 3600,
        gpu_hours=sum(len(spell.gpus) * (spell.end_s - spell.begin_s) for spell in outcome.spells) / 3600 / len(jcts),
        restarts=sum(spell.paused_s > 0 for spell in outcome.spells) / len(jcts),
        plans=len(outcome.partitions),
    )
