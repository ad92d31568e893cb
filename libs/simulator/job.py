"""One job of the trace on its way, as the event-driven simulator keeps it."""

from libs.domain.job import Allocation
from libs.planning.backfill import Ending
from libs.planning.order.standing import Standing
from libs.planning.scores import GpuKey
from libs.planning.shape import PlacementRequest
from libs.simulator.outcome import JobOutcome, outcome_of
from libs.simulator.pool import shape_of
from libs.simulator.workload import TraceJob

NEW_S = 60.0  # the work that a job without progress is assumed to have


class SimulatedJob:
    """One job of the trace on its way."""

    __slots__ = (
        "allocations",
        "asked",
        "attained_s",
        "begun",
        "done_s",
        "ending",
        "evictions",
        "held_s",
        "lost_s",
        "moves",
        "number",
        "paused_until",
        "settled_at",
        "shape",
        "since",
        "slowdown",
        "spell_begin",
        "spell_pause",
        "tier",
        "trace",
        "version",
        "waits_since",
    )

    def __init__(self, number: int, trace: TraceJob) -> None:
        self.number = number
        self.trace = trace
        self.shape = shape_of(trace.gpus)
        self.asked = PlacementRequest(trace.job_class, trace.id)
        self.allocations: tuple[Allocation, ...] = ()
        self.slowdown = 1.0
        self.done_s = 0.0  # work
        self.held_s = 0.0  # with GPUs
        self.attained_s = 0.0  # the same, since it was promoted last
        self.since = 0.0  # up to when the two are counted
        self.paused_until = 0.0
        self.waits_since = trace.arrival_s
        self.settled_at = self.spell_begin = self.spell_pause = 0.0
        self.begun: float | None = None
        self.moves = self.evictions = self.version = 0
        self.lost_s = 0.0
        self.ending: Ending | None = None  # as `running` foresees it
        self.tier: int | None = None  # by which `running` knows it

    def advance(self, now: float) -> None:
        """Count its work until now."""
        if self.allocations and now > self.since:
            self.attained_s += now - self.since
            self.held_s += now - self.since
            working = now - max(self.since, min(self.paused_until, now))
            self.lost_s += now - self.since - working
            self.done_s += working / self.slowdown
        self.since = now

    def ends_at(self) -> float:
        left = max(0.0, self.trace.work_s - self.done_s)
        return max(self.since, self.paused_until) + left * self.slowdown

    def left_s(self, now: float, *, known: bool) -> float:
        """The work that is left; if unknown, as much as it has done: a job is assumed to be half done."""
        estimate = self.trace.work_s if known else self.trace.estimate_s
        going = now - self.since if self.allocations else 0.0
        if estimate is None:
            return max(NEW_S, self.held_s + going)
        worked = going - max(0.0, min(self.paused_until, now) - self.since) if going else 0.0
        return max(0.0, estimate - self.done_s - worked / self.slowdown)

    def standing(self, now: float, *, known: bool) -> Standing:
        holds = bool(self.allocations)
        said = known or self.trace.estimate_s is not None
        attained_s = self.attained_s + (now - self.since if holds else 0.0)
        return Standing(
            id=self.trace.id,
            seq=self.number,
            gpus=self.trace.gpus,
            priority=self.trace.priority,
            tenant=self.trace.tenant,
            attained_s=attained_s,
            attained_gpu_s=attained_s * self.trace.gpus,
            waited_s=0.0 if holds else now - self.waits_since,
            left_s=self.left_s(now, known=known) if said else None,
        )

    @property
    def gpus(self) -> list[GpuKey]:
        """The GPUs that it holds."""
        return [(allocation.node_id, gpu) for allocation in self.allocations for gpu in allocation.gpus]

    @property
    def group(self) -> tuple[int, str]:
        """The group of the job: jobs of one group fit, or do not, alike."""
        return (self.trace.gpus, self.trace.job_class)

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
        )
