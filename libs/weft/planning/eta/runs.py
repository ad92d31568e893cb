"""The jobs of a projected cluster: waiting ones, and those that hold resources.

Times are seconds from now, also in a `Standing`: `waited_s` is the time waited until now, and negative for a job that
begins to wait later.
"""

from collections import Counter
from collections.abc import Hashable
from math import inf

from msgspec import Struct, structs

from weft.health.spares import SpareUse
from weft.planning.eta.spread import TimeSpread
from weft.planning.finding import Place
from weft.planning.growth import Grower, LiveSizes
from weft.planning.order import Key, Standing
from weft.planning.preemption import Holder
from weft.planning.preemption.loss import loss_of
from weft.planning.preemption.minimum_run import MinimumRun
from weft.planning.queue import Place as QueuePlace
from weft.planning.resource_request import NOBODY, PlacementRequest, ResourceRequest
from weft.planning.scheduling_pass import Demand
from weft.planning.surplus import parts_of


class Stopping(Struct, frozen=True, kw_only=True):
    """The cost of giving way. `lost_s`: work to repeat (None: all since it got its GPUs); `tries`: number of earlier
    stops; `stop_s`: longest time to stop; `at_once`: no minimum run."""

    lost_s: float | None = None
    tries: int = 0
    stop_s: float = 0.0
    at_once: bool = False


class Resizes(Struct, frozen=True, kw_only=True):
    """How a running job changes its size: the range `sizes`, and `lends` if it gives up extra ranks. `roles`, `asked`,
    `model`: needs of further ranks; `sized_s`: time of the last change of size."""

    sizes: LiveSizes = ()
    lends: bool = False
    roles: ResourceRequest = ()
    asked: PlacementRequest = NOBODY
    model: str | None = None
    sized_s: float | None = None


RIGID = Resizes()


class WaitingJob(Struct, frozen=True, kw_only=True):
    """A waiting job. `place`: position in the order; `group`: jobs with the same resource request; `lasts`: duration
    after its start; `limit_s`: the time limit for the backfill; `after_s`: earliest try; `standing`: its present rank
    in the order."""

    job_id: str
    place: QueuePlace
    group: Hashable
    resource_request: ResourceRequest
    asked: PlacementRequest
    gpus: float
    lasts: TimeSpread
    standing: Standing
    limit_s: float | None = None
    tenant: str = ""
    pinned: bool = False
    after_s: float = 0.0
    preemptible: bool = True
    model: str | None = None
    stopping: Stopping = Stopping()
    resizes: Resizes = RIGID
    spare_use: SpareUse = SpareUse.NEVER

    @property
    def demand(self) -> Demand:
        return Demand(
            self.resource_request,
            self.gpus,
            self.limit_s,
            pinned=self.pinned,
            tenant=self.tenant,
            preemptible=self.preemptible,
            model=self.model,
            spare_use=self.spare_use,
            checkpoints=self.standing.checkpoints,
        )


class Holds(Struct, frozen=True, kw_only=True):
    """The resources that a job holds, and for how long. `reports`: it reports its steps, even if they are too few to
    estimate its end. `since_s`, `began_s`: begin of holding, and of running; `attained_s`: seconds of holding over all
    tries; `standing`: its present rank in the order (None: it never gives way). `leaves`: it is stopping."""

    job_id: str
    allocations: Place
    gpus: float
    left: TimeSpread
    tenant: str = ""
    limit_left_s: float | None = None
    reports: bool = False
    since_s: float = 0.0
    began_s: float = 0.0
    attained_s: float = 0.0
    standing: Standing | None = None
    stopping: Stopping = Stopping()
    leaves: bool = False
    resizes: Resizes = RIGID
    spare_use: SpareUse = SpareUse.NEVER


class Run(Struct, frozen=True, kw_only=True):
    """A job that holds resources in a projected cluster; `counted_s`: the time of its standing and its `attained_s`."""

    job_id: str
    number: int
    tenant: str
    gpus: float
    place: Place
    lasts: TimeSpread
    limit_at: float | None
    since_s: float
    began_s: float
    counted_s: float
    attained_s: float
    standing: Standing | None
    stopping: Stopping
    resizes: Resizes = RIGID
    spare_use: SpareUse = SpareUse.NEVER

    def at(self, now: float) -> Standing:
        standing, more = self.standing, now - self.counted_s
        assert standing is not None, "it gives way to nobody"
        return structs.replace(
            standing,
            attained_s=standing.attained_s + more,
            attained_gpu_s=standing.attained_gpu_s + more * self.gpus,
            left_s=None if standing.left_s is None else max(0.0, standing.left_s - more),
        )

    def lost_s(self, now: float) -> float:
        held, mean = now - self.since_s, self.stopping.lost_s
        return held if mean is None else min(held, mean)

    def loss(self, now: float, *, extra: bool = False) -> Key:
        assert self.standing is not None
        return loss_of(
            now,
            rested=self.since_s if self.stopping.tries else None,
            extra=extra,
            gpu_seconds=0.0 if extra else self.lost_s(now) * (self.gpus or 1),
            held_since=self.since_s,
            seq=self.standing.seq,
        )

    def protected_until(self, minimum_run: MinimumRun, *, reclaimed: bool = False) -> float:
        if minimum_run.seconds <= 0.0 or self.stopping.at_once:
            return -inf
        tries = 0 if reclaimed else self.stopping.tries
        return self.began_s + minimum_run.after(self.stopping.lost_s, tries, reclaimed=reclaimed)

    @property
    def has_surplus(self) -> bool:
        return self.resizes.lends and any(one.extra for one in self.place)

    @property
    def granted(self) -> Counter[str]:
        """Number of ranks of each role, without leaving ones."""
        return Counter(one.role for one in self.place if not one.leaving)

    def parts(self, tier: float, now: float) -> list[Holder]:
        """Its extra ranks, and the other ranks."""
        if not self.has_surplus:
            return [Holder(job_id=self.job_id, worth=(tier, *self.loss(now)), allocations=self.place)]
        return parts_of(self.job_id, self.place, tier=(tier,), loss=lambda extra: self.loss(now, extra=extra))

    def grower(self, *, offered: bool) -> Grower:
        """The request by which it grows to its size; with `offered`, to the size that idle GPUs allow."""
        how, has = self.resizes, self.granted
        aims = {one.role: one.most if offered else one.aim for one in how.sizes}
        return Grower(
            job_id=self.job_id,
            held=self.place,
            missing=tuple(
                (want, aims[want.role] - has[want.role]) for want in how.roles if aims[want.role] > has[want.role]
            ),
            first_rank=1 + max((one.rank for one in self.place), default=-1),
            tenant=self.tenant,
            model=how.model,
            asked=how.asked,
        )

    def is_on(self, node_id: str) -> bool:
        return any(one.node_id == node_id for one in self.place)

    def runs_on_s(self, now: float) -> float:
        """Seconds for which the scheduler expects it to run on: until its limit, or as long again as it has run."""
        return self.attained_s + now - self.counted_s if self.limit_at is None else max(0.0, self.limit_at - now)


def run_of(one: Holds, number: int) -> Run:
    return Run(
        job_id=one.job_id,
        number=number,
        tenant=one.tenant,
        gpus=one.gpus,
        place=one.allocations,
        lasts=one.left,
        limit_at=one.limit_left_s,
        since_s=one.since_s,
        began_s=one.began_s,
        counted_s=0.0,
        attained_s=one.attained_s,
        standing=one.standing,
        stopping=one.stopping,
        resizes=RIGID if one.standing is None else one.resizes,
        spare_use=one.spare_use,
    )
