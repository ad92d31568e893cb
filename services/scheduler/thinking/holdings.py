"""The totals over the jobs that hold GPUs: each tenant's share, the ports of gangs, when GPUs come free, and which
jobs may be preempted."""

from bisect import bisect_left, insort

from libs.domain.job import Job
from libs.planning.backfill import Ending
from libs.planning.jobs import ends_at
from libs.planning.order.standing import Order
from libs.planning.shares import Shares
from services.scheduler.thinking.holders import Holders
from services.scheduler.thinking.orders import ports_of


class Holdings:
    """Updated with every job that begins to hold GPUs, holds them in another state, or gives them back."""

    def __init__(self, order: Order) -> None:
        self.shares = Shares()
        self.holders = Holders(order)
        self.ports: dict[str, set[int]] = {}  # by address, where gangs meet
        self._endings: list[Ending] = []  # of the jobs with a known end, the earliest first
        self._ending_of: dict[str, Ending] = {}

    def hold(self, job: Job, now: float) -> None:
        assert job.placement is not None
        self.shares.hold(job)
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

    def resize(self, before: Job, job: Job) -> None:
        """Count anew a job that holds more or less than `before`."""
        self.shares.let_go(before)
        self.shares.hold(job)

    def let_go(self, job: Job) -> None:
        assert job.placement is not None
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
