"""One simulation, by the event-driven rules or in rounds."""

from collections.abc import Callable, Mapping

from msgspec import Struct

from libs.planning.policy import Policy
from libs.simulator.engine import Simulation
from libs.simulator.model import Cluster, World
from libs.simulator.outcome import Outcome
from libs.simulator.workload import Workload


class Preset(Struct, frozen=True):
    policy: Policy


PRESETS: Mapping[str, Preset] = {
    "pal-artifact": Preset(Policy("fifo", "pal", "none")),  # by `rounds`
    "weft-best": Preset(Policy("las", "weft-best", "easy")),
}


def simulate(
    workload: Workload,
    cluster: Cluster,
    policy: Policy,
    world: World,
    *,
    seed: int = 1,
    scores: str = "oracle",
    progress: Callable[[int, int], None] | None = None,
    keep_spells: bool = True,
) -> Outcome:
    """Simulate: the same arguments give the same outcome. `scores`: the scheduler's knowledge of the GPUs' speed, one
    of
    `truth.BELIEFS`. `progress(done, all)` is called as jobs end.

    Raises ValueError if a job asks for more GPUs than the cluster has, or a setting makes no sense.
    """
    for job in workload.jobs:
        if job.gpus > cluster.gpus:
            raise ValueError(f"job {job.id} asks for {job.gpus} GPUs; the cluster has {cluster.gpus}")
    return Simulation(
        workload, cluster, policy, world, seed=seed, scores=scores, progress=progress, keep_spells=keep_spells
    ).run()
