"""GPUs that a service has just given back: for a minute they serve shares, notebooks and services first, so that
training does not grow onto what the next burst takes again. A new leader knows none of them."""

from collections.abc import Iterable

from libs.domain.job import Allocation, Job
from libs.planning.capacity import Room
from libs.planning.scores import GpuKey

FIRST_SECONDS = 60.0


class Returned:
    """`changes` counts the GPUs that came and went."""

    def __init__(self) -> None:
        self.changes = 0
        self._until: dict[GpuKey, float] = {}

    def see(self, before: Job, job: Job, now: float) -> None:
        """Note the GPUs of borrowed replicas that are gone by this step of a service."""
        if not before.loans or before.placement is None:
            return
        stay = set[int]()
        if job.placement is not None and job.epoch == before.epoch and job.state.holding:
            stay = {one.rank for one in job.placement.allocations}
        borrowed = {loan.rank for loan in before.loans}
        self.keep((one for one in before.placement.allocations if one.rank in borrowed - stay), now)

    def keep(self, allocations: Iterable[Allocation], now: float) -> None:
        for one in allocations:
            for gpu in one.gpus:
                self._until[one.node_id, gpu] = now + FIRST_SECONDS
                self.changes += 1

    def forget_old(self, now: float) -> None:
        old = [gpu for gpu, until in self._until.items() if until <= now]
        for gpu in old:
            del self._until[gpu]
        self.changes += len(old)

    def in_room(self, room: Room) -> list[Allocation]:
        """What to take from the room, of those GPUs that are free, so that nobody finds them."""
        return [
            Allocation(rank=0, role="", node_id=node_id, gpus=(gpu,), cpus=0.0, memory=0)
            for node_id, gpu in sorted(self._until)
            if node_id in room.nodes and room.nodes[node_id].gpus.has([gpu])
        ]
