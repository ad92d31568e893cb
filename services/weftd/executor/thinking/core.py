"""Decides the node's next actions: `observe` the control plane's answers, then `decide`. No clock, no I/O.

The executor's `Memory` must survive its restart: when the last good sync was sent, and which runs it has asked to stop.
All times here are seconds on one clock that never jumps.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from weft.domain.shares import WHOLE
from weft.domain.spec import ResizeSignal
from weft.messages.nodes import (
    NEVER_RAN,
    NOT_UPLOADED,
    EndReason,
    Leader,
    NodeDesired,
    RunSeen,
    RunState,
    StartRun,
)
from weftd.executor.runs import NO_LIMIT, Limits, Run, RunKey
from weftd.executor.thinking.members import Changing, Showing, ShowMembers
from weftd.executor.thinking.orders import lawful, runs_of
from weftd.executor.thinking.rounding import fault, lacking
from weftd.executor.thinking.serving import Readiness, ReadySince

OVER_KEPT = 10_000
HURRY_PART, HURRY_SECONDS_MAX = 1 / 3, 10.0  # of the grace, before its end
_NOT_ENDED = {"state": RunState.RUNNING, "ended_at": None, "exit_code": None, "reason": None}


class Start(Struct, frozen=True):
    order: StartRun

    @property
    def key(self) -> RunKey:
        return RunKey.of(self.order)


class Terminate(Struct, frozen=True):
    key: RunKey


class Hurry(Struct, frozen=True):
    """Ask the children of a run's main process too, shortly before the end of its grace."""

    key: RunKey


class Kill(Struct, frozen=True):
    key: RunKey


class Remove(Struct, frozen=True):
    key: RunKey


class Resize(Struct, frozen=True):
    """Change these limits of a run, and leave the others."""

    key: RunKey
    limits: Limits


class DumpStacks(Struct, frozen=True):
    """Have the stacks of a run that hangs in its log. `told`: the signal on which its program writes them."""

    key: RunKey
    told: ResizeSignal | None


Action = Start | Terminate | Hurry | Kill | Remove | Resize | ShowMembers | DumpStacks


class ReconcilerTimings(Struct, frozen=True, kw_only=True):
    """A node that has not synced for `fence_seconds` ends its runs, within `fence_grace_max` more."""

    fence_seconds: float = 90.0
    fence_grace_max: float = 30.0
    kill_again_seconds: float = 5.0
    drain_leaving_max: float = 30.0  # of runs that serve requests, where their executor leaves for good
    # After a failed try to change limits, or to show members; doubled each time.
    resize_again_seconds: float = 1.0
    resize_again_max: float = 60.0
    # Seen outside its share for so long, a run is ended by a strict pool: after the arbiter was started anew, a process
    # that is held to its share may be seen outside it until it has connected again, which takes a second or two.
    outside_seconds: float = 5.0


class Stop(Struct, frozen=True, kw_only=True):
    """A run that was asked to stop. The stop is carried through: a run that got SIGTERM is no longer as ordered."""

    key: RunKey
    kill_at: float
    fenced: bool = False
    outside: bool = False  # it used its GPU outside its share
    hurry_at: float | None = None
    killed_at: float | None = None


class Holding(Struct, frozen=True):
    """The GPUs that a run was given: all of each, or `part` thousandths."""

    key: RunKey
    gpus: tuple[int, ...]
    part: int = WHOLE


class Trying(Struct, frozen=True, kw_only=True):
    """A resize that was tried `tries` times since `wanted` was ordered, and is not tried before `again_at`."""

    wanted: Limits
    tries: int
    again_at: float
    why: str = ""  # why the last try failed


class Memory(Struct, frozen=True, kw_only=True):
    """The state that survives the executor: without it a restart forgets the fence, why runs ended, and their GPUs.

    `leader` is the latest that answered: a control plane that was restored from a backup learns it from us. `ready`:
    since when runs are ready for requests.
    """

    synced_at: float | None = None
    stops: tuple[Stop, ...] = ()
    holding: tuple[Holding, ...] = ()
    leader: Leader | None = None
    changing: tuple[Changing, ...] = ()
    ready: tuple[ReadySince, ...] = ()

    def after_boot(self, fenced: Iterable[RunKey] = ()) -> "Memory":
        """The part that is still valid on the next boot, which has another clock: the runs that were asked to stop, by
        the executor or, being `fenced`, by its guard. Those that are still there had ended before, or end at once.
        """
        stops = {key: Stop(key=key, kill_at=0.0, fenced=True) for key in fenced}
        stops |= {stop.key: replace(stop, kill_at=0.0, killed_at=None) for stop in self.stops}
        return Memory(stops=tuple(stops[key] for key in sorted(stops)))


class Reconciler:
    """`observe` the control plane's answers, then `decide`. The same history gives the same decisions."""

    def __init__(self, timings: ReconcilerTimings, memory: Memory | None = None) -> None:
        memory = memory or Memory()
        self._timings = timings
        self._synced_at = memory.synced_at
        self._stops = {stop.key: stop for stop in memory.stops}
        self._desired: dict[RunKey, StartRun] | None = None  # None: no answer since this executor started
        self._graces: dict[RunKey, float] = {}
        self._holding = {holding.key: holding for holding in memory.holding}
        self.leader = memory.leader
        self.holds = ""  # the digest of the answer with the desired runs; an earlier executor's is not kept
        self._closing = False
        self._held = False  # the newest answer was a hold: nothing starts by an earlier answer
        self._told: set[RunKey] = set()  # runs whose end was in a report that was answered
        self._over: dict[RunKey, Run] = {}  # runs that ended and were removed here, the latest last
        self._trying: dict[RunKey, Trying] = {}  # runs that do not have the limits that were ordered for them
        self._dumped: set[RunKey] = set()  # runs whose stacks were asked for since they hang
        self._strict = False
        self._outside: dict[RunKey, float] = {}  # for how long, at the last sample, runs used a GPU outside their share
        self._sampled_at = 0.0
        self._showing = Showing(
            again_seconds=timings.resize_again_seconds,
            again_max=timings.resize_again_max,
            changing=memory.changing,
        )
        self.serving = Readiness(memory.ready)

    @property
    def memory(self) -> Memory:
        return Memory(
            synced_at=self._synced_at,
            stops=tuple(self._stops[key] for key in sorted(self._stops)),
            holding=tuple(self._holding[key] for key in sorted(self._holding)),
            leader=self.leader,
            changing=self._showing.changing,
            ready=self.serving.memory,
        )

    def fenced(self, now: float) -> bool:
        """True if the last good sync is too long ago; true also without any on record."""
        return self._synced_at is None or now - self._synced_at > self._timings.fence_seconds

    def permits(self, key: RunKey, now: float) -> bool:
        """True if `key` may start at this moment."""
        return self._starting(now) and key in (self._desired or {}) and key not in self._stops

    def patterns(self) -> dict[RunKey, str]:
        """The patterns of desired runs that report progress on their output."""
        orders = (self._desired or {}).items()
        return {key: order.progress_pattern for key, order in orders if order.progress_pattern}

    def close(self) -> None:
        """The executor leaves for good: every run ends, and nothing starts any more."""
        self._closing = True

    def observe(self, answer: NodeDesired, *, reported: Iterable[RunSeen], sent_at: float) -> None:
        """Take the answer to a report that was sent at `sent_at`; a refused report changes nothing."""
        if answer.refused:
            return
        if answer.hold:
            self._hold(answer, sent_at)
            return
        self._held = False
        if answer.leader is not None:  # an answer from the store alone does not say
            self._strict = answer.strict
        if not answer.unchanged:
            self._desire(answer)
        self._sync(sent_at)
        self._follow(answer.leader)
        self._told.update(RunKey(run.job_id, run.epoch, run.rank) for run in reported if run.state is RunState.EXITED)

    def _desire(self, answer: NodeDesired) -> None:
        newest: dict[tuple[str, int], StartRun] = {}
        for order in (run for job in answer.jobs for run in runs_of(job)):
            rank = (order.job_id, order.rank)
            if rank not in newest or newest[rank].epoch < order.epoch:
                newest[rank] = order
        self._desired = {RunKey.of(order): order for order in newest.values()}
        self._graces.update({key: order.grace for key, order in self._desired.items()})
        self._holding.update({key: _holding(order) for key, order in self._desired.items()})
        self.holds = answer.digest

    def _hold(self, answer: NodeDesired, sent_at: float) -> None:
        """The leader cannot reach its store: keep its last answer. A hold of an earlier leader is ignored."""
        if answer.leader is not None and self.leader is not None and _led_by(self.leader) == _led_by(answer.leader):
            self._held = True
            self._sync(sent_at)

    def _sync(self, sent_at: float) -> None:
        self._synced_at = sent_at if self._synced_at is None else max(sent_at, self._synced_at)

    def decide(self, runs: Iterable[Run], *, busy: frozenset[RunKey], now: float) -> list[Action]:
        """The actions now. `busy` are runs with an action in progress, which get no other one."""
        found = {run.key: run for run in runs}
        self._forget(found.keys() | busy)
        self.serving.look(found.values(), now)
        actions: list[Action] = []
        for key in sorted(found.keys() - busy):
            run = found[key]
            if run.live:
                actions += self._ends(run, now) or self._shows(run, now) or self._resizes(run, now) or self._dumps(run)
            elif self._removable(key):
                actions.append(self._remove(run))
        return actions + self._starts(found, busy, now)

    def note_fenced(self, keys: Iterable[RunKey], *, now: float) -> None:
        """The node's guard has stopped these runs: their stops are carried through and reported as fenced."""
        for key in keys:
            if key not in self._stops:
                self._stops[key] = Stop(key=key, kill_at=now + self._timings.fence_grace_max, fenced=True)

    def note_outside(self, outside: Mapping[RunKey, bool], *, now: float) -> None:
        """Note, from the newest sample, which runs have a process that uses the GPU outside the run's share. A run that
        the sample does not name is unknown: its arbiter may be away."""
        passed, self._sampled_at = now - self._sampled_at, now
        lasting = {key: self._outside[key] + passed for key in self._outside.keys() & outside.keys()}
        self._outside = {key: lasting.get(key, 0.0) for key, is_outside in outside.items() if is_outside}

    def undo(self, action: Action) -> None:
        """An action failed: decide it again."""
        match action:
            case Terminate(key):
                self._stops.pop(key, None)
            case ShowMembers():
                self.shown(action, "its runtime does not work now")
            case Hurry(key) if key in self._stops:
                self._stops[key] = replace(self._stops[key], hurry_at=0.0)
            case Kill(key) if key in self._stops:
                self._stops[key] = replace(self._stops[key], killed_at=None)
            case _:
                pass  # Starts and removals are decided from the present runs, so they are repeated anyway.

    def not_applied(self, action: Resize, why: str) -> None:
        """A resize failed, at least in part: it is tried again with back-off, and reported until then."""
        trying = self._trying.get(action.key)
        if trying is not None:
            self._trying[action.key] = replace(trying, why=why)

    def shown(self, action: ShowMembers, why: str) -> None:
        """The outcome of an action: empty, or why it failed. Then it is tried again, and reported until then."""
        self._showing.done(action, why)

    def report(
        self,
        runs: Iterable[Run],
        progress: Mapping[RunKey, dict[str, float]],
        *,
        beginning: Iterable[RunKey] = (),
        last_words: Mapping[RunKey, str] | None = None,
        timed_out: Container[RunKey] = (),
        unjudged: Callable[[Run], bool] = lambda _: False,
        uploading: Callable[[Run, bool], bool] = lambda _, __: False,
        not_uploaded: Mapping[RunKey, str] | None = None,
    ) -> tuple[RunSeen, ...]:
        """The report for the control plane: the runs, with the reasons of their ends and their progress.

        `beginning` are runs whose start is in progress. They are reported, too, and so are desired runs that may begin
        later, as the runtime does not work now: a run missing in a report may count as gone. So are desired runs that
        were removed: they never start again, and the control plane must learn that.
        `last_words`: the ends of some logs, which become part of what is said of their runs. `timed_out`: runs that
        waited for other ranks in vain. `unjudged`: may the next
        sample of its GPUs show why a run failed? Such a run is reported as running until then. So is one that is
        `uploading` its outputs; the second argument: was it told to stop? `not_uploaded`: why outputs were given up.
        """
        said = last_words or {}
        failed = not_uploaded or {}
        ended = [_without_outputs(run, failed[run.key]) if run.key in failed else run for run in runs]
        shown = [replace(run, **_NOT_ENDED) if self._waits(run, unjudged, uploading) else run for run in ended]
        told = {
            run.key: self._seen(run, progress.get(run.key, {}), said.get(run.key, ""), timed_out=run.key in timed_out)
            for run in shown
        }
        for key in [key for key in self._desired or () if key in self._over]:
            told.setdefault(key, _was_here(self._over[key]))
        for key in [*beginning, *self._awaited()]:
            begins = RunSeen(
                job_id=key.job_id, epoch=key.epoch, rank=key.rank, state=RunState.STARTING, gpus=self._held_by(key)
            )
            told.setdefault(key, begins)
        return lawful(told.values())

    def _awaited(self) -> Iterable[RunKey]:
        """Desired runs that begin once they can."""
        return () if self._closing else sorted(self._desired or ())

    def _waits(self, run: Run, unjudged: Callable[[Run], bool], uploading: Callable[[Run, bool], bool]) -> bool:
        """Is the end of the run not to be reported yet?"""
        return (self._may_be_its_gpu(run) and unjudged(run)) or (
            not run.live and run.reason not in NEVER_RAN and uploading(run, run.key in self._stops)
        )

    def _may_be_its_gpu(self, run: Run) -> bool:
        """Did the run fail by itself, and did it have GPUs?"""
        failed = not run.live and run.exit_code != 0 and run.reason not in NEVER_RAN
        return failed and run.key not in self._stops and bool(self._held_by(run.key))

    def gpus_of_runs(self) -> dict[RunKey, tuple[int, ...]]:
        """The GPUs of each run that was given any."""
        return {key: holding.gpus for key, holding in self._holding.items() if holding.gpus}

    def _held_by(self, key: RunKey) -> tuple[int, ...] | None:
        """The GPUs that a run was given; None if unknown by now."""
        return self._holding[key].gpus if key in self._holding else None

    def _follow(self, leader: Leader | None) -> None:
        """Remember the latest leader; an earlier one comes from a store that was restored from a backup."""
        known = self.leader
        if leader is not None and (
            known is None or known.pool != leader.pool or (known.epoch, known.seq) < (leader.epoch, leader.seq)
        ):
            self.leader = leader

    def _starting(self, now: float) -> bool:
        return not self._closing and not self._held and not self.fenced(now)

    def _forget(self, known: Iterable[RunKey]) -> None:
        """Forget the runs that are gone."""
        kept = set(known)
        self._told &= kept
        self._dumped &= kept
        self._stops = {key: stop for key, stop in self._stops.items() if key in kept}
        self._trying = {key: trying for key, trying in self._trying.items() if key in kept}
        self._showing.keep(kept)
        kept |= (self._desired or {}).keys()
        self._graces = {key: grace for key, grace in self._graces.items() if key in kept}
        self._holding = {key: holding for key, holding in self._holding.items() if key in kept}

    def _removable(self, key: RunKey) -> bool:
        """True if the control plane knows the run's end and no longer desires it, so that no exit status is lost."""
        return self._desired is not None and key not in self._desired and key in self._told

    def _remove(self, run: Run) -> Remove:
        self._over[run.key] = run
        while len(self._over) > OVER_KEPT:
            del self._over[next(iter(self._over))]
        return Remove(run.key)

    def _ends(self, run: Run, now: float) -> list[Action]:
        """Ask a live run to stop if it must, then kill it when its grace is over."""
        key, stop, fenced = run.key, self._stops.get(run.key), self.fenced(now)
        if stop is None and self._breaks_out(key):
            stop = Stop(key=key, kill_at=now, outside=True)  # at once: its neighbours pay for each second more
        if stop is None:
            if not fenced and not self._closing and (self._desired is None or key in self._desired):
                self.serving.stays(key)
                return []
            leaving = self._timings.drain_leaving_max if self._closing else None
            if not fenced and self.serving.must_finish(run, now, seconds_max=leaving):
                return []
            self.serving.ends(key, now)
            stop = Stop(key=key, kill_at=self._hurried(now + self._graces.get(key, run.grace), now), fenced=fenced)
            if now < stop.kill_at:
                left = min(HURRY_SECONDS_MAX, (stop.kill_at - now) * HURRY_PART)
                self._stops[key] = replace(stop, hurry_at=stop.kill_at - left)
                return [Terminate(key)]
        kill_at, killed_at = self._hurried(stop.kill_at, now), stop.killed_at
        due = now >= kill_at and (killed_at is None or now - killed_at >= self._timings.kill_again_seconds)
        hurries = not due and killed_at is None and stop.hurry_at is not None and now >= stop.hurry_at
        hurry_at = None if hurries else stop.hurry_at
        self._stops[key] = replace(stop, kill_at=kill_at, hurry_at=hurry_at, killed_at=now if due else killed_at)
        if hurries:
            return [Hurry(key)]
        return [Kill(key)] if due else []

    def _breaks_out(self, key: RunKey) -> bool:
        """True if a strict pool ends this run because it uses its GPU outside its share."""
        if not self._strict or self._outside.get(key, -1.0) < self._timings.outside_seconds:
            return False
        order = (self._desired or {}).get(key)
        return order is not None and order.share is not None

    def _hurried(self, kill_at: float, now: float) -> float:
        """When to kill: bounded by the fence's grace, which counts from its fall: we may have been suspended since."""
        if self._closing:
            kill_at = min(kill_at, now + self._timings.fence_grace_max)
        if self.fenced(now):
            fell_at = now if self._synced_at is None else self._synced_at + self._timings.fence_seconds
            kill_at = min(kill_at, fell_at + self._timings.fence_grace_max)
        return kill_at

    def _resizes(self, run: Run, now: float) -> list[Action]:
        """Give a run the limits of its order. The host reports its present limits, so none is forgotten or repeated."""
        key = run.key
        order = (self._desired or {}).get(key)
        if order is None or key in self._stops or run.state is not RunState.RUNNING:
            self._trying.pop(key, None)
            return []
        wanted = _limits_of(order)
        before = self._trying.get(key)
        if why := fault(wanted):
            self._trying[key] = Trying(wanted=wanted, tries=0, again_at=now, why=why)
            return []
        limits = lacking(run.limits, wanted)
        if limits is None:
            self._trying.pop(key, None)
            return []
        if before is None or before.wanted != wanted:  # A new order is tried at once.
            before = Trying(wanted=wanted, tries=0, again_at=now)
        if now < before.again_at:
            return []
        wait = min(self._timings.resize_again_seconds * 2.0 ** min(before.tries, 30), self._timings.resize_again_max)
        self._trying[key] = replace(before, tries=before.tries + 1, again_at=now + wait)
        return [Resize(key, limits)]

    def _shows(self, run: Run, now: float) -> list[ShowMembers]:
        order = (self._desired or {}).get(run.key)
        if order is None or run.key in self._stops or run.state is not RunState.RUNNING:
            return []
        return self._showing.decide(order, now)

    def _dumps(self, run: Run) -> list[DumpStacks]:
        """Ask once for the stacks of a run whose job hangs."""
        order = (self._desired or {}).get(run.key)
        if order is None or not order.hung:
            self._dumped.discard(run.key)
        elif run.key not in self._dumped and run.state is RunState.RUNNING:
            self._dumped.add(run.key)
            return [DumpStacks(run.key, order.hang_signal)]
        return []

    def _starts(self, found: Mapping[RunKey, Run], busy: frozenset[RunKey], now: float) -> list[Action]:
        """Start desired runs that never were here, once older epochs and the present holders of their GPUs ended."""
        if self._desired is None or not self._starting(now):
            return []
        here = busy | {key for key, run in found.items() if run.live}
        ranks = {(key.job_id, key.rank) for key in here}
        held = Counter[int]()
        for key in here & self._holding.keys():
            held.update(dict.fromkeys(self._holding[key].gpus, self._part_of(key, found.get(key))))
        starts: list[Action] = []
        for key, order in sorted(self._desired.items()):
            if key in found or key in self._over or (key.job_id, key.rank) in ranks:
                continue
            wanted = _holding(order)
            if all(held[gpu] + wanted.part <= WHOLE for gpu in wanted.gpus):
                held.update(dict.fromkeys(wanted.gpus, wanted.part))
                starts.append(Start(order))
        return starts

    def _part_of(self, key: RunKey, run: Run | None) -> int:
        """The part of its GPUs that a run has: that of its order, or the present one while that is larger."""
        share = None if run is None else run.limits.share
        return self._holding[key].part if share is None else max(self._holding[key].part, share.request)

    def _seen(self, run: Run, progress: dict[str, float], last_words: str, *, timed_out: bool) -> RunSeen:
        reason, exit_code = run.reason, run.exit_code
        stop = self._stops.get(run.key)
        if stop is not None and not run.live and reason not in NEVER_RAN:
            reason = EndReason.FENCED if stop.fenced else EndReason.STOPPED  # whatever the exit status, 0 included
            if exit_code is None and stop.killed_at is not None:
                exit_code = 137
        return RunSeen(
            job_id=run.key.job_id,
            epoch=run.key.epoch,
            rank=run.key.rank,
            state=run.state,
            started_at=run.started_at,
            ended_at=run.ended_at,
            exit_code=exit_code,
            reason=reason,
            detail="\n".join(part for part in (run.detail, last_words) if part),
            progress=progress,
            gpus=self._held_by(run.key) if run.live else None,
            port=run.port if run.live else None,
            ready=self.serving.ready(run.key) if run.live else None,
            not_applied=self._not_applied(run.key) if run.live else "",
            uncontrolled=stop is not None and stop.outside and reason is EndReason.STOPPED,
            for_good=run.for_good and reason is EndReason.START_FAILED,
            noted=run.noted,
            timed_out=timed_out and reason is EndReason.EXIT,
        )

    def _not_applied(self, key: RunKey) -> str:
        limits = self._trying[key].why if key in self._trying else ""
        return "; ".join(why for why in (limits, self._showing.why(key)) if why)


def _without_outputs(run: Run, why: str) -> Run:
    """A run that ended well and whose outputs are not in their store has failed."""
    if run.live or run.exit_code != 0 or run.reason in NEVER_RAN:
        return run
    return replace(run, exit_code=NOT_UPLOADED, detail=why)


def _led_by(leader: Leader) -> tuple[str, int, str]:
    return leader.pool, leader.epoch, leader.holder


def _limits_of(order: StartRun) -> Limits:
    egress = NO_LIMIT if order.egress is None else order.egress
    return Limits(cpus=order.cpus, memory=order.memory, egress=egress, share=order.share)


def _holding(order: StartRun) -> Holding:
    part = WHOLE if order.share is None else order.share.request
    return Holding(RunKey.of(order), tuple(sorted(set(order.gpus))), part)


def _was_here(run: Run) -> RunSeen:
    """A run that is desired again after it ended here, as after a restore of the store. One that never ran did not run
    since."""
    never_ran = run.reason in NEVER_RAN
    return RunSeen(
        job_id=run.key.job_id,
        epoch=run.key.epoch,
        rank=run.key.rank,
        state=RunState.EXITED,
        reason=run.reason if never_ran else EndReason.LOST,
        detail=run.detail if never_ran else "it ended here before, and its end was reported",
        for_good=run.for_good,
    )
