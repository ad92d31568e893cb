"""NEARCHUS's outer loop for one job: a trial of one more replica, from the ask to the verdict or back.

The ask waits for room for `ROOM_SECONDS`. It is withdrawn by asking for the size before, and the store takes that only
once the first ask is done: neither is lost, and none is done late. A job that restarts for the trial goes on with it in
its next epoch. Another size that others gave the job ends the trial without a verdict.
"""

from collections.abc import Mapping
from math import log

from msgspec import structs

from weft.domain.job import Cause, CauseCode, Job
from weft.messages.asks import Scale, Tune
from weft.tuning.held import has, has_size
from weft.tuning.state import (
    ASK_SECONDS,
    ROLLBACKS_MAX,
    SKIP_AFTER_CHANGE,
    SKIP_AFTER_START,
    VERIFY_SECONDS,
    Moved,
    Phase,
    Trial,
    TunerState,
    enough,
    in_vain,
    is_kept,
    kept,
    measured,
    rolled_back,
    settling,
    told_kept,
    total_of,
    verifying,
)
from weft.tuning.window import JobWindow

ROOM_SECONDS = 120.0  # for which an ask for a replica waits for room
REST_SECONDS = 300.0  # after an ask that found none, and after a trial without a verdict


def advance(state: TunerState, trial: Trial, job: Job, window: JobWindow | None, *, now: float, changed: bool) -> Moved:
    """The next state of a tuner with such a trial; see `weft.tuning.tuner.advance`."""
    if _overruled(trial, job):
        return _given_up(state, job, now)
    match state.phase:
        case Phase.ROLLING_BACK:
            return _rolling_back(state, trial, job, now)
        case Phase.VERIFYING:
            return _verified(_anew(state) if changed else state, trial, job, window, now)
        case _:
            return _asked(state, trial, job, now)


def switched_off(state: TunerState, trial: Trial, job: Job, now: float) -> Moved:
    """Tuning of the job was switched off while it has the size under trial."""
    if _overruled(trial, job):
        return _given_up(state, job, now)
    return undo(state, trial, job, "tuning was switched off", now)


def undo(
    state: TunerState, trial: Trial, job: Job, why: str, now: float, *, gain: float = 0.0, in_vain_too: bool = True
) -> Moved:
    """Ask for the size before. `in_vain_too`: such a trial would fail again; otherwise it is only put off."""
    remembered = in_vain(state, trial) if in_vain_too else structs.replace(state, rests_until=now + REST_SECONDS)
    asked = structs.replace(trial, asked_at=now, rollbacks=1, why=why, gain=gain)
    after = structs.replace(remembered, phase=Phase.ROLLING_BACK, since=now, trial=asked, undone=remembered.undone + 1)
    return Moved(state=after, scale=_back(asked, job, ""), save=True)


def scale_up(state: TunerState, trial: Trial, job: Job, now: float) -> Moved:
    """Ask for the size under trial."""
    proposal, asked = trial.proposal, structs.replace(trial, asked_at=now, scaled=True, why="")
    numbers = {**proposal.numbers, "speed": round(trial.total, 6), "gain_predicted": round(proposal.gain, 6)}
    cause = Cause(code=proposal.code, sentence=trial.why, numbers=numbers)
    scale = _asked_for(proposal.size_after, job, cause)
    return Moved(state=structs.replace(state, trial=asked), scale=scale, save=True)


def _asked(state: TunerState, trial: Trial, job: Job, now: float) -> Moved:
    """Checks whether the job has what was asked for: first the limits that make room, then the size."""
    if not trial.scaled:
        if has(job, trial.proposal.after):
            return scale_up(state, trial, job, now)
        return Moved(state=state) if now - trial.asked_at < ASK_SECONDS else _given_up(state, job, now)
    if has_size(job, trial.proposal.size_after):
        return Moved(state=verifying(state, now, SKIP_AFTER_START), tune=_shared(trial, job), save=True)
    if job.epoch != trial.epoch and _wants_before(trial, job):
        return _failed(state, trial, job, now)  # it ended with that size, and went back
    if now - trial.asked_at < ROOM_SECONDS:
        return Moved(state=state)
    return undo(state, trial, job, f"no room was free for it within {ROOM_SECONDS:.0f} s", now, in_vain_too=False)


def _verified(state: TunerState, trial: Trial, job: Job, window: JobWindow | None, now: float) -> Moved:
    if not has_size(job, trial.proposal.size_after):
        if _wants_before(trial, job):
            return _failed(state, trial, job, now)
        return undo(state, trial, job, "one of its ranks ended", now)
    if window is not None and not _all_heard(window, trial):
        window = None  # it has its place, and does not work yet
    state = measured(state, window)
    if not enough(state.measures):
        if now - state.since < VERIFY_SECONDS:
            return Moved(state=state)
        return undo(state, trial, job, f"no steady speed of all ranks in {VERIFY_SECONDS:.0f} s", now)
    total = total_of(state.measures)
    gain = total / trial.total - 1.0 if trial.total > 0.0 else 0.0
    if is_kept(trial.proposal, gain):
        exponents = {**state.exponents, _role(trial): _exponent(trial, gain)}
        after = structs.replace(kept(state, trial, gain, now), size=job.granted, exponents=exponents)
        tune = told_kept(trial, total, gain, epoch=job.epoch, of=" of all ranks")
        return Moved(state=after, tune=tune, save=True)
    why = f"speed of all ranks {trial.total:.4g} → {total:.4g} per second ({gain:+.1%})"
    return undo(state, trial, job, why, now, gain=gain)


def _rolling_back(state: TunerState, trial: Trial, job: Job, now: float) -> Moved:
    if _wants_before(trial, job):
        there = has_size(job, trial.proposal.size_before)
        if there or now - trial.asked_at >= VERIFY_SECONDS:
            settled = settling(state, now, SKIP_AFTER_CHANGE)
            return Moved(state=structs.replace(settled, size=job.granted), tune=_given_back(trial, job), save=True)
        return Moved(state=state)
    if now - trial.asked_at < ASK_SECONDS:
        return Moved(state=state)
    if trial.rollbacks >= ROLLBACKS_MAX:
        return _given_up(state, job, now)
    asked = structs.replace(trial, asked_at=now, rollbacks=trial.rollbacks + 1)
    again = structs.replace(state, since=now, trial=asked)
    return Moved(state=again, scale=_back(asked, job, "; asked for again"), save=True)


def _failed(state: TunerState, trial: Trial, job: Job, now: float) -> Moved:
    settled = settling(in_vain(state, trial), now, SKIP_AFTER_START)
    return Moved(state=structs.replace(settled, undone=state.undone + 1, size=job.granted), save=True)


def _given_up(state: TunerState, job: Job, now: float) -> Moved:
    settled = settling(state, now, SKIP_AFTER_CHANGE)
    return Moved(state=structs.replace(settled, rests_until=now + REST_SECONDS), save=True)


def _anew(state: TunerState) -> TunerState:
    """The limits of a rank changed: windows that reach back to before do not count."""
    return structs.replace(state, measures=(), skip=max(state.skip, SKIP_AFTER_CHANGE))


def _overruled(trial: Trial, job: Job) -> bool:
    """True if others gave the job a size that is neither that under trial nor the one before."""
    before = {**trial.size, **trial.proposal.size_before}
    return job.wanted not in (before, {**before, **trial.proposal.size_after})


def _wants_before(trial: Trial, job: Job) -> bool:
    return all(job.wanted[role] == count for role, count in trial.proposal.size_before.items())


def _role(trial: Trial) -> str:
    return next(iter(trial.proposal.size_after))


def _all_heard(window: JobWindow, trial: Trial) -> bool:
    """True if each rank of the role was measured, and reports its speed if all ranks of the role did so before."""
    role = _role(trial)
    had, has = trial.proposal.size_before[role], trial.proposal.size_after[role]
    ranks = [rank for rank in window.ranks if rank.role == role and rank.samples]
    told = sum(rank.speed is not None for rank in ranks)
    return len(ranks) >= has and told >= (has if trial.told >= had else trial.told)


def _shared(trial: Trial, job: Job) -> Tune | None:
    """The limits with which the rank that joined and its peers are alike (`weft.tuning.outscale`)."""
    assert job.placement is not None
    sharing = trial.proposal.sharing
    if not sharing or job.epoch != trial.epoch:
        return None  # of a job that restarted, any rank may be the new one
    new = max((one for one in job.placement.staying if one.role == _role(trial)), key=lambda one: one.rank)
    ranks = tuple(structs.replace(one, rank=new.rank) if one.rank < 0 else one for one in sharing)
    sentence = f"{new.role} rank {new.rank} has as much as its peers: it joined with what its role asks for"
    return Tune(epoch=job.epoch, ranks=ranks, cause=Cause(code=CauseCode.REBALANCED, sentence=sentence))


def _given_back(trial: Trial, job: Job) -> Tune | None:
    """The limits that the peers of the replica had before; None if they have them."""
    before = trial.proposal.before
    if not before or job.epoch != trial.epoch or has(job, before):
        return None
    return Tune(epoch=job.epoch, ranks=before, cause=rolled_back(trial, "its peers as before"))


def _exponent(trial: Trial, gain: float) -> float:
    """With which power of its replicas the speed grew: 1 in proportion, 0 not at all."""
    role = _role(trial)
    more = trial.proposal.size_after[role] / trial.proposal.size_before[role]
    return round(min(1.0, max(0.0, log(max(1.0 + gain, 1e-9)) / log(more))), 6)


def _back(trial: Trial, job: Job, more: str) -> Scale:
    return _asked_for(trial.proposal.size_before, job, rolled_back(trial, "as before", more))


def _asked_for(size: Mapping[str, int], job: Job, cause: Cause) -> Scale:
    """The command to set that size. The scheduler drops it if the wanted size of the job has changed meanwhile."""
    now = {role: job.wanted[role] for role in size}
    return Scale(size=dict(size), epoch=job.epoch, instead_of=now, cause=cause)
