"""One simulation, by the event-driven rules or in rounds."""

from collections.abc import Callable, Mapping

from weft.planning.capacity import FreeCapacity
from weft.planning.finding import find
from weft.planning.placement.unscored import packed
from weft.planning.policy import ALWAYS, Policy
from weft.simulator.engine import Simulation
from weft.simulator.model import Cluster, World
from weft.simulator.outcome import Outcome
from weft.simulator.pool import elastic_shape, room_of
from weft.simulator.serving.over_time import Serving
from weft.simulator.sizing import Partitioning
from weft.simulator.workload import Workload

PRESETS: Mapping[str, Policy] = {"weft-best": Policy("las", "weft-best", "easy")}


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
    partitioning: Partitioning | None = None,
    serving: Serving | None = None,
) -> Outcome:
    """Simulate: the same arguments give the same outcome. `scores`: the scheduler's knowledge of the GPUs' speed, one
    of `truth.BELIEFS`. `progress(done, all)` is called as jobs end. `partitioning` decides the sizes of elastic jobs;
    without it each has the size that it asks for, as far as there is room, and those that resize live grow and shrink
    as the scheduler lets them. `serving`: the services beside the jobs.

    Raises ValueError if a job asks for more than the cluster has, or a setting makes no sense.
    """
    if partitioning is not None and policy.placing.moves == ALWAYS:
        raise ValueError(f"placement: {policy.placement} moves running jobs, which a partition does not allow")
    _check_fits(workload, cluster)
    return Simulation(
        workload,
        cluster,
        policy,
        world,
        seed=seed,
        scores=scores,
        progress=progress,
        keep_spells=keep_spells,
        partitioning=partitioning,
        serving=serving,
    ).run()


def _check_fits(workload: Workload, cluster: Cluster) -> None:
    """Raise ValueError for a job that does not fit in the empty cluster, an elastic one with its least size."""
    empty: FreeCapacity | None = None
    for job in workload.jobs:
        if job.elastic is None:
            if job.gpus > cluster.gpus:
                raise ValueError(f"job {job.id} asks for {job.gpus} GPUs; the cluster has {cluster.gpus}")
            continue
        size = job.elastic.least
        empty = empty or room_of(cluster, World(), placer=packed)
        if find(empty, elastic_shape(job.elastic, size)) is None:
            raise ValueError(f"job {job.id} does not fit in the cluster with {size} replicas")
