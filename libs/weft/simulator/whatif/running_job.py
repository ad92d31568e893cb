"""One job of a real pool on its way in the simulator: it has the shape, the place and the past that it has there."""

from collections.abc import Sequence

from msgspec import structs

from weft.domain.job import Allocation
from weft.planning.growth import Grower
from weft.planning.order import Order
from weft.planning.resource_request import ResourceRequest, gpus_in, gpus_least, gpus_of, is_pinned
from weft.planning.scheduling_pass import Demand
from weft.simulator.job import SimulatedJob
from weft.simulator.lives import Lives
from weft.simulator.whatif.present import JobNow
from weft.simulator.workload import TraceJob


class RunningJob(SimulatedJob):
    """Times are seconds from now. `wants`: its request. With a part of the requested GPUs, its speed is that part,
    too."""

    __slots__ = ("_asks_for", "_group", "demand", "now")

    def __init__(self, number: int, now: JobNow, *, backfills: bool) -> None:
        self.now = now
        self.demand = Demand(
            now.resource_request,
            gpus_least(now.resource_request),
            now.limit_s,
            pinned=is_pinned(now.resource_request),
            tenant=now.tenant,
            preemptible=now.gives_way,
            model=next(
                (want.request.models[0] for want in now.resource_request if len(want.request.models) == 1), None
            ),
            checkpoints=now.checkpoint_s is not None,
        )
        self._asks_for = gpus_of(now.resource_request) or 1.0
        lasts = now.limit_s if backfills else None
        self._group = (now.resource_request, now.asked.job_class, lasts, now.gives_way)
        super().__init__(
            number,
            TraceJob(
                id=now.id,
                arrival_s=now.since_s,
                gpus=1,
                work_s=now.left_s,
                job_class=now.asked.job_class,
                tenant=now.tenant,
                priority=now.priority,
                estimate_s=now.limit_s,
                checkpoint_s=now.checkpoint_s,
            ),
        )
        self.live = now.live
        self.asked = now.asked
        self.resource_request = now.resource_request
        self.gpus_needed = self.demand.gpus
        self.attained_s = self.counted_s = now.attained_s
        self.counted_gpu_s = now.attained_gpu_s
        self.waits_since = now.since_s
        self.kept_least_s = -now.attained_s if now.held else 0.0

    @property
    def gives_way(self) -> bool:
        return self.now.gives_way

    @property
    def lends(self) -> bool:
        return self.now.lends

    @property
    def roles(self) -> ResourceRequest:
        return self.now.resource_request

    def grower(self, *, offered: bool) -> Grower:
        return structs.replace(super().grower(offered=offered), model=self.demand.model)

    def group(self, order: Order, *, backfills: bool) -> tuple[object, str]:
        del backfills
        return ((self._group, order.held_tier is not None and self.now.checkpoint_s is not None), "")

    def take_size(self, size: int) -> None:
        """Its size follows from its place alone."""

    def take_place(self, allocations: Sequence[Allocation]) -> None:
        self._count_gpu_time()
        self.ranks_used = max((self.ranks_used, *(one.rank + 1 for one in allocations)))
        self.gpus_needed = gpus_in(allocations)
        self.speed = min(1.0, self.gpus_needed / self._asks_for) or 1.0

    def leave_place(self) -> None:
        self._count_gpu_time()
        self.leaving.clear()
        self.ranks_used = 0
        self.gpus_needed = self.demand.gpus
        self.speed = 1.0


class GoingLives(Lives):
    """Durations do not depend on placement: the assumed durations are not accurate enough to model that."""

    def rank(self, job: SimulatedJob, now: float) -> None:
        if isinstance(job, RunningJob) and job.gives_way:
            super().rank(job, now)

    def _slowdown(self, job: SimulatedJob) -> float:
        return 1.0
