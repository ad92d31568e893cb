"""What the jobs of a pool hold together: each tenant's share of it, the ports of gangs, when GPUs come free, and which
jobs may leave."""

from bisect import bisect_left, insort

from libs.domain.job import Job
from libs.planning.backfill import Ending
from libs.planning.jobs import ends_at
from libs.planning.order.standing import Order
from libs.planning.shares import Shares
from services.scheduler.thinking.holders import Holders
from services.scheduler.thinking.orders import ports_of


class Holdings:
    """Told of every job that comes to hold something, holds it in another state, or gives it back."""

    def __init__(self, order: Order) -> None:
        self.shares = Shares()
        self.holders = Holders(order)
        self.ports: dict[str, set[int]] = {}  # by address, where gangs meet
        self._endings: list[Ending] = []  # of the jobs of which it is known, the first first
        self._ending_of: dict[str, Ending] = {}

    def hold(self, job: Job, now: float) -> None:
        assert job.placement is not None
        self.shares.hold(job)
        self.ports.setdefault(job.placement.master_address, set()).update(ports_of(job))
        self.change(job, now)

    def change(self, job: Job, now: float) -> None:
        self.holders.put(job, now)
        self._forget_ending(job.id)
        at = ends_at(job)
        if at is not None and (gpus := job.gpus_held):
            ending = self._ending_of[job.id] = Ending(at, gpus, job.id)
            insort(self._endings, ending)

    def resize(self, before: Job, job: Job) -> None:
        """It has other CPUs or memory than `before`."""
        self.shares.let_go(before)
        self.shares.hold(job)

    def let_go(self, job: Job) -> None:
        assert job.placement is not None
        self.shares.let_go(job)
        self.holders.remove(job.id)
        self._forget_ending(job.id)
        ports = self.ports[job.placement.master_address]
        ports.difference_update(ports_of(job))
        if not ports:
            del self.ports[job.placement.master_address]

    def endings(self) -> list[Ending]:
        """Where time limits tell; nobody knows when the others end."""
        return self._endings

    def _forget_ending(self, job_id: str) -> None:
        ending = self._ending_of.pop(job_id, None)
        if ending is not None:
            del self._endings[bisect_left(self._endings, ending)]
