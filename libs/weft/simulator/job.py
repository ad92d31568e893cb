"""One job of the trace on its way, as the event-driven simulator keeps it."""

from collections import Counter
from collections.abc import Sequence, Set
from math import inf

from msgspec import Struct

from weft.domain.cluster import Request
from weft.domain.job import Allocation, Loan
from weft.planning.backfill import Ending
from weft.planning.growth import Grower, LiveSizes, RoleRange
from weft.planning.jobs import WITH_SLACK
from weft.planning.moves import Candidate
from weft.planning.order import Key, Order, Standing
from weft.planning.preemption import Holder
from weft.planning.preemption.loss import loss_of
from weft.planning.replicas import RunningService
from weft.planning.resource_request import PlacementRequest, ResourceRequest, RoleRequest
from weft.planning.scores import GpuKey
from weft.planning.surplus import parts_of
from weft.simulator.model import World
from weft.simulator.outcome import JobOutcome, outcome_of
from weft.simulator.pool import ROLE, choosing, elastic_shape, shape_of
from weft.simulator.workload import Elastic, TraceJob

NEW_S = 60.0  # the work that a job without progress is assumed to have


class Serves(Struct, kw_only=True):
    """The replicas that a service should have: `aim`, all of `revision`; the `needed` oldest give way last.

    `runs`: it was placed, and may have no replica now; `joining`: ranks placed in the present decision, which take no
    requests yet; `asked`: how often something was asked for it; `loans`: by which it has GPUs of other jobs.
    """

    want: RoleRequest
    aim: int
    needed: int = 0
    max_surge: int = 1
    revision: int = 0
    runs: bool = False
    joining: set[int] = set()
    asked: int = 0
    loans: tuple[Loan, ...] = ()


class SimulatedJob:
    """One job of the trace on its way.

    `size`: how many replicas it has, or, while it waits, starts with; `model`: of the GPUs that it has, or had last;
    `gpus_needed`: how many GPUs these need; `speed`: how many times as fast they are as the size asked for, were they
    in one node. `planned`: a planner gives it its sizes. `live`: between which sizes it goes live, if it does;
    `starts`: it was placed in the present decision, and does not run yet; `leaving`: when ranks that give way are gone;
    `serves`: the replicas that it should have, if it is a service.
    """

    __slots__ = (
        "allocations",
        "asked",
        "attained_s",
        "begun",
        "counted_gpu_s",
        "counted_s",
        "done_s",
        "ending",
        "evictions",
        "gpus_needed",
        "hardware_failed",
        "held_s",
        "kept_least_s",
        "leaves",
        "leaving",
        "live",
        "lost_s",
        "model",
        "moves",
        "moving",
        "number",
        "paused_until",
        "planned",
        "promoted",
        "ranks_used",
        "resized_at",
        "resizes",
        "resource_request",
        "serves",
        "settled_at",
        "since",
        "size",
        "sized_at",
        "slowdown",
        "speed",
        "spell_begin",
        "spell_pause",
        "starts",
        "stops_for",
        "trace",
        "version",
        "waits_since",
    )

    def __init__(self, number: int, trace: TraceJob, *, planned: bool = False) -> None:
        self.number = number
        self.trace = trace
        self.planned = planned
        self.live: LiveSizes = () if planned or trace.elastic is None else _live_sizes(trace.elastic)
        self.serves = _serves(trace)
        self.starts = False
        self.leaving: dict[int, float] = {}
        self.ranks_used = 0
        self.sized_at: float | None = None  # when its size changed last, since it was placed
        self.resource_request: ResourceRequest = ()
        self.size = 0
        self.model = ""
        self.gpus_needed: float = 0  # a share is a part of one
        self.speed = 1.0
        tolerates = None if self.serves is None else WITH_SLACK
        self.asked = PlacementRequest(trace.job_class, trace.id, tolerates=tolerates, workload=trace.model)
        self.allocations: tuple[Allocation, ...] = ()
        self.slowdown = 1.0
        self.done_s = 0.0  # work
        self.kept_least_s = 0.0  # work that no stop takes away: below 0 if the job began before the simulation
        self.held_s = 0.0  # with GPUs
        self.attained_s = 0.0  # the same, since it was promoted last
        self.counted_s = self.counted_gpu_s = 0.0  # of that, until its size changed last, and its GPU-seconds
        self.since = 0.0  # up to when the two are counted
        self.paused_until = 0.0
        self.waits_since = trace.arrival_s
        self.hardware_failed = False  # a node that it ran on failed
        self.settled_at = self.spell_begin = self.spell_pause = 0.0
        self.leaves = False  # it stops, to give way or to move
        self.moving = False  # it stops to move
        self.stops_for = ""  # the service to which it lends all that it has
        self.promoted = False  # it has waited so long that the order forgets its past
        self.begun: float | None = None
        self.moves = self.evictions = self.resizes = self.version = 0
        self.resized_at = 0.0
        self.lost_s = 0.0
        self.ending: Ending | None = None  # as `running` foresees it
        self.take_size(trace.gpus if trace.elastic is None else trace.elastic.asked)
        self.leave_place()

    def take_size(self, size: int) -> None:
        """Count its GPU time so far, and have another size from now on; its work must be counted until now."""
        if size == self.size:
            return
        self._count_gpu_time()
        elastic = self.trace.elastic
        self.size = size
        if self.serves is not None:
            self.gpus_needed = size * self.trace.gpus
            return
        if elastic is None:
            models, excluded = self.trace.gpu_models, self.trace.gpu_models_excluded
            shape = shape_of(size, models=models, excluded=excluded)
        else:
            shape = elastic_shape(elastic, size)
        self.resource_request = choosing(shape, self.trace.where)
        self.gpus_needed = size if elastic is None else size * int(elastic.each[0])
        self.speed = 1.0 if elastic is None else elastic.speed(size, self.model)

    def take_model(self, model: str) -> None:
        """It has GPUs of that model from now on; its work must be counted until now."""
        self.model = model
        if self.trace.elastic is not None:
            self.speed = self.trace.elastic.speed(self.size, model)

    def take_place(self, allocations: Sequence[Allocation]) -> None:
        """It begins there, with one replica for each allocation."""
        self.take_size(len(allocations))
        self.promoted = False
        self.ranks_used = max((self.ranks_used, *(one.rank + 1 for one in allocations)))

    def leave_place(self) -> None:
        """It holds nothing any more, and wants the size that it asks for; it starts with fewer replicas, but not with
        fewer than its least, if no more fit. A job with a planner starts with what that gives it."""
        self.leaving.clear()
        self.ranks_used = 0
        if self.serves is not None:
            self._count_gpu_time()
            self.serves.runs = False
            self.size, self.gpus_needed = 0, self.trace.gpus
            self.wait_for_replicas()
            return
        elastic = self.trace.elastic
        if elastic is None:
            return
        self.take_size(elastic.asked)
        if not self.planned:
            self._count_gpu_time()
            shape = elastic_shape(elastic, elastic.asked, least=elastic.least)
            self.resource_request = choosing(shape, self.trace.where)
            self.gpus_needed = elastic.least * int(elastic.each[0])
            self.size = 0

    def wait_for_replicas(self) -> None:
        """A service starts with one replica, and with as many of those that it should have as fit."""
        assert self.serves is not None
        self.resource_request = (RoleRequest(self.serves.want.role, 1, self.serves.aim, self.serves.want.request),)

    @property
    def holds(self) -> bool:
        """True if it has its place: a service holds on without a replica."""
        return bool(self.allocations) or (self.serves is not None and self.serves.runs)

    # sizes that change live

    @property
    def is_as_asked(self) -> bool:
        """True if a service has as many replicas as it should have, all of the newest revision."""
        assert self.serves is not None
        staying = [one for one in self.allocations if not one.leaving]
        return len(staying) == self.serves.aim and all(one.revision == self.serves.revision for one in staying)

    def service(self) -> RunningService:
        """The service as it runs now."""
        serves = self.serves
        assert serves is not None
        return RunningService(
            job_id=self.trace.id,
            number=self.number,
            version=(self.version, serves.asked),
            held=self.allocations,
            want=serves.want,
            wanted=serves.aim,
            first_rank=self.ranks_used,
            ready=frozenset(one.rank for one in self.allocations) - serves.joining,
            borrowed=frozenset(loan.rank for loan in serves.loans),
            revision=serves.revision,
            max_surge=serves.max_surge,
            tenant=self.trace.tenant,
            preemptible=self.gives_way,
            asked=self.asked,
        )

    @property
    def _needed(self) -> Set[int]:
        """The ranks that count as much as a core does."""
        if self.serves is None:
            return frozenset()
        return frozenset(sorted(one.rank for one in self.allocations if not one.leaving)[: self.serves.needed])

    @property
    def lends(self) -> bool:
        """True if the job gives up ranks that it can do without."""
        return True

    @property
    def granted(self) -> Counter[str]:
        """How many ranks of each role it has, without those that leave."""
        return Counter(one.role for one in self.allocations if not one.leaving)

    def lacks(self, loan: Loan) -> bool:
        """True while GPUs that it lent have not come back and it has not ended."""
        if self.leaves or not self.allocations:
            return True
        has = self.granted
        return bool(loan.ranks) and any(one.aim > has[one.role] for one in self.live)

    @property
    def at_rest(self) -> bool:
        """True if it runs, and its size does not change at the moment."""
        return bool(self.allocations) and not (self.starts or self.leaves or self.leaving)

    def parts(self, tier: Key, now: float) -> list[Holder]:
        """The ranks that it can do without, and the rest of it."""
        if self.serves is None and not (self.live and self.lends):
            return [Holder(job_id=self.trace.id, worth=(*tier, *self.loss(now)), allocations=self.allocations)]
        return parts_of(
            self.trace.id,
            self.allocations,
            tier=tier,
            loss=lambda extra: self.loss(now, extra=extra),
            runs=not self.starts,
            needed=self._needed,
        )

    def grower(self, *, offered: bool) -> Grower:
        """The request by which this job grows to its size; with `offered`, to the size that idle GPUs allow."""
        has, aims = self.granted, {one.role: one.most if offered else one.aim for one in self.live}
        return Grower(
            job_id=self.trace.id,
            held=self.allocations,
            missing=tuple(
                (want, aims[want.role] - has[want.role]) for want in self.roles if aims[want.role] > has[want.role]
            ),
            first_rank=self.ranks_used,
            tenant=self.trace.tenant,
            preemptible=self.gives_way,
            asked=self.asked,
        )

    @property
    def roles(self) -> ResourceRequest:
        """The roles of a job that resizes live."""
        assert self.trace.elastic is not None
        return choosing(elastic_shape(self.trace.elastic, 1), self.trace.where)

    @property
    def resize_cost_s(self) -> float:
        """For how long it makes no progress when its size changes."""
        return 0.0 if self.trace.elastic is None else self.trace.elastic.resize_s

    def _count_gpu_time(self) -> None:
        self.counted_gpu_s += (self.attained_s - self.counted_s) * self.gpus_needed
        self.counted_s = self.attained_s

    def forget_attained(self) -> None:
        self.attained_s = self.counted_s = self.counted_gpu_s = 0.0

    @property
    def gives_way(self) -> bool:
        """True if the job may be pre-empted."""
        return True

    @property
    def stretch(self) -> float:
        """The seconds that one second of its work takes in its place and with its size."""
        return self.slowdown / self.speed

    def advance(self, now: float) -> None:
        """Count its work until now."""
        if self.holds and now > self.since:
            self.attained_s += now - self.since
            self.held_s += now - self.since
            working = now - max(self.since, min(self.paused_until, now))
            self.lost_s += now - self.since - working
            self.done_s += working / self.stretch
        self.since = now

    def ends_at(self) -> float:
        if self.serves is not None:
            return inf
        left = max(0.0, self.trace.work_s - self.done_s)
        return max(self.since, self.paused_until) + left * self.stretch

    def left_s(self, now: float, *, known: bool) -> float:
        """The work that is left; if unknown, as much as it has done: a job is assumed to be half done."""
        estimate = self.trace.work_s if known else self.trace.estimate_s
        going = now - self.since if self.holds else 0.0
        if estimate is None:
            return max(NEW_S, self.held_s + going) * self.speed
        worked = going - max(0.0, min(self.paused_until, now) - self.since) if going else 0.0
        return max(0.0, estimate - self.done_s - worked / self.stretch)

    def loss(self, now: float, *, extra: bool = False) -> Key:
        """Its loss if it gives way now: sorts, the smallest first."""
        held = now - self.settled_at
        every = self.trace.checkpoint_s
        lost = held if every is None else min(held, every / 2)
        rested = self.sized_at if self.sized_at is not None else self.settled_at if self.epoch else None
        return loss_of(
            now,
            rested=rested,
            extra=extra,
            gpu_seconds=0.0 if extra else lost * (self.gpus_needed or 1),
            held_since=self.settled_at,
            seq=self.number,
        )

    def runs_on_s(self, now: float, *, known: bool) -> float:
        """For how long it is expected to run on where it is: as long again as it has run, if nothing is known."""
        if not known and self.trace.estimate_s is None:
            return self.attained_s + now - self.since
        return self.left_s(now, known=known) * self.stretch

    def standing(self, now: float, *, known: bool) -> Standing:
        holds = self.holds
        said = known or self.trace.estimate_s is not None
        attained_s = self.attained_s + (now - self.since if holds else 0.0)
        return Standing(
            id=self.trace.id,
            seq=self.number,
            gpus=self.gpus_needed,
            priority=self.trace.priority,
            tenant=self.trace.tenant,
            attained_s=attained_s,
            attained_gpu_s=round(self.counted_gpu_s + (attained_s - self.counted_s) * self.gpus_needed, 6),
            waited_s=0.0 if holds else now - self.waits_since,
            promoted=self.promoted,
            left_s=self.left_s(now, known=known) if said else None,
            checkpoints=self.trace.checkpoint_s is not None,
        )

    @property
    def epoch(self) -> int:
        """How often it was stopped."""
        return self.moves + self.evictions

    def candidate(self, world: World, *, known: bool) -> Candidate | None:
        """It may move if it loses little by that."""
        every = self.trace.checkpoint_s
        if every is None or not self.gpus_needed:
            return None
        since, ends = max(self.since, self.paused_until), None
        if known or self.trace.estimate_s is not None:
            ends = since + self.left_s(self.since, known=known) * self.stretch
        return Candidate(
            allocations=self.allocations,
            gpus=self.gpus_needed,
            cost_s=self.stop_s(world) - world.move_s + world.grace_s + every / 2,
            stop_s=world.grace_s,
            epoch=self.epoch,
            since=self.settled_at,
            began=self.since - self.attained_s,
            ends=ends,
            model=self.model if self.planned else "",
        )

    def lose(self, *, stopped: bool, else_every_s: float = 0.0) -> None:
        """Drop the work since the last checkpoint. `stopped`: it could write one first, if it does that; else it wrote
        one every `else_every_s`."""
        every = self.trace.checkpoint_s
        if every == 0.0 and not stopped:
            every = else_every_s
        kept = self.kept_least_s if every is None else self.done_s - self.done_s % every if every else self.done_s
        self.lost_s += (self.done_s - kept) * self.stretch
        self.done_s = kept

    def stop_s(self, world: World) -> float:
        """For how long it makes no progress if it stops and starts again."""
        elastic = self.trace.elastic
        return world.move_s if elastic is None or elastic.live else elastic.resize_s

    @property
    def gpus(self) -> list[GpuKey]:
        """The GPUs that it holds."""
        return [(allocation.node_id, gpu) for allocation in self.allocations for gpu in allocation.gpus]

    def group(self, order: Order, *, backfills: bool) -> tuple[object, str]:
        """The group of the job: jobs of one group fit, or do not, alike, and may overtake and preempt alike."""
        checkpoints = order.held_tier is not None and self.trace.checkpoint_s is not None
        lasts = self.trace.estimate_s if backfills else None
        return ((self.resource_request, checkpoints, lasts, self.serves is not None), self.trace.job_class)

    def outcome(self, now: float) -> JobOutcome:
        """The outcome of a job that ends now."""
        assert self.begun is not None
        return outcome_of(
            self.trace,
            started_s=self.begun,
            completed_s=now,
            moves=self.moves,
            evictions=self.evictions,
            lost_s=self.lost_s,
            held_s=self.held_s,
            resizes=self.resizes,
        )


def _serves(trace: TraceJob) -> Serves | None:
    if trace.service is None:
        return None
    want = RoleRequest(ROLE, 1, 1, Request(gpus=trace.gpus, cpus=1.0, memory=1, where=trace.where))
    size = trace.service
    return Serves(want=want, aim=size.want, needed=size.least, max_surge=size.max_surge)


def _live_sizes(elastic: Elastic) -> LiveSizes:
    return (RoleRange(ROLE, elastic.least, elastic.asked, elastic.asked, elastic.most),) if elastic.live else ()
