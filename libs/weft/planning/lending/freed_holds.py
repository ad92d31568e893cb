"""GPUs that a service has just given back: for a minute they serve shares, notebooks and services first, so that
training does not grow onto what the next burst takes again. A new leader knows none of them."""

from collections.abc import Iterable

from msgspec import Struct, structs

from weft.domain.job import Allocation, Job, Loan
from weft.planning.capacity import FreeCapacity
from weft.planning.scores import GpuKey

FIRST_SECONDS = 60.0


class _Back(Struct, frozen=True):
    """The end of this time for one GPU, and the loan by which `service` had it."""

    until: float
    service: str = ""
    loans: tuple[Loan, ...] = ()


class FreedHolds:
    """`changes` counts the GPUs that came and went."""

    def __init__(self) -> None:
        self.changes = 0
        self._back: dict[GpuKey, _Back] = {}

    def see(self, before: Job, job: Job, now: float) -> None:
        """Note the GPUs of borrowed replicas that are gone by this step of a service."""
        if not before.loans or before.placement is None:
            return
        stay = set[int]()
        if job.placement is not None and job.epoch == before.epoch and job.state.holding:
            stay = {one.rank for one in job.placement.allocations}
        self.gone(job.id, (one for one in before.placement.allocations if one.rank not in stay), before.loans, now)

    def gone(self, service: str, replicas: Iterable[Allocation], loans: Iterable[Loan], now: float) -> None:
        """These replicas of a service are gone; `loans`: those that it had."""
        by_rank: dict[int, list[Loan]] = {}
        for loan in loans:
            by_rank.setdefault(loan.rank, []).append(loan)
        for one in replicas:
            if one.rank in by_rank:
                self.keep([one], now, service=service, loans=tuple(by_rank[one.rank]))

    def keep(
        self, allocations: Iterable[Allocation], now: float, *, service: str = "", loans: tuple[Loan, ...] = ()
    ) -> None:
        for one in allocations:
            for gpu in one.gpus:
                self._back[one.node_id, gpu] = _Back(now + FIRST_SECONDS, service, loans)
                self.changes += 1

    def borrowed_again(self, service: str, joined: Iterable[Allocation]) -> tuple[Loan, ...]:
        """The loans that give a service the GPUs of an ended replica again, under other ranks. `joined`: its new
        replicas."""
        found: list[Loan] = []
        for one in joined:
            back = self._back.get((one.node_id, one.gpus[0])) if one.gpus else None
            if back is not None and back.service == service:
                found += [structs.replace(loan, rank=one.rank) for loan in back.loans]
                self._back[one.node_id, one.gpus[0]] = structs.replace(back, loans=())
        return tuple(found)

    def forget_old(self, now: float) -> None:
        old = [gpu for gpu, back in self._back.items() if back.until <= now]
        for gpu in old:
            del self._back[gpu]
        self.changes += len(old)

    def in_room(self, free_capacity: FreeCapacity) -> list[Allocation]:
        """Free GPUs to remove from the capacity, so that no job finds them."""
        return [
            Allocation(rank=0, role="", node_id=node_id, gpus=(gpu,), cpus=0.0, memory=0)
            for node_id, gpu in sorted(self._back)
            if node_id in free_capacity.nodes and free_capacity.nodes[node_id].gpus.has([gpu])
        ]
