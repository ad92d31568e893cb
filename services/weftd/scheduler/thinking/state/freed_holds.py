"""GPUs that a service has just given back: for a minute they serve shares, notebooks and services first, so that
training does not grow onto what the next burst takes again. A new leader knows none of them."""

from collections.abc import Iterable

from msgspec import Struct, structs

from weft.domain.job import Allocation, Job, Loan, Placement
from weft.planning.capacity import FreeCapacity
from weft.planning.scores import GpuKey

FIRST_SECONDS = 60.0


class _Back(Struct, frozen=True):
    """Until when a GPU is kept so, and what `service` had borrowed it by."""

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
        for one in before.placement.allocations:
            loans = tuple(loan for loan in before.loans if loan.rank == one.rank)
            if loans and one.rank not in stay:
                self.keep([one], now, service=job.id, loans=loans)

    def keep(
        self, allocations: Iterable[Allocation], now: float, *, service: str = "", loans: tuple[Loan, ...] = ()
    ) -> None:
        for one in allocations:
            for gpu in one.gpus:
                self._back[one.node_id, gpu] = _Back(now + FIRST_SECONDS, service, loans)
                self.changes += 1

    def borrowed_again(self, job: Job, placement: Placement) -> tuple[Loan, ...]:
        """Loans that return the GPUs of an ended replica to its service, under new rank numbers."""
        had = {one.rank for one in job.placement.allocations} if job.placement is not None else set[int]()
        found: list[Loan] = []
        for one in placement.allocations:
            if one.rank in had or not one.gpus:
                continue
            back = self._back.get((one.node_id, one.gpus[0]))
            if back is not None and back.service == job.id:
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
