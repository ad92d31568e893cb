"""What the tuner knows of one job: its phase, the change under trial, its latest measurements, what was in vain.

It is data, and stored with every change that is asked for (`weft.tuning.tuner` moves it on).
"""

from collections.abc import Sequence
from enum import StrEnum
from statistics import fmean, pstdev

import msgspec
from msgspec import Struct, structs

from weft.domain.job import Cause, CauseCode
from weft.messages.asks import Scale, Tune
from weft.tuning.held import ALIKE
from weft.tuning.proposal import Failed, Proposal
from weft.tuning.window import JobWindow

SPEED_SPREAD = 0.05  # of the mean, between windows: what counts as stable
CPU_SPREAD = 0.10
STABLE_WINDOWS = 2
SKIP_AFTER_START = 2  # windows that are ignored: the job loads, its caches fill
SKIP_AFTER_CHANGE = 1
VERIFY_WINDOWS_MAX = 5  # a speed that does not settle in so many windows is judged by its mean
VERIFY_SECONDS = 180.0  # a trial without a steady speed for so long is undone
ASK_SECONDS = 20.0  # an ask that is not done by then counts as refused
ROLLBACKS_MAX = 5  # a rollback asked for so often is given up: other jobs have what it needs
GAIN_KEPT = 0.03
WORTH_KEPT = 0.3  # gain over cost
LOSS_KEPT = 0.03  # what a reclaim may cost


class Phase(StrEnum):
    SETTLING = "settling"
    STABLE = "stable"
    ACTING = "acting"  # asked for, and not yet seen in the job's placement
    VERIFYING = "verifying"
    ROLLING_BACK = "rolling-back"


class Trial(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change under trial. `asked_at`: when it, or its rollback, was asked for last; `cpus`: allowed then.

    `size`: replicas by role, and `epoch`, when it began. Of a trial of another size also `total`, the speed of all
    ranks together, `told`: how many ranks of the role reported their speed, and whether the size was asked for already.
    """

    proposal: Proposal
    speed: float
    asked_at: float
    cpus: float
    rollbacks: int = 0
    why: str = ""  # why it is undone
    gain: float = 0.0  # as measured
    size: dict[str, int] = {}
    epoch: int = 0
    total: float = 0.0
    told: int = 0
    scaled: bool = False


class Measure(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One window: speed, CPU used, how many ranks reported a speed. `total`: the speed of all ranks together."""

    speed: float
    cpus: float
    told: int
    total: float = 0.0


class TunerState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the tuner knows of a job in one epoch. `skip`: how many windows to ignore still; `since`: of this phase.

    `late`: a change that was not done in time; should it be done after all, it is under trial. `size`: replicas by
    role after the last trial of another size; `exponents`: how the speed grew with the replicas of a role, as measured
    by those of them that were kept; `rests_until`: no replica is asked for before.
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
    size: dict[str, int] = {}
    exponents: dict[str, float] = {}
    rests_until: float = 0.0

    @property
    def resizes(self) -> bool:
        """True if another size is under trial."""
        return self.trial is not None and self.trial.proposal.resizes


class Moved(Struct, frozen=True, kw_only=True):
    """The next state, and what to ask for with it: limits or a size. `save`: the state is to be stored at once."""

    state: TunerState
    tune: Tune | None = None
    scale: Scale | None = None
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
    """The state as stored, without its measures. A state of another epoch or a later version is forgotten; but a trial
    of another size goes on in the next epoch, since the job may have restarted for it."""
    state = parse(stored)
    if state is None or (state.epoch != epoch and not (state.resizes and epoch > state.epoch)):
        return begin(epoch, now)
    phase = Phase.SETTLING if state.phase is Phase.STABLE else state.phase
    trial = state.trial and structs.replace(state.trial, asked_at=now)
    skip = SKIP_AFTER_CHANGE if state.epoch == epoch else SKIP_AFTER_START
    return structs.replace(state, epoch=epoch, phase=phase, trial=trial, since=now, skip=skip, measures=())


def same_trials(one: TunerState, other: TunerState) -> bool:
    """True if both states have the same trials; measures may differ."""
    return _trials(one) == _trials(other)


def _trials(state: TunerState) -> tuple[object, ...]:
    under_trial = state.trial and (state.trial.proposal, state.trial.rollbacks, state.trial.scaled)
    return state.epoch, under_trial, state.kept, state.undone, state.failed


def is_kept(proposal: Proposal, gain: float) -> bool:
    """True if the measured gain is worth keeping the change."""
    if proposal.code is CauseCode.RECLAIMED:
        return gain >= -LOSS_KEPT
    return gain >= GAIN_KEPT and (proposal.cost <= ALIKE or gain / proposal.cost >= WORTH_KEPT)


def rolled_back(trial: Trial, words: str, more: str = "") -> Cause:
    numbers = {"speed_before": trial.total or trial.speed, "gain": trial.gain, "cost": trial.proposal.cost}
    return Cause(
        code=CauseCode.ROLLED_BACK,
        sentence=f"{words} ({trial.proposal.sentence} did not pay): {trial.why}{more}",
        numbers={name: round(value, 6) for name, value in numbers.items()},
    )


def told_kept(trial: Trial, speed: float, gain: float, *, epoch: int, of: str = "") -> Tune:
    """Asks for no limits, only for a line in the story with the gain of the change. `of`: the role whose speed it is,
    if not the job's."""
    before = trial.total or trial.speed
    numbers = {
        "speed_before": before,
        "speed": speed,
        "gain": gain,
        "gain_predicted": trial.proposal.gain,
        "cost": trial.proposal.cost,
    }
    sentence = f"{trial.proposal.sentence} stays: speed{of} {before:.4g} → {speed:.4g} per second ({gain:+.1%})"
    cause = Cause(
        code=CauseCode.KEPT, sentence=sentence, numbers={name: round(value, 6) for name, value in numbers.items()}
    )
    return Tune(epoch=epoch, ranks=(), cause=cause)


def in_vain(state: TunerState, trial: Trial) -> TunerState:
    direction = trial.proposal.direction
    before = state.failed.get(direction)
    times = 1 + (before.times if before is not None else 0)
    failed = Failed(times=times, speed=trial.speed, cpus=trial.cpus)
    return structs.replace(state, failed={**state.failed, direction: failed})


def kept(state: TunerState, trial: Trial, gain: float, now: float) -> TunerState:
    failed = {name: one for name, one in state.failed.items() if name != trial.proposal.direction}
    settled = settling(structs.replace(state, failed=failed), now, 0)
    phase = Phase.STABLE if is_stable(state.measures) else Phase.SETTLING
    return structs.replace(settled, phase=phase, kept=state.kept + 1, gained=state.gained * (1.0 + gain))


def settling(state: TunerState, now: float, skip: int) -> TunerState:
    measures = state.measures if skip == 0 else ()
    return structs.replace(state, phase=Phase.SETTLING, since=now, skip=skip, trial=None, measures=measures)


def verifying(state: TunerState, now: float, skip: int = SKIP_AFTER_CHANGE) -> TunerState:
    return structs.replace(state, phase=Phase.VERIFYING, since=now, skip=skip, measures=())


def measured(state: TunerState, window: JobWindow | None) -> TunerState:
    if window is None:
        return state
    if state.skip:
        return structs.replace(state, skip=state.skip - 1)
    if window.speed is None or window.speed <= 0.0:
        return structs.replace(state, measures=())
    measure = Measure(
        speed=window.speed, cpus=window.cpus_used or 0.0, told=len(window.speeds), total=window.total or 0.0
    )
    return structs.replace(state, measures=(*state.measures, measure)[-VERIFY_WINDOWS_MAX:])


def is_stable(measures: Sequence[Measure]) -> bool:
    latest = measures[-STABLE_WINDOWS:]
    if len(latest) < STABLE_WINDOWS or len({measure.told for measure in latest}) > 1:
        return False
    speeds, cpus = [measure.speed for measure in latest], [measure.cpus for measure in latest]
    return _spread(speeds) < SPEED_SPREAD and _spread(cpus) < CPU_SPREAD


def enough(measures: Sequence[Measure]) -> bool:
    """True if a trial can be judged by these."""
    return is_stable(measures) or len(measures) >= VERIFY_WINDOWS_MAX


def speed_of(measures: Sequence[Measure]) -> float:
    """The mean of the latest windows, or of all if they are not stable."""
    return fmean(measure.speed for measure in _latest(measures))


def total_of(measures: Sequence[Measure]) -> float:
    """The same of the speed of all ranks together."""
    return fmean(measure.total for measure in _latest(measures))


def _latest(measures: Sequence[Measure]) -> Sequence[Measure]:
    return measures[-STABLE_WINDOWS:] if is_stable(measures) else measures


def _spread(values: Sequence[float]) -> float:
    mean = fmean(values)
    return pstdev(values) / mean if mean > 0.0 else 0.0
