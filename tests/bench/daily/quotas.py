"""Fair shares over an hour of a saturated cluster in virtual time, by the scheduler's own core."""

from pathlib import Path
from random import Random

from tests.bench.figures import Aim
from tests.support.scheduler import world
from weft.domain.job import JobState
from weft.domain.quotas import Quota
from weft.planning.policy import Policy
from weftd.scheduler.thinking.core_settings import Settings

HOUR = 3600.0
STEP_SECONDS = 10.0
WEIGHTS = {"a": 4, "b": 3, "c": 2, "d": 1}
NODES, GPUS = 4, 8
WAITING = 6  # jobs of each tenant that wait at any time: each of them could fill the cluster alone


async def measure(home: Path, *, seed: int, quick: bool) -> dict[str, Aim]:
    del home, quick
    farthest = fair_shares(Random(seed))
    return {"fair share of four tenants, farthest from its due over an hour (points)": Aim(value=farthest, aim=3.0)}


def fair_shares(chance: Random) -> float:
    """How far the tenant that is farthest from its due is, in hundredths of all that was held."""
    w = world(nodes=NODES, gpus=GPUS, settings=Settings(policy=Policy("fair", "packed-sticky", "easy")))
    w.core.cluster_state.limit([Quota(name=name, weight=weight) for name, weight in WEIGHTS.items()], w.now)
    held = dict.fromkeys(WEIGHTS, 0.0)
    ends: dict[str, float] = {}
    count = 0
    began = w.now
    while w.now < began + HOUR:
        jobs = list(w.core.cluster_state.jobs.values())
        for name in WEIGHTS:
            for _ in range(WAITING - sum(job.tenant == name and job.state is JobState.QUEUED for job in jobs)):
                count += 1
                w.submit(f"j-{count}", tenant=name, gpus=chance.choice([1, 1, 2, 4]), spec={"time_limit": "6m"})
        for job in jobs:
            if job.state is JobState.RUNNING and job.id not in ends:
                ends[job.id] = w.now + chance.uniform(30.0, 300.0)
            if job.state is JobState.RUNNING and w.now >= ends[job.id]:
                for allocation in job.held:
                    w.nodes[allocation.node_id].end((job.id, job.epoch, allocation.rank), 0)
        w.tick(STEP_SECONDS)
        for node_id in (*w.nodes, *w.nodes):
            w.sync(node_id)
        for job in w.core.cluster_state.jobs.values():
            held[job.tenant] += job.gpus_held * STEP_SECONDS
    total, weights = sum(held.values()), sum(WEIGHTS.values())
    print(
        f"  of {total / HOUR:.1f} GPUs held: " + ", ".join(f"{name} {part / total:.1%}" for name, part in held.items())
    )
    return max(abs(held[name] / total - WEIGHTS[name] / weights) for name in WEIGHTS) * 100
