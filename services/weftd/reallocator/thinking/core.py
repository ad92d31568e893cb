"""Decides the bottleneck of each running job of a pool, and the limits to try.

The shell reads, stores and publishes. Every running job gets verdicts. A job with the effective mode `on` that reports
its speed has its own tuner (`weft.tuning.tuner`); for other jobs the changes are only findings. If several jobs want
the same free capacity, the one with the highest gain per capacity is served first. If no other limit helps, one more
replica is tried: for one job in each review, and for no role that the partition planner sizes.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from math import inf

from msgspec import Struct, structs

from weft.domain.classes import is_benchmark
from weft.domain.cluster import Node
from weft.domain.job import Allocation, Cause, CauseCode, Job, JobState
from weft.domain.spec import Kind, TuningMode
from weft.messages.asks import Scale, Tune
from weft.messages.nodes import ProgressSeen
from weft.messages.signals import Finding, NodeSampled, RankVerdict
from weft.planning.capacity import free_capacity_of
from weft.samples.arrivals import Arrivals
from weft.samples.thresholds import THROTTLED
from weft.tuning import cpus, limits, outscale, tuner
from weft.tuning.cause import StandingVerdicts, judge
from weft.tuning.cpus import RECLAIM_WINDOWS
from weft.tuning.envelope import GROWTH, bounds_of, mode_of
from weft.tuning.limits import squeezed
from weft.tuning.proposal import Case, Free, Proposal
from weft.tuning.state import Moved, Phase, TunerState, begin, decode, encode, parse, same_trials
from weft.tuning.verdict import Verdict
from weft.tuning.window import WINDOW_SECONDS, Gathering, JobWindow
from weftd.reallocator.thinking.advice import as_finding, as_verdict, idle_gpus, not_tuned, short_of_replicas
from weftd.reallocator.thinking.growing import room_for_one_more

VERDICTS_MAX = 1000  # in one review, which must fit into one message with the findings
FINDINGS_MAX = 500
PARTED_MAX = 1000
RELIEF_SECONDS = 5.0  # an urgent request for memory is not repeated earlier
_Way = tuple[str, Callable[[Case], Proposal | None]]
_AT_EASE = (Verdict.OVER_PROVISIONED, Verdict.HEALTHY, Verdict.GPU_BOUND)


class Known(Struct, frozen=True, kw_only=True):
    """The state of a job's tuner to store; a `tune` or `scale` command is stored in the same statement."""

    job_id: str
    epoch: int
    state: bytes
    tune: Tune | None = None
    scale: Scale | None = None

    @property
    def cause(self) -> Cause | None:
        """The reason of the command; None without a command."""
        asks = self.tune or self.scale
        return None if asks is None else asks.cause


class TuningDecision(Struct, frozen=True, kw_only=True):
    """The result of one review. `known`: the states and commands to store."""

    findings: tuple[Finding, ...] = ()
    verdicts: tuple[RankVerdict, ...] = ()
    known: tuple[Known, ...] = ()


class _Followed:
    """One running job."""

    def __init__(self, job: Job, state: TunerState) -> None:
        self.job = job
        self.state = state
        self.before = state  # the state before the last command
        self.stored: TunerState | None = None  # the latest state in the store, as far as we know
        self.standing = StandingVerdicts()
        self.recent: deque[JobWindow] = deque(maxlen=RECLAIM_WINDOWS)
        self.limits = _limits(job)
        self.lean = _lean(job)
        self.relieving, self.relieved_at = False, -inf
        self.changed = False
        self.advice: tuple[Finding, ...] = ()  # since its last window


class _Wish(Struct, frozen=True):
    """A ready job, and the change that it would try with all free capacity."""

    followed: _Followed
    case: Case
    proposal: Proposal


class Reallocator:
    """`recall` the stored states first; then `learn` the jobs, `observe` the measurements, and `decide`."""

    def __init__(
        self,
        *,
        pool: str = "default",
        tuning: TuningMode = TuningMode.ON,
        growth: float = GROWTH,
        window_seconds: float = WINDOW_SECONDS,
        plans_sizes: bool = False,
        restart_cost: Callable[[Job], float] = lambda _: 0.0,
        cool_down_seconds: float = 120.0,
    ) -> None:
        """`plans_sizes`: the partition planner gives jobs their sizes; `restart_cost`: seconds that a job loses when it
        restarts with another size; `cool_down_seconds`: pause after others changed the size of a job."""
        self.pool = pool
        self.tuning = tuning
        self.growth = growth
        self.arrivals = Arrivals()
        self.not_done = 0  # commands that the scheduler did not execute in time
        self.gathering = Gathering(window_seconds=window_seconds)
        self._followed: dict[str, _Followed] = {}
        self._recalled: dict[str, tuple[int, bytes]] = {}
        self._parted: dict[str, tuple[int, bytes]] = {}  # trials of jobs that do not run while they change size
        self._plans_sizes, self._restart_cost, self._cool_down = plans_sizes, restart_cost, cool_down_seconds
        self._holding: Sequence[Job] = ()
        self._nodes: Sequence[Node] = ()
        self._loose: frozenset[str] = frozenset()
        self._short: tuple[Finding, ...] = ()

    def observe(self, heard: NodeSampled | ProgressSeen, *, now: float) -> None:
        match heard:
            case NodeSampled():
                if heard.pool == self.pool and self.arrivals.take(heard, heard_at=now):
                    self.gathering.hear(heard)
            case ProgressSeen():
                self.gathering.hear_progress(heard, now=now)

    def recall(self, job_id: str, *, epoch: int, state: bytes, now: float) -> None:
        """Adopt the stored state of a job, from any process."""
        followed = self._followed.get(job_id)
        if followed is None:
            self._recalled[job_id] = (epoch, state)
        elif epoch == followed.job.epoch:
            followed.state = followed.before = decode(state, epoch=epoch, now=now)
            followed.stored = parse(state)

    def learn(self, *, jobs: Iterable[Job], nodes: Iterable[Node], now: float) -> None:
        """Update the jobs of the pool that hold resources, and its nodes; others are ignored."""
        self._holding = [job for job in jobs if job.state.holding and job.placement is not None]
        self._nodes = tuple(nodes)
        self._loose = frozenset(node.id for node in self._nodes if "cpus" in node.not_enforced)
        running = {job.id: job for job in self._holding if job.state is JobState.RUNNING and not is_benchmark(job.spec)}
        for job in running.values():
            self._follow(job, now)
        self._part_from({job_id: one for job_id, one in self._followed.items() if job_id not in running})
        self._followed = {job_id: one for job_id, one in self._followed.items() if job_id in running}
        for job_id, (epoch, state) in self._recalled.items():
            if job_id not in running and (known := parse(state)) is not None and known.resizes:
                self._parted[job_id] = (epoch, state)
        self._recalled.clear()
        self.gathering.keep_only(running)
        self._short = tuple(short_of_replicas(list(running.values()), self._holding, self._nodes))

    def decide(self, now: float) -> TuningDecision:
        known: list[Known] = []
        ready: list[_Followed] = []
        for followed in self._followed.values():
            self._see_limits(followed, now)
            window = self.gathering.close(followed.job.id, now=now)
            if window is not None:
                followed.recent.append(window)
                followed.standing.take(judge(window), at=now)
                followed.advice = (*idle_gpus(followed.job, window), *self._not_tuned(followed.job, window))
            if self._relieved(followed, now, known):
                continue
            self._advance(followed, window, now, known)
            if window is not None and self._wants_more(followed, window):
                ready.append(followed)
        self._serve(ready, now, known)
        findings = [*self._short, *(finding for one in self._followed.values() for finding in one.advice)]
        return TuningDecision(
            findings=tuple(findings[:FINDINGS_MAX]),
            verdicts=tuple(self._verdicts()[:VERDICTS_MAX]),
            known=tuple(known),
        )

    def not_asked(self, job_id: str) -> None:
        """Note that the store refused the command, so no trial has begun."""
        if (followed := self._followed.get(job_id)) is not None:
            followed.state, followed.relieving = followed.before, False

    def is_news(self, job_id: str, *, epoch: int, state: bytes) -> bool:
        """True if the stored state is not our last one: then another reallocator tunes that job, too."""
        followed, stored = self._followed.get(job_id), parse(state)
        if followed is None or stored is None or epoch != followed.job.epoch:
            return False
        return followed.stored is None or not same_trials(stored, followed.stored)

    def remembered(self, known: Known) -> None:
        """Note that this state is stored."""
        if (followed := self._followed.get(known.job_id)) is not None:
            followed.stored = parse(known.state)

    @property
    def awaits(self) -> bool:
        """True if a command is open: stored, and not seen as executed."""
        waiting = (Phase.ACTING, Phase.ROLLING_BACK)
        return any(one.relieving or one.state.phase in waiting for one in self._followed.values())

    @property
    def under_trial(self) -> Set[str]:
        """The jobs with a change under trial; nothing else about them should change meanwhile."""
        trying = {job_id for job_id, one in self._followed.items() if one.state.trial is not None}
        return trying | frozenset(self._parted)

    def state_of(self, job_id: str) -> TunerState | None:
        followed = self._followed.get(job_id)
        return None if followed is None else followed.state

    def _follow(self, job: Job, now: float) -> None:
        self.gathering.follow(job, now=now)
        known = self._followed.get(job.id)
        if known is not None and known.job.epoch == job.epoch:
            known.job = job
            return
        if known is not None:
            self._part_from({job.id: known})
        parted = self._parted.pop(job.id, None)
        epoch, stored = self._recalled.get(job.id) or parted or (job.epoch, b"")
        known_state = decode(stored, epoch=job.epoch, now=now) if stored else begin(job.epoch, now)
        followed = self._followed[job.id] = _Followed(job, known_state)
        followed.stored = parse(stored) if epoch == job.epoch else None

    def _part_from(self, gone: Mapping[str, _Followed]) -> None:
        """Keep the size trials of jobs that stop, for the resize or otherwise; they continue in the next epoch."""
        for job_id, one in gone.items():
            if one.state.resizes:
                self._parted[job_id] = (one.job.epoch, encode(one.state))
        while len(self._parted) > PARTED_MAX:
            del self._parted[next(iter(self._parted))]

    def _see_limits(self, followed: _Followed, now: float) -> None:
        limits = _limits(followed.job)
        followed.changed, followed.limits = limits != followed.limits, limits
        if followed.changed:
            followed.lean, followed.relieving = _lean(followed.job), False
            self.gathering.begin_anew(followed.job.id, now=now)
            followed.recent.clear()

    def _advance(self, followed: _Followed, window: JobWindow | None, now: float, known: list[Known]) -> None:
        state, job = followed.state, followed.job
        free = free_of(self._nodes, self._holding) if state.phase is Phase.ROLLING_BACK else {}
        if self._mode(job) is TuningMode.ON:
            moved = tuner.advance(state, job, window, now=now, free=free, changed=followed.changed)
            self._moved(followed, moved, known)
        elif state.trial is not None:
            self._moved(followed, tuner.switched_off(state, job, now=now, free=free), known)

    def _relieved(self, followed: _Followed, now: float, known: list[Known]) -> bool:
        """Return memory to a rank that gave it up and is about to need it, in every mode and during any trial."""
        followed.relieving = followed.relieving and now - followed.relieved_at < RELIEF_SECONDS
        if not followed.lean or followed.relieving:
            return False
        short = squeezed(followed.lean, self.gathering.memory_in_use(followed.job.id))
        fitting = self._fitting(followed.job, short) if short else []
        if not fitting:
            return False
        followed.relieving, followed.relieved_at = True, now
        self._moved(followed, tuner.relieve(followed.state, followed.job, fitting), known)
        return True

    def _fitting(self, job: Job, ranks: Sequence[Allocation]) -> list[Allocation]:
        """The ranks whose nodes have the memory that they asked for, as far as we know."""
        left = {name: free.memory for name, free in free_of(self._nodes, self._holding).items()}
        found: list[Allocation] = []
        for rank in ranks:
            more = job.spec.roles[rank.role].memory_bytes - rank.memory
            if more <= left.get(rank.node_id, 0):
                left[rank.node_id] -= more
                found.append(rank)
        return found

    def _wants_more(self, followed: _Followed, window: JobWindow) -> bool:
        """True if a change should be searched, to apply or only to advise."""
        match self._mode(followed.job):
            case TuningMode.OFF:
                return False
            case TuningMode.ADVISE:
                return followed.state.trial is None
            case TuningMode.ON:
                silent = followed.state.phase is Phase.SETTLING and window.speed is None
                return silent or followed.state.phase is Phase.STABLE

    def _moved(self, followed: _Followed, moved: Moved, known: list[Known]) -> None:
        followed.before, followed.state = followed.state, moved.state
        self.not_done += moved.state.late is not None and followed.before.late is None
        if moved.save or moved.tune is not None or moved.scale is not None:
            job, state = followed.job, encode(moved.state)
            known.append(Known(job_id=job.id, epoch=job.epoch, state=state, tune=moved.tune, scale=moved.scale))

    def _serve(self, ready: Sequence[_Followed], now: float, known: list[Known]) -> None:
        """Serve the job with the highest gain per capacity first; each job decides again with the remaining
        capacity."""
        free = free_of(self._nodes, self._holding) if ready else {}
        wishes: list[_Wish] = []
        at_a_loss: list[tuple[_Followed, Case]] = []
        for followed in ready:
            case = self._case(followed, free)
            if case is None:
                continue
            if (proposal := propose(case)) is not None:
                wishes.append(_Wish(followed, case, proposal))
            elif (finding := outscale.suggested(case)) is not None:
                followed.advice = (*followed.advice, finding)
                at_a_loss.append((followed, case))
        self._grow(at_a_loss, now, known)
        left = free
        for wish in sorted(wishes, key=_worth):
            followed, case = wish.followed, structs.replace(wish.case, free=left)
            proposal = wish.proposal if left is free else propose(case)
            if proposal is None:
                continue
            if self._mode(followed.job) is TuningMode.ON and case.speed_known:
                self._act(followed, case, proposal, now, known)
                left = less(left, followed.job, proposal)
            else:
                followed.advice = (*followed.advice, as_finding(followed.job, proposal, case.stood))

    def _act(
        self, followed: _Followed, case: Case, proposal: Proposal, now: float, known: list[Known], *, told: int = 0
    ) -> None:
        why, allowed = case.stood.reading.sentence, case.bounds.cpus
        acted = tuner.act(followed.state, followed.job, proposal, why=why, now=now, cpus_allowed=allowed, told=told)
        self._moved(followed, acted, known)

    def _grow(self, at_a_loss: Sequence[tuple[_Followed, Case]], now: float, known: list[Known]) -> None:
        """Request one more replica for the job with the highest gain per capacity."""
        mine = [(one, case) for one, case in at_a_loss if self._mode(one.job) is TuningMode.ON and case.speed_known]
        room = free_capacity_of(self._nodes, self._holding) if mine else None
        wishes: list[_Wish] = []
        for followed, case in mine:
            assert room is not None
            headroom = room_for_one_more(
                case,
                followed.state,
                room=room,
                restart_s=self._restart_cost(followed.job),
                plans_sizes=self._plans_sizes,
                cool_down_seconds=self._cool_down,
                now=now,
            )
            roomy = structs.replace(case, room=headroom)
            if (proposal := outscale.one_more(roomy)) is not None:
                wishes.append(_Wish(followed, roomy, proposal))
        for wish in sorted(wishes, key=_worth)[:1]:
            self._act(wish.followed, wish.case, wish.proposal, now, known, told=outscale.told(wish.case))

    def _case(self, followed: _Followed, free: Mapping[str, Free]) -> Case | None:
        stood = followed.standing.job
        if stood is None or not followed.recent or self._unenforced(followed.job):
            return None
        bounds = bounds_of(followed.job, growth=self.growth)
        state = followed.state
        tried = tuner.tried_in_vain(state, bounds.cpus) if state.phase is Phase.STABLE else {}
        return Case(
            job=followed.job,
            stood=stood,
            recent=tuple(followed.recent),
            free=free,
            bounds=bounds,
            tried=tried,
            speed_known=state.phase is Phase.STABLE,
        )

    def _unenforced(self, job: Job) -> list[str]:
        """The nodes of the job that cannot enforce limits."""
        assert job.placement is not None
        return sorted({allocation.node_id for allocation in job.placement.allocations} & self._loose)

    def _not_tuned(self, job: Job, window: JobWindow) -> list[Finding]:
        """Why a job that reports its speed is not tuned although its mode is on."""
        loose = self._unenforced(job)
        if not loose or window.speed is None or self._mode(job) is not TuningMode.ON:
            return []
        return [not_tuned(job, loose)]

    def _mode(self, job: Job) -> TuningMode:
        return mode_of(job, self.tuning)

    def _verdicts(self) -> list[RankVerdict]:
        """Verdicts on whole jobs first, then on slow ranks."""
        dull = (Verdict.HEALTHY, Verdict.UNKNOWN, Verdict.GPU_BOUND)
        whole: list[RankVerdict] = []
        ranks: list[RankVerdict] = []
        for followed in self._followed.values():
            for subject, stood in followed.standing.stands.items():
                if subject < 0 or stood.reading.code not in dull:
                    (whole if subject < 0 else ranks).append(as_verdict(followed.job, subject, stood))
        return whole + ranks


def _limits(job: Job) -> tuple[tuple[int, float, int, int | None], ...]:
    allocations = job.placement.allocations if job.placement else ()
    return tuple((one.rank, one.cpus, one.memory, one.egress) for one in allocations)


def _lean(job: Job) -> tuple[Allocation, ...]:
    """Ranks that have less memory than they asked for."""
    asked = {name: role.memory_bytes for name, role in job.spec.roles.items()}
    return tuple(one for one in (job.placement.allocations if job.placement else ()) if one.memory < asked[one.role])


def _worth(wish: _Wish) -> tuple[float, str]:
    """Sort key for the best change first: predicted gain per capacity; changes that take none come first."""
    cost = max(wish.proposal.cost, 1e-6)
    grows = wish.proposal.code in (CauseCode.UPSCALED, CauseCode.OUTSCALED)
    return -wish.proposal.gain / cost if grows else -1e9, wish.case.job.id


def propose(case: Case) -> Proposal | None:
    """The first proposal with an open direction and a predicted gain; None if there is none."""
    for direction, way in _ways(case):
        if case.open(direction) and (found := way(case)) is not None:
            return found
    return None


def _ways(case: Case) -> list[_Way]:
    role, code = case.stood.role, case.stood.reading.code
    more_cpu: list[_Way] = [("cpus:split", cpus.split), (f"cpus:up:{role}", cpus.more)]
    if code is Verdict.CPU_QUOTA_BOUND:
        return more_cpu
    if code is Verdict.INPUT_BOUND:
        window = case.windows.get(case.stood.rank)
        return more_cpu if window is not None and (window.cpu_throttled or 0.0) >= THROTTLED else []
    if code is Verdict.MEMORY_BOUND:
        return [(f"memory:up:{role}", limits.more_memory)]
    if code is Verdict.NETWORK_BOUND:
        return [("egress:split", limits.split_egress), (f"egress:up:{role}", limits.more_egress)]
    if code in _AT_EASE and case.job.spec.kind in (Kind.TRAINING, Kind.BATCH):
        less_cpu: list[_Way] = [("cpus:less", cpus.less)] if code is Verdict.OVER_PROVISIONED else []
        return [*less_cpu, ("memory:less", limits.less_memory), ("egress:less", limits.less_egress)]
    return []  # a notebook and a service keep their slack for future load


def free_of(nodes: Iterable[Node], holding: Iterable[Job]) -> dict[str, Free]:
    """Free capacity of each ready node."""
    left = {node.id: [node.capacity.cpus, node.capacity.memory] for node in nodes if node.ready}
    for job in holding:
        for allocation in job.placement.allocations if job.placement else ():
            if (of_node := left.get(allocation.node_id)) is not None:
                of_node[0] -= allocation.cpus
                of_node[1] -= allocation.memory
    return {name: Free(cpus=max(0.0, cpus), memory=max(0, int(memory))) for name, (cpus, memory) in left.items()}


def less(free: Mapping[str, Free], job: Job, proposal: Proposal) -> dict[str, Free]:
    """The free capacity minus that of the change. Capacity that the change returns is free only afterwards."""
    assert job.placement is not None
    nodes = {allocation.rank: allocation.node_id for allocation in job.placement.allocations}
    cpus: dict[str, float] = {}
    memory: dict[str, int] = {}
    for before, after in zip(proposal.before, proposal.after, strict=True):
        node = nodes[after.rank]
        cpus[node] = cpus.get(node, 0.0) + (after.cpus or 0.0) - (before.cpus or 0.0)
        memory[node] = memory.get(node, 0) + (after.memory or 0) - (before.memory or 0)
    return {
        name: Free(
            cpus=max(0.0, left.cpus - max(0.0, cpus.get(name, 0.0))),
            memory=max(0, left.memory - max(0, memory.get(name, 0))),
        )
        for name, left in free.items()
    }
