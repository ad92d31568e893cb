"""Clusters with one mistake each, which the witness must find: the check that the check works."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from msgspec import structs

from tests.simulation.cluster import WatchedStore
from tests.simulation.outage import through_an_outage
from tests.simulation.simulate import Variation
from tests.support.steps import forced
from weft.bus import Bus, NoAnswerError, StreamEvent
from weft.domain.job import Allocation, Cause, CauseCode, Job, JobChange, JobEvent, Placement, Step
from weft.domain.lease import Lease
from weft.messages import Connection
from weft.messages.nodes import EndReason, NodeDesired, NodeReported, RunSeen
from weft.planning import replicas
from weft.planning.capacity import FreeCapacity
from weft.planning.eta import starts
from weft.planning.preemption.minimum_run import MinimumRun
from weft.planning.reasons import explain
from weft.planning.replicas import Exchange, RunningService
from weft.planning.resource_request import ResourceRequest
from weft.store import RelayStore
from weftd.executor import service as executor_service
from weftd.executor.runs import Run, RunKey
from weftd.executor.thinking.core import Action, Reconciler, Remove
from weftd.scheduler import leadership
from weftd.scheduler.outbox import OutboxPublisher
from weftd.scheduler.thinking.decide import lifecycle, waiting
from weftd.scheduler.thinking.peers import Bond, Peers
from weftd.scheduler.thinking.state import runs as scheduler_runs
from weftd.scheduler.thinking.state.cluster_state import ClusterState


class UnguardedStore(WatchedStore):
    """It takes every step that is legal from where the job is, whatever version it was decided on, whoever leads."""

    def _must_hold(self, lease: Lease) -> None:
        pass

    def _must_have_loaded_last(self, lease: Lease, load: int | None) -> None:
        pass

    async def take(self, lease: Lease, changes: Sequence[JobChange], **named: Any) -> list[bool]:
        taken: list[bool] = []
        for change in changes:
            job = self._jobs.get(change.before.id, change.before)
            newest = forced(job, structs.replace(change.step, version=job.version))
            taken += await super().take(lease, [newest], **named)
        return taken


class ForgetfulStore(WatchedStore):
    """It acknowledges submissions, and now and then keeps nothing of one."""

    async def submit(self, *arguments: Any, **named: Any) -> Any:
        stored = await super().submit(*arguments, **named)
        if stored.created and len(self._submitted) % 5 == 0:
            ask = max(self._asks)
            del self._asks[ask]
        return stored


class CarelessReconciler(Reconciler):
    """It begins what it is told, whatever of that job still runs here, and forgets what has ended before it told it."""

    def decide(self, runs: Iterable[Run], *, busy: frozenset[RunKey], now: float) -> list[Action]:
        found = list(runs)
        actions = super().decide([run for run in found if not run.live], busy=busy, now=now)
        return [*actions, *(Remove(run.key) for run in found if not run.live)]


class TimelessReconciler(Reconciler):
    """It never knows how old its last sync is, nor does the guard, which hears of it from here."""

    def observe(self, answer: NodeDesired, *, reported: Iterable[RunSeen], sent_at: float) -> None:
        super().observe(answer, reported=reported, sent_at=sent_at + 1e6)


class FlatteringReconciler(Reconciler):
    """It reports a run that was told to stop and ended with status 0 as one that ended by itself."""

    def report(self, *arguments: Any, **named: Any) -> tuple[RunSeen, ...]:
        return tuple(
            structs.replace(run, reason=EndReason.EXIT) if run.exit_code == 0 else run
            for run in super().report(*arguments, **named)
        )


class CredulousRuns(scheduler_runs.Runs):
    """A run that was told to stop counts as gone."""

    def gone(self, job: Job, allocation: Allocation) -> bool:
        return True

    def refuses(self, report: NodeReported) -> str:
        return ""


class AnxiousRuns(scheduler_runs.Runs):
    """Every rank is of the core: the death of one is the death of its job."""

    def of(self, job: Job) -> scheduler_runs.Ranks:
        ranks = super().of(job)
        everyone = (*ranks.seen, *ranks.others)
        return scheduler_runs.Ranks(everyone, everyone, (), ranks.first_node)


def lowest_ranks(job: Job, count: int, *, above: int = -1) -> list[int]:
    """The lowest numbers that no rank has now, whoever had them before."""
    assert job.placement is not None
    has = {allocation.rank for allocation in job.placement.allocations}
    return list(islice((rank for rank in itertools.count() if rank not in has), count))


def released_when_told(cluster_state: ClusterState, job: Job, now: float) -> list[Step]:
    """A rank that was told to leave is given up at once."""
    assert job.placement is not None
    left = [allocation for allocation in job.placement.allocations if allocation.leaving]
    if not left:
        return []
    cause = Cause(code=CauseCode.RANKS_LEFT)
    return cluster_state.go(job, JobEvent.RESIZED, cause, now, placement=lifecycle._without(job.placement, left))


def never_released(cluster_state: ClusterState, job: Job, now: float) -> list[Step]:
    """A rank that was told to leave holds its GPUs for ever."""
    return []


_exchange = replicas.exchange


def never_again(service: RunningService) -> Exchange:
    """A replica of a service that ended is not started again."""
    return structs.replace(_exchange(service), join=0)


def never_replaced(service: RunningService) -> Exchange:
    """Replicas of an earlier revision stay."""
    planned = _exchange(service)
    return structs.replace(planned, leave=tuple(one for one in planned.leave if one.revision == service.revision))


def all_at_once(service: RunningService) -> Exchange:
    """An update begins all new replicas beside all old ones."""
    planned = _exchange(service)
    return structs.replace(planned, join=service.wanted) if planned.replaces and planned.join else planned


def held_of_the_present(placement: Placement, following: Placement) -> tuple[Allocation, ...]:
    """What a job needs for its restart is not held for it."""
    return ()


def counted_from_the_start(job: Job, *_: Any, **__: Any) -> float | None:
    """GPU-seconds are counted as if the job had always had as many GPUs as now."""
    return None


class SilentWaiting(waiting.Waiting):
    """It records for no job why it waits."""

    def _explain_waiting(self, *_: Any) -> list[Step]:
        return []


_why_not, _start_of = explain.why_not, starts.PoolToCome.start_of


def wordless(free_capacity: FreeCapacity, shape: ResourceRequest) -> Cause | None:
    """The reason that a job waits has no sentence."""
    cause = _why_not(free_capacity, shape)
    return None if cause is None else structs.replace(cause, sentence="")


def numberless(free_capacity: FreeCapacity, shape: ResourceRequest) -> Cause | None:
    """The reason that a job waits has no numbers."""
    cause = _why_not(free_capacity, shape)
    return None if cause is None else structs.replace(cause, numbers={})


def without_estimate(to_come: starts.PoolToCome, job: Job) -> starts.Foreseen:
    """No estimate, and no reason why there is none."""
    found = _start_of(to_come, job)
    return structs.replace(found, estimate=structs.replace(found.estimate, sentence=""))


class NoMinimumRun(MinimumRun):
    """A job may be stopped for another as soon as it has begun."""

    def protects(self, job: Job, now: float, *, reclaimed: bool = False) -> bool:
        return False


class HastyRelay(OutboxPublisher):
    """It takes events out of the outbox before it knows that they are stored."""

    def __init__(self, *, store: RelayStore, bus: Bus, clock: Callable[[], float]) -> None:
        unheeded: Any = _Unheeded(bus)
        super().__init__(store=store, bus=unheeded, clock=clock)


class _Unheeded:
    """A bus whose user does not wait to hear that events were stored."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    async def emit(self, events: list[StreamEvent]) -> None:
        with suppress(NoAnswerError):
            await self._bus.emit(events)


class HastyPeers(Peers):
    """As leader it gives away at once, whoever may hold nodes still."""

    def held_until(self, taken: Lease, at: float) -> float:
        return at


class DeafPeers(Peers):
    """It holds without hearing those whom it named to the store."""

    def _required(self, bond: Bond) -> Iterable[str]:
        return ()


class EndlessPeers(Peers):
    """It holds for as long as the store is away."""

    def why_not_hold(self, now: float, *, epoch: int, connection: Connection | None) -> str:
        self.holds_seconds, before = math.inf, self.holds_seconds
        try:
            return super().why_not_hold(now, epoch=epoch, connection=connection)
        finally:
            self.holds_seconds = before


def peers_are(peers: type[Peers], **shape: Any) -> Variation:
    return through_an_outage(replaced=((leadership, "Peers", peers),), **shape)


def executor_is(core: type[Reconciler], *, kinds: tuple[str, ...] = ()) -> Variation:
    return Variation(kinds=kinds, replaced=((executor_service, "Reconciler", core),))


def scheduler_has(module: Any, name: str, value: Any) -> Variation:
    return Variation(replaced=((module, name, value),))


def store_is(store: Any) -> Variation:
    return Variation(store=store)


CUT_OFF = ("cut-bus", "hang")
NO_FENCE = Variation(fencing=False, kinds=CUT_OFF)
