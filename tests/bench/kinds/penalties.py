"""Jobs whose models lose between nothing and three times their speed across nodes, and a scheduler that must learn it.

The cluster and the workloads are PAL's: 16 nodes of 4 GPUs that differ as Longhorn's do, and rigid jobs of some models.
Each model has a true locality penalty, in equal steps from 1.0 to 3.0; the seed says which has which. The shipped
scheduler begins with 1.7 for all. It is measured as it stays there, as it learns from the steps of running gangs, and
as an oracle that knows the truth.
"""

from collections.abc import Mapping
from concurrent.futures import Executor
from random import Random

from msgspec import Struct

from tests.bench.partition.dorm import shipped_scheduler
from tests.bench.policies.setups import cluster, sia, workload
from weft.planning.preemption.minimum_run import MinimumRun
from weft.simulator.metrics import metrics
from weft.simulator.model import World
from weft.simulator.run import simulate

USUAL, LEARNT, ORACLE = "1.7 for all", "learnt", "oracle"
KNOWLEDGE = (USUAL, LEARNT, ORACLE)
LEAST, MOST = 1.0, 3.0
SAMPLE_S, NEVER_S = 60.0, 1e12


WORKLOADS = ("1", "2", "3", "4")
Measured = Mapping[str, Mapping[str, float]]
"""By workload and knowledge, the average JCT in hours."""


class PenaltyCase(Struct, frozen=True):
    knowledge: str
    workload: str
    seed: int
    cluster: str = "longhorn 1"


def penalties(models: set[str], dice: Random) -> dict[str, float]:
    """From LEAST to MOST in equal steps, each for one model."""
    names = sorted(models)
    dice.shuffle(names)
    step = (MOST - LEAST) / (len(names) - 1)
    return {name: LEAST + step * place for place, name in enumerate(names)}


def run(case: PenaltyCase) -> float:
    """The average JCT, in hours."""
    jobs = workload(sia(case.workload))
    core = shipped_scheduler().core
    world = World(
        penalty=core.locality_penalty,
        penalties=penalties({job.model for job in jobs.jobs}, Random(case.seed)),
        penalties_known=case.knowledge == ORACLE,
        sample_s=NEVER_S if case.knowledge == USUAL else SAMPLE_S,
        rack_penalty=core.rack_penalty,
        move_s=core.moves.cost_seconds,
        moves=core.moves,
        patience_s=core.patience_seconds,
        minimum_run=MinimumRun(core.preemption_after_seconds),
    )
    return metrics(simulate(jobs, cluster(case.cluster), core.policy, world, keep_spells=False)).jct_mean_s / 3600


def measured(executor: Executor, seed: int, *, quick: bool) -> Measured:
    workloads = WORKLOADS[:1] if quick else WORKLOADS
    cases = [PenaltyCase(knowledge, name, seed) for name in workloads for knowledge in KNOWLEDGE]
    found = dict(zip(cases, executor.map(run, cases), strict=True))
    return {sia(name): {of: found[PenaltyCase(of, name, seed)] for of in KNOWLEDGE} for name in workloads}
