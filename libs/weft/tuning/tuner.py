"""NEARCHUS's loops for one job, as a state machine: measure, change one thing, measure again, keep it or undo it.

    settling ─► stable ─► acting ─► verifying ─► (kept) settling
        ▲                   │            └─► rolling-back ─► settling
        └── refused ────────┘

The state is data and is stored with every change that is asked for, so that the process that takes over continues the
trial under way, or undoes it. Windows are not stored: that process measures anew. The inner loop (other limits) is
here, the outer one (another size) in `weft.tuning.outer`; one job has one trial at a time, of either loop.
"""

from collections.abc import Mapping, Sequence

from msgspec import structs

from weft.domain.job import Allocation, Cause, CauseCode, Job
from weft.domain.quantity import size_text
from weft.messages.asks import RankTuning, Tune
from weft.tuning import outer, rollback
from weft.tuning.held import ALIKE, has
from weft.tuning.limits import may_shrink_to
from weft.tuning.proposal import TRIES, Failed, Free, Proposal
from weft.tuning.state import (
    ASK_SECONDS,
    ROLLBACKS_MAX,
    SKIP_AFTER_CHANGE,
    VERIFY_SECONDS,
    Moved,
    Phase,
    Trial,
    TunerState,
    enough,
    in_vain,
    is_kept,
    is_stable,
    kept,
    measured,
    rolled_back,
    settling,
    speed_of,
    told_kept,
    total_of,
    verifying,
)
from weft.tuning.window import JobWindow

DRIFT = 0.10  # of the speed: after such a change a failed direction is worth another try
LIMIT_OFF = 0.05  # the part by which a limit in force may differ from the one granted: kernels round
_EXHAUSTED = Failed(times=TRIES["less"], speed=0.0, cpus=0.0)


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
    if state.trial is not None and state.trial.proposal.resizes:
        return outer.advance(state, state.trial, job, window, now=now, changed=changed)
    match state.phase:
        case Phase.ACTING | Phase.ROLLING_BACK if state.trial is not None:
            return _asked(state, state.trial, job, now, free)
        case Phase.VERIFYING if state.trial is not None:
            if not has(job, state.trial.proposal.after) or _resized(state.trial, job):
                return Moved(state=settling(state, now, SKIP_AFTER_CHANGE), save=True)  # another ask changed it
            return _verified(state, state.trial, job, window, now)
        case _ if changed:
            if state.late is not None and has(job, state.late.proposal.after):
                return Moved(state=verifying(structs.replace(state, trial=state.late, late=None), now), save=True)
            return Moved(state=settling(state, now, SKIP_AFTER_CHANGE))
        case _:
            known = measured(state, window)
            phase = Phase.STABLE if is_stable(known.measures) else Phase.SETTLING
            return Moved(state=structs.replace(known, phase=phase, trial=None))


def tried_in_vain(state: TunerState, cpus_allowed: float) -> dict[str, int]:
    """Tries without success, by direction. Those at another speed or with another envelope do not count."""
    speed = speed_of(state.measures)
    return {
        direction: failed.times
        for direction, failed in state.failed.items()
        if not failed.speed or (abs(speed / failed.speed - 1.0) <= DRIFT and abs(failed.cpus - cpus_allowed) <= ALIKE)
    }


def act(
    state: TunerState, job: Job, proposal: Proposal, *, why: str, now: float, cpus_allowed: float, told: int = 0
) -> Moved:
    """Ask for the proposal. `why`: what holds the job back, as a sentence; `told`: how many ranks of the role that
    shall have one replica more report their speed."""
    assert state.phase is Phase.STABLE, f"{job.id}: acts while {state.phase}"
    speed, still = speed_of(state.measures), tried_in_vain(state, cpus_allowed)
    trial = Trial(proposal=proposal, speed=speed, asked_at=now, cpus=cpus_allowed, size=job.granted, epoch=job.epoch)
    numbers = {**proposal.numbers, "speed": round(speed, 6), "gain_predicted": round(proposal.gain, 6)}
    cause = Cause(code=proposal.code, sentence=f"{proposal.sentence}: {why}", numbers=numbers)
    failed = {direction: one for direction, one in state.failed.items() if direction in still}
    if proposal.resizes:
        trial = structs.replace(trial, total=total_of(state.measures), told=told, why=cause.sentence)
    after = structs.replace(state, phase=Phase.ACTING, since=now, trial=trial, late=None, failed=failed)
    if proposal.resizes and not proposal.after:
        return outer.scale_up(after, trial, job, now)
    if proposal.resizes:
        cause = structs.replace(cause, sentence=f"room for one more, {cause.sentence}")
    return Moved(state=after, tune=Tune(epoch=job.epoch, ranks=proposal.after, cause=cause), save=True)


def switched_off(state: TunerState, job: Job, *, now: float, free: Mapping[str, Free]) -> Moved:
    """Tuning of the job was switched off: a trial under way is undone, and no other begins."""
    if state.trial is None or state.phase in (Phase.ACTING, Phase.ROLLING_BACK):
        return advance(state, job, None, now=now, free=free)
    if state.resizes:
        return outer.switched_off(state, state.trial, job, now)
    return _undo(state, state.trial, job, "tuning was switched off", now, window=None)


def relieve(state: TunerState, job: Job, ranks: Sequence[Allocation]) -> Moved:
    """Gives these ranks the reclaimed memory back that they are about to need.

    Other asks and trials go on. For the rest of the run the job's memory is not reclaimed again.
    """
    first = ranks[0]
    role = job.spec.roles[first.role]
    sentence = (
        f"{first.role} rank {first.rank} with {size_text(first.memory)} of memory needs more: "
        f"it gets back the {role.memory} that it asked for"
    )
    cause = Cause(code=CauseCode.ROLLED_BACK, sentence=sentence, numbers={"memory_before": float(first.memory)})
    asked = tuple(RankTuning(rank=rank.rank, memory=job.spec.roles[rank.role].memory_bytes) for rank in ranks)
    failed = {**state.failed, "memory:less": _EXHAUSTED}
    remembered = structs.replace(state, failed=failed)
    return Moved(state=remembered, tune=Tune(epoch=job.epoch, ranks=asked, cause=cause), save=True)


def _asked(state: TunerState, trial: Trial, job: Job, now: float, free: Mapping[str, Free]) -> Moved:
    """Check whether the scheduler has met the request: its answer is the job's placement."""
    undoing = state.phase is Phase.ROLLING_BACK
    if has(job, trial.proposal.before if undoing else trial.proposal.after):
        if undoing:
            return Moved(state=settling(state, now, SKIP_AFTER_CHANGE), save=True)
        return Moved(state=verifying(state, now), save=True)
    if now - trial.asked_at < ASK_SECONDS:
        return Moved(state=state)
    if undoing and trial.rollbacks < ROLLBACKS_MAX and rollback.is_under_way(job, trial.proposal):
        return _undo_again(state, trial, job, now, free)
    if undoing:
        given_up = _never_again(state, trial.proposal)
        return Moved(state=settling(given_up, now, SKIP_AFTER_CHANGE), save=True)
    failed = in_vain(state, trial)
    return Moved(state=structs.replace(settling(failed, now, 0), late=trial), save=True)


def _verified(state: TunerState, trial: Trial, job: Job, window: JobWindow | None, now: float) -> Moved:
    if window is not None and not _in_force(window, trial.proposal.after):
        window = None  # granted, but not yet applied by the node
    state = measured(state, window)
    if not enough(state.measures):
        if now - state.since < VERIFY_SECONDS:
            return Moved(state=state)
        return _undo(state, trial, job, f"no steady speed in {VERIFY_SECONDS:.0f} s", now, window=window)
    speed = speed_of(state.measures)
    gain = speed / trial.speed - 1.0
    if is_kept(trial.proposal, gain):
        tune = told_kept(trial, speed, gain, epoch=job.epoch)
        return Moved(state=kept(state, trial, gain, now), tune=tune, save=True)
    why = f"speed {trial.speed:.4g} → {speed:.4g} per second ({gain:+.1%})"
    return _undo(state, trial, job, why, now, window=window, gain=gain)


def _undo(
    state: TunerState, trial: Trial, job: Job, why: str, now: float, *, window: JobWindow | None, gain: float = 0.0
) -> Moved:
    """Ask for the limits from before. If a rank would be killed for lack of memory, the change stays."""
    remembered = in_vain(state, trial)
    if not _may_shrink(trial.proposal, window):
        return Moved(state=settling(remembered, now, SKIP_AFTER_CHANGE), save=True)
    asked = structs.replace(trial, asked_at=now, rollbacks=1, why=why, gain=gain)
    after = structs.replace(remembered, phase=Phase.ROLLING_BACK, since=now, trial=asked, undone=remembered.undone + 1)
    before = trial.proposal.before
    tune = Tune(epoch=job.epoch, ranks=before, cause=rolled_back(asked, "as before"))
    return Moved(state=after, tune=tune, save=True)


def _undo_again(state: TunerState, trial: Trial, job: Job, now: float, free: Mapping[str, Free]) -> Moved:
    """Ask again for a rollback that was refused, or done in part."""
    before = trial.proposal.before
    wanted = rollback.as_it_fits(job, trial.proposal, free, again=trial.rollbacks)
    asked = structs.replace(trial, asked_at=now, rollbacks=trial.rollbacks + 1)
    after = structs.replace(state, since=now, trial=asked)
    if has(job, wanted):
        return Moved(state=after, save=True)
    words = "as before" if wanted == before else "as before, as far as capacity is free"
    cause = rolled_back(asked, words, "; asked for again")
    return Moved(state=after, tune=Tune(epoch=job.epoch, ranks=wanted, cause=cause), save=True)


def _resized(trial: Trial, job: Job) -> bool:
    """Return True if ranks joined or left since the trial began: the measurements then say nothing about it."""
    return bool(trial.size) and job.granted != trial.size


def _in_force(window: JobWindow, limits: Sequence[RankTuning]) -> bool:
    """True if the limits are in force, as far as the nodes report them."""
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


def _never_again(state: TunerState, proposal: Proposal) -> TunerState:
    """No such reclaim again, at any speed: a job that got back only a part is slower, and would give more and more."""
    if proposal.code is not CauseCode.RECLAIMED:
        return state
    return structs.replace(state, failed={**state.failed, proposal.direction: _EXHAUSTED})
