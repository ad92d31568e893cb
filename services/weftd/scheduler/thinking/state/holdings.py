"""The totals over the jobs that hold GPUs: each tenant's share, the ports of gangs, when GPUs come free, and which
jobs may be preempted."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping

from weft.domain.job import Job
from weft.domain.shares import WHOLE
from weft.planning.backfill import Ending
from weft.planning.jobs import ends_at
from weft.planning.order import Order
from weft.planning.preemption.minimum_run import MinimumRun
from weft.planning.quota.decay import HALF_LIFE_SECONDS, DecayedUse, FairRanks, decayed
from weft.planning.resource_request import gpus_in
from weft.planning.shares import Shares
from weftd.scheduler.thinking.state.holders import Holders
from weftd.scheduler.thinking.state.orders import ports_of
from weftd.scheduler.thinking.state.quotas import Quotas


class Holdings:
    """Updated with every job that begins to hold GPUs, holds them in another state, or gives them back."""

    def __init__(
        self, order: Order, half_life: float = HALF_LIFE_SECONDS, minimum_run: MinimumRun | None = None
    ) -> None:
        self.shares = Shares()
        self._order = order
        self.use = DecayedUse(half_life)
        self._ranks = FairRanks(self.use)
        self.holders = Holders(order, minimum_run or MinimumRun())
        self.ports: dict[str, set[int]] = {}  # by address, where gangs meet
        self._endings: list[Ending] = []  # of the jobs with a known end, the earliest first
        self._ending_of: dict[str, Ending] = {}

    def hold(self, job: Job, now: float) -> None:
        assert job.placement is not None
        self.shares.hold(job)
        if self._order.by_use:
            self.use.change(job.tenant, _millis(job), now)
        if ports := ports_of(job):
            self.ports.setdefault(job.placement.master_address, set()).update(ports)
        self.change(job, now)

    def change(self, job: Job, now: float) -> None:
        self.holders.put(job, now)
        self._forget_ending(job.id)
        at = ends_at(job)
        if at is not None and (gpus := job.gpus_held):
            ending = self._ending_of[job.id] = Ending(at, gpus, job.id)
            insort(self._endings, ending)

    def begin_use(self, used: Mapping[str, float], jobs: Iterable[Job], now: float) -> None:
        """Begin with what tenants used before `now`; `jobs` hold their GPUs since `held_since`."""
        total = dict(used)
        for job in jobs:
            held = decayed(0.0, _millis(job) / WHOLE, now - job.held_since, self.use.half_life)
            total[job.tenant] = total.get(job.tenant, 0.0) + held
        self.use.begin(total, now)

    def share_of(self, quotas: Quotas, jobs: Iterable[Job], now: float) -> Callable[[str], float]:
        """The value that orders tenants by share: the dominant share of a tenant, or its rank by use."""
        if not self._order.by_use:
            return self.shares.of
        tenants = {job.tenant for job in jobs}
        tree, version = quotas.ledger.tree, quotas.adopted
        return lambda tenant: self._ranks.of(tree, tenants, now, version=version).get(tenant, 0.0)

    def resize(self, before: Job, job: Job, now: float) -> None:
        """Count anew a job that holds more or less than `before`."""
        if self._order.by_use:
            self.use.change(job.tenant, _millis(job) - _millis(before), now)
        self.shares.let_go(before)
        self.shares.hold(job)

    def let_go(self, job: Job, now: float) -> None:
        assert job.placement is not None
        if self._order.by_use:
            self.use.change(job.tenant, -_millis(job), now)
        self.shares.let_go(job)
        self.holders.remove(job.id)
        self._forget_ending(job.id)
        if not (own := ports_of(job)):
            return
        ports = self.ports[job.placement.master_address]
        ports.difference_update(own)
        if not ports:
            del self.ports[job.placement.master_address]

    def endings(self) -> list[Ending]:
        """When jobs with a time limit end; the end of other jobs is unknown."""
        return self._endings

    def _forget_ending(self, job_id: str) -> None:
        ending = self._ending_of.pop(job_id, None)
        if ending is not None:
            del self._endings[bisect_left(self._endings, ending)]


def _millis(job: Job) -> int:
    return round(gpus_in(job.held) * WHOLE)
