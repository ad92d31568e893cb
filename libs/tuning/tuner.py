"""NEARCHUS's inner loop for one job, as a state machine: measure, change one thing, measure again, keep it or undo it.

    settling ─► stable ─► acting ─► verifying ─► (kept) settling
        ▲                   │            └─► rolling-back ─► settling
        └── refused ────────┘

The state is data and is stored with every change that is asked for, so that the process that takes over continues the
trial under way, or undoes it. Windows are not stored: that process measures anew.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from statistics import fmean, pstdev

import msgspec
from msgspec import Struct, structs

from libs.domain.job import Allocation, Cause, CauseCode, Job
from libs.domain.quantity import size_text
from libs.messages.asks import RankTuning, Tune
from libs.tuning import rollback
from libs.tuning.held import ALIKE, has
from libs.tuning.limits import may_shrink_to
from libs.tuning.proposal import TRIES, Failed, Free, Proposal
from libs.tuning.window import JobWindow

SPEED_SPREAD = 0.05  # of the mean, between windows: what counts as stable
CPU_SPREAD = 0.10
STABLE_WINDOWS = 2
SKIP_AFTER_START = 2  # windows that are ignored: the job loads, its caches fill
SKIP_AFTER_CHANGE = 1
VERIFY_WINDOWS_MAX = 5  # a speed that does not settle in so many windows is judged by its mean
GAIN_KEPT = 0.03
WORTH_KEPT = 0.3  # gain over cost
LOSS_KEPT = 0.03  # what a reclaim may cost
DRIFT = 0.10  # of the speed: after such a change a failed direction is worth another try
ASK_SECONDS = 20.0  # an ask that is not done by then counts as refused
VERIFY_SECONDS = 180.0  # a trial without a steady speed for so long is undone
ROLLBACKS_MAX = 5  # a rollback asked for so often is given up: other jobs have what it needs
LIMIT_OFF = 0.05  # the part by which a limit in force may differ from the one granted: kernels round
_EXHAUSTED = Failed(times=TRIES["less"], speed=0.0, cpus=0.0)


class Phase(StrEnum):
    SETTLING = "settling"
    STABLE = "stable"
    ACTING = "acting"  # asked for, and not yet seen in the job's placement
    VERIFYING = "verifying"
    ROLLING_BACK = "rolling-back"


class Trial(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change under trial. `asked_at`: when it, or its rollback, was asked for last; `cpus`: allowed then."""

    proposal: Proposal
    speed: float
    asked_at: float
    cpus: float
    rollbacks: int = 0
    why: str = ""  # why it is undone
    gain: float = 0.0  # as measured


class Measure(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One window: speed, CPU used, how many ranks reported a speed."""

    speed: float
    cpus: float
    told: int


class TunerState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the tuner knows of a job in one epoch. `skip`: how many windows to ignore still; `since`: of this phase.

    `late`: a change that was not done in time; should it be done after all, it is under trial.
    """

    epoch: int
    phase: Phase = Phase.SETTLING
    since: float = 0.0
    skip: int = SKIP_AFTER_START
    measures: tuple[Measure, ...] = ()
    trial: Trial | None = None
    late: Trial | None = None
    failed: dict[str, Failed] = {}
    kept: int = 0
    undone: int = 0
    gained: float = 1.0  # how many times as fast as at first, by the trials kept


class Moved(Struct, frozen=True, kw_only=True):
    """The next state, and what to ask for with it. `save`: the state is to be stored at once."""

    state: TunerState
    tune: Tune | None = None
    save: bool = False


def begin(epoch: int, now: float) -> TunerState:
    return TunerState(epoch=epoch, since=now)


def encode(state: TunerState) -> bytes:
    return msgspec.json.encode(state)


def parse(stored: bytes) -> TunerState | None:
    """None if a later version stored the state in a form that this one does not know."""
    try:
        return msgspec.json.decode(stored, type=TunerState)
    except msgspec.DecodeError:
        return None


def decode(stored: bytes, *, epoch: int, now: float) -> TunerState:
    """The state as stored, without its measures. A state of another epoch or a later version is forgotten."""
    state = parse(stored)
    if state is None or state.epoch != epoch:
        return begin(epoch, now)
    phase = Phase.SETTLING if state.phase is Phase.STABLE else state.phase
    trial = state.trial and structs.replace(state.trial, asked_at=now)
    return structs.replace(state, phase=phase, trial=trial, since=now, skip=SKIP_AFTER_CHANGE, measures=())


def advance(
    state: TunerState,
    job: Job,
    window: JobWindow | None,
    *,
    now: float,
    free: Mapping[str, Free],
    changed: bool = False,
) -> Moved:
    """The next state, given the `window` that has just ended (None: none has) and the job's limits now.

    `free`: what nodes have left, by id, for a rollback; `changed`: the job's limits changed since the last call.
    """
    match state.phase:
        case Phase.ACTING | Phase.ROLLING_BACK if state.trial is not None:
            return _asked(state, state.trial, job, now, free)
        case Phase.VERIFYING if state.trial is not None:
            if not has(job, state.trial.proposal.after):
                return Moved(state=_settling(state, now, SKIP_AFTER_CHANGE), save=True)  # another ask changed it
            return _verified(state, state.trial, job, window, now)
        case _ if changed:
            if state.late is not None and has(job, state.late.proposal.after):
                return Moved(state=_verifying(structs.replace(state, trial=state.late, late=None), now), save=True)
            return Moved(state=_settling(state, now, SKIP_AFTER_CHANGE))
        case _:
            measured = _measured(state, window)
            phase = Phase.STABLE if _stable(measured.measures) else Phase.SETTLING
            return Moved(state=structs.replace(measured, phase=phase, trial=None))


def tried_in_vain(state: TunerState, cpus_allowed: float) -> dict[str, int]:
    """Tries without success, by direction. Those at another speed or with another envelope do not count."""
    speed = _speed(state.measures)
    return {
        direction: failed.times
        for direction, failed in state.failed.items()
        if not failed.speed or (abs(speed / failed.speed - 1.0) <= DRIFT and abs(failed.cpus - cpus_allowed) <= ALIKE)
    }


def act(state: TunerState, job: Job, proposal: Proposal, *, why: str, now: float, cpus_allowed: float) -> Moved:
    """Ask for the proposal. `why`: what holds the job back, as a sentence."""
    assert state.phase is Phase.STABLE, f"{job.id}: acts while {state.phase}"
    speed, still = _speed(state.measures), tried_in_vain(state, cpus_allowed)
    trial = Trial(proposal=proposal, speed=speed, asked_at=now, cpus=cpus_allowed)
    numbers = {**proposal.numbers, "speed": round(speed, 6), "gain_predicted": round(proposal.gain, 6)}
    cause = Cause(code=proposal.code, sentence=f"{proposal.sentence}: {why}", numbers=numbers)
    asks = Tune(epoch=job.epoch, ranks=proposal.after, cause=cause)
    failed = {direction: one for direction, one in state.failed.items() if direction in still}
    after = structs.replace(state, phase=Phase.ACTING, since=now, trial=trial, late=None, failed=failed)
    return Moved(state=after, tune=asks, save=True)


def switched_off(state: TunerState, job: Job, *, now: float, free: Mapping[str, Free]) -> Moved:
    """Tuning of the job was switched off: a trial under way is undone, and no other begins."""
    if state.trial is None or state.phase in (Phase.ACTING, Phase.ROLLING_BACK):
        return advance(state, job, None, now=now, free=free)
    return _undo(state, state.trial, job, "tuning was switched off", now, window=None)


def relieve(state: TunerState, job: Job, ranks: Sequence[Allocation]) -> Moved:
    """Gives these ranks the reclaimed memory back that they are about to need.

    Other asks and trials go on. For the rest of the run the job's memory is not reclaimed again.
    """
    first = ranks[0]
    role = job.spec.roles[first.role]
    sentence = (
        f"{first.role} rank {first.rank} with {size_text(first.memory)} of memory needs more: "
        f"it has the {role.memory} again that it asked for"
    )
    cause = Cause(code=CauseCode.ROLLED_BACK, sentence=sentence, numbers={"memory_before": float(first.memory)})
    asked = tuple(RankTuning(rank=rank.rank, memory=job.spec.roles[rank.role].memory_bytes) for rank in ranks)
    failed = {**state.failed, "memory:less": _EXHAUSTED}
    remembered = structs.replace(state, failed=failed)
    return Moved(state=remembered, tune=Tune(epoch=job.epoch, ranks=asked, cause=cause), save=True)


def same_trials(one: TunerState, other: TunerState) -> bool:
    """Whether both states have the same trials; measures may differ."""
    return _trials(one) == _trials(other)


def _trials(state: TunerState) -> tuple[object, ...]:
    under_trial = state.trial and (state.trial.proposal, state.trial.rollbacks)
    return state.epoch, under_trial, state.kept, state.undone, state.failed


def _asked(state: TunerState, trial: Trial, job: Job, now: float, free: Mapping[str, Free]) -> Moved:
    """Checks whether the scheduler has done what was asked: its answer is the job's placement."""
    undoing = state.phase is Phase.ROLLING_BACK
    if has(job, trial.proposal.before if undoing else trial.proposal.after):
        if undoing:
            return Moved(state=_settling(state, now, SKIP_AFTER_CHANGE), save=True)
        return Moved(state=_verifying(state, now), save=True)
    if now - trial.asked_at < ASK_SECONDS:
        return Moved(state=state)
    if undoing and trial.rollbacks < ROLLBACKS_MAX and rollback.is_under_way(job, trial.proposal):
        return _undo_again(state, trial, job, now, free)
    if undoing:
        given_up = _never_again(state, trial.proposal)
        return Moved(state=_settling(given_up, now, SKIP_AFTER_CHANGE), save=True)
    failed = _in_vain(state, trial)
    return Moved(state=structs.replace(_settling(failed, now, 0), late=trial), save=True)


def _verified(state: TunerState, trial: Trial, job: Job, window: JobWindow | None, now: float) -> Moved:
    if window is not None and not _in_force(window, trial.proposal.after):
        window = None  # granted, but not yet applied by the node
    state = _measured(state, window)
    enough = _stable(state.measures) or len(state.measures) >= VERIFY_WINDOWS_MAX
    if not enough:
        if now - state.since < VERIFY_SECONDS:
            return Moved(state=state)
        return _undo(state, trial, job, f"no steady speed in {VERIFY_SECONDS:.0f} s", now, window=window)
    speed = _speed(state.measures)
    gain = speed / trial.speed - 1.0
    if is_kept(trial.proposal, gain):
        failed = {name: one for name, one in state.failed.items() if name != trial.proposal.direction}
        settled = _settling(structs.replace(state, failed=failed), now, 0)
        phase = Phase.STABLE if _stable(state.measures) else Phase.SETTLING
        gained = state.gained * (1.0 + gain)
        return Moved(state=structs.replace(settled, phase=phase, kept=state.kept + 1, gained=gained), save=True)
    why = f"speed {trial.speed:.4g} → {speed:.4g} per second ({gain:+.1%})"
    return _undo(state, trial, job, why, now, window=window, gain=gain)


def is_kept(proposal: Proposal, gain: float) -> bool:
    """Whether the measured gain is worth keeping the change."""
    if proposal.code is CauseCode.RECLAIMED:
        return gain >= -LOSS_KEPT
    return gain >= GAIN_KEPT and (proposal.cost <= ALIKE or gain / proposal.cost >= WORTH_KEPT)


def _undo(
    state: TunerState, trial: Trial, job: Job, why: str, now: float, *, window: JobWindow | None, gain: float = 0.0
) -> Moved:
    """Ask for the limits from before. If a rank would be killed for lack of memory, the change stays."""
    remembered = _in_vain(state, trial)
    if not _may_shrink(trial.proposal, window):
        return Moved(state=_settling(remembered, now, SKIP_AFTER_CHANGE), save=True)
    asked = structs.replace(trial, asked_at=now, rollbacks=1, why=why, gain=gain)
    after = structs.replace(remembered, phase=Phase.ROLLING_BACK, since=now, trial=asked, undone=remembered.undone + 1)
    before = trial.proposal.before
    tune = Tune(epoch=job.epoch, ranks=before, cause=_rolled_back(asked, "as before", ""))
    return Moved(state=after, tune=tune, save=True)


def _rolled_back(trial: Trial, words: str, more: str) -> Cause:
    numbers = {"speed_before": trial.speed, "gain": trial.gain, "cost": trial.proposal.cost}
    return Cause(
        code=CauseCode.ROLLED_BACK,
        sentence=f"{words} ({trial.proposal.sentence} did not pay): {trial.why}{more}",
        numbers={name: round(value, 6) for name, value in numbers.items()},
    )


def _undo_again(state: TunerState, trial: Trial, job: Job, now: float, free: Mapping[str, Free]) -> Moved:
    """Ask again for a rollback that was refused, or done in part."""
    before = trial.proposal.before
    wanted = rollback.as_it_fits(job, trial.proposal, free, again=trial.rollbacks)
    asked = structs.replace(trial, asked_at=now, rollbacks=trial.rollbacks + 1)
    after = structs.replace(state, since=now, trial=asked)
    if has(job, wanted):
        return Moved(state=after, save=True)
    words = "as before" if wanted == before else "as before, as far as there is room"
    cause = _rolled_back(asked, words, "; asked for again")
    return Moved(state=after, tune=Tune(epoch=job.epoch, ranks=wanted, cause=cause), save=True)


def _in_force(window: JobWindow, limits: Sequence[RankTuning]) -> bool:
    """Whether the limits are in force, as far as the nodes report them."""
    by_rank = {rank.rank: rank for rank in window.ranks}
    for limit in limits:
        rank = by_rank.get(limit.rank)
        if rank is None:
            continue
        if limit.cpus and rank.cpus_limit and abs(rank.cpus_limit / limit.cpus - 1.0) > LIMIT_OFF:
            return False
        if limit.memory and rank.memory_limit and abs(rank.memory_limit / limit.memory - 1.0) > LIMIT_OFF:
            return False
    return True


def _may_shrink(proposal: Proposal, window: JobWindow | None) -> bool:
    by_rank = {} if window is None else {rank.rank: rank for rank in window.ranks}
    return all(
        limit.memory is None or may_shrink_to(by_rank.get(limit.rank), limit.memory) for limit in proposal.before
    )


def _in_vain(state: TunerState, trial: Trial) -> TunerState:
    direction = trial.proposal.direction
    before = state.failed.get(direction)
    times = 1 + (before.times if before is not None else 0)
    failed = Failed(times=times, speed=trial.speed, cpus=trial.cpus)
    return structs.replace(state, failed={**state.failed, direction: failed})


def _never_again(state: TunerState, proposal: Proposal) -> TunerState:
    """No such reclaim again, at any speed: a job that got back only a part is slower, and would give more and more."""
    if proposal.code is not CauseCode.RECLAIMED:
        return state
    return structs.replace(state, failed={**state.failed, proposal.direction: _EXHAUSTED})


def _settling(state: TunerState, now: float, skip: int) -> TunerState:
    measures = state.measures if skip == 0 else ()
    return structs.replace(state, phase=Phase.SETTLING, since=now, skip=skip, trial=None, measures=measures)


def _verifying(state: TunerState, now: float) -> TunerState:
    return structs.replace(state, phase=Phase.VERIFYING, since=now, skip=SKIP_AFTER_CHANGE, measures=())


def _measured(state: TunerState, window: JobWindow | None) -> TunerState:
    if window is None:
        return state
    if state.skip:
        return structs.replace(state, skip=state.skip - 1)
    if window.speed is None or window.speed <= 0.0:
        return structs.replace(state, measures=())
    measure = Measure(speed=window.speed, cpus=window.cpus_used or 0.0, told=len(window.speeds))
    return structs.replace(state, measures=(*state.measures, measure)[-VERIFY_WINDOWS_MAX:])


def _stable(measures: Sequence[Measure]) -> bool:
    latest = measures[-STABLE_WINDOWS:]
    if len(latest) < STABLE_WINDOWS or len({measure.told for measure in latest}) > 1:
        return False
    speeds, cpus = [measure.speed for measure in latest], [measure.cpus for measure in latest]
    return _spread(speeds) < SPEED_SPREAD and _spread(cpus) < CPU_SPREAD


def _spread(values: Sequence[float]) -> float:
    mean = fmean(values)
    return pstdev(values) / mean if mean > 0.0 else 0.0


def _speed(measures: Sequence[Measure]) -> float:
    """The mean of the latest windows, or of all if they are not stable."""
    latest = measures[-STABLE_WINDOWS:] if _stable(measures) else measures
    return fmean(measure.speed for measure in latest)
