"""A pool left at its defaults: how far it is from the best policy that we know, and whether a job starves."""

from random import Random

import pytest
from msgspec import structs

from tests.support.tier import some
from weft.planning.policy import Policy
from weft.planning.preemption.minimum_run import MinimumRun
from weft.simulator.generate import SYNERGY, generate
from weft.simulator.metrics import Metrics, metrics
from weft.simulator.model import Cluster, World
from weft.simulator.run import simulate
from weft.simulator.workload import Workload, with_checkpoints
from weftd.scheduler.settings import SchedulerSettings

TIMES_THE_BEST = 1.2
SLOWDOWN_MAX = 50.0
BEST = tuple(Policy(order, "weft-best", backfill) for order in ("las", "srtf", "fifo") for backfill in ("easy", "none"))


def pool(seed: int) -> Cluster:
    """GPUs of one model that differ as measured ones do: most by a few per cent, some by a half."""
    dice = Random(seed)
    scores = tuple(round(dice.choice((0.95, 1.0, 1.0, 1.05, 1.1, 1.5)), 3) for _ in range(32))
    return Cluster(nodes=8, gpus_per_node=4, scores={"compute": scores})


def ran(workload: Workload, cluster: Cluster, policy: Policy) -> Metrics:
    """With the prices of a move and the minimum run of a pool left at its defaults."""
    core = SchedulerSettings().core
    world = World(
        penalty=core.locality_penalty,
        rack_penalty=core.rack_penalty,
        move_s=core.moves.cost_seconds,
        moves=core.moves,
        patience_s=core.patience_seconds,
        minimum_run=MinimumRun(core.preemption_after_seconds),
    )
    return metrics(simulate(workload, cluster, policy, world, keep_spells=False))


@pytest.mark.parametrize("seed", some(1, (2, 1, 3, 4)))
def test_a_pool_at_its_defaults_is_near_the_best_policy_that_we_know_and_nobody_starves(seed: int) -> None:
    settings = structs.replace(SYNERGY, jobs=150, jobs_per_hour=16.0)
    jobs = with_checkpoints(generate(settings, Random(seed)), 1.0, seed=seed)
    shipped = ran(jobs, pool(seed), SchedulerSettings().policy)
    best = min(ran(jobs, pool(seed), policy).jct_mean_s for policy in BEST)
    assert shipped.jct_mean_s <= TIMES_THE_BEST * best
    assert shipped.slowdown_max <= SLOWDOWN_MAX
