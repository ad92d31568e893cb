"""The times since which each replica of a service is held, runs, and is ready, as seen by this leader. A new leader
starts from zero."""

from collections.abc import Sequence

from msgspec import Struct

from weft.domain.job import Allocation, Job
from weft.messages.nodes import RunState
from weftd.scheduler.thinking.state.runs import Runs


class Replica(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`since`: when it was first seen to be placed; None: it has not begun, is not ready, is not told to leave.

    `unready_since`: from its begin on, or since it was ready last.
    """

    since: float
    began_at: float | None = None
    ready_at: float | None = None
    unready_since: float | None = None
    leaving_since: float | None = None

    def ready_for(self, now: float) -> float:
        """Seconds for which it has been ready without a break, or had been at its end."""
        return 0.0 if self.ready_at is None else now - self.ready_at


class ReplicaWatch:
    def __init__(self) -> None:
        self._of: dict[str, tuple[int, dict[int, Replica]]] = {}  # by job: its epoch, and its replicas by rank

    def look(self, job: Job, runs: Runs, now: float) -> dict[int, Replica]:
        """The replicas of a service by rank, with what its nodes reported last."""
        assert job.placement is not None
        epoch, known = self._of.get(job.id, (job.epoch, {}))
        before = known if epoch == job.epoch else {}
        found: dict[int, Replica] = {}
        for allocation in job.placement.allocations:
            one = before.get(allocation.rank) or Replica(since=now)
            run = runs.run(job, allocation)
            began = one.began_at
            if began is None and runs.began(job, allocation):
                began = now
            ready, unready = one.ready_at, one.unready_since
            if run is not None and run.state is RunState.RUNNING:
                is_ready = ready is not None if run.ready is None else run.ready  # not known: as it was
                ready = (now if ready is None else ready) if is_ready else None
                unready = None if is_ready else (now if unready is None else unready)
            leaving = one.leaving_since
            if allocation.leaving and leaving is None:
                leaving = now
            found[allocation.rank] = Replica(
                since=one.since, began_at=began, ready_at=ready, unready_since=unready, leaving_since=leaving
            )
        self._of[job.id] = (job.epoch, found)
        return found

    def forget(self, job_id: str) -> None:
        self._of.pop(job_id, None)


def named(replicas: Sequence[Allocation]) -> str:
    """`replica 3`, `replicas 3, 4`."""
    names = ", ".join(str(allocation.rank) for allocation in replicas)
    return f"replica{'s' * (len(replicas) > 1)} {names}"
